"""Start `shfmt`, which parses shell text without running it. Time, output and memory are limited."""

import resource
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL
from typing import TYPE_CHECKING

import anyio

from cloister.core.system import looped
from cloister.core.system._spawn import begin, blocking, ending, limit

if TYPE_CHECKING:
    from anyio.abc import Process

_SECONDS = 5.0
_OUTPUT_BYTES = 16_777_216
_MEMORY_BYTES = 1_073_741_824
_ENV = {"PATH": "", "GOMAXPROCS": "1"}


def installed() -> Path:
    """The path of `shfmt`, next to the Python interpreter."""
    beside = Path(sys.executable).with_name("shfmt")
    if beside.exists():
        return beside
    import sysconfig  # noqa: PLC0415  (slow to load)

    return Path(sysconfig.get_path("scripts")) / "shfmt"


async def syntax_tree(text: str, program: Path | None = None) -> bytes | None:
    """The syntax tree of `text` as JSON; None if it is not bash or too large."""
    argv = [str(program or installed()), "--language-dialect=bash", "--to-json"]
    data, limits = text.encode("utf-8", errors="replace"), {resource.RLIMIT_DATA: _MEMORY_BYTES}
    try:
        if not looped():
            done = blocking(argv, _ENV, data, seconds=_SECONDS, out_bytes=_OUTPUT_BYTES, limits=limits)
            return None if done.cut or done.late or done.code else done.out
        process = await begin(argv, stderr=DEVNULL, env=_ENV, cwd="/")
    except OSError:
        return None
    out = bytearray()
    with anyio.move_on_after(_SECONDS) as patience:
        async with ending(process), anyio.create_task_group() as tasks:
            limit(process.pid, limits)
            tasks.start_soon(_feed, process, data)
            assert process.stdout is not None  # noqa: S101  (a pipe was asked for)
            async for part in process.stdout:
                out += part
                if len(out) > _OUTPUT_BYTES:
                    tasks.cancel_scope.cancel()
            await process.wait()
    if patience.cancelled_caught or len(out) > _OUTPUT_BYTES:
        return None
    return bytes(out) if process.returncode == 0 else None


async def _feed(process: "Process", data: bytes) -> None:
    assert process.stdin is not None  # noqa: S101  (a pipe was asked for)
    # If it stops reading, its exit status reports it.
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdin.send(data)
    await process.stdin.aclose()
