# pyright: basic, reportMissingImports=false
"""OpenAI Agents SDK: a sandbox client for sandbox agents, and an executor and an editor for plain ones.

`RunConfig(sandbox=SandboxRunConfig(client=CloisterSandboxClient(), options=CloisterSandboxClientOptions()))`,
or `Agent(…, tools=[ShellTool(executor=shell(sandbox)), ApplyPatchTool(editor=Editor(sandbox))])`
"""

from __future__ import annotations

import io
import tarfile
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

from agents.apply_diff import apply_diff
from agents.editor import ApplyPatchOperation, ApplyPatchResult
from agents.sandbox.errors import (
    ConfigurationError,
    ErrorCode,
    ExecTimeoutError,
    ExecTransportError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession, SandboxSessionState
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER, RuntimeHelperScript
from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, User
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tarfile
from agents.tool import ShellCallOutcome, ShellCommandOutput, ShellCommandRequest, ShellResult
from pydantic import Field

from cloister.client.asynchronous import AsyncClient, AsyncSandbox
from cloister.core.errors import CloisterError
from cloister.integrations.shared import WORK_DIR, run

SHELL_SECONDS = 120.0
_ROOT = Manifest.model_fields["root"].default
_ARCHIVE_BYTES = 1_073_741_824


# Sandbox agents.


class CloisterSandboxClientOptions(BaseSandboxClientOptions):
    type: Literal["cloister"] = "cloister"
    template: str = "default"
    """A template, or `snapshot:NAME`."""
    ttl_seconds: float = 7_200
    tier: str = "auto"
    env: dict[str, str] = Field(default_factory=dict)


class CloisterSandboxSessionState(SandboxSessionState):
    type: Literal["cloister"] = "cloister"
    sandbox_id: str
    options: CloisterSandboxClientOptions


class CloisterSandboxSession(BaseSandboxSession):
    """One sandbox, whose workspace is `/work`. Everything in it runs as the agent's user."""

    def __init__(self, state: CloisterSandboxSessionState, sandbox: AsyncSandbox) -> None:
        self.state = state
        self.sandbox = sandbox

    def _prepare_exec_command(self, *command: Any, shell: Any, user: Any) -> list[str]:
        _refuse_user("exec", user)
        return super()._prepare_exec_command(*command, shell=shell, user=None)

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        words = [str(word) for word in command]
        try:
            ran = await run(self.sandbox, words, cwd=self.state.manifest.root, seconds=timeout)
        except CloisterError as error:
            raise ExecTransportError(command=words, cause=error, message=error.message) from error
        if ran.timed_out:
            raise ExecTimeoutError(command=words, timeout_s=timeout)
        return ExecResult(stdout=bytes(ran.out), stderr=bytes(ran.err), exit_code=ran.exit_code)

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        _refuse_user("read", user)
        where = await self._validate_path_access(path)
        try:
            return io.BytesIO(await self.sandbox.files.read(where.as_posix()))
        except CloisterError as error:
            if error.code == "not_found":
                raise WorkspaceReadNotFoundError(path=path, cause=error) from error
            raise WorkspaceArchiveReadError(path=path, cause=error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        _refuse_user("write", user)
        where = await self._validate_path_access(path, for_write=True)
        try:
            await self.sandbox.files.write(where.as_posix(), _bytes(data))
        except CloisterError as error:
            raise WorkspaceArchiveWriteError(path=path, cause=error) from error

    async def running(self) -> bool:
        try:
            await self.sandbox.refresh()
        except CloisterError:
            return False
        return True

    async def persist_workspace(self) -> io.IOBase:
        """The workspace as a tar stream, without what the manifest declares to be fleeting."""
        root = self._workspace_root_path()
        skipped = sorted(path.as_posix() for path in self._persist_workspace_skip_relpaths())
        words = ["tar", "cf", "-", "--no-wildcards", *(f"--exclude=./{path}" for path in skipped), "."]
        try:
            ran = await run(self.sandbox, words, cwd=root.as_posix(), limit_bytes=_ARCHIVE_BYTES)
        except CloisterError as error:
            raise WorkspaceArchiveReadError(path=root, cause=error) from error
        if ran.exit_code != 0 or ran.truncated:
            raise WorkspaceArchiveReadError(path=root, context={"stderr": ran.stderr[-2_000:]})
        return io.BytesIO(bytes(ran.out))

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        root, raw = self._workspace_root_path(), _bytes(data)
        at = f"/tmp/workspace-{self.state.session_id.hex}.tar"  # noqa: S108  (the sandbox's own /tmp)
        try:
            with tarfile.open(fileobj=io.BytesIO(raw), mode="r:*") as archive:
                validate_tarfile(archive, allow_external_symlink_targets=False)
            await self.sandbox.files.mkdir(root.as_posix())
            await self.sandbox.files.write(at, raw)
            ran = await run(self.sandbox, ["tar", "xf", at, "-C", root.as_posix()], cwd="/")
            await self.sandbox.files.remove(at)
        except (CloisterError, UnsafeTarMemberError, tarfile.TarError) as error:
            raise WorkspaceArchiveWriteError(path=root, cause=error) from error
        if ran.exit_code != 0:
            raise WorkspaceArchiveWriteError(path=root, context={"stderr": ran.stderr[-2_000:]})

    async def _prepare_backend_workspace(self) -> None:
        await self.sandbox.files.mkdir(self.state.manifest.root)

    async def _shutdown_backend(self) -> None:
        await self.sandbox.close()


class CloisterSandboxClient(BaseSandboxClient[CloisterSandboxClientOptions]):
    """Makes sessions on the server that `AsyncClient()` finds, or on `client`."""

    backend_id = "cloister"
    supports_default_options = True

    def __init__(self, client: AsyncClient | None = None) -> None:
        super().__init__()
        self._client = client or AsyncClient()

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: CloisterSandboxClientOptions | None = None,
    ) -> SandboxSession:
        chosen = options or CloisterSandboxClientOptions()
        wanted = manifest or Manifest(root=WORK_DIR)
        if wanted.root == _ROOT:
            wanted = wanted.model_copy(update={"root": WORK_DIR})
        wanted = self._validate_manifest_for_create(wanted)
        session_id = uuid.uuid4()
        made = await self._open(wanted, chosen)
        state = CloisterSandboxSessionState(
            session_id=session_id,
            manifest=wanted,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            sandbox_id=made.id,
            options=chosen,
        )
        return self._wrap_session(CloisterSandboxSession(state, made))

    async def _open(self, manifest: Manifest, options: CloisterSandboxClientOptions) -> AsyncSandbox:
        env = options.env | await manifest.environment.resolve()
        return await self._client.create(
            options.template, ttl_seconds=options.ttl_seconds, tier=options.tier, env=env
        )

    async def delete(self, session: SandboxSession) -> SandboxSession:
        await session.shutdown()
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Reach the sandbox again; if it has ended, a new one gets the workspace of the state's snapshot."""
        if not isinstance(state, CloisterSandboxSessionState):
            raise TypeError("The state is that of another sandbox client.")
        try:
            found, lives = await self._client.sandbox(state.sandbox_id), True
        except CloisterError as error:
            if error.code != "no_such_sandbox":
                raise
            found, lives = await self._open(state.manifest, state.options), False
            state.sandbox_id, state.workspace_root_ready = found.id, False
        inner = CloisterSandboxSession(state, found)
        inner._set_start_state_preserved(lives)
        return self._wrap_session(inner)

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, CloisterSandboxSessionState)


