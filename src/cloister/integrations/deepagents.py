# pyright: basic, reportMissingImports=false
"""LangChain's Deep Agents: a sandbox backend, and the provider `cloister` for its command line.

`create_deep_agent(model=…, backend=CloisterSandbox.create())`
"""

from __future__ import annotations

from typing import Any

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from cloister.client.synchronous import Client, Sandbox, wait
from cloister.core.errors import CloisterError
from cloister.integrations.shared import NOT_RUNNABLE, WORK_DIR, as_os_error, run_sync

SECONDS = 1_800
OUTPUT_BYTES = 1_048_576
_ERRORS = {
    FileNotFoundError: "file_not_found",
    PermissionError: "permission_denied",
    IsADirectoryError: "is_directory",
    NotADirectoryError: "invalid_path",
}


class CloisterSandbox(BaseSandbox):
    """One sandbox. Its maker closes it: `backend.sandbox.close()`."""

    enable_capture_offload = True

    def __init__(self, sandbox: Sandbox, *, seconds: int = SECONDS) -> None:
        self.sandbox = sandbox
        self._seconds = seconds

    @classmethod
    def create(
        cls, template: str = "default", *, client: Client | None = None, **wishes: Any
    ) -> CloisterSandbox:
        return cls(Sandbox.create(template, client=client, **wishes))

    @property
    def id(self) -> str:
        return self.sandbox.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        seconds = timeout or self._seconds
        try:
            ran = run_sync(self.sandbox, command, seconds=seconds, limit_bytes=OUTPUT_BYTES)
        except CloisterError as error:
            return ExecuteResponse(output=error.message, exit_code=NOT_RUNNABLE, truncated=False)
        if ran.timed_out:
            said = f"{ran.output}\nThe command took longer than {seconds} seconds and was ended."
            return ExecuteResponse(output=said, exit_code=124, truncated=ran.truncated)
        return ExecuteResponse(output=ran.output, exit_code=ran.exit_code, truncated=ran.truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        done: list[FileUploadResponse] = []
        for path, data in files:
            error = None if path.startswith("/") else "invalid_path"
            if error is None:
                try:
                    self.sandbox.files.write(path, data)
                except CloisterError as failed:
                    error = self._why(path, failed)
            done.append(FileUploadResponse(path=path, error=error))
        return done

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        done: list[FileDownloadResponse] = []
        for path in paths:
            content, error = None, None if path.startswith("/") else "invalid_path"
            if error is None:
                try:
                    content = self.sandbox.files.read(path)
                except CloisterError as failed:
                    error = self._why(path, failed)
            done.append(FileDownloadResponse(path=path, content=content, error=error))
        return done

    def _why(self, path: str, error: CloisterError) -> str:
        found = wait(lambda: as_os_error(self.sandbox.asynchronous, path, error))
        return next((word for kind, word in _ERRORS.items() if isinstance(found, kind)), error.message)


def CloisterProvider() -> Any:  # noqa: N802  (the registry calls what it found, as a class)
    """The provider `cloister` of the command line: the entry point `deepagents_code.sandbox_providers`."""
    from deepagents_code.integrations import sandbox_provider as api

    class Provider(api.SandboxProvider):
        @property
        def metadata(self) -> api.SandboxProviderMetadata:
            return api.SandboxProviderMetadata(
                name="cloister", working_dir=WORK_DIR, supports_sandbox_id=True, supports_snapshot_name=True
            )

        def get_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> CloisterSandbox:
            try:
                if sandbox_id is not None:
                    return CloisterSandbox(Client().sandbox(sandbox_id))
                kept = kwargs.get("snapshot")
                template = f"snapshot:{kept}" if kept else kwargs.get("template", "default")
                return CloisterSandbox.create(template, ttl_seconds=kwargs.get("ttl_seconds", 14_400))
            except CloisterError as error:
                kind = api.SandboxNotFoundError if error.code == "no_such_sandbox" else api.SandboxError
                raise kind(error.message) from error

        def delete(self, *, sandbox_id: str, **kwargs: Any) -> None:
            try:
                Client().sandbox(sandbox_id).close()
            except CloisterError as error:
                if error.code != "no_such_sandbox":
                    raise api.SandboxError(error.message) from error

    return Provider()
