"""Start `shfmt`, which parses shell text without running it. Time, output and memory are limited."""

import resource
import sysconfig
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL

import anyio

from cloister.system._spawn import begin, ending

_SECONDS = 5.0
_OUTPUT_BYTES = 16_777_216
_MEMORY_BYTES = 1_073_741_824


def installed() -> Path:
    """The path of `shfmt`, next to the Python interpreter."""
    return Path(sysconfig.get_path("scripts")) / "shfmt"


async def syntax_tree(text: str, program: Path | None = None) -> bytes | None:
    """The syntax tree of `text` as JSON; None if it is not bash or too large."""
    try:
        process = await begin(
            [str(program or installed()), "--language-dialect=bash", "--to-json"],
            stderr=DEVNULL,
            env={"PATH": "", "GOMAXPROCS": "1"},
            cwd="/",
        )
    except OSError:
        return None
    out = bytearray()
    with anyio.move_on_after(_SECONDS) as patience:
        async with ending(process), anyio.create_task_group() as tasks:
            with suppress(ProcessLookupError):  # it has ended already
                resource.prlimit(process.pid, resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
            tasks.start_soon(_feed, process, text.encode("utf-8", errors="replace"))
            assert process.stdout is not None  # noqa: S101  (a pipe was asked for)
            async for data in process.stdout:
                out += data
                if len(out) > _OUTPUT_BYTES:
                    tasks.cancel_scope.cancel()
            await process.wait()
    if patience.cancelled_caught or len(out) > _OUTPUT_BYTES:
        return None
    return bytes(out) if process.returncode == 0 else None


async def _feed(process: anyio.abc.Process, data: bytes) -> None:
    assert process.stdin is not None  # noqa: S101  (a pipe was asked for)
    # If it stops reading, its exit status reports it.
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdin.send(data)
    await process.stdin.aclose()
