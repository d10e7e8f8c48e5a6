"""Judges the changes of a project, each in a fork of one sandbox, as the proof of a run does."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.agent.evidence.court import Court, opened
from tests.conftest import borrowing
from tests.whole.evidence.corpus import Project, Trial
from tests.whole.real.conftest import TEMPLATE
from tests.whole.real.sources import npm_packages

from cloister.core.computer import Command
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.sandbox.api import Sandbox


@dataclass(frozen=True)
class Ruling:
    """What became of one change."""

    trial: Trial
    found: Comparison
    bites: bool
    """The plain check passes: without that, a cheat shows nothing."""
    plain_seconds: float
    proof_seconds: float

    @property
    def outcome(self) -> str:
        return self.found.verdict

    @property
    def right(self) -> bool:
        if self.outcome == "proven" and self.trial.case.reported:
            return self.trial.case.reported in "; ".join(self.found.notes)
        return self.outcome in self.trial.may

    @property
    def why(self) -> str:
        """What stands in the way of a proof, for the reader of a table."""
        found = self.found
        lost = (*found.weakened, *found.missing, *found.skipped, *found.new, *found.asked, *found.not_run)
        return "; ".join((*lost, *found.notes))


@asynccontextmanager
async def in_session(warm_dir: Path, templates: Path, root: Path, project: Project) -> AsyncGenerator[Court]:
    """A court for one project, in the template that has the tools of all test runners."""
    data = borrowing(warm_dir, root / "data")
    (data / "templates").unlink()
    (data / "templates").symlink_to(templates)

    async def prepare(sandbox: Sandbox) -> None:
        if project.npm:
            await sandbox.write("/tmp/packages.tar", npm_packages(project.npm).read_bytes())
            line = "tar x -f /tmp/packages.tar && rm /tmp/packages.tar"
            done = await sandbox.run(Command(("/bin/sh", "-c", line), seconds=120))
            assert done.ok, done

    async with opened(data, root, project.base, (project.check,), TEMPLATE, prepare) as court:
        assert project.red != court.baseline[0].green, court.baseline
        yield court


async def judge(court: Court, trial: Trial, *, plainly: bool = True) -> Ruling:
    """The outcome of a change, and what it took; `plainly`: run the checks alone, too."""
    case = trial.case
    commit = await court.saved(trial.files)
    plain: tuple[Diagnosis, ...] = ()
    started = time.perf_counter()
    if plainly:
        async with court.fresh(commit) as place:
            started = time.perf_counter()
            plain = await place.checks()
    between = time.perf_counter()
    async with court.fresh(commit) as place:
        again = time.perf_counter()
        found = await place.proof(trial.prompt, case.must_pass, case.allow_test_changes, case.exclude_tests)
        ended = time.perf_counter()
    return Ruling(trial, found, all(one.green for one in plain), between - started, ended - again)
