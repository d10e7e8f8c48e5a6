"""A call interrupted by a crash is charged on resume."""

from pathlib import Path

import anyio
import msgspec
import pytest
from tests.agent.loop_bench import MemoryJournal

from cloister.agent.budget.metering import LOST, BudgetedModels, call_was_lost
from cloister.agent.budget.purse import NoLedger, Purse
from cloister.agent.harnesses.api import Workplace
from cloister.agent.harnesses.native.conversation import Conversation
from cloister.core.budget import BudgetTree
from cloister.core.events import (
    ActionDecided,
    AnyBody,
    AttemptStarted,
    ModelFailed,
    ModelReplied,
    ModelSpent,
    RunAdmitted,
    RunClaimed,
    RunResumed,
    SandboxOpened,
    TurnEnded,
)
from cloister.core.requests import Budget, Isolation, NewRun, ToolCall, Usage
from cloister.model.api import Failure
from cloister.policy.layers import BUILT_IN
from cloister.testing.local import LocalComputer
from cloister.testing.models import SayingModel, SoleModel

CALL = ToolCall("c1", "bash", {"command": "ls"})
REPLY = ModelReplied(0, 1, "p:m", "", (CALL,), Usage(10, 1), 0.1)
DECIDED = ActionDecided(0, "c1", "bash: ls", "allow", "built in")
ENDED = TurnEnded(0, 1, "abc", False)
BEGUN = (RunAdmitted(NewRun("p", "r"), "me"), RunClaimed("o-1", 1), AttemptStarted(0, "p:m"))
RESUMED = (RunClaimed("o-2", 2), RunResumed(3))
OPENED = SandboxOpened("s-1", Isolation("container", "crun", True, "btrfs"))
CUT_OFF = ModelSpent(0, "code", "p:m", Usage(10, 1), 1.0, None, True)
PAID = ModelSpent(0, LOST, "p:m", Usage(10, 1), 0.0, None, True)


@pytest.mark.parametrize(
    ("bodies", "lost"),
    [
        ((*BEGUN,), False),
        ((*BEGUN, *RESUMED), True),
        ((*BEGUN, REPLY, DECIDED, *RESUMED), False),
        ((*BEGUN, REPLY, *RESUMED), False),
        ((*BEGUN, REPLY, DECIDED, ENDED, *RESUMED), True),
        ((*BEGUN, REPLY, ENDED, ModelFailed(0, "overloaded", "Busy.", 1.0, "p:m"), *RESUMED), True),
        ((*BEGUN, REPLY, ENDED, CUT_OFF, *RESUMED), False),
        ((*BEGUN, REPLY, ENDED, *RESUMED, PAID), False),
        ((*BEGUN, REPLY, ENDED, *RESUMED, PAID, RunClaimed("o-3", 3)), True),
        ((*BEGUN, REPLY, ENDED, CUT_OFF, *RESUMED, RunClaimed("o-3", 3)), False),
        ((*BEGUN, REPLY, ENDED, CUT_OFF, *RESUMED, OPENED, RunClaimed("o-3", 3)), True),
        ((*BEGUN, TurnEnded(1, 1, "abc", False), *RESUMED), True),
        ((*BEGUN, REPLY, ENDED, *RESUMED, msgspec.structs.replace(OPENED, attempt=0)), True),
    ],
)
def test_call_is_lost_if_the_log_ends_where_the_model_is_called(
    bodies: tuple[AnyBody, ...], lost: bool
) -> None:
    assert call_was_lost(MemoryJournal(*bodies).events, 0) == lost


@pytest.mark.anyio
async def test_repeated_crashes_cannot_exceed_the_budget(tmp_path: Path) -> None:
    journal = MemoryJournal(*BEGUN, REPLY, ENDED)
    budget = Budget(tokens=12_000)

    async def no_more(reply: ModelReplied) -> tuple[AnyBody, ...]:
        return ()

    lives, written = 1, journal.bodies
    answers: list[object] = []
    while not answers and lives < 30:
        lives += 1
        journal.add(RunClaimed(f"o-{lives}", lives), RunResumed(len(journal.events)))
        model = SayingModel((), until=anyio.Event())  # it never answers
        purse = Purse(journal, budget, BudgetTree(), NoLedger(), 1.0)
        paying = BudgetedModels(SoleModel(model), purse).of(0, budget)
        place = Workplace(0, journal, LocalComputer(tmp_path), paying, (BUILT_IN,), budget, 1.0)
        mind = Conversation(place, "base")

        async def ask(mind: Conversation = mind, model: SayingModel = model) -> None:
            answers.append(await mind.ask(2, no_more))
            model.was_asked.set()  # also when the budget answers instead

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            with anyio.fail_after(60):
                await model.was_asked.wait()
            written = journal.bodies
            tasks.cancel_scope.cancel()
        # Its owner was killed: nothing that was done on the way out is in the log.
        journal = MemoryJournal(*written)
    [end] = answers
    assert isinstance(end, Failure)
    assert end.code == "budget"
    assert lives < 20