def _refuse_user(operation: Any, user: Any) -> None:
    name = user.name if isinstance(user, User) else user
    if name not in (None, "agent"):
        said = f"A session of Cloister acts as the agent's user: `{operation}` without `user`."
        raise ConfigurationError(message=said, error_code=ErrorCode.SANDBOX_CONFIG_INVALID, op=operation)


def _bytes(data: io.IOBase) -> bytes:
    raw = data.read()
    return raw.encode() if isinstance(raw, str) else bytes(raw)


# Plain agents: their shell and patch tools.


def shell(sandbox: AsyncSandbox) -> Callable[[ShellCommandRequest], Awaitable[ShellResult]]:
    """An executor for `ShellTool` that runs its commands in `sandbox`."""

    async def execute(request: ShellCommandRequest) -> ShellResult:
        action = request.data.action
        seconds = SHELL_SECONDS if action.timeout_ms is None else action.timeout_ms / 1000
        told: list[ShellCommandOutput] = []
        for line in action.commands:
            ran = await run(sandbox, line, seconds=seconds, limit_bytes=action.max_output_length or 1_048_576)
            ended = "timeout" if ran.timed_out else "exit"
            outcome = ShellCallOutcome(type=ended, exit_code=None if ran.timed_out else ran.exit_code)
            told.append(ShellCommandOutput(ran.stdout, ran.stderr, outcome, command=line))
            if ran.timed_out:
                break
        return ShellResult(output=told, max_output_length=action.max_output_length)

    return execute


class Editor:
    """An editor for `ApplyPatchTool` on the files of a sandbox; paths are relative to `/work`."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._files = sandbox.files

    async def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        return await self._write(operation, apply_diff("", operation.diff or "", mode="create"))

    async def update_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        try:
            before = await self._files.read_text(operation.path)
        except CloisterError as error:
            return ApplyPatchResult(status="failed", output=error.message)
        return await self._write(operation, apply_diff(before, operation.diff or ""))

    async def delete_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        try:
            await self._files.remove(operation.path)
        except CloisterError as error:
            return ApplyPatchResult(status="failed", output=error.message)
        return ApplyPatchResult(status="completed", output=f"Removed {operation.path}.")

    async def _write(self, operation: ApplyPatchOperation, text: str) -> ApplyPatchResult:
        target = operation.move_to or operation.path
        try:
            await self._files.write(target, text)
            if operation.move_to and operation.move_to != operation.path:
                await self._files.remove(operation.path)
        except CloisterError as error:
            return ApplyPatchResult(status="failed", output=error.message)
        return ApplyPatchResult(status="completed", output=f"Wrote {target}.")
