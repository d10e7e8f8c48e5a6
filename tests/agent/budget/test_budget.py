"""Every model call is paid. A spent budget ends the attempt with saved work and last words."""

from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from tests.agent.loop_bench import LoopBench, MemoryJournal, open_bench

from cloister.agent.budget.metering import BudgetedModels
from cloister.agent.budget.purse import NoLedger, Payer, Purse
from cloister.agent.context.messages import request_tokens
from cloister.agent.harnesses.api import Workplace
from cloister.core.budget import BudgetTree
from cloister.core.errors import Bug
from cloister.core.events import (
    AskAnswered,
    AskRaised,
    BudgetExtended,
    BudgetSpent,
    BudgetWarned,
    ModelReplied,
    ModelSpent,
    RunAdmitted,
    TurnEnded,
)
from cloister.core.model_config import ModelEntry, ModelRoutes
from cloister.core.requests import Budget, NewRun, Patience, ToolCall, Usage
from cloister.model.api import Failure, Reply, Request, TextDelta, UserMessage
from cloister.model.names import Access
from cloister.model.roles import Job, open_models
from cloister.model.scripted import ScriptedModel, load_script
from cloister.testing.models import SayingModel, SoleModel

pytestmark = pytest.mark.anyio

SRC = Path(__file__).parents[3] / "src" / "cloister"

NOTES = """
[[reply]]
name = "again"
say = "I write a note."
calls = [{ tool = "bash", command = "date +%N >> notes.txt" }]
branch = [{ when = "budget of this attempt is spent", goto = "last" }, { goto = "again" }]

[[reply]]
name = "last"
say = "The sign in calc.py is still wrong."
"""


@pytest.fixture
async def bench(tmp_path: Path) -> LoopBench:
    return await open_bench(tmp_path)


