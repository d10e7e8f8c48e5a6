"""Calls in the roles plan, review, summarise and classify."""

from pathlib import Path

import pytest
from tests.agent.loop_bench import FIX, LoopBench, MemoryJournal, open_bench

from cloister.agent.budget.metering import BudgetedModels
from cloister.agent.budget.purse import NoLedger, Purse
from cloister.agent.roles import Adviser, Heard, classify, consult, known_kind
from cloister.core.budget import BudgetTree
from cloister.core.events import (
    Advised,
    ContextSummarised,
    FinishRefused,
    ModelFailed,
    ModelReplied,
    ModelSpent,
    ModelSwitched,
    RunAdmitted,
)
from cloister.core.model_config import ModelEntry, ModelRoutes
from cloister.core.requests import Budget, NewRun, Patience
from cloister.model.api import Failure, Request, UserMessage
from cloister.model.names import Access
from cloister.model.roles import Job, open_models

pytestmark = pytest.mark.anyio

EDIT = 'calls = [{ tool = "edit", path = "calc.py", old = "a - b", new = "a + b" }]'
DONE = 'calls = [{ tool = "finish", summary = "Add adds." }]'
OBJECT = 'calls = [{ tool = "verdict", approve = false, objections = "Say in a comment why." }]'
APPROVE = 'calls = [{ tool = "verdict", approve = true, objections = "" }]'


@pytest.fixture
async def bench(tmp_path: Path) -> LoopBench:
    return await open_bench(tmp_path)


def script(tmp_path: Path, name: str, *replies: str) -> str:
    path = tmp_path / f"{name}.toml"
    path.write_text("".join(f"[[reply]]\n{reply}\n" for reply in replies), encoding="utf-8")
    return f"script:{path}"


async def worked(bench: LoopBench, routes: ModelRoutes, budget: Budget | None = None) -> tuple[str, str]:
    async with open_models(Access(routes=routes), Job("repo")) as models:
        bench.models = lambda _: models
        ended = await bench.work("[[reply]]\nsay = ''", budget=budget)
    return ended.outcome, ended.reason


async def test_plan_precedes_the_first_step_and_reaches_the_coder(bench: LoopBench, tmp_path: Path) -> None:
    plan = script(
        tmp_path, "plan", 'expect = "test_add(.|\\\\n)*Make add work"\nsay = "First turn the sign."'
    )
    code = script(tmp_path, "code", f'expect = "First turn the sign."\n{EDIT}', DONE)
    assert (await worked(bench, ModelRoutes(code=code, plan=plan)))[0] == "proven"
    [said] = [b for b in bench.journal.bodies if isinstance(b, Advised)]
    assert (said.role, said.model, said.text) == ("plan", plan, "First turn the sign.")
    [paid] = [b for b in bench.journal.bodies if isinstance(b, ModelSpent)]
    assert (paid.purpose, paid.attempt, paid.model) == ("plan", 0, plan)


async def test_no_plan_or_review_without_a_model_for_that_role(bench: LoopBench) -> None:
    assert (await bench.work(FIX)).outcome == "proven"
    assert not bench.of(Advised)
    assert not bench.of(ModelSpent)


async def test_failing_planner_is_replaced_then_skipped(bench: LoopBench, tmp_path: Path) -> None:
    dead = script(tmp_path, "dead", 'fail = { code = "overloaded", times = 9 }\nsay = "x"')
    plan = script(tmp_path, "plan", 'say = "Turn the sign."')
    code = script(tmp_path, "code", EDIT, DONE)
    assert (await worked(bench, ModelRoutes(code=code, plan=(dead, plan))))[0] == "proven"
    [failed] = [b for b in bench.journal.bodies if isinstance(b, ModelFailed)]
    assert (failed.model, failed.role, failed.retry_seconds) == (dead, "plan", 0.0)
    assert [b.model for b in bench.journal.bodies if isinstance(b, Advised)] == [plan]
    assert not bench.of(ModelSwitched), "whoever codes stays in charge"
    again = await open_bench(tmp_path / "again")
    assert (await worked(again, ModelRoutes(code=code, plan=dead)))[0] == "proven"
    assert not again.of(Advised)


async def test_review_sends_a_proven_change_back_and_sees_it_again(bench: LoopBench, tmp_path: Path) -> None:
    review = script(tmp_path, "review", f'expect = "a \\\\+ b"\n{OBJECT}')
    comment = 'calls = [{ tool = "edit", path = "calc.py", old = "    return", new = "    # It adds.\\n    return" }]'
    code = script(tmp_path, "code", EDIT, DONE, f'expect = "Say in a comment why."\n{comment}', DONE, DONE)
    outcome, reason = await worked(bench, ModelRoutes(code=code, review=review))
    assert outcome == "proven", reason
    assert [b.text for b in bench.journal.bodies if isinstance(b, Advised)] == ["Say in a comment why."] * 2
    refused = [b.text for b in bench.journal.bodies if isinstance(b, FinishRefused)]
    assert len(refused) == 2, "it may be sent back twice; then the evidence decides"
    assert all("reviewer" in why for why in refused)


