"""What a search would localise is computed beside a run with a model, once a model needs it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import anyio
import pytest
from tests.agent.loop_bench import MemoryJournal
from tests.runs.arena import FIX, Arena

from cloister.agent.budget.metering import BudgetedModels
from cloister.agent.context.messages import surroundings
from cloister.agent.evidence.baseline import BaselineLog
from cloister.core.attempts import AttemptWish
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.diagnosis import TestResult as Result
from cloister.core.errors import Fenced, HostError
from cloister.core.events import (
    AnyBody,
    BaseFixed,
    BaselineSampled,
    BaselineTaken,
    ChecksChosen,
    ChecksRan,
    FaultLocalised,
    ModelReplied,
    RunAdmitted,
    RunClaimed,
    SandboxClosed,
    StuckNoticed,
)
from cloister.core.ids import RunId
from cloister.core.requests import NewRun, Usage
from cloister.forge.plain_git import PlainGit
from cloister.model.names import Access
from cloister.model.roles import Job, open_models
from cloister.runs.attempts.base import BaseSandbox
from cloister.runs.attempts.context import InsideModels, RunSetup

pytestmark = pytest.mark.anyio

RED = ChecksRan(0, 1, (), Comparison(asked=("test_add",)))
GREEN = ChecksRan(0, 1, (), Comparison(green=True))
REPLY = ModelReplied(0, 1, "m", "I read on.", (), Usage(), 0.1)
STUCK = StuckNoticed(0, "repeats", "bash true", 3)
LOOP = (RED, RED)


async def observed(
    arena: Arena,
    bodies: Sequence[AnyBody],
    *attempts: AttemptWish,
    waits: bool = True,
    journal: MemoryJournal | None = None,
    earlier: tuple[Diagnosis, ...] = (),
    until: type[AnyBody] = FaultLocalised,
) -> MemoryJournal:
    """Hold the sandbox of a run on its base while its attempts do this. `waits`: until the log has `until`."""
    request = arena.request(FIX, attempts=attempts)
    journal, services = journal or arena.journal(request), arena.services()
    request = cast("RunAdmitted", journal.events[0].body).request
    async with open_models(Access(), Job(request.repo, request.model)) as unpaid:
        models = BudgetedModels(unpaid, services.purse(request, journal))
        results = BaselineLog(journal, request)
        setup = RunSetup(RunId("r-memory"), request, arena.base, arena.bare, models, InsideModels(), results)
        setup = replace(setup, earlier=earlier)
        held = BaseSandbox(services, journal, setup, None)
        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(held.hold)
                await held.ready()
                await journal.append(*bodies)
                while waits and not journal.index.of(until):
                    await journal.changed(len(journal.events))
                await anyio.wait_all_tasks_blocked()
                held.done()
    return journal


SLOW = "python3 -m unittest -v"
FAILS = "import unittest\n\n\nclass T(unittest.TestCase):\n    def test_{0}(self):\n        self.assertEqual({1}, 1)\n"


async def test_of_a_suite_that_took_long_before_the_meant_tests_run_first(arena: Arena) -> None:
    for name, value in (("quick", 2), ("other", 1)):
        arena.repo.write(f"test_{name}.py", FAILS.format(name, value))
    base = arena.repo.commit("more tests")
    await PlainGit().fetch(str(arena.repo.path), None, arena.bare)
    names = ("calc.Calc.test_add", "quick.T.test_quick", "other.T.test_other")
    before = tuple(Result(f"test_{one}", "passed", f"test_{one.partition('.')[0]}.py") for one in names)
    request = NewRun(
        "Why does test_quick.py fail?", str(arena.repo.path), checks=(SLOW,), model=arena.model(FIX)
    )
    journal = MemoryJournal(RunAdmitted(request, "ada"), RunClaimed("o-1", 1), BaseFixed(base, "main"))
    earlier = (Diagnosis(SLOW, 0, 100.0, tests=before),)
    await observed(replace(arena, base=base), (), journal=journal, earlier=earlier, until=BaselineTaken)

    kinds = [type(body) for body in journal.bodies]
    order = [kind for kind in kinds if kind in (ChecksChosen, BaselineSampled, BaselineTaken)]
    assert order == [ChecksChosen, BaselineSampled, BaselineTaken]
    [[part]] = [one.diagnoses for one in journal.index.of(BaselineSampled)]
    assert [test.name.partition(".")[0] for test in part.failing] == ["test_quick"]
    assert len(part.tests) == 1
    [[whole]] = [one.diagnoses for one in journal.index.of(BaselineTaken)]
    assert len(whole.tests) == 4
    [late] = [text for body in journal.bodies for text in surroundings(body) if "still run" in text]
    assert "test_quick" in late and "test_add" not in late


@pytest.mark.parametrize(
    "bodies", [LOOP, (STUCK,), (REPLY,) * 6], ids=["two changes in vain", "stuck", "reads for long"]
)
async def test_the_fault_is_localised_for_a_model_that_needs_it(
    arena: Arena, bodies: Sequence[AnyBody]
) -> None:
    journal = await observed(arena, bodies)
    (found,) = journal.index.of(FaultLocalised)
    assert {(one.path, one.line) for one in found.suspects} == {("calc.py", 2), ("calc.py", 6)}
    assert len(found.failing) == 2
    assert found.how == "the coverage of 2 failing and 0 passing tests"
    assert not arena.host.living


@pytest.mark.parametrize(
    ("bodies", "attempts"),
    [
        ((GREEN, *(REPLY,) * 5, RED), ()),
        (LOOP, (AttemptWish(harness="repair"), AttemptWish())),
        ((FaultLocalised(("t",), (), "coverage", 0, 0.1), *LOOP), ()),
    ],
    ids=["a model that gets on", "a search that localises by itself", "known"],
)
async def test_a_run_that_does_not_need_it_opens_no_sandbox_for_it(
    arena: Arena, bodies: Sequence[AnyBody], attempts: tuple[AttemptWish, ...]
) -> None:
    arena.host.refused[2] = Fenced("A second sandbox was opened.")
    journal = await observed(arena, bodies, *attempts, waits=False)
    assert len(journal.index.of(FaultLocalised)) == sum(isinstance(one, FaultLocalised) for one in bodies)
    assert journal.index.of(SandboxClosed)


async def test_a_run_goes_on_without_it_if_there_is_no_sandbox_for_it(arena: Arena) -> None:
    arena.host.refused[2] = HostError("full", "This machine has no room for a second sandbox.")
    journal = await observed(arena, LOOP, waits=False)
    assert not journal.index.of(FaultLocalised)
    assert journal.index.of(SandboxClosed)
