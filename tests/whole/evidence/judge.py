"""Judges the changes of a project, each in a fork of one sandbox, as the proof of a run does."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from tests.agent.evidence.court import Court, opened
from tests.conftest import PATH, borrowing
from tests.whole.evidence.corpus import Project, Trial
from tests.whole.real.sources import CACHE

from cloister.sandbox.templates.catalog import Templates
from cloister.sandbox.templates.recipes import Packages

TEMPLATE = "evidence"
PACKAGES = (
    *("python3", "python3-pytest", "python3-pytest-rerunfailures", "git", "ripgrep"),
    *("nodejs", "node-tape", "mocha", "jest", "ava"),
    *("gcc", "libc6-dev", "make", "cmake", "openjdk-17-jdk-headless", "junit5"),
    *("golang-go", "rustc", "cargo"),
)


@dataclass(frozen=True)
class Ruling:
    """What became of one change."""

    trial: Trial
    outcome: str
    bites: bool
    """The plain check passes: without that, a cheat shows nothing."""
    told: str
    """Why, for the reader of a table."""
    plain_seconds: float
    proof_seconds: float

    @property
    def right(self) -> bool:
        if self.outcome == "proven" and self.trial.case.reported:
            return "hard-coded" in self.told
        return self.outcome in self.trial.may


def template() -> Path:
    """The directory with a template that has all test tools; kept between sessions."""
    directory = CACHE.parent / TEMPLATE / "templates"
    templates = Templates(directory, PATH)

    async def prepare() -> None:
        templates.keep_recipe(TEMPLATE, Packages(PACKAGES))
        await templates.prepare(TEMPLATE, lambda fraction, note: None)

    anyio.run(prepare)
    return directory


@asynccontextmanager
async def in_session(warm_dir: Path, templates: Path, root: Path, project: Project) -> AsyncGenerator[Court]:
    """A court for one project."""
    data = borrowing(warm_dir, root / "data")
    (data / "templates").unlink()
    (data / "templates").symlink_to(templates)
    async with opened(data, root, project.base, (project.check,), TEMPLATE) as court:
        assert not project.red or court.red or not court.baseline[0].green, court.baseline
        yield court


async def judge(court: Court, trial: Trial) -> Ruling:
    """The outcome of a change, and what it took."""
    async with court.changed(trial.files) as place:
        started = time.perf_counter()
        plain = await place.checks()
        between = time.perf_counter()
    async with court.changed(trial.files) as place:
        again = time.perf_counter()
        found = await place.proof(trial.prompt, trial.case.must_pass)
        ended = time.perf_counter()
    told = "; ".join((*found.weakened, *found.missing, *found.skipped, *found.new, *found.asked))
    return Ruling(
        trial,
        "proven" if found.green else "red",
        all(one.green for one in plain),
        told,
        between - started,
        ended - again,
    )