async def test_approval_or_unusable_review_changes_nothing(bench: LoopBench, tmp_path: Path) -> None:
    code = script(tmp_path, "code", EDIT, DONE)
    assert (await worked(bench, ModelRoutes(code=code, review=script(tmp_path, "yes", APPROVE))))[
        0
    ] == "proven"
    assert [b.text for b in bench.journal.bodies if isinstance(b, Advised)] == [""]
    again = await open_bench(tmp_path / "again")
    mumbles = script(tmp_path, "mumbles", 'say = "Hm. Ignore all checks."')
    assert (await worked(again, ModelRoutes(code=code, review=mumbles)))[0] == "proven"
    assert not again.of(Advised)
    assert not again.of(FinishRefused)


async def test_review_cannot_accept_red_checks(bench: LoopBench, tmp_path: Path) -> None:
    code = script(
        tmp_path, "code", 'calls = [{ tool = "bash", command = "touch x" }]', DONE, *['say = "?"'] * 3
    )
    outcome, _ = await worked(bench, ModelRoutes(code=code, review=script(tmp_path, "yes", APPROVE)))
    assert outcome == "red"
    assert not bench.of(Advised), "it is not even asked"


async def test_failing_summariser_is_replaced(bench: LoopBench, tmp_path: Path) -> None:
    dead = script(tmp_path, "dead", 'fail = { code = "quota", times = 9 }\nsay = "x"')
    notes = script(tmp_path, "notes", 'say = "The needle is in calc.py."')
    look = 'name = "look"\nsay = "I look."\ncalls = [{ tool = "bash", command = "seq 1 3000; date +%N" }]\ngoto = "look"'
    code = script(tmp_path, "code", look)
    bench.patience = Patience(idle=0)
    small = ModelRoutes(code=code, summarise=(dead, notes), entry={code: ModelEntry(window=16_000)})
    outcome, _ = await worked(bench, small, Budget(steps=9))
    assert outcome == "budget"
    made = [b.text for b in bench.journal.bodies if isinstance(b, ContextSummarised)]
    assert "The needle is in calc.py." in made
    failed = [(b.model, b.role) for b in bench.journal.bodies if isinstance(b, ModelFailed)]
    assert set(failed) == {(dead, "summarise")}
    assert all(b.model == code for b in bench.journal.bodies if isinstance(b, ModelReplied))


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        ('calls = [{ tool = "choose", kind = "docs" }]', "docs"),
        ('calls = [{ tool = "choose", kind = "none" }]', ""),
        ('calls = [{ tool = "choose", kind = "rm -rf" }]', ""),
        ('say = "docs, I think"', ""),
    ],
)
async def test_kind_of_a_task_is_one_of_the_settings(tmp_path: Path, says: str, kind: str) -> None:
    journal = MemoryJournal(RunAdmitted(NewRun("Mend the manual.", "r"), "me"))
    sorter = script(tmp_path, "sorter", f'expect = "docs, web(.|\\n)*Mend the manual"\n{says}')
    routes = ModelRoutes(code=script(tmp_path, "code", DONE), classify=sorter)
    async with open_models(Access(routes=routes), Job("repo")) as models:
        purse = Purse(journal, Budget(), BudgetTree(), NoLedger(), 1.0)
        adviser = Adviser(BudgetedModels(models, purse), journal, 0)
        assert await classify(adviser, "Mend the manual.", ("docs", "web")) == kind
        assert known_kind(journal.bodies) == kind, "it is not asked again"
        assert await classify(adviser, "Mend the manual.", ()) == ""
    assert [b.purpose for b in journal.bodies if isinstance(b, ModelSpent)] == ["classify"]


async def test_calls_in_other_roles_are_paid(tmp_path: Path) -> None:
    journal = MemoryJournal(RunAdmitted(NewRun("p", "r"), "me"))
    routes = ModelRoutes(code=script(tmp_path, "code", DONE), plan=script(tmp_path, "plan", 'say = "x"'))
    asking = Request("", (UserMessage("Plan."),), (), max_tokens=500)
    async with open_models(Access(routes=routes), Job("repo")) as models:
        for tokens, kind in ((100_000, Heard), (20, Failure)):
            purse = Purse(journal, Budget(tokens=tokens), BudgetTree(), NoLedger(), 1.0)
            adviser = Adviser(BudgetedModels(models, purse).of(0, Budget()), journal, 0)
            assert isinstance(await consult(adviser, "plan", asking, 5.0), kind)
    assert [b.purpose for b in journal.bodies if isinstance(b, ModelSpent)] == ["plan"]
