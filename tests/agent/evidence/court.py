"""A sandbox that judges one change after another, as a run judges its result."""

import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import PATH

from cloister.agent.evidence.proof import Task, run_proof
from cloister.agent.evidence.run_checks import run_checks, run_on_base
from cloister.core.computer import Command, Stream
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

    async def verdict(
        self, files: Mapping[str, str | None], prompt: str = "Fix the failing tests"
    ) -> Comparison:
        """What becomes of a change by which the check is green; None is a file that goes away."""
        async with self.fresh(await self.saved(files)) as place:
            return await place.proof(prompt)

    async def saved(self, files: Mapping[str, str | None]) -> str:
        """The commit of a change that was made in a fork of the sandbox."""
        async with self.sandbox.fork() as author:
            for name, text in files.items():
                if text is None:
                    await author.run(Command(("rm", "-f", "--", name)))
                else:
                    await author.write(name, text.encode())
            return await workspace.save(author, self.bare, self.base, "refs/cloister/attempt/0")

    @asynccontextmanager
    async def fresh(self, commit: str) -> AsyncGenerator["Place"]:
        """A fork of the sandbox that holds the change, as a save point of it would be restored."""
        async with self.sandbox.fork() as fresh:
            await workspace.restore(fresh, self.bare, self.base, commit)
            yield Place(self, fresh)


@dataclass(frozen=True)
class Place:
    """A sandbox with a change."""

    court: Court
    sandbox: Sandbox

    async def checks(self) -> tuple[Diagnosis, ...]:
        """The checks alone."""
        return await run_checks(self.sandbox, self.court.checks, "plain", _quiet)

    async def proof(
        self,
        prompt: str,
        must_pass: Sequence[str] = (),
        allowed: Sequence[str] = (),
        excluded: Sequence[str] = (),
    ) -> Comparison:
        """The checks and everything that the proof does beside them."""
        before = self.court.baseline
        goals = asked(prompt, before, must_pass=must_pass, excluded=excluded)
        task = Task(self.court.checks, before, before, goals, tuple(allowed))
        return (await run_proof(self.sandbox, task, _quiet)).comparison


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
    data_dir: Path,
    root: Path,
    files: Mapping[str, str],
    checks: tuple[str, ...],
    template: str = "default",
    prepare: Callable[[Sandbox], Awaitable[None]] | None = None,
) -> AsyncGenerator[Court]:
    """A court for a repository with these files and failing checks."""
    bare, base = committed(root, files)
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        host = ContainerHost(data_dir, owner, None, PATH)
        async with host.open(SandboxSpec(template=template)) as sandbox:
            await workspace.put(sandbox, bare, base)
            if prepare is not None:
                await prepare(sandbox)
            baseline = await run_on_base(sandbox, checks, "baseline", _quiet)
            yield Court(sandbox, bare, base, checks, baseline)
        await host.close()
