"""Each level and resource warns, asks, then ends the attempt with saved work and a reason."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.agent.loop_bench import LoopBench, open_bench

from cloister.agent.budget.metering import BudgetedModels, Clock
from cloister.agent.budget.purse import Held, Payer, Permit, Purse
from cloister.core.budget import Account, BudgetTree, Call, Limits, Over, Spend, granted, spend_of
from cloister.core.events import (
    AskAnswered,
    AskRaised,
    BaselineTaken,
    BudgetSpent,
    BudgetWarned,
    ModelReplied,
    ModelSpent,
)
from cloister.core.events.attempt import Level, Resource
from cloister.core.ids import RunId
from cloister.core.model_config import ModelEntry, ModelRoutes
from cloister.core.requests import Budget, Patience
from cloister.model.names import Access
from cloister.model.roles import Job, open_models

pytestmark = pytest.mark.anyio

NOTES = """
[[reply]]
name = "again"
input_tokens = 3000
output_tokens = 200
say = "I write a note."
calls = [{ tool = "bash", command = "date +%N >> notes.txt; sleep 0.1" }]
branch = [{ when = "budget of this attempt is spent", goto = "last" }, { goto = "again" }]

[[reply]]
name = "last"
input_tokens = 3000
output_tokens = 20
say = "The sign in calc.py is still wrong."
"""
PRICE = ModelEntry(input_price=10.0, output_price=50.0)
LIMITS: dict[Resource, Limits] = {
    "steps": Limits(steps=3),
    "tokens": Limits(tokens=20_000),
    "dollars": Limits(dollars=0.2),
    "seconds": Limits(seconds=1_500),
}
OUTER: tuple[tuple[Level, Resource], ...] = (
    *(("organisation", what) for what in LIMITS),
    ("project", "dollars"),
    ("user", "tokens"),
)
INNER: tuple[tuple[Level, Resource], ...] = (
    *(("run", what) for what in LIMITS),  # time passes for all attempts of a run at once
    *(("attempt", what) for what in LIMITS if what != "seconds"),
)


@dataclass
class OneLevel:
    """A `Ledger` with one level, which the bench's run alone draws from. Each event costs `event_seconds`."""

    bench: LoopBench
    level: Level
    limits: Limits
    event_seconds: float = 0.05
    held: dict[str, Spend] = field(default_factory=dict[str, Spend])

    def account(self) -> Account:
        events = self.bench.journal.events
        spent = sum((spend_of(event.body) or Spend() for event in events), Spend())
        seconds = Spend(seconds=len(events) * self.event_seconds)
        return Account(self.level, "theirs", self.limits, sum(self.held.values(), spent + seconds))

    async def reserve(self, run: RunId, ticket: str, call: Call) -> Held | Over:
        account = self.account()
        answer = granted((account,), call)
        if isinstance(answer, Over):
            return answer
        self.held[ticket] = answer.hold
        return Held(answer, (account,))

    async def release(self, ticket: str) -> None:
        self.held.pop(ticket, None)


@pytest.fixture
async def bench(tmp_path: Path) -> LoopBench:
    bench = await open_bench(tmp_path)
    bench.tree = BudgetTree(ask=True, warn_percent=30)
    bench.patience = Patience(unchanged=0)
    return bench


async def ended_by(bench: LoopBench, level: Level, what: Resource, budget: Budget) -> None:
    path = bench.root / "priced.toml"
    path.write_text(NOTES)
    name = f"script:{path}"
    access = Access(routes=ModelRoutes(code=name, entry={name: PRICE}))
    async with open_models(access, Job("repo")) as models:
        bench.models = lambda _: models
        ended = await bench.work("[[reply]]\nsay = ''", budget=budget, ask_seconds=0.05)
    bodies = [body for body in bench.journal.bodies if getattr(body, "what", what) == what]
    stages = [b for b in bodies if isinstance(b, BudgetWarned | AskRaised | AskAnswered | BudgetSpent)]
    kinds = [type(body) for body in stages]
    assert kinds == [BudgetWarned, AskRaised, AskAnswered, BudgetSpent], stages
    spent = stages[-1]
    assert isinstance(spent, BudgetSpent)
    assert spent.level == level
    assert ended.outcome == "budget"
    assert ended.commit != bench.base, "what was done is kept"
    assert "The sign in calc.py is still wrong." in ended.reason or what == "seconds", ended.reason
    assert any(isinstance(body, ModelReplied) for body in bodies)