async def test_workplace_rejects_unmetered_models(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text('[[reply]]\nsay = "x"\n')
    unpaid: Any = SoleModel(ScriptedModel(load_script(path)))
    nothing: Any = None
    with pytest.raises(Bug, match="without a budget"):
        Workplace(0, nothing, nothing, unpaid, (), Budget(), 1.0)


def test_only_metered_code_streams_from_a_model() -> None:
    """Only these files call `.stream(`, on metered models."""
    callers = {
        str(path.relative_to(SRC))
        for layer in ("agent", "runs", "egress", "server", "app")
        for path in ([SRC / layer] if layer.endswith(".py") else (SRC / layer).rglob("*.py"))
        if "model.stream(" in path.read_text(encoding="utf-8")
    }
    assert callers <= {
        "agent/harnesses/native/conversation.py",
        "agent/budget/metering.py",
        "agent/roles.py",
        "egress/model_endpoint/serve.py",  # given `for_programs_inside`
        "runs/attempts/scores.py",  # inside of what pays
    }


async def test_spent_steps_end_with_last_words_and_saved_work(
    bench: LoopBench,
) -> None:
    ended = await bench.work(NOTES, budget=Budget(steps=3))
    assert ended.outcome == "budget"
    assert "3 steps is spent." in ended.reason
    assert "The sign in calc.py is still wrong." in ended.reason
    assert ended.commit != bench.base
    assert len(bench.of(ModelReplied)) == 3
    [last] = [b for b in bench.journal.bodies if isinstance(b, ModelSpent)]
    assert last.purpose == "wrap_up"
    [spent] = [b for b in bench.journal.bodies if isinstance(b, BudgetSpent)]
    assert (spent.what, spent.spent, spent.limit) == ("steps", 3, 3)


async def test_reason_names_the_failures_when_the_reserve_is_too_small(bench: LoopBench) -> None:
    ended = await bench.work(NOTES, budget=Budget(tokens=100))
    assert ended.outcome == "budget"
    assert "100 tokens is spent." in ended.reason
    assert "Still red" in ended.reason
    assert bench.of(ModelReplied) == bench.of(ModelSpent) == []


async def test_work_of_an_interrupted_turn_is_saved(bench: LoopBench) -> None:
    script = '[[reply]]\ncalls = [{ tool = "bash", command = "echo kept > kept.txt; sleep 1000" }]'
    ended = await bench.work(script, budget=Budget(seconds=3.0))
    assert ended.outcome == "budget"
    assert "3 seconds" in ended.reason
    assert ended.commit != bench.base
    [turn] = [b for b in bench.journal.bodies if isinstance(b, TurnEnded)]
    assert (turn.commit, turn.changed) == (ended.commit, True)


async def test_work_is_saved_when_the_time_ends_during_the_checks(bench: LoopBench) -> None:
    script = '[[reply]]\ncalls = [{ tool = "bash", command = "echo kept > kept.txt" }]'
    ended = await bench.work(script, checks=("test ! -e kept.txt || sleep 1000",), budget=Budget(seconds=3.0))
    assert ended.outcome == "budget"
    [turn] = [b for b in bench.journal.bodies if isinstance(b, TurnEnded)]
    assert (turn.commit, turn.changed) == (ended.commit, True)
    assert ended.commit != bench.base


SLOW = """
[[reply]]
calls = [{ tool = "bash", command = "sed -i 's/a - b/a + b/' calc.py; sleep 1000" }]

[[reply]]
expect = "time budget ran out"
calls = [{ tool = "bash", command = "true" }]

[[reply]]
calls = [{ tool = "finish", summary = "In the time that was given." }]
"""


async def _saying(bench: LoopBench, answer: str) -> None:
    """Answers every ask."""
    seen = 0
    while True:
        await bench.journal.changed(seen)
        for event in bench.journal.events[seen:]:
            if isinstance(event.body, AskRaised):
                await anyio.sleep(0.3)
                bench.journal.add(
                    AskAnswered(event.body.ask, "allow" if answer == "allow" else "deny", "ada")
                )
        seen = len(bench.journal.events)


async def test_granted_time_continues_from_the_saved_work(bench: LoopBench) -> None:
    bench.tree = BudgetTree(ask=True, extend_percent=900)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_saying, bench, "allow")
        ended = await bench.work(SLOW, budget=Budget(seconds=3.0), ask_seconds=30)
        assert ended.outcome == "proven", ended.reason
        tasks.cancel_scope.cancel()
    [more] = [b for b in bench.journal.bodies if isinstance(b, BudgetExtended)]
    assert (more.level, more.what, more.amount) == ("run", "seconds", 27.0)
    [ask] = [b for b in bench.journal.bodies if isinstance(b, AskRaised)]
    assert "27 seconds more" in ask.action
    saved = [(b.changed, b.commit == bench.base) for b in bench.journal.bodies if isinstance(b, TurnEnded)]
    assert saved[0] == (True, False), "what was done when the time was over"


async def test_time_budget_warns_asks_and_ends_the_attempt(bench: LoopBench) -> None:
    bench.tree = BudgetTree(ask=True, warn_percent=10)
    script = (
        SLOW.replace("sleep 1000", "sleep 1")
        .replace('expect = "time budget ran out"\n', "")
        .replace("true", "sleep 99")
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_saying, bench, "deny")
        ended = await bench.work(script, budget=Budget(seconds=5.0), ask_seconds=30)
        assert (ended.outcome, "5 seconds is spent." in ended.reason) == ("budget", True), ended.reason
        assert ended.commit != bench.base
        tasks.cancel_scope.cancel()
    kinds = [
        type(b)
        for b in bench.journal.bodies
        if isinstance(b, BudgetWarned | AskRaised | AskAnswered | BudgetSpent)
        and getattr(b, "what", "seconds") == "seconds"
    ]
    assert kinds == [BudgetWarned, AskRaised, AskAnswered, BudgetSpent]


async def test_warning_is_recorded_once_and_reaches_the_model(bench: LoopBench) -> None:
    script = NOTES.replace(
        '{ goto = "again" }', '{ when = "Most of the budget", goto = "hurry" }, { goto = "again" }'
    )
    script += '\n[[reply]]\nname = "hurry"\ncalls = [{ tool = "edit", path = "calc.py", old = "a - b", new = "a + b" }]\n'
    script += '\n[[reply]]\ncalls = [{ tool = "finish", summary = "In time." }]\n'
    bench.tree = BudgetTree(warn_percent=40)
    ended = await bench.work(script, budget=Budget(steps=7))
    assert ended.outcome == "proven", ended.reason
    warned = [
        (b.level, b.what, b.spent, b.limit) for b in bench.journal.bodies if isinstance(b, BudgetWarned)
    ]
    assert warned == [("run", "steps", 3, 7)]


