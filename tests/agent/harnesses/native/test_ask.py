"""Questions of the model that do not block, and pauses by a person."""

import json
from pathlib import Path
from typing import TypeVar

import anyio
import pytest
from tests.agent.loop_bench import FIX, LoopBench, open_bench

from cloister.core.events import (
    AttemptEnded,
    ModelReplied,
    PauseRequested,
    QuestionAnswered,
    QuestionAsked,
    ResumeRequested,
    ToolReturned,
)

pytestmark = pytest.mark.anyio

T = TypeVar("T")


@pytest.fixture
async def bench(tmp_path: Path) -> LoopBench:
    return await open_bench(tmp_path)


def ask(**arguments: object) -> str:
    call = {"tool": "ask", "question": "Round how?", "choices": ["up", "down"], "default": "down"} | arguments
    toml = ", ".join(f"{name} = {json.dumps(value)}" for name, value in call.items())
    return f"[[reply]]\ncalls = [{{ {toml} }}]\n" + FIX


def of(bench: LoopBench, kind: type[T]) -> list[T]:
    return [body for body in bench.journal.bodies if isinstance(body, kind)]


def said(bench: LoopBench) -> str:
    return next(body.text for body in bench.journal.bodies if isinstance(body, ToolReturned))


async def asked(bench: LoopBench) -> QuestionAsked:
    while not (found := of(bench, QuestionAsked)):
        await bench.journal.changed(len(bench.journal.events))
    return found[0]


async def test_the_answer_of_a_person_is_the_result_of_the_call(bench: LoopBench) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.work, ask(wait_seconds=600))
        question = await asked(bench)
        assert (question.text, question.choices, question.default) == ("Round how?", ("up", "down"), "down")
        bench.journal.add(
            QuestionAnswered("q-other", "no", "eve"), QuestionAnswered(question.question, "up", "ann")
        )
    assert said(bench) == "ann answers: up"
    assert [body.outcome for body in of(bench, AttemptEnded)] == ["proven"]


async def test_after_the_deadline_the_run_goes_on_with_the_default_and_says_so(bench: LoopBench) -> None:
    ended = await bench.work(ask(wait_seconds=0.01))
    assert ended.outcome == "proven"
    (question,), (answer,) = of(bench, QuestionAsked), of(bench, QuestionAnswered)
    assert (answer.question, answer.text, answer.who) == (question.question, "down", "deadline")
    assert said(bench).startswith("No one has answered in time: go on with your default: down\n")


async def test_a_wrong_question_asks_no_one_and_the_model_learns_why(bench: LoopBench) -> None:
    for wrong in (ask(question=""), ask(wait_seconds=1e9), ask(default=1), ask(choices=["x"] * 9)):
        fresh = await open_bench(bench.computer.work.parent / str(abs(hash(wrong))))
        await fresh.work(wrong)
        assert of(fresh, QuestionAsked) == []
        assert said(fresh).startswith("Invalid arguments of `ask`: ")


async def test_a_paused_run_asks_its_model_nothing_until_it_goes_on(bench: LoopBench) -> None:
    bench.journal.add(PauseRequested("ann"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.work, FIX)
        with anyio.move_on_after(0.3):
            while not of(bench, ModelReplied):
                await bench.journal.changed(len(bench.journal.events))
        assert of(bench, ModelReplied) == []
        bench.journal.add(ResumeRequested("ann"))
    assert [body.outcome for body in of(bench, AttemptEnded)] == ["proven"]
