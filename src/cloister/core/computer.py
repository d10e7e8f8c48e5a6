"""A command to run in a sandbox and what comes of it, and the computer that runs it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

import msgspec

from cloister.core import limits

Stream = Literal["out", "err"]
Killed = Literal["time", "output", "cancelled", "signal"]
User = Literal["agent", "root"]
WORK_DIR = "/work"


class Pty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size of a terminal, in characters."""

    rows: int = 24
    columns: int = 80


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One program to run, as an argument list; there is no shell unless you name one."""

    argv: tuple[str, ...]
    cwd: str = WORK_DIR
    env: dict[str, str] = {}
    """Added to the sandbox's own environment."""
    user: User = "agent"
    seconds: float = limits.COMMAND_SECONDS
    """Wall-clock limit; then SIGTERM to the whole group, `grace_seconds`, SIGKILL to the whole tree."""
    grace_seconds: float = limits.GRACE_SECONDS
    limit_bytes: int = limits.OUTPUT_BYTES
    """Output, both streams together, after which the command is killed."""
    pty: Pty | None = None
    """With a terminal, everything arrives on `out`."""


class Output(msgspec.Struct, frozen=True, tag="output"):
    """Bytes as they arrived. Untrusted."""

    stream: Stream
    data: bytes


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """The command is over; nothing follows. A fact reported by the kernel inside, never invented."""

    code: int | None
    """Exit status; None when a signal ended it."""
    signal: int | None = None
    killed: Killed | None = None
    """Why we ended it; None when it ended by itself."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.code == 0 and self.killed is None


class Finished(msgspec.Struct, frozen=True):
    """A command that was run to its end with its output collected."""

    exited: Exited
    out: bytes
    err: bytes

    @property
    def ok(self) -> bool:
        return self.exited.ok


class Entry(msgspec.Struct, frozen=True):
    """One name in a directory."""

    name: str
    kind: Literal["file", "dir", "link", "other"]
    size: int
    mode: int
    modified: float
    """Unix seconds."""


class Change(msgspec.Struct, frozen=True):
    """Something happened below a directory that is watched."""

    kind: Literal["created", "changed", "removed", "overflow"]
    """`overflow`: more happened than was kept; look for yourself. What was moved is removed and created."""
    path: str
    """Relative to the directory; of an `overflow`, where nothing more is seen, empty for everywhere."""


class Sink(Protocol):
    """Takes bytes."""

    async def send(self, data: bytes) -> None:
        """Waits while they are not taken. Raises what ended it."""
        ...


class Process(Protocol):
    """A running command. Iterating yields output in order, then exactly one `Exited`."""

    def __aiter__(self) -> AsyncIterator[Output | Exited]: ...

    async def send(self, data: bytes) -> None:
        """Write to stdin; waits while the command does not read. After its end it is a no-op."""
        ...

    async def send_eof(self) -> None: ...

    async def signal(self, number: int) -> None:
        """Signal the command's process group."""
        ...

    async def resize(self, size: Pty) -> None: ...

    async def kill(self) -> None:
        """End it as its time limit would, with its whole tree; `Exited` follows. After its end it is a no-op."""
        ...


class Computer(Protocol):
    """What the loop and git may ask of the place their commands run in.

    Every method may raise `SandboxLost`. Paths are the guest's: absolute, or relative to `/work`.
    File operations run inside, as the same user as commands; a name can never reach the host.
    """

    def start(self, command: Command) -> AbstractAsyncContextManager[Process]:
        """Run `command`; leaving the block before `Exited` was seen kills its whole tree.

        A failing command is a result. Raises `UserError` (`too_many_commands`) over the cap.
        """
        ...

    async def run(self, command: Command, stdin: bytes = b"") -> Finished:
        """Run `command` to its end and collect its output."""
        ...

    async def read(self, path: str, *, offset: int = 0, limit_bytes: int = limits.FILE_BYTES) -> bytes:
        """At most `limit_bytes` of a regular file.

        Raises `UserError` with code `not_found`, `denied`, `not_a_file` or `file_failed`.
        """
        ...

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Create or replace a file, making parent directories; whole or not at all. Raises as `read`."""
        ...

    async def list(self, path: str) -> tuple[Entry, ...]:
        """The names in a directory, sorted. Raises as `read`, and `not_a_directory`."""
        ...

    async def stat(self, path: str) -> Entry:
        """The file itself: a link is not followed. Raises as `read`."""
        ...

    async def mark(self, path: str, *, without: str = "") -> int | None:
        """A number that is another one when anything below a directory was changed, its name `without` left aside.

        0 is equal to none: something is changing just now. None where there is too much to look at. Raises as `list`.
        """
        ...

    async def move(self, source: str, target: str) -> None:
        """Give a file or directory another name, in place of a file there; parent directories are made."""
        ...

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or a directory, which must be empty unless `recursive`. Raises as `read`."""
        ...

    async def mkdir(self, path: str, *, mode: int = 0o755) -> None:
        """Make a directory and its parents; one that is there already is fine. Raises as `list`."""
        ...

    def read_stream(
        self, path: str, *, offset: int = 0, limit_bytes: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A regular file of any size, piece by piece, as fast as it is taken. Raises as `read`, on entering."""
        ...

    def write_stream(self, path: str, *, mode: int = 0o644) -> AbstractAsyncContextManager[Sink]:
        """As `write`, of any size: the file is there when the block ends well, and the old one when it does not."""
        ...

    def watch(self, path: str) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        """What changes below a directory from now on, until that is gone itself. Raises as `list`, on entering.

        Who does not listen misses changes and is told so. One change may be told more than once.
        """
        ...

    def download(self, path: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A directory as a tar archive, made inside. Untrusted. Raises as `list`, on entering."""
        ...

    def upload(self, path: str) -> AbstractAsyncContextManager[Sink]:
        """Unpack a tar archive into a directory, inside and with no more rights than a command has.

        The directory is made. Raises `UserError` (`bad_archive`) when the archive cannot be unpacked.
        """
        ...


def shell(line: str, env: Mapping[str, str] | None = None, **more: object) -> Command:
    """`line` run by bash, as a person would type it."""
    return msgspec.convert(
        {"argv": ("/bin/bash", "-c", line), "env": dict(env or {}), **more}, Command, strict=False
    )
