"""Pydantic AI: a workspace backend, and the capability that gives each run one.

`Agent(…, capabilities=[CloisterCapability(), Shell(), FileSystem()])`, with the last two of `pydantic-ai-harness`
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import anyio
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    WorkspaceBackend,
    WorkspaceCommand,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)
from pydantic_ai.workspaces.protocol import validate_timeout

from cloister.client.asynchronous import AsyncClient, AsyncSandbox
from cloister.core.errors import CloisterError
from cloister.integrations.shared import GONE, WORK_DIR, as_os_error, run, variables

if TYPE_CHECKING:
    from pydantic_ai import RunContext

    from cloister.core.computer import Entry

PROVIDER = "cloister"
OUTPUT_BYTES = 16_777_216
"""How much each stream of a command may have: more is an error."""


class CloisterBackend:
    """A sandbox, opened by the first operation, or the one that `ref` names. The holder of the ref destroys it.

    `wishes` are the arguments of `AsyncClient.create`.
    """

    def __init__(
        self, client: AsyncClient | None = None, *, ref: WorkspaceRef | None = None, **wishes: Any
    ) -> None:
        if ref is not None and ref.provider != PROVIDER:
            raise ValueError(f"{ref.provider!r} is not a workspace of Cloister.")
        self._client = client or AsyncClient()
        self._ref = ref
        self._wishes = wishes
        self._opening = anyio.Lock()
        self._opened: AsyncSandbox | None = None

    @property
    def ref(self) -> WorkspaceRef | None:
        return self._ref

    async def sandbox(self) -> AsyncSandbox:
        """Raises `WorkspaceUnavailableError` if it has ended."""
        async with self._opening:
            if self._opened is None:
                # A caller that is cancelled must not lose a sandbox that exists.
                with anyio.CancelScope(shield=True):
                    self._opened = await self._open()
            return cast(AsyncSandbox, self._opened)

    async def _open(self) -> AsyncSandbox:
        if self._ref is None:
            made = await self._client.create(**self._wishes)
            self._ref = WorkspaceRef(provider=PROVIDER, id=made.id)
            return made
        try:
            return await self._client.sandbox(self._ref.id)
        except CloisterError as error:
            raise _unavailable(error) from error

    async def working_dir(self) -> str:
        await self.sandbox()
        return WORK_DIR

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        validate_timeout(timeout)
        if isinstance(command, str) is not shell:
            raise TypeError("A text needs shell=True, and a sequence of words shell=False.")
        sandbox = await self.sandbox()
        try:
            ran = await run(
                sandbox,
                command,
                env=variables(env),
                seconds=timeout,
                limit_bytes=OUTPUT_BYTES,
                stop_at_limit=True,
            )
            if ran.exit_code > 128:
                await sandbox.refresh()  # a command that died with its sandbox is no result
        except CloisterError as error:
            raise _unavailable(error) from error
        told = {"stdout": ran.stdout, "stderr": ran.stderr}
        if ran.timed_out:
            raise WorkspaceTimeoutError(f"The command took longer than {timeout} seconds.", **told)
        if ran.truncated:
            raise WorkspaceOutputLimitError("The command printed too much.", limit=OUTPUT_BYTES, **told)
        return CommandResult(exit_code=ran.exit_code, **told)

    # Files. Our own paths are not followed where they are links: a link is resolved first.

    async def read_bytes(self, path: str) -> bytes:
        sandbox = await self.sandbox()
        try:
            return await sandbox.files.read(path)
        except CloisterError as error:
            raise await self._error(path, error) from error

    async def write_bytes(self, path: str, data: bytes) -> None:
        sandbox, mode = await self.sandbox(), 0o644
        try:
            entry = await self._entry(path)
            if entry is not None and entry.kind == "link":
                path = await self.realpath(path)
                entry = await self._entry(path)
            if entry is not None:
                _check_writable(path, entry)
                mode = entry.mode & 0o777
            await sandbox.files.write(path, data, mode=mode)
        except CloisterError as error:
            raise await self._error(path, error) from error

    async def stat(self, path: str) -> FileEntry:
        sandbox = await self.sandbox()
        try:
            entry = await sandbox.files.stat(path)
            if entry.kind == "link":
                entry = await sandbox.files.stat(await self.realpath(path))
        except CloisterError as error:
            raise await self._error(path, error) from error
        return _shown(path, entry)

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        sandbox = await self.sandbox()
        try:
            entries = await sandbox.files.list(path)
        except CloisterError as error:
            raise await self._error(path, error) from error
        found: list[FileEntry] = []
        for entry in sorted(entries, key=lambda one: one.name):
            where = posixpath.join(path, entry.name)
            try:
                found.append(await self.stat(where) if entry.kind == "link" else _shown(where, entry))
            except OSError:  # a link that leads nowhere
                found.append(_shown(where, entry))
        return found

    async def make_dir(self, path: str) -> None:
        sandbox = await self.sandbox()
        try:
            if (entry := await self._entry(path)) is not None and entry.kind == "file":
                raise FileExistsError(errno.EEXIST, "There is a file of that name.", path)
            await sandbox.files.mkdir(path)
        except CloisterError as error:
            raise await self._error(path, error) from error

    async def remove(self, path: str) -> None:
        sandbox = await self.sandbox()
        plain = posixpath.normpath(path)
        if plain == WORK_DIR or WORK_DIR.startswith(plain.rstrip("/") + "/"):
            raise ValueError("The working directory and what is above it cannot be removed.")
        try:
            await sandbox.files.remove(path, recursive=True)
        except CloisterError as error:
            raise await self._error(path, error) from error

    async def exists(self, path: str) -> bool:
        try:
            await self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def realpath(self, path: str) -> str:
        done = await self.run(["realpath", "-zm", "--", path])
        if done.exit_code != 0:
            raise OSError(errno.ELOOP, done.stderr.strip(), path)
        return done.stdout.rstrip("\0")

    async def _entry(self, path: str) -> Entry | None:
        try:
            return await (await self.sandbox()).files.stat(path)
        except CloisterError as error:
            if error.code in GONE:
                raise
            return None

    async def _error(self, path: str, error: CloisterError) -> Exception:
        if error.code in GONE:
            return _unavailable(error)
        return await as_os_error(await self.sandbox(), path, error)


def _shown(path: str, entry: Entry) -> FileEntry:
    is_dir = entry.kind == "dir"
    size = entry.size if entry.kind == "file" else None
    return FileEntry(name=posixpath.basename(path), path=path, is_dir=is_dir, size=size)


def _check_writable(path: str, entry: Entry) -> None:
    """A file is replaced as a whole, which its own mode would not prevent."""
    if entry.kind == "dir":
        raise IsADirectoryError(errno.EISDIR, "It is a directory.", path)
    if not entry.mode & 0o222:
        raise PermissionError(errno.EACCES, "Its mode does not permit writing.", path)


def _unavailable(error: CloisterError) -> Exception:
    return WorkspaceUnavailableError(error.message) if error.code in GONE else error


class CloisterCapability(AbstractCapability[Any]):
    """Gives each run a sandbox of its own, or the one that its `workspace=` names. `wishes` as in `CloisterBackend`."""

    def __init__(self, client: AsyncClient | None = None, **wishes: Any) -> None:
        self._client = client
        self._wishes = wishes

    def get_workspace(self, ctx: RunContext[Any], *, ref: WorkspaceRef | None) -> WorkspaceBackend | None:
        if ref is not None and ref.provider != PROVIDER:
            return None
        return CloisterBackend(self._client, ref=ref, **self._wishes)
