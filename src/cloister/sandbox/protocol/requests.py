"""Requests as START frames, FAIL frames as errors, and directories as tar streams."""

import math
import posixpath
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager

from cloister.core import limits
from cloister.core.computer import WORK_DIR, Command, Computer, Exited, Output, Process, Pty, Sink
from cloister.core.errors import SandboxLost, UserError
from cloister.core.text import decode, one_line
from cloister.sandbox.protocol import frames

SECONDS_MAX = 4_000_000.0
"""Times travel as milliseconds in 32 bits."""

FILE_SECONDS = 120.0
"""Limit for one file operation."""

TREE_SECONDS = 3_600.0
"""Limit for moving and removing, which may copy a large tree."""


def start_frame(channel: int, command: Command, env: Mapping[str, str]) -> frames.Start:
    """The START frame of `command`. Raises `UserError` (`bad_command`)."""
    if not command.argv or not command.argv[0]:
        raise UserError("bad_command", "The command is empty: give at least the name of a program.")
    for name in command.env:
        if not name or "=" in name:
            raise UserError(
                "bad_command", f"{one_line(name)!r} cannot be the name of an environment variable."
            )
    rows, columns = (0, 0) if command.pty is None else terminal_size(command.pty)
    return frames.Start(
        channel,
        tuple(_text("An argument", word) for word in command.argv),
        cwd=inside_path(command.cwd),
        env=tuple(_text("A variable", f"{k}={v}") for k, v in {**env, **command.env}.items()),
        pty=command.pty is not None,
        root=command.user == "root",
        timeout_ms=max(1, _milliseconds("seconds", command.seconds)),
        grace_ms=_milliseconds("grace_seconds", command.grace_seconds),
        rows=rows,
        columns=columns,
    )


def file_frame(channel: int, kind: frames.Kind, argv: tuple[str, ...], seconds: float) -> frames.Start:
    """A file operation; `seconds` of 0 is no limit."""
    return frames.Start(
        channel,
        argv,
        kind,
        timeout_ms=_milliseconds("seconds", seconds),
        grace_ms=_milliseconds("seconds", limits.GRACE_SECONDS),
    )


def inside_path(path: str) -> str:
    """An absolute path inside. The guest resolves it."""
    if not path:
        raise UserError("not_found", "The path is empty: name a file.")
    return posixpath.join(WORK_DIR, _text("A path", path))


def terminal_size(size: Pty) -> tuple[int, int]:
    if not (1 <= size.rows <= 65_535 and 1 <= size.columns <= 65_535):
        raise UserError("bad_command", "A terminal has between 1 and 65,535 rows and columns.")
    return size.rows, size.columns


def _text(what: str, text: str) -> str:
    if "\0" in text:
        raise UserError("bad_command", f"{what} holds a NUL byte, which no program can receive: remove it.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError("bad_command", f"{what} is not valid Unicode: remove the lone surrogate.") from None
    return text


def _milliseconds(name: str, seconds: float) -> int:
    if not math.isfinite(seconds) or not 0 <= seconds <= SECONDS_MAX:
        raise UserError(
            "bad_command", f"`{name}` is {seconds:g} and must be between 0 and {SECONDS_MAX:,.0f} seconds."
        )
    return round(seconds * 1000)


def start_error(command: Command, fail: frames.Fail) -> UserError:
    """Why `command` could not be started."""
    match fail.code:
        case "too_many":
            return too_many()
        case "not_found" | "denied" | "not_a_directory":
            code = fail.code
        case "not_a_file" | "no_space" | "failed":
            code = "start_failed"
    program = one_line(command.argv[0])
    return UserError(code, f"{program} could not be started in the sandbox ({fail.text}).")


def file_error(kind: frames.Kind, path: str, fail: frames.Fail) -> UserError:
    """Why a file operation on `path` failed."""
    where = one_line(path, 200)
    match fail.code:
        case "not_found":
            return UserError("not_found", f"There is no {where} in the sandbox.")
        case "denied":
            return UserError("denied", f"The agent's user may not {_VERB.get(kind, kind)} {where}.")
        case "not_a_file":
            return UserError("not_a_file", f"{where} is not a regular file.")
        case "not_a_directory" if kind in ("list", "mkdir", "watch", "mark"):
            return UserError("not_a_directory", f"{where} is not a directory.")
        case "too_many":
            return too_many()
        case "no_space":
            return UserError("file_failed", f"There is no space left in the sandbox for {where}.")
        case "failed" | "not_a_directory":
            return UserError(
                "file_failed", f"The sandbox cannot {_VERB.get(kind, kind)} {where} ({fail.text})."
            )


def too_many() -> UserError:
    return UserError(
        "too_many_commands",
        f"{limits.CONCURRENT_COMMANDS} commands run in this sandbox already: wait for one of them to end.",
    )


def dial_error(port: int, fail: frames.Fail) -> UserError:
    """Why a port inside could not be reached."""
    match fail.code:
        case "not_found":
            return UserError(
                "no_such_port", f"Nothing listens on port {port} in the sandbox: start it first."
            )
        case "too_many":
            return UserError(
                "too_many_connections", "Too many connections into this sandbox at once: close some first."
            )
        case _:
            return UserError("port_failed", f"Port {port} in the sandbox cannot be reached ({fail.text}).")


_VERB: dict[frames.Kind, str] = {"program": "run", "stat": "look at", "mkdir": "make", "mark": "look at"}
"""Other kinds are named by their verb."""


_WORDS_BYTES = 2_000
_SECONDS = 86_400.0


@asynccontextmanager
async def download(computer: Computer, path: str) -> AsyncGenerator[AsyncIterator[bytes]]:
    """See `Computer.download`. The tar inside packs; the host passes the bytes on unread."""
    await computer.list(path)  # raises a clear error for a path that is not a directory
    command = Command(
        ("tar", "-c", "-f", "-", "--", "."), cwd=path, seconds=_SECONDS, limit_bytes=limits.ENDLESS_BYTES
    )
    async with computer.start(command) as process:
        await process.send_eof()
        pieces = _pieces(process)
        try:
            yield pieces
        finally:
            await pieces.aclose()


async def _pieces(process: Process) -> AsyncGenerator[bytes]:
    words = b""
    async for item in process:
        match item:
            case Output("out", data):
                yield data
            case Output(_, data):
                words = (words + data)[:_WORDS_BYTES]
            case Exited(code=1):
                return  # "file changed as we read it": the archive is still complete
            case Exited():
                if not item.ok:
                    raise _refused("packed", words, item)


@asynccontextmanager
async def upload(computer: Computer, path: str) -> AsyncGenerator[Sink]:
    await computer.mkdir(path)
    # The owners in the archive are those of another machine.
    argv = ("tar", "-x", "-f", "-", "--no-same-owner", "--no-same-permissions", "--warning=no-timestamp")
    async with computer.start(Command(argv, cwd=path, seconds=_SECONDS)) as process:
        yield process
        await process.send_eof()
        words = b""
        async for item in process:
            match item:
                case Output(_, data):
                    words = (words + data)[:_WORDS_BYTES]
                case Exited():
                    if not item.ok:
                        raise _refused("unpacked", words, item)
                    return
        raise SandboxLost("The guest ended a command without a status.")


def _refused(verb: str, words: bytes, exited: Exited) -> UserError:
    said = one_line(decode(words), 300) or f"status {exited.code}, signal {exited.signal}"
    return UserError("bad_archive", f"The archive could not be {verb} in the sandbox ({said}).")
