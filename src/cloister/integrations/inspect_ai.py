# pyright: basic, reportMissingImports=false
"""Inspect: the sandbox type `cloister`, found by its entry point.

`Task(…, sandbox="cloister")`, or `sandbox=SandboxEnvironmentSpec("cloister", CloisterConfig(template="TEMPLATE"))`
"""

from __future__ import annotations

import posixpath
import shlex
from contextlib import suppress
from typing import Any
from uuid import uuid4

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel

from cloister.client.asynchronous import AsyncClient, AsyncSandbox
from cloister.core.errors import CloisterError
from cloister.integrations.shared import GONE, NOT_RUNNABLE, WORK_DIR, as_os_error, run, variables

ARGUMENT_CHARS = 12_000
"""Longest command that is sent as words: a longer one, in any encoding, goes in as a script."""
_AS_USER = ("/usr/sbin/runuser", "-u")
_ROOT = ("root", "0")


class CloisterConfig(BaseModel, frozen=True):
    template: str = "default"
    """A template, or `snapshot:NAME`."""
    ttl_seconds: float = 14_400
    tier: str = "auto"
    env: dict[str, str] = {}


@sandboxenv(name="cloister")
class CloisterSandboxEnvironment(SandboxEnvironment):
    """One sandbox for each sample, destroyed with it."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        super().__init__()
        self.sandbox = sandbox

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Any, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        # A text is a file's name to Inspect, which puts the task's directory in front of it.
        wish = CloisterConfig(template=posixpath.basename(config)) if isinstance(config, str) else config
        wish = wish or CloisterConfig()
        made = await AsyncClient().create(
            wish.template,
            ttl_seconds=wish.ttl_seconds,
            tier=wish.tier,
            env=wish.env,
            metadata={"inspect-task": task_name[:200]},
        )
        return {"default": cls(made)}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        for environment in environments.values():
            await environment.as_type(cls).sandbox.close()

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """`inspect sandbox cleanup cloister [ID]`: the sandboxes that Inspect left."""
        for sandbox in await AsyncClient().sandboxes():
            if sandbox.id == id or (id is None and "inspect-task" in sandbox.info.metadata):
                await sandbox.close()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return CloisterConfig(**config)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Raises `TimeoutError`, `PermissionError` and `OutputLimitExceededError`. Nothing is tried again."""
        account, words = _as_user(user, cmd)
        stdin = None if input is None else await self._as_file(input)
        files = [] if stdin is None else [stdin]
        if sum(len(word) + 1 for word in words) > ARGUMENT_CHARS:
            files.append(await self._as_file(f"exec {shlex.join(words)}"))
            words = ["/bin/sh", files[-1]]
        if stdin is not None:
            words = ["/bin/sh", "-c", f'exec "$@" < {shlex.quote(stdin)}', "sh", *words]
        try:
            ran = await run(
                self.sandbox,
                words,
                cwd=posixpath.join(WORK_DIR, cwd or ""),
                env=variables(env),
                user=account,
                seconds=timeout,
                limit_bytes=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE,
                stop_at_limit=True,
            )
        except CloisterError as error:
            raise SandboxUnavailableError(error.message) from error
        finally:
            with suppress(CloisterError):
                for file in files:
                    await self.sandbox.files.remove(file)
        if ran.timed_out:
            raise TimeoutError(f"The command took longer than {timeout} seconds.")
        if ran.truncated:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, ran.output)
        if ran.exit_code == NOT_RUNNABLE and not ran.out:
            raise PermissionError(ran.stderr)
        return ExecResult(ran.exit_code == 0, ran.exit_code, ran.stdout, ran.stderr)

    async def _as_file(self, data: str | bytes) -> str:
        path = f"/tmp/given-{uuid4().hex}"  # noqa: S108  (the sandbox's own /tmp)
        await self.sandbox.files.write(path, data, mode=0o644)
        return path

    async def write_file(self, file: str, contents: str | bytes) -> None:
        try:
            # A file is replaced as a whole, which its own mode would not prevent.
            await self._check_writable(file)
            await self.sandbox.files.write(file, contents)
        except CloisterError as error:
            raise await as_os_error(self.sandbox, file, error) from error

    async def _check_writable(self, file: str) -> None:
        try:
            entry = await self.sandbox.files.stat(file)
        except CloisterError as error:
            if error.code in GONE:
                raise
            return
        if entry.kind == "dir":
            raise IsADirectoryError(f"{file} is a directory.")
        if not entry.mode & 0o222:
            raise PermissionError(f"{file} may not be written.")

    async def read_file(self, file: str, text: bool = True) -> Any:
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            entry = await self.sandbox.files.stat(file)
            if entry.size > limit and entry.kind == "file":
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
            data = await self.sandbox.files.read(file)
        except CloisterError as error:
            raise await as_os_error(self.sandbox, file, error) from error
        return data.decode("utf-8") if text else data

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        return SandboxConnection(type="cloister", command=f"cloister sandbox shell {self.sandbox.id}")

    def default_polling_interval(self) -> float:
        return 0.2


def _as_user(user: str | None, cmd: list[str]) -> tuple[str, list[str]]:
    if user is None or user == "agent":
        return "agent", list(cmd)
    if user in _ROOT:
        return "root", list(cmd)
    if user.isdecimal():
        raise SandboxUserUnsupportedError(f"There is no user with the number {user}: give its name.")
    return "root", [*_AS_USER, user, "--", *cmd]