async def test_extended_budget_asks_again_when_it_is_spent(bench: LoopBench) -> None:
    bench.tree = BudgetTree(ask=True, extend_percent=50)
    answers = iter(("allow", "deny"))

    async def answer() -> None:
        seen = 0
        while True:
            await bench.journal.changed(seen)
            for event in bench.journal.events[seen:]:
                if isinstance(event.body, AskRaised):
                    said = next(answers)
                    bench.journal.add(
                        AskAnswered(event.body.ask, "allow" if said == "allow" else "deny", "ada")
                    )
            seen = len(bench.journal.events)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        bench.run_budget = Budget(steps=4)
        ended = await bench.work(NOTES, budget=Budget(steps=50), ask_seconds=30)
        assert ended.outcome == "budget"
        tasks.cancel_scope.cancel()
    assert len(bench.of(ModelReplied)) == 6
    asks = [b for b in bench.journal.bodies if isinstance(b, AskRaised)]
    assert [("2 steps more" in ask.action, ask.default) for ask in asks] == [(True, "deny"), (False, "deny")]
    [more] = [b for b in bench.journal.bodies if isinstance(b, BudgetExtended)]
    assert (more.level, more.what, more.amount, more.who) == ("run", "steps", 2, "ada")


async def test_unanswered_ask_ends_the_attempt(bench: LoopBench) -> None:
    bench.tree = BudgetTree(ask=True)
    ended = await bench.work(NOTES, budget=Budget(steps=2), ask_seconds=0.01)
    assert (ended.outcome, len(bench.of(ModelReplied))) == ("budget", 2)
    assert [b.who for b in bench.journal.bodies if isinstance(b, AskAnswered)] == ["deadline"]


async def test_dollar_budget_ends_the_attempt_by_known_prices(bench: LoopBench, tmp_path: Path) -> None:
    path = tmp_path / "priced.toml"
    path.write_text(NOTES.replace('say = "I', 'input_tokens = 1000\noutput_tokens = 100\nsay = "I'))
    name = f"script:{path}"
    entry = ModelEntry(input_price=10.0, output_price=50.0)
    access = Access(routes=ModelRoutes(code=name, entry={name: entry}))
    bench.patience = Patience(unchanged=0)
    async with open_models(access, Job("repo")) as models:
        bench.models = lambda _: models
        ended = await bench.work("[[reply]]\nsay = ''", budget=Budget(dollars=0.12))
    replies = [b for b in bench.journal.bodies if isinstance(b, ModelReplied)]
    assert ended.outcome == "budget"
    assert "$0.12 is spent." in ended.reason
    assert replies
    assert all(b.cost == pytest.approx(0.015) for b in replies)
    spent = sum(b.cost or 0 for b in bench.journal.bodies if isinstance(b, ModelReplied | ModelSpent))
    assert spent <= 0.12


async def test_assumed_price_applies_the_dollar_budget_to_unpriced_models(
    bench: LoopBench,
) -> None:
    script = NOTES.replace('say = "I', 'input_tokens = 1000\noutput_tokens = 100\nsay = "I')
    bench.patience = Patience(unchanged=0)
    bench.tree = BudgetTree(unpriced=20.0)
    ended = await bench.work(script, budget=Budget(dollars=0.3, steps=40))
    assert (ended.outcome, "$0.30 is spent." in ended.reason) == ("budget", True), ended.reason
    paid = [b.cost for b in bench.journal.bodies if isinstance(b, ModelReplied | ModelSpent)]
    assert paid[0] == pytest.approx(1_100 * 20 / 1_000_000)
    assert sum(cost or 0.0 for cost in paid) <= 0.3


def _journal() -> MemoryJournal:
    return MemoryJournal(RunAdmitted(NewRun("p", "r"), "me"))


