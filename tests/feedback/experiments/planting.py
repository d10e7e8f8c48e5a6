"""A sandbox in which canaries are planted into small projects, one after another."""

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.agent.evidence.court import committed
from tests.conftest import PATH

from cloister.agent.evidence.run_checks import run_checks
from cloister.core.computer import Stream, shell
from cloister.core.diagnosis import Diagnosis
from cloister.core.ids import new_owner_id
from cloister.feedback.check_commands import specify
from cloister.feedback.experiments.canaries import Planted, canaries, silent
from cloister.feedback.experiments.select import only
from cloister.forge import workspace
from cloister.sandbox.api import Sandbox, SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.liveness import Owners


def _quiet(check: str, stream: Stream, data: bytes) -> None:
    pass


@dataclass(frozen=True)
class Project:
    """A project whose tests pass, and the test file beside which canaries are planted."""

    command: str
    files: Mapping[str, str]
    test: str
    script: str = ""
    """The command behind `npm test`."""

    def plant(self, changed: Mapping[str, str]) -> Planted:
        text = changed.get(self.test, self.files.get(self.test, ""))
        planted = canaries(self.script or self.command, self.test, text, secrets.token_hex(4))
        assert planted is not None
        return planted


@dataclass(frozen=True)
class Field:
    """A sandbox that runs the checks of a project with canaries in it."""

    sandbox: Sandbox

    async def run(self, command: str) -> Diagnosis:
        return (await run_checks(self.sandbox, [command], f"proof-{secrets.token_hex(4)}", _quiet))[0]

    async def reaped(self, project: Project, change: Mapping[str, str]) -> tuple[tuple[str, ...], Diagnosis]:
        """What `silent` says about the project with this change, and the diagnosis."""
        await self.fill({**project.files, **change})
        planted = project.plant(change)
        await self.sandbox.write(planted.path, planted.text.encode())
        script = {"test": project.script} if project.script else {}
        line = only(specify(project.command, script), [planted.path])
        diagnosis = await self.run(line or project.command)
        return silent(planted, diagnosis), diagnosis

    async def fill(self, files: Mapping[str, str]) -> None:
        await self.sandbox.run(shell("git checkout -q -f . && git clean -fdxq"))
        for name, text in files.items():
            await self.sandbox.write(name, text.encode())


@asynccontextmanager
async def opened(data_dir: Path, root: Path, template: str = "default") -> AsyncGenerator[Field]:
    bare, base = committed(root, {"README": "planted\n"})
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        host = ContainerHost(data_dir, owner, None, PATH)
        async with host.open(SandboxSpec(template=template)) as sandbox:
            await workspace.put(sandbox, bare, base)
            yield Field(sandbox)
        await host.close()
