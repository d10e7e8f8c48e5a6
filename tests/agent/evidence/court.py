"""A sandbox that judges one change after another, as a run judges its result."""

import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import PATH

from cloister.agent.evidence.proof import Task, run_proof
from cloister.agent.evidence.run_checks import run_on_base
from cloister.core.computer import Stream, shell
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.ids import new_owner_id
from cloister.feedback.goals import asked
from cloister.forge import workspace
from cloister.sandbox.api import Sandbox, SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.liveness import Owners
from cloister.testing.samples import SampleRepo


def _quiet(check: str, stream: Stream, data: bytes) -> None:
    pass


@dataclass(frozen=True)
class Court:
    """The sandbox, and the check results of the base."""

    sandbox: Sandbox
    bare: Path
    base: str
    checks: tuple[str, ...]
    baseline: tuple[Diagnosis, ...]

    @property
    def red(self) -> set[str]:
        return {test.name for one in self.baseline for test in one.failing}

    async def verdict(self, files: Mapping[str, str | None]) -> Comparison:
        """What becomes of a change by which the check is green; None is a file that goes away."""
        await workspace.restore(self.sandbox, self.bare, self.base, self.base)
        await self.sandbox.run(shell("git clean -fdq && git checkout -q -f . && rm -f /tmp/.cloister-proof*"))
        for name, text in files.items():
            if text is None:
                await self.sandbox.run(shell(f"rm -f {name}"))
            else:
                await self.sandbox.write(name, text.encode())
        commit = await workspace.save(self.sandbox, self.bare, self.base, "refs/cloister/attempt/0")
        await workspace.restore(self.sandbox, self.bare, self.base, commit)
        goals = asked("Fix the failing tests", self.baseline)
        found, comparison = await run_proof(
            self.sandbox, Task(self.checks, self.baseline, self.baseline, goals), _quiet
        )
        assert found[0].exit_code == 0, f"the check is green by itself: {found[0].tail}"
        return comparison


def committed(root: Path, files: Mapping[str, str]) -> tuple[Path, str]:
    """A bare repository with these files, and its only commit."""
    repo = SampleRepo(root / "repo")
    for name, text in files.items():
        repo.write(name, text)
    repo.git("add", "--all")
    repo.git("commit", "--quiet", "-m", "base")
    bare = root / "bare.git"
    shutil.copytree(repo.path / ".git", bare)
    return bare, repo.git("rev-parse", "HEAD")


@asynccontextmanager
async def opened(
    data_dir: Path, root: Path, files: Mapping[str, str], checks: tuple[str, ...], template: str = "default"
) -> AsyncGenerator[Court]:
    """A court for a repository with these files and failing checks."""
    bare, base = committed(root, files)
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        host = ContainerHost(data_dir, owner, None, PATH)
        async with host.open(SandboxSpec(template=template)) as sandbox:
            await workspace.put(sandbox, bare, base)
            baseline = await run_on_base(sandbox, checks, "baseline", _quiet)
            yield Court(sandbox, bare, base, checks, baseline)
        await host.close()