def _models(tmp_path: Path, script: str, journal: MemoryJournal, budget: Budget) -> BudgetedModels:
    path = tmp_path / "m.toml"
    path.write_text(script)
    purse = Purse(journal, budget, BudgetTree(), NoLedger(), 1.0)
    return BudgetedModels(SoleModel(ScriptedModel(load_script(path))), purse)


ASKING = Request("", (UserMessage("Which is better?"),), (), max_tokens=500)


async def test_every_call_is_recorded_even_if_its_caller_records_nothing(tmp_path: Path) -> None:
    journal = _journal()
    models = _models(tmp_path, '[[reply]]\nsay = "The second."\ninput_tokens = 70', journal, Budget())
    async with models.role("judge").stream(ASKING) as items:
        assert [type(item) for item in [item async for item in items]][-1] is Reply
    [spent] = [b for b in journal.bodies if isinstance(b, ModelSpent)]
    assert (spent.purpose, spent.usage.input_tokens, spent.estimated) == ("judge", 70, False)


async def test_interrupted_call_is_paid_by_estimate(tmp_path: Path) -> None:
    journal = _journal()
    script = 'pace_seconds = 0.001\n[[reply]]\nsay = "' + "word " * 500 + '"'
    models = _models(tmp_path, script, journal, Budget())
    with anyio.move_on_after(5) as scope:
        async with models.role("code").stream(ASKING) as items:
            async for _ in items:
                scope.cancel()
    [spent] = [b for b in journal.bodies if isinstance(b, ModelSpent)]
    assert spent.estimated
    assert spent.usage.input_tokens > 0
    assert spent.usage.output_tokens > 0


async def test_broken_off_reply_is_paid_and_rejected_call_is_not(tmp_path: Path) -> None:
    broke = Failure("network", "It broke.", retryable=True, usage=Usage(input_tokens=900))
    model = SayingModel(
        (TextDelta("word " * 100), broke),
        (TextDelta("word " * 100), Failure("overloaded", "Busy.", retryable=True)),
        (Failure("refused", "No.", usage=Usage(70, 5)),),
        (Failure("rate_limit", "Later.", retryable=True),),
    )
    journal = _journal()
    models = BudgetedModels(SoleModel(model), Purse(journal, Budget(), BudgetTree(), NoLedger(), 1.0))
    for _ in range(4):
        async with models.role("code").stream(ASKING) as items:
            assert [type(item) async for item in items][-1] is Failure
    spent = [b.usage for b in journal.bodies if isinstance(b, ModelSpent)]
    assert [usage.output_tokens > 100 for usage in spent] == [True, True, False]
    assert [usage.input_tokens for usage in spent] == [900, request_tokens(ASKING), 70]


async def test_reply_without_usage_is_paid_by_estimate() -> None:
    calls = (ToolCall("c1", "write", {"content": "word " * 400}),)
    model = SayingModel(
        (Reply("word " * 100, calls, Usage(), cost=0.0),),
        (Reply("Yes.", (), Usage(70, 0)),),
        (Reply("Yes.", (), Usage(70, 7), cost=0.5),),
    )
    journal = _journal()
    tree = BudgetTree(unpriced=1_000_000.0)  # a dollar for each token
    models = BudgetedModels(SoleModel(model), Purse(journal, Budget(), tree, NoLedger(), 1.0))
    for _ in range(3):
        async with models.role("judge").stream(ASKING) as items:
            assert [type(item) async for item in items][-1] is Reply
    silent, half, whole = [body for body in journal.bodies if isinstance(body, ModelSpent)]
    assert silent.usage.input_tokens == request_tokens(ASKING)
    assert silent.usage.output_tokens > 500
    assert silent.cost == float(silent.usage.total)
    assert (half.usage.input_tokens, half.usage.output_tokens > 0) == (70, True)
    assert (whole.usage, whole.cost) == (Usage(70, 7), 0.5)


async def test_model_that_always_breaks_off_cannot_exceed_the_budget(bench: LoopBench) -> None:
    script = '[[reply]]\nfail = { code = "network", say = "%s", times = 99, retry_seconds = 0 }\nsay = "x"'
    ended = await bench.work(script % ("word " * 4_000), budget=Budget(tokens=16_000))
    assert (ended.outcome, "16,000 tokens is spent." in ended.reason) == ("budget", True), ended.reason