@pytest.mark.parametrize(("level", "what"), OUTER)
async def test_level_above_the_run_warns_asks_and_ends_the_attempt(
    bench: LoopBench, level: Level, what: Resource
) -> None:
    # Seconds are counted in events, each far longer than it really takes: a busy machine changes nothing.
    bench.ledger = OneLevel(bench, level, LIMITS[what], event_seconds=50)
    await ended_by(bench, level, what, Budget())
    [ask] = [b for b in bench.journal.bodies if isinstance(b, AskRaised)]
    assert ask.approver == "admin", "a limit that was set for people is not theirs to raise"


@pytest.mark.parametrize("step", [0, 1], ids=["in the first turn", "later"])
@pytest.mark.parametrize("slow", ["a command", "a model"])
async def test_time_of_a_level_above_interrupts_a_running_command(
    bench: LoopBench, slow: str, step: int
) -> None:
    bench.tree = BudgetTree()
    bench.ledger = OneLevel(bench, "project", Limits(seconds=2.0))
    quick = '[[reply]]\ncalls = [{ tool = "bash", command = "echo note >> notes.txt" }]\n'
    command = '[[reply]]\ncalls = [{ tool = "bash", command = "echo more >> notes.txt; sleep 50" }]\n'
    words = f'[[reply]]\nsay = "{"word " * 2_000}"\n'
    last = words if slow == "a model" else command
    ended = await bench.work(f"pace_seconds = 0.5\n{quick * step}{last}")
    assert ended.outcome == "budget"
    assert ended.reason.startswith("The budget of project theirs of 2 seconds is spent."), ended.reason
    took = bench.journal.events[-1].at - bench.journal.events[0].at
    assert took < 12, "nor do the last words go on for long"
    if slow == "a command":
        assert ended.commit != bench.base, "what was done is kept"
    [spent] = [b for b in bench.journal.bodies if isinstance(b, BudgetSpent)]
    assert (spent.level, spent.what) == ("project", "seconds")


@pytest.mark.parametrize(("level", "what"), INNER)
async def test_budgets_of_run_and_attempt_warn_ask_and_end_the_attempt(
    bench: LoopBench, level: Level, what: Resource
) -> None:
    small = {
        "steps": Budget(steps=3),
        "tokens": Budget(tokens=20_000),
        "dollars": Budget(dollars=0.2),
        "seconds": Budget(seconds=4.0),
    }[what]
    bench.run_budget = small if level == "run" else Budget()
    await ended_by(bench, level, what, small if level == "attempt" or what == "seconds" else Budget())
    [ask] = [b for b in bench.journal.bodies if isinstance(b, AskRaised)]
    assert ask.approver == "operator"
    paid = sum(b.usage.total for b in bench.journal.bodies if isinstance(b, ModelReplied | ModelSpent))
    assert what != "tokens" or paid <= 20_000


async def test_deadline_of_an_attempt_follows_the_newest_limits_of_a_level_above(bench: LoopBench) -> None:
    path = bench.root / "notes.toml"
    path.write_text(NOTES)
    bench.journal.add(BaselineTaken(()))
    ledger = OneLevel(bench, "project", Limits(seconds=1_000), event_seconds=0)
    purse = Purse(bench.journal, Budget(), BudgetTree(), ledger, ask_seconds=0.05)

    async def deadline(seconds: float) -> float:
        ledger.limits = Limits(seconds=seconds)
        assert isinstance(await purse.permit(Payer(), Call(10, 10)), Permit)
        return scope.deadline

    async with open_models(Access(routes=ModelRoutes(code=f"script:{path}")), Job("repo")) as models:
        clock = Clock(Budget(seconds=90_000), BudgetedModels(models, purse), 0.0)
        with clock.running() as scope:
            own = scope.deadline
            tight = await deadline(1_000)
            more = await deadline(50_000)
            less = await deadline(500)
            unlimited = await deadline(500_000)
    assert tight < own - 80_000
    assert more > tight + 40_000, "a level that got more time gives it to a running attempt"
    assert less < tight
    assert abs(unlimited - own) < 100, "the attempt's own limit counts again"
