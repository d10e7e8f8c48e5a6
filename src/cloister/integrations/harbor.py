# pyright: basic, reportMissingImports=false
"""Harbor: an environment class, by its import path. The server builds the task's Dockerfile or image, once for all trials.

`harbor run -p TASK -a AGENT --env cloister.integrations.harbor:CloisterEnvironment`
"""

from __future__ import annotations

import io
import posixpath
import shlex
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from harbor.environments.base import BaseEnvironment, ExecResult, SandboxBuildFailedError
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.definition import DOCKERFILE_NAME, require_agent_environment_definition
from harbor.environments.tar_transfer import extract_dir_from_bytes, pack_dir_to_bytes

from cloister.app.verbs.records import NewSandbox, RuleContext
from cloister.client.asynchronous import AsyncClient, AsyncSandbox
from cloister.core.errors import CloisterError, UserError
from cloister.core.requests import Quota
from cloister.integrations.shared import WORK_DIR, run
from cloister.sandbox.templates.recipes import Dockerfile, Oci

TRANSFER_BYTES = 4_294_967_296
_MIB = 1_048_576
_SHELL = 'command -v bash >/dev/null && exec bash -c "$0"; exec sh -c "$0"'
_LONG = 12_000
"""Characters of a command beyond which it goes in as a file."""


