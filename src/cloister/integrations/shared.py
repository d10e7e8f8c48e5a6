"""What the integrations share: commands with their output in order, and our errors as Python's own."""

from __future__ import annotations

import errno
import posixpath
import threading
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cloister.client.asynchronous import AsyncSandbox
from cloister.client.synchronous import Sandbox, wait
from cloister.core.computer import Exited, Output
from cloister.core.errors import CloisterError, UserError

WORK_DIR = "/work"
MISSING, NOT_RUNNABLE = 127, 126
"""How a shell reports a program that is not there, and one that is no program."""
GONE = ("no_such_sandbox", "sandbox_lost")
"""Codes of a sandbox that has ended."""


@dataclass(slots=True)
class Ran:
    """A command that ended. Output beyond the limit was read and dropped."""

    exit_code: int = 0
    """128 and the signal's number if a signal ended it."""
    timed_out: bool = False
    truncated: bool = False
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    both: bytearray = field(default_factory=bytearray)
    """Both streams, in the order in which they were printed."""

    @property
    def stdout(self) -> str:
        return self.out.decode("utf-8", errors="replace")

    @property
    def stderr(self) -> str:
        return self.err.decode("utf-8", errors="replace")

    @property
    def output(self) -> str:
        return self.both.decode("utf-8", errors="replace")

    def take(self, item: Output | Exited, limit_bytes: int) -> None:
        match item:
            case Output():
                own = self.out if item.stream == "out" else self.err
                self.truncated = self.truncated or len(own) + len(item.data) > limit_bytes
                own += item.data[: max(0, limit_bytes - len(own))]
                self.both += item.data[: max(0, limit_bytes - len(self.both))]
            case Exited():
                self.exit_code = 128 + (item.signal or 0) if item.code is None else item.code
                self.timed_out = item.killed == "time"


async def run(
    sandbox: AsyncSandbox,
    command: str | Sequence[str],
    *,
    limit_bytes: int = 8_388_608,
    stop_at_limit: bool = False,
    **more: Any,
) -> Ran:
    """Run a line for bash, or words, to its end; `limit_bytes` of each stream are kept.

    `stop_at_limit` kills the command there. A program that does not exist is a result, as in a shell.
    """
    ran = Ran()
    try:
        async with aclosing(sandbox.stream(command, **more)) as items:
            async for item in items:
                ran.take(item, limit_bytes)
                if ran.truncated and stop_at_limit:
                    break
    except UserError as error:
        if "could not be started" not in error.message:
            raise
        ran.exit_code = MISSING if error.code == "not_found" else NOT_RUNNABLE
        ran.err += error.message.encode()
        ran.both += error.message.encode()
    return ran


def run_sync(sandbox: Sandbox, command: str | Sequence[str], **more: Any) -> Ran:
    """`run` for plain code."""
    return wait(partial(run, sandbox.asynchronous, command, **more))


async def as_os_error(sandbox: AsyncSandbox, path: str, error: CloisterError) -> Exception:
    """The error of a file operation on `path` as Python raises it; `error` itself if it is another one."""
    match error.code:
        case "not_found":
            found = errno.ENOENT
        case "denied":
            found = errno.EACCES
        case "not_a_directory":
            found = errno.ENOTDIR
        case "not_a_file" | "file_failed":
            found = await _why(sandbox, path)
        case _:
            return error
    said = f"{path} is a directory." if found == errno.EISDIR else error.message
    return OSError(found, said, path)


async def _why(sandbox: AsyncSandbox, path: str) -> int:
    """What is in the way of an operation that needs a file."""
    if await kind_of(sandbox, path) == "dir":
        return errno.EISDIR
    above = posixpath.dirname(posixpath.join(WORK_DIR, path))
    while above != "/":
        if (kind := await kind_of(sandbox, above)) is not None:
            return errno.ENOTDIR if kind == "file" else errno.EIO
        above = posixpath.dirname(above)
    return errno.EIO


async def kind_of(sandbox: AsyncSandbox, path: str) -> str | None:
    """`file`, `dir`, `link` or `other`; None if there is nothing, or nothing to be seen."""
    try:
        return (await sandbox.files.stat(path)).kind
    except UserError as error:
        if error.code in GONE:
            raise
        return None


def end(sandbox: Sandbox) -> None:
    """Destroy a sandbox whose owner was collected, in whichever thread that happened."""
    if threading.current_thread().name == "cloister-client":
        # The loop that would do it cannot wait for itself.
        threading.Thread(target=sandbox.close, daemon=True).start()
        return
    with suppress(CloisterError):  # its time to live ends it
        sandbox.close()


def variables(env: Mapping[str, str] | None) -> dict[str, str]:
    return dict(env or {})
