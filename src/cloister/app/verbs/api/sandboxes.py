"""What a person can do with sandboxes made by hand: the verbs of sandboxes, files and snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cloister.app.verbs.declare import BUILD_SECONDS, END_SECONDS, SLOW_SECONDS, inside, needs, no_report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import ByteStream

    from cloister.app.verbs.records import (
        BackgroundCommand,
        CommandOutput,
        Exec,
        Execute,
        Executed,
        NewCommand,
        NewContext,
        NewSandbox,
        PortAddress,
        RunCode,
        SandboxChange,
        SandboxToken,
    )
    from cloister.app.workbench.commands import Skipped
    from cloister.app.workbench.metrics import SandboxMetrics
    from cloister.core.computer import Change, Entry, Exited, Output, Process, Pty, Sink
    from cloister.sandbox.api import Report, SandboxInfo, SnapshotInfo
    from cloister.sandbox.code.contexts import CodeContext, CodeResult, Told
    from cloister.sandbox.pool import PoolInfo


class SnapshotVerbs(Protocol):
    """Files of sandboxes, kept. Unknown ones raise `UserError` (`no_such_snapshot`)."""

    @needs("admin", "POST sandboxes/{sandbox}/snapshots", seconds=SLOW_SECONDS)
    async def take(self, sandbox: str, name: str | None = None) -> SnapshotInfo:
        """Raises `UserError` (`no_such_sandbox`, `bad_name`, `name_taken`)."""
        ...

    async def list(self, sandbox: str | None = None) -> tuple[SnapshotInfo, ...]:
        """The oldest first; with `sandbox`, only those of that sandbox id."""
        ...

    @needs("admin", "GET snapshots/{snapshot}")
    async def get(self, snapshot: str) -> SnapshotInfo:
        """By name or id."""
        ...

    @needs("admin", "DELETE snapshots/{snapshot}", seconds=SLOW_SECONDS)
    async def remove(self, snapshot: str) -> None: ...


class Steered(Protocol):
    """What can be done to a running command; see `Process`."""

    async def send(self, data: bytes) -> None: ...
    async def send_eof(self) -> None: ...
    async def signal(self, number: int) -> None: ...
    async def resize(self, size: Pty) -> None: ...
    async def kill(self) -> None: ...


class Attached(Steered, Protocol):
    """A background command that the caller follows and steers; leaving does not end it."""

    def __aiter__(self) -> AsyncIterator[Output | Skipped | Exited]: ...


class SandboxVerbs(Protocol):
    """Sandboxes made by hand. They live in a server; without one there are none.

    `sandbox` is an id; unknown ones raise `UserError` (`no_such_sandbox`). The sandbox of an attempt of a run can be
    entered as well: commands, files and ports, by the rules of the run (`denied`) and with a record in its log; what its
    life depends on is refused (`sandbox_of_run`).
    """

    async def create(self, wish: NewSandbox, report: Report = no_report) -> tuple[SandboxInfo, bool]:
        """Open a sandbox, building its template first if need be. False: the same `task_id` named it before."""
        ...

    @needs("viewer", "GET sandboxes")
    async def list(self, metadata: str | None = None) -> tuple[SandboxInfo, ...]:
        """The oldest first; with `metadata`, as in the query of a URL (`user=ada&app=x`), those that have all of it.

        Raises `UserError` (`bad_metadata`).
        """
        ...

    @needs("viewer", "GET runs/{run}/sandboxes")
    async def of_run(self, run: str) -> tuple[SandboxInfo, ...]:
        """The sandboxes that the attempts of a run work in now. Raises `UserError` (`no_such_run`)."""
        ...

    @inside
    @needs("admin", "GET sandboxes/{sandbox}")
    async def get(self, sandbox: str) -> SandboxInfo: ...

    @needs("admin", "PATCH sandboxes/{sandbox}", body="change")
    async def change(self, sandbox: str, change: SandboxChange) -> SandboxInfo:
        """Give it another time to live, from now on, or other metadata; pause it, or let it go on.

        Raises `UserError` (`sandbox_paused`), as everything does that needs its processes.
        """
        ...

    @inside
    @needs("admin", "GET sandboxes/{sandbox}/metrics")
    async def metrics(self, sandbox: str) -> SandboxMetrics:
        """What it uses, and the ports that programs inside listen on."""
        ...

    @needs("admin", "POST sandboxes/{sandbox}/token")
    async def token(self, sandbox: str) -> SandboxToken:
        """A token that reaches the inside of this sandbox only: commands, files and ports. It ends with the sandbox."""
        ...

    @needs("admin", "POST sandboxes/{sandbox}/addresses")
    async def address(self, sandbox: str, port: int) -> PortAddress:
        """A name that leads browsers and programs to a port without a token, until the sandbox or its maker's token ends.

        Raises `UserError` (`bad_port`).
        """
        ...

    @needs("viewer")
    async def resolve(self, name: str) -> SandboxInfo:
        """By id or a unique beginning of it. Raises `UserError` (`no_such_sandbox`, `ambiguous_sandbox`)."""
        ...

    @needs("admin", "POST sandboxes/{sandbox}/fork", seconds=BUILD_SECONDS, count="n")
    async def fork(self, sandbox: str, count: int = 1) -> tuple[SandboxInfo, ...]: ...

    @needs("admin", "DELETE sandboxes/{sandbox}", seconds=END_SECONDS)
    async def destroy(self, sandbox: str) -> None: ...

    @needs("viewer", "GET pool")
    async def pool(self) -> tuple[PoolInfo, ...]:
        """The sandboxes that are kept warm."""
        ...

    @inside
    async def exec(self, sandbox: str, command: Exec) -> Executed:
        """Run a command to its end. Raises `UserError` (`bad_command`)."""
        ...

    @inside
    async def execute(self, sandbox: str, program: Execute) -> Executed:
        """Run code to its end."""
        ...

    @inside
    def process(self, sandbox: str, command: NewCommand) -> AbstractAsyncContextManager[Process]:
        """A live command; leaving the block before its end kills it. Raises `UserError` (`bad_command`)."""
        ...

    @inside
    @needs("admin", "POST sandboxes/{sandbox}/commands", body="command")
    async def start(self, sandbox: str, command: NewCommand) -> BackgroundCommand:
        """Start a background command."""
        ...

    @inside
    @needs("admin", "GET sandboxes/{sandbox}/commands")
    async def commands(self, sandbox: str) -> tuple[BackgroundCommand, ...]:
        """The background commands, also of a sandbox that is gone; the oldest first."""
        ...

    @inside
    @needs("admin", "GET sandboxes/{sandbox}/commands/{command}")
    async def output(self, sandbox: str, command: str, offset: int = 0) -> CommandOutput:
        """Raises `UserError` (`no_such_command`, `bad_offset`)."""
        ...

    @inside
    def attach(self, sandbox: str, command: str, offset: int = 0) -> AbstractAsyncContextManager[Attached]:
        """Follow and steer a background command. Raises `UserError` (`no_such_command`, `bad_offset`)."""
        ...

    @inside
    @needs("admin", "DELETE sandboxes/{sandbox}/commands/{command}", seconds=END_SECONDS)
    async def kill(self, sandbox: str, command: str) -> BackgroundCommand:
        """End a background command; its record stays."""
        ...

    @inside
    @needs("admin", "POST sandboxes/{sandbox}/contexts", body="wish")
    async def new_context(self, sandbox: str, wish: NewContext) -> CodeContext:
        """Start an interpreter whose variables live. Raises `UserError` (`too_many_contexts`, `start_failed`)."""
        ...

    @inside
    @needs("admin", "GET sandboxes/{sandbox}/contexts")
    async def contexts(self, sandbox: str) -> tuple[CodeContext, ...]: ...

    @inside
    async def run_code(
        self, sandbox: str, context: str, code: RunCode, told: Told | None = None
    ) -> CodeResult:
        """Run code in a context; `default` is made when it is first used. An exception is a result.

        `told` gets the output as it arrives: over HTTP, that is at the end.
        Raises `UserError` (`no_such_context`, `context_ended`).
        """
        ...

    @inside
    @needs("admin", "POST sandboxes/{sandbox}/contexts/{context}/restart")
    async def restart_context(self, sandbox: str, context: str) -> CodeContext:
        """The same context without its variables."""
        ...

    @inside
    @needs("admin", "DELETE sandboxes/{sandbox}/contexts/{context}", seconds=END_SECONDS)
    async def remove_context(self, sandbox: str, context: str) -> None: ...

    @inside
    def dial(self, sandbox: str, port: int) -> AbstractAsyncContextManager[ByteStream]:
        """A connection to a port of the loopback inside. Raises `UserError` (`no_such_port`, …)."""
        ...


class FileVerbs(Protocol):
    """Files inside a sandbox; paths are absolute or relative to the work directory. See `Computer` for errors."""

    @inside
    def read(
        self, sandbox: str, path: str, *, offset: int = 0, limit_bytes: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]: ...

    @inside
    def write(self, sandbox: str, path: str, *, mode: int = 0o644) -> AbstractAsyncContextManager[Sink]:
        """The file is replaced when the block ends well. Raises `UserError` (`bad_mode`), and as `Computer.write`."""
        ...

    @inside
    @needs("admin", "GET sandboxes/{sandbox}/files/list")
    async def list(self, sandbox: str, path: str = ".") -> tuple[Entry, ...]: ...

    @inside
    @needs("admin", "GET sandboxes/{sandbox}/files/stat")
    async def stat(self, sandbox: str, path: str) -> Entry: ...

    @inside
    @needs("admin", "POST sandboxes/{sandbox}/files/move")
    async def move(self, sandbox: str, path: str, to: str) -> None: ...

    @inside
    @needs("admin", "POST sandboxes/{sandbox}/files/remove")
    async def remove(self, sandbox: str, path: str, *, recursive: bool = False) -> None: ...

    @inside
    async def mkdir(self, sandbox: str, path: str, *, mode: int = 0o755) -> None: ...

    @inside
    def download(self, sandbox: str, path: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A directory as a tar archive."""
        ...

    @inside
    def upload(self, sandbox: str, path: str) -> AbstractAsyncContextManager[Sink]:
        """Unpack a tar archive into a directory."""
        ...

    @inside
    def watch(self, sandbox: str, path: str = ".") -> AbstractAsyncContextManager[AsyncIterator[Change]]: ...