class CloisterEnvironment(BaseEnvironment):
    """One sandbox for each trial, which ends with it. What it may reach is decided by the server's policy."""

    def __init__(
        self,
        environment_dir: Path,
        *args: Any,
        template: str | None = None,
        ttl_seconds: float = 86_400,
        tier: str = "auto",
        **kwargs: Any,
    ) -> None:
        """`template`: one of the server, or `snapshot:NAME`, in place of what the task describes."""
        self._template = template
        self._ttl_seconds = float(ttl_seconds)
        self._tier = tier
        self._client = AsyncClient()
        self._sandbox: AsyncSandbox | None = None
        super().__init__(environment_dir, *args, **kwargs)
        usual = "/" if template is None else WORK_DIR
        self._cwd = self.task_env_config.workdir or _workdir(self._dockerfile) or usual

    @staticmethod
    def type() -> str:
        return "cloister"

    @classmethod
    def preflight(cls) -> None:
        try:
            AsyncClient().server_url()
        except CloisterError as error:
            raise SystemExit(error.message) from error

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        # A list of hosts for one sandbox does not exist; that nothing may be reached is checked at the start.
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    def _validate_definition(self) -> None:
        if self._template is None:
            require_agent_environment_definition(
                self.environment_dir, docker_image=self.task_env_config.docker_image
            )
            if not self.task_env_config.docker_image and not self._dockerfile.exists():
                raise FileNotFoundError(f"{self._dockerfile} is missing: compose files are not supported.")

    @property
    def _dockerfile(self) -> Path:
        return self.environment_dir / DOCKERFILE_NAME

    @property
    def sandbox(self) -> AsyncSandbox:
        if self._sandbox is None:
            raise RuntimeError("The environment has not been started, or has been stopped.")
        return self._sandbox

    async def start(self, force_build: bool) -> None:
        if self._network_disabled:
            await self._check_closed()
        template = self._template or await self._built(force_build)
        wish = NewSandbox(
            template=template,
            tier=self._tier,
            quota=self._quota(),
            ttl_seconds=self._ttl_seconds,
            env=self._startup_env(),
            metadata={"harbor-session": self.session_id[:1_000]},
        )
        info, _ = await self._client.verbs.sandboxes.create(wish)
        self._sandbox = AsyncSandbox(self._client, info)
        await self.exec(f"mkdir -p {shlex.quote(self._cwd)}", cwd="/", user="root")
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        await self._upload_environment_dir_after_start()

    async def _check_closed(self) -> None:
        """A task without network must not reach what the server's policy opens for every sandbox."""
        opened = [
            rule.action
            for layer in await self._client.verbs.policy.layers(RuleContext())
            for rule in layer.rules
            if rule.effect != "deny" and rule.action.startswith("connect:")
        ]
        if opened:
            raise RuntimeError(f"The task wants no network, and the server's policy allows {opened[0]}.")

    async def _built(self, again: bool) -> str:
        """The template of the task, built by the server, which must see the task's directory."""
        name, image = f"harbor-{self.environment_id[:16]}", self.task_env_config.docker_image
        recipe = (
            Oci(image=image)
            if image and not self._dockerfile.exists()
            else Dockerfile(context=str(self.environment_dir.resolve()), network=True)
        )
        try:
            await self._client.verbs.templates.describe(name, recipe)
            await self._client.verbs.templates.build(name, again=again)
        except UserError as error:
            raise SandboxBuildFailedError(error.message) from error
        return name

    def _quota(self) -> Quota | None:
        wanted: dict[str, Any] = {}
        if (cpus := self._effective_cpus) is not None:
            wanted["cpus"] = float(cpus)
        if (memory := self._effective_memory_mb) is not None:
            wanted["memory_bytes"] = memory * _MIB
        if (storage := self._effective_storage_mb) is not None:
            wanted["disk_bytes"] = storage * _MIB
        return Quota(**wanted) if wanted else None

    async def stop(self, delete: bool) -> None:
        """Destroy the sandbox, whatever `delete` says: nothing of it is needed later."""
        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await sandbox.close()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Raises `RuntimeError` when the command takes longer than `timeout_sec`."""
        account, before = _as_user(self._resolve_user(user))
        script = ""
        words = [*before, "/bin/sh", "-c", _SHELL, command]
        if len(command) > _LONG:
            script = f"/tmp/given-{uuid4().hex}"  # noqa: S108  (the sandbox's own /tmp)
            await self.sandbox.files.write(script, command)
            words = [*before, "/bin/sh", "-c", _SHELL, f". {script}"]
        ran = await run(
            self.sandbox,
            words,
            cwd=cwd or self._cwd,
            env=self._merge_env(env) or {},
            user=account,
            seconds=timeout_sec,
        )
        if script:
            with suppress(CloisterError):
                await self.sandbox.files.remove(script)
        if ran.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        return ExecResult(stdout=ran.stdout, stderr=ran.stderr, return_code=ran.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        data = _packed(Path(source_path), posixpath.basename(target_path))
        await self._unpack(data, posixpath.dirname(target_path) or ".")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._unpack(pack_dir_to_bytes(source_dir).getvalue(), target_dir)

    async def _unpack(self, data: bytes, directory: str) -> None:
        at, where = f"/tmp/given-{uuid4().hex}.tar", shlex.quote(directory)  # noqa: S108
        await self.sandbox.files.write(at, data)
        line = f"mkdir -p {where} && tar -xof {at} -C {where}; code=$?; rm -f {at}; exit $code"
        await self._must(line, f"{directory} could not be written")

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        data = await self._taken(f"cat {shlex.quote(source_path)}", source_path)
        _write(Path(target_path), data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        data = await self._taken(f"tar -cf - -C {shlex.quote(source_dir)} .", source_dir)
        extract_dir_from_bytes(data, target_dir)

    async def _taken(self, line: str, path: str) -> bytes:
        """What a command of root prints, such as a file that the agent may not read."""
        words = ["/bin/sh", "-c", line]
        ran = await run(self.sandbox, words, cwd="/", user="root", limit_bytes=TRANSFER_BYTES)
        if ran.exit_code or ran.truncated:
            raise RuntimeError(f"{path} could not be read: {ran.stderr.strip() or 'it is too large'}")
        return bytes(ran.out)

    async def _must(self, line: str, failure: str) -> None:
        done = await self.exec(line, user="root")
        if done.return_code != 0:
            raise RuntimeError(f"{failure}: {(done.stderr or done.stdout or '').strip()}")


def _packed(source: Path, name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(source.resolve(), arcname=name, filter=_of_root)
    return buffer.getvalue()


def _write(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def _of_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info


def _as_user(user: str | int | None) -> tuple[str, list[str]]:
    """The sandbox's user, and the words before a command. Without a user it is root, as in a container."""
    name = "root" if user is None else str(user)
    if name in ("root", "0"):
        return "root", []
    if name in ("agent", "1000"):
        return "agent", []
    if name.isdecimal():
        return "root", ["setpriv", "--reuid", name, "--regid", name, "--clear-groups", "--"]
    return "root", ["runuser", "-u", name, "--"]


def _workdir(dockerfile: Path) -> str | None:
    """The directory that the last stage of a Dockerfile works in."""
    found: str | None = None
    for line in dockerfile.read_text().splitlines() if dockerfile.exists() else ():
        word, _, rest = line.strip().partition(" ")
        if word.upper() == "FROM":
            found = None
        elif word.upper() == "WORKDIR":
            found = posixpath.join(found or "/", rest.strip().strip("\"'"))
    return found
