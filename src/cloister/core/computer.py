"""Commands, their results, and the computer that runs them."""

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
    """Added to the sandbox's environment."""
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
    """The command ended; nothing follows. Reported by the kernel inside, never invented."""

    code: int | None
    """Exit status; None if a signal ended it."""
    signal: int | None = None
    killed: Killed | None = None
    """Why Cloister killed it; None if it ended by itself."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.code == 0 and self.killed is None


class Finished(msgspec.Struct, frozen=True):
    """A command that ran to its end, with its collected output."""

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
    """A change below a watched directory."""

    kind: Literal["created", "changed", "removed", "overflow"]
    """`overflow`: changes were lost; list the directory. A move is `removed` and `created`."""
    path: str
    """Relative to the directory; for `overflow`, the part that is no longer watched, empty for all."""


class Sink(Protocol):
    """Accepts bytes."""

    async def send(self, data: bytes) -> None:
        """Wait until the bytes are accepted. Raises the error that ended the sink."""
        ...


class Process(Protocol):
    """A running command. Iterating yields output in order, then exactly one `Exited`."""

    def __aiter__(self) -> AsyncIterator[Output | Exited]: ...

    async def send(self, data: bytes) -> None:
        """Write to stdin; wait while the command does not read. A no-op after its end."""
        ...

    async def send_eof(self) -> None: ...

    async def signal(self, number: int) -> None:
        """Signal the command's process group."""
        ...

    async def resize(self, size: Pty) -> None: ...

    async def kill(self) -> None:
        """Kill the whole tree, as the time limit would; `Exited` follows. A no-op after its end."""
        ...


class Computer(Protocol):
    """The machine that the loop and git run commands on.

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
        """Return a change token for a directory tree, ignoring the entry named `without`.

        0 equals no other token: the tree is changing. None if the tree is too large. Raises as `list`.
        """
        ...

    async def move(self, source: str, target: str) -> None:
        """Rename a file or directory, replacing a file; creates parent directories."""
        ...

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or a directory, which must be empty unless `recursive`. Raises as `read`."""
        ...

    async def mkdir(self, path: str, *, mode: int = 0o755) -> None:
        """Create a directory and its parents; an existing one is fine. Raises as `list`."""
        ...

    def read_stream(
        self, path: str, *, offset: int = 0, limit_bytes: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Stream a regular file of any size. Raises as `read`, on entering."""
        ...

    def write_stream(self, path: str, *, mode: int = 0o644) -> AbstractAsyncContextManager[Sink]:
        """As `write`, for any size: the file is replaced when the block succeeds, else the old one stays."""
        ...

    def watch(self, path: str) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        """Stream the changes below a directory until it is removed. Raises as `list`, on entering.

        A reader that is too slow gets an `overflow`. A change may be reported more than once.
        """
        ...

    def download(self, path: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Stream a directory as a tar archive, made inside. Untrusted. Raises as `list`, on entering."""
        ...

    def upload(self, path: str) -> AbstractAsyncContextManager[Sink]:
        """Unpack a tar archive into a directory, inside and with no more rights than a command has.

        The directory is made. Raises `UserError` (`bad_archive`) when the archive cannot be unpacked.
        """
        ...


def shell(line: str, env: Mapping[str, str] | None = None, **more: object) -> Command:
    """Return a command that runs `line` in bash."""
    return msgspec.convert(
        {"argv": ("/bin/bash", "-c", line), "env": dict(env or {}), **more}, Command, strict=False
    )