async def test_concurrent_attempts_never_reserve_more_than_the_run_has(tmp_path: Path) -> None:
    journal = _journal()
    script = '[[reply]]\nsay = "x"\nwait_seconds = 0.05\ninput_tokens = 10\noutput_tokens = 1'
    models = _models(tmp_path, script, journal, Budget(steps=3))
    results: list[type] = []

    async def call(attempt: int) -> None:
        own = models.of(attempt, Budget())
        async with own.role("code").stream(ASKING) as items:
            results.append([type(item) async for item in items][-1])

    async with anyio.create_task_group() as tasks:
        for attempt in range(8):
            tasks.start_soon(call, attempt)
    assert results.count(Reply) == 3
    assert results.count(Failure) == 5


async def test_budget_of_a_resumed_run_is_folded_from_its_log(tmp_path: Path) -> None:
    journal = _journal()
    models = _models(
        tmp_path, '[[reply]]\nsay = "x"\ninput_tokens = 90\noutput_tokens = 10', journal, Budget()
    )
    async with models.role("judge").stream(ASKING) as items:
        _ = [item async for item in items]
    again = Purse(MemoryJournal(*journal.bodies), Budget(), BudgetTree(), NoLedger(), 1.0)
    [run] = again.accounts(Payer())
    assert (run.spent.tokens, run.spent.unpriced) == (100, 100)
    extended = Purse(
        MemoryJournal(*journal.bodies, BudgetExtended("run", "r-memory", "tokens", 5, "ada")),
        msgspec.structs.replace(Budget(), tokens=100),
        BudgetTree(),
        NoLedger(),
        1.0,
    )
    assert extended.accounts(Payer())[0].limit("tokens") == 105


async def test_share_of_an_attempt_is_a_limit_of_its_own(bench: LoopBench) -> None:
    bench.run_budget = Budget(steps=10)
    ended = await bench.work(NOTES, budget=Budget(steps=2))
    assert "The attempt's budget of 2 steps is spent." in ended.reason


async def test_attempts_that_reach_the_same_limit_ask_once(tmp_path: Path) -> None:
    journal = _journal()
    path = tmp_path / "m.toml"
    path.write_text('[[reply]]\nsay = "x"')
    purse = Purse(journal, Budget(tokens=50), BudgetTree(ask=True), NoLedger(), 0.2)
    models = BudgetedModels(SoleModel(ScriptedModel(load_script(path))), purse)
    results: list[type] = []

    async def call(attempt: int) -> None:
        async with models.of(attempt, Budget()).role("code").stream(ASKING) as items:
            results.append([type(item) async for item in items][-1])

    async with anyio.create_task_group() as tasks:
        for attempt in range(4):
            tasks.start_soon(call, attempt)
    assert results == [Failure] * 4
    assert len([b for b in journal.bodies if isinstance(b, AskRaised)]) == 1
    assert len([b for b in journal.bodies if isinstance(b, BudgetSpent)]) == 1


@pytest.mark.parametrize(("capped", "needed"), [((), "operator"), (("tokens",), "admin")])
async def test_only_an_admin_extends_a_limit_of_a_policy(
    tmp_path: Path, capped: tuple[str, ...], needed: str
) -> None:
    """An operator's answer in the log is not sufficient."""
    journal = _journal()
    path = tmp_path / "m.toml"
    path.write_text('[[reply]]\nsay = "x"')
    purse = Purse(journal, Budget(tokens=50), BudgetTree(ask=True), NoLedger(), 0.3, frozenset(capped))
    models = BudgetedModels(SoleModel(ScriptedModel(load_script(path))), purse)

    async def say_yes() -> None:
        while not (asks := [b for b in journal.bodies if isinstance(b, AskRaised)]):
            await journal.changed(len(journal.events))
        assert asks[0].approver == needed
        await journal.append(AskAnswered(asks[0].ask, "allow", "otto", "operator"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(say_yes)
        async with models.role("code").stream(ASKING) as items:
            assert [type(item) async for item in items] == [Failure]
        tasks.cancel_scope.cancel()
    given = [b for b in journal.bodies if isinstance(b, BudgetExtended)]
    assert bool(given) == (needed == "operator")
