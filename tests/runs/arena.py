"""A repository with two bugs, and everything that attempts on it take, for the tests of attempts."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import anyio
from tests.agent.loop_bench import MemoryJournal

from cloister.agent.budget.metering import BudgetedModels
from cloister.agent.budget.purse import NoLedger
from cloister.agent.evidence.baseline import BaselineLog
from cloister.agent.tools.toolset import ToolSource
from cloister.core.budget import BudgetTree
from cloister.core.diagnosis import Diagnosis
from cloister.core.events import (
    AnyBody,
    AttemptEnded,
    BaseFixed,
    BaselineTaken,
    ChecksChosen,
    Event,
    RunAdmitted,
    RunClaimed,
)
from cloister.core.ids import RunId
from cloister.core.model_config import ModelRoutes
from cloister.core.requests import Budget, Knowledge, NewRun, Patience, Quota
from cloister.egress.factory import Doorway
from cloister.forge import Forges, workspace
from cloister.forge.host import LocalRepositories
from cloister.model.names import Access
from cloister.model.roles import Job, open_models
from cloister.policy.api import Layer, Policy
from cloister.policy.layers import BUILT_IN
from cloister.runs.attempts.base import BaseSandbox
from cloister.runs.attempts.context import InsideModels, RunSetup
from cloister.runs.attempts.manager import Attempts
from cloister.runs.attempts.ranking import choose_winner
from cloister.runs.run_rules import RuleFiles
from cloister.runs.services import RunServices
from cloister.runs.templates import Warming, Workshop
from cloister.sandbox.api import Sandbox
from cloister.sandbox.templates.catalog import Templates
from cloister.testing.local import LocalHost
from cloister.testing.samples import SampleRepo

T = TypeVar("T")

CHECK = "python3 -m unittest -q"
BROKEN = "def add(a, b):\n    return a - b\n\n\ndef sub(a, b):\n    return a + b\n"
TESTS = """\
import unittest
import calc


class Calc(unittest.TestCase):
    def test_add(self):
        self.assertEqual(calc.add(1, 2), 3)

    def test_sub(self):
        self.assertEqual(calc.sub(3, 2), 1)
"""
ADD = "sed -i '/def add/,/return/ s/a - b/a + b/' calc.py"
SUB = "sed -i '/def sub/,/return/ s/a + b/a - b/' calc.py"


def script(*replies: str) -> str:
    return "".join(f"[[reply]]\n{reply}\n" for reply in replies)


def bash(command: str, *more: str) -> str:
    return "\n".join((f'calls = [{{ tool = "bash", command = """{command}""" }}]', *more))


FINISH = 'calls = [{ tool = "finish", summary = "Done." }]'
FIX = script(bash(f"{ADD}; {SUB}"), FINISH)
LONG_FIX = script(bash(f"{ADD}; {SUB}; echo '# a comment' >> calc.py"), FINISH)
OTHER_FIX = script(bash(f"{ADD}; sed -i '/def sub/,/return/ s/a + b/-b + a/' calc.py"), FINISH)
HALF = script(bash(ADD), bash("true", 'name = "on"', 'goto = "on"'))
STUCK = script(
    bash(ADD, 'branch = [{ when = "Take another way", goto = "right" }, { goto = "on" }]'),
    bash("echo round and round", 'name = "on"', 'goto = "on"'),
    bash(SUB, 'name = "right"'),
    FINISH,
)
"""Fixes one of both, then goes round in circles, unless it is told of somebody who did."""


@dataclass
class Arena:
    """A repository with two bugs, and everything that attempts on it take."""

    root: Path
    repo: SampleRepo
    host: LocalHost
    bare: Path
    base: str
    baseline: tuple[Diagnosis, ...]
    routes: ModelRoutes = field(default_factory=ModelRoutes)
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    inside: InsideModels = field(default_factory=InsideModels)
    policy: Policy = (BUILT_IN,)
    knowledge: Knowledge = field(default_factory=Knowledge)
    helpers: int = 4
    tools: tuple[ToolSource, ...] = ()
    before: Callable[[Sandbox], Awaitable[None]] | None = None
    """What happens in the warm sandbox before the attempts begin."""

    def model(self, text: str) -> str:
        path = self.root / f"{abs(hash(text))}.script.toml"
        path.write_text(text)
        return f"script:{path}"

    def request(self, text: str, **more: object) -> NewRun:
        made = {"model": self.model(text), "budget": Budget(steps=60), **more}
        return NewRun("Make it work.", str(self.repo.path), **made)  # pyright: ignore[reportArgumentType]

    def journal(self, request: NewRun, kind: type[MemoryJournal] = MemoryJournal) -> MemoryJournal:
        return kind(
            RunAdmitted(request, "ada"),
            RunClaimed("o-1", 1),
            BaseFixed(self.base, "main"),
            ChecksChosen((CHECK,), found=False),
            BaselineTaken(self.baseline),
        )

    async def run(self, journal: MemoryJournal) -> AttemptEnded:
        admitted = journal.events[0].body
        assert isinstance(admitted, RunAdmitted)
        request, access = admitted.request, Access(routes=self.routes)
        services = self.services()
        async with open_models(access, Job(request.repo, request.model)) as unpaid:
            models = BudgetedModels(unpaid, services.purse(request, journal))
            inside = self.inside = InsideModels()
            results = BaselineLog(journal, request)
            setup = RunSetup(RunId("r-memory"), request, self.base, self.bare, models, inside, results)
            with anyio.fail_after(60):
                async with services.open(request, "default", journal, inside.model) as warm:
                    with inside.paid(warm.info.id, None, models.for_programs_inside()):
                        await workspace.put(warm, self.bare, self.base)
                        if self.before is not None:
                            await self.before(warm)
                        base = BaseSandbox(services, journal, setup, None)
                        base.use(warm)
                        ended = await Attempts(services, journal, setup, base).run()
                return await choose_winner(journal, setup, ended)

    def services(self) -> RunServices:
        async def room() -> None:
            return None

        async def log(run: RunId) -> tuple[Event, ...]:
            raise AssertionError(run)

        templates = Templates(self.root / "templates", "")
        workshop = Workshop(templates, self.host, Forges(), None, Quota(), self.root / "repositories")
        return RunServices(
            data_dir=self.root,
            repositories=LocalRepositories(self.root),
            host=self.host,
            warming=Warming(workshop),
            forges=Forges(),
            models=lambda new: open_models(Access(), Job(new.repo, new.model)),
            rules=RuleFiles(self.root / "none.toml", False, Layer("host", ())),
            policy=self.policy,
            doorway=Doorway(),
            quota=Quota(),
            ask_seconds=5.0,
            log=log,
            budgets=BudgetTree(),
            ledger=NoLedger(),
            patience=Patience(repeats=2),
            shortage=room,
            left_out=lambda _: self.left_out,
            knowledge=self.knowledge,
            tools=self.tools,
            helpers=self.helpers,
        )


class Interrupted(MemoryJournal):
    """Lets something happen when an event is written."""

    then: Callable[[AnyBody], None] | None = None

    def add(self, *bodies: AnyBody) -> None:
        super().add(*bodies)
        for body in bodies:
            if self.then is not None:
                self.then(body)


def of(journal: MemoryJournal, kind: type[T]) -> list[T]:
    return [body for body in journal.bodies if isinstance(body, kind)]
