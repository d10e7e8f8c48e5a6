import shutil
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from tests.agent.loop_bench import BROKEN, FIX, LoopBench, MemoryJournal, open_bench

from cloister.agent.context.messages import request
from cloister.agent.evidence.run_checks import find_checks
from cloister.agent.tools import TOOLS
from cloister.core.events import (
    ActionDecided,
    AnyBody,
    AskAnswered,
    AskRaised,
    AttemptEnded,
    ChecksRan,
    CommandOutput,
    FinishRefused,
    InterruptRequested,
    ModelFailed,
    ModelReplied,
    ModelSpent,
    ModelText,
    PromptReceived,
    ProofTaken,
    RunClaimed,
    RunResumed,
    SaveRefused,
    ToolReturned,
    TurnEnded,
)
from cloister.core.log import effective
from cloister.core.requests import Budget
from cloister.forge import workspace
from cloister.model.api import AssistantMessage, ToolMessage, UserMessage
from cloister.policy.api import Layer, Rule
from cloister.policy.layers import BUILT_IN
from cloister.testing.local import LocalComputer

pytestmark = pytest.mark.anyio

TESTS = """\
import unittest
from calc import add


class AddTest(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(1, 2), 3)

    def test_zero(self):
        self.assertEqual(add(0, 0), 0)
"""


@pytest.fixture
async def bench(tmp_path: Path) -> LoopBench:
    return await open_bench(tmp_path)


async def test_green_checks_end_the_attempt_green_with_its_summary(bench: LoopBench) -> None:
    ended = await bench.work(FIX)
    assert (ended.outcome, ended.reason) == ("proven", "Add adds."), bench.journal.bodies
    assert ended.comparison.green
    assert ended.commit != bench.base
    assert (bench.computer.work / "calc.py").read_text() == BROKEN.replace("-", "+")


async def test_log_of_a_turn_is_reply_decision_result_checks_save_point(bench: LoopBench) -> None:
    await bench.work(FIX)
    kinds = [type(body) for body in bench.journal.bodies[4:]]
    assert kinds == [
        ModelReplied,
        ActionDecided,
        ToolReturned,
        ChecksRan,
        TurnEnded,
        ModelReplied,
        ProofTaken,
        ToolReturned,
        TurnEnded,
        AttemptEnded,
    ]


async def test_truncated_arguments_are_answered_with_advice(bench: LoopBench) -> None:
    cut = """[[reply]]
calls = [{ tool = "write", _invalid = '{"path": "long.py", "content": "one two thr' }]

[[reply]]
expect = "not a complete JSON object .cut off at .*one two thr.* Split the call"
"""
    ended = await bench.work(cut + FIX.replace("[[reply]]", "", 1))
    assert ended.outcome == "proven", ended.reason


async def test_finish_with_red_checks_is_answered_with_the_diagnosis(bench: LoopBench) -> None:
    ended = await bench.work(
        """
[[reply]]
calls = [{ tool = "finish", summary = "Done!" }]
"""
        + FIX.replace('expect = "green|passed|fixed"\n', "")
    )
    refusal = next(b for b in bench.journal.bodies if isinstance(b, ToolReturned))
    assert refusal.tool == "finish"
    assert not refusal.ok
    assert "test_add failed" in refusal.text
    assert bench.of(FinishRefused)
    assert ended.outcome == "proven"


async def test_checks_run_only_after_turns_that_changed_files(bench: LoopBench) -> None:
    await bench.work(
        """
[[reply]]
calls = [{ tool = "bash", command = "ls" }, { tool = "read", path = "calc.py" }]
"""
        + FIX
    )
    assert [body.step for body in bench.journal.bodies if isinstance(body, ChecksRan)] == [2]
    assert [body.changed for body in bench.journal.bodies if isinstance(body, TurnEnded)] == [
        False,
        True,
        False,
    ]


HIDDEN = """
[[reply]]
calls = [
    { tool = "bash", command = "%s" },
    { tool = "write", path = "NOTES.md", content = "notes" },
]

[[reply]]
name = "claim"
calls = [{ tool = "finish", summary = "Done." }]
goto = "claim"
"""


@pytest.mark.parametrize(
    "hide",
    [
        "echo calc.py >> .gitignore; git rm -q --cached calc.py; sed -i s/-/+/ calc.py",
        "echo calc.py > .git/info/exclude; git rm -q --cached calc.py; sed -i s/-/+/ calc.py",
        "sed -i s/-/+/ calc.py; GIT_INDEX_FILE=.git/cloister-index git update-index --assume-unchanged calc.py",
    ],
)
async def test_only_the_delivered_files_count_as_green(bench: LoopBench, hide: str) -> None:
    script = HIDDEN % hide
    ended = await bench.work(script, budget=Budget(steps=3))
    if ended.outcome == "proven":  # what was hidden was handed over after all
        assert [b.comparison.green for b in bench.journal.bodies if isinstance(b, ProofTaken)] == [True]
        fresh = await bench.prove(ended.commit)
        assert fresh.diagnoses[0].green
    else:
        assert ended.outcome == "budget"


async def test_file_outside_the_change_cannot_make_a_check_green(bench: LoopBench) -> None:
    """The check passes in the sandbox only because of a file outside the change."""
    script = (
        HIDDEN % "echo fixed > /tmp/none; echo secret.py >> .git/info/exclude; sed s/-/+/ calc.py > secret.py"
    )
    (bench.computer.work / "check.py").write_text(
        "import os, sys\nsys.exit(0 if os.path.exists('secret.py') else 1)\n"
    )
    ended = await bench.work(script, budget=Budget(steps=3))
    assert ended.outcome == "budget"
    refused = [b.text for b in bench.journal.bodies if isinstance(b, ToolReturned) and b.tool == "finish"]
    assert "in a fresh sandbox that holds only the change" in refused[0]
    assert not any(b.comparison.green for b in bench.journal.bodies if isinstance(b, ProofTaken))


async def test_removed_git_directory_is_restored_and_work_continues(bench: LoopBench) -> None:
    ended = await bench.work(
        '[[reply]]\ncalls = [{ tool = "bash", command = "echo one > one; rm -rf .git" }]\n' + FIX
    )
    assert ended.outcome == "proven"


async def test_model_learns_of_files_that_cannot_be_saved_and_can_remove_them(
    bench: LoopBench,
) -> None:
    ended = await bench.work(
        """
[[reply]]
calls = [{ tool = "bash", command = "head -c 4000000 /dev/urandom > big" }, { tool = "finish", summary = "s" }]

[[reply]]
expect = "larger than"
calls = [{ tool = "bash", command = "rm big" }]
"""
        + FIX
    )
    assert ended.outcome == "proven"
    assert len([b for b in bench.journal.bodies if isinstance(b, SaveRefused)]) == 1


async def test_finished_run_without_checks_is_unproven(bench: LoopBench) -> None:
    ended = await bench.work('[[reply]]\ncalls = [{ tool = "finish", summary = "s" }]', checks=())
    assert ended.outcome == "unproven"


async def test_step_budget_ends_the_attempt_and_keeps_its_work(bench: LoopBench) -> None:
    script = """
[[reply]]
name = "again"
calls = [{ tool = "bash", command = "date +%N >> notes.txt" }]
goto = "again"
"""
    ended = await bench.work(script, budget=Budget(steps=3))
    assert ended.outcome == "budget"
    assert "3 steps" in ended.reason
    assert ended.commit != bench.base
    assert len(bench.of(ModelReplied)) == 3


async def test_token_budget_ends_the_attempt(bench: LoopBench) -> None:
    script = """
[[reply]]
name = "again"
calls = [{ tool = "bash", command = "true" }]
input_tokens = 500
goto = "again"
"""
    ended = await bench.work(script, budget=Budget(tokens=1_000))
    assert ended.outcome == "budget"
    assert "1,000 tokens" in ended.reason


async def test_time_budget_interrupts_a_command_that_does_not_end(bench: LoopBench) -> None:
    script = '[[reply]]\ncalls = [{ tool = "bash", command = "sleep 1000" }]'
    ended = await bench.work(script, budget=Budget(seconds=1.0))
    assert ended.outcome == "budget"
    assert "1 seconds" in ended.reason


async def test_deviation_from_the_script_fails_with_its_place(bench: LoopBench) -> None:
    ended = await bench.work('[[reply]]\nexpect = "something else entirely"\nsay = "x"')
    assert ended.outcome == "failed"
    assert "reply 1" in ended.reason


async def test_temporary_model_failure_is_retried(bench: LoopBench) -> None:
    script = FIX.replace(
        'say = "The sign is wrong."',
        'say = "s"\nfail = { code = "overloaded", retry_seconds = 0.01, times = 2 }',
    )
    ended = await bench.work(script)
    assert ended.outcome == "proven"
    failed = [body for body in bench.journal.bodies if isinstance(body, ModelFailed)]
    assert [body.code for body in failed] == ["overloaded", "overloaded"]


async def test_unknown_tools_and_invalid_arguments_are_observations(bench: LoopBench) -> None:
    await bench.work(
        """
[[reply]]
calls = [{ tool = "teleport", to = "moon" }, { tool = "read" }, { tool = "bash", command = 7 }]
"""
        + FIX
    )
    texts = [body.text for body in bench.journal.bodies if isinstance(body, ToolReturned)][:3]
    assert "There is no tool `teleport`" in texts[0]
    assert "path" in texts[1]
    assert "command" in texts[2]


async def test_denied_action_does_not_run_and_names_its_rule(bench: LoopBench) -> None:
    host = Layer("host", (Rule("tool:bash:*rm*", "deny", "policy, rule 1"),))
    await bench.work(
        '[[reply]]\ncalls = [{ tool = "bash", command = "rm calc.py" }]\n' + FIX, policy=(BUILT_IN, host)
    )
    decided = next(b for b in bench.journal.bodies if isinstance(b, ActionDecided))
    assert (decided.effect, "policy, rule 1" in decided.rule) == ("deny", True)
    result = next(b for b in bench.journal.bodies if isinstance(b, ToolReturned))
    assert "Not allowed" in result.text
    assert (bench.computer.work / "calc.py").exists()


async def test_a_person_stops_the_command_at_work_and_the_model_learns_of_it(bench: LoopBench) -> None:
    calls = '{ tool = "bash", command = "echo begun; tail -f /dev/null" }, { tool = "bash", command = "touch later" }'
    script = f"[[reply]]\ncalls = [{calls}]\n" + FIX
    async with anyio.create_task_group() as tasks:

        async def interrupt() -> None:
            while not any(isinstance(delta, CommandOutput) for delta in bench.journal.deltas):
                await anyio.lowlevel.checkpoint()
            bench.journal.add(InterruptRequested("ada"))

        tasks.start_soon(interrupt)
        await bench.work(script)
    assert [b.outcome for b in bench.journal.bodies if isinstance(b, AttemptEnded)] == ["proven"]
    stopped, skipped = [body for body in bench.journal.bodies if isinstance(body, ToolReturned)][:2]
    assert stopped.text.startswith("Stopped by ada after ")
    assert (stopped.ok, skipped.text) == (False, "Not run: the step was stopped before it.")
    asked = [
        message.text
        for message in request(bench.journal.events, 0, ()).messages
        if isinstance(message, UserMessage)
    ]
    assert any(text.startswith("ada stopped the step at work.") for text in asked)


async def test_stopping_a_step_that_asks_denies_its_question(bench: LoopBench) -> None:
    host = Layer("host", (Rule("tool:bash", "ask", "policy, rule 1"),))
    script = '[[reply]]\ncalls = [{ tool = "bash", command = "touch asked" }]\n' + FIX
    async with anyio.create_task_group() as tasks:

        async def interrupt() -> None:
            while not any(isinstance(body, AskRaised) for body in bench.journal.bodies):
                await bench.journal.changed(len(bench.journal.events))
            bench.journal.add(InterruptRequested("ada"))

        tasks.start_soon(interrupt)
        await bench.work(script, policy=(BUILT_IN, host))
    assert [(b.answer, b.who) for b in bench.journal.bodies if isinstance(b, AskAnswered)] == [
        ("deny", "ada")
    ]


async def test_a_person_stops_a_request_to_the_model_which_is_paid_and_made_again(bench: LoopBench) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.work, '[[reply]]\nsay = "Well."\nwait_seconds = 600\n')
        while len(bench.of(ModelSpent)) < 2:
            bench.journal.add(InterruptRequested("ada"))
            await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()
    assert {(b.purpose, b.estimated) for b in bench.journal.bodies if isinstance(b, ModelSpent)} == {
        ("code", True)
    }
    assert bench.of(ModelReplied) == []


async def test_ask_waits_for_the_answer_of_a_person(bench: LoopBench) -> None:
    host = Layer("host", (Rule("tool:bash", "ask", "policy, rule 1"),))
    script = '[[reply]]\ncalls = [{ tool = "bash", command = "touch asked" }]\n' + FIX
    async with anyio.create_task_group() as tasks:

        async def answer() -> None:
            seen = 0
            while True:
                await bench.journal.changed(seen)
                seen = len(bench.journal.events)
                for body in bench.journal.bodies:
                    if isinstance(body, AskRaised):
                        bench.journal.add(AskAnswered(body.ask, "allow", "ada"))
                        return

        tasks.start_soon(answer)
        await bench.work(script, policy=(BUILT_IN, host), ask_seconds=30)
    assert (bench.computer.work / "asked").exists()


async def test_unanswered_ask_is_denied_and_recorded(bench: LoopBench) -> None:
    host = Layer("host", (Rule("tool:bash", "ask", "policy, rule 1"),))
    script = '[[reply]]\ncalls = [{ tool = "bash", command = "touch asked" }]\n' + FIX
    await bench.work(script, policy=(BUILT_IN, host), ask_seconds=0.01)
    assert not (bench.computer.work / "asked").exists()
    assert [(b.answer, b.who) for b in bench.journal.bodies if isinstance(b, AskAnswered)] == [
        ("deny", "deadline")
    ]


async def test_three_replies_without_calls_end_the_attempt(bench: LoopBench) -> None:
    ended = await bench.work('[[reply]]\nname = "talk"\nsay = "Let me think."\ngoto = "talk"')
    assert (ended.outcome, len(bench.of(ModelReplied))) == ("red", 3)


async def test_message_follows_pending_tool_results(bench: LoopBench) -> None:
    await bench.work(FIX)
    said = PromptReceived("Use a plus.", "ada")
    bodies = bench.journal.bodies
    reply_at = next(n for n, body in enumerate(bodies) if isinstance(body, ModelReplied))
    journal = MemoryJournal(*bodies[: reply_at + 1], said, *bodies[reply_at + 1 :])
    messages = request(journal.events, 0, ()).messages
    kinds = [type(message) for message in messages]
    assert kinds == [
        UserMessage,
        AssistantMessage,
        ToolMessage,
        UserMessage,
        UserMessage,
        AssistantMessage,
        ToolMessage,
    ]
    assert messages[3] == UserMessage("Message from ada:\nUse a plus.")


async def test_output_and_text_are_streamed(bench: LoopBench) -> None:
    await bench.work(
        '[[reply]]\nsay = "Looking."\ncalls = [{ tool = "bash", command = "echo hello" }]\n' + FIX
    )
    said = "".join(d.text for d in bench.journal.deltas if isinstance(d, ModelText))
    assert said.startswith("Looking.")
    outputs = [d for d in bench.journal.deltas if isinstance(d, CommandOutput)]
    assert any(d.text == "hello\n" and d.stream == "out" for d in outputs)


def _cut_at(bodies: list[AnyBody], wanted: Callable[[AnyBody], bool]) -> list[AnyBody]:
    at = next(n for n, body in enumerate(bodies) if wanted(body))
    return bodies[: at + 1]


@pytest.mark.parametrize("kind", [ModelReplied, ActionDecided, ToolReturned, ChecksRan, TurnEnded])
async def test_attempt_cut_off_after_any_event_resumes_to_the_same_end(
    bench: LoopBench, kind: type[AnyBody]
) -> None:
    whole = await bench.work(FIX)
    kept = _cut_at(bench.journal.bodies, lambda body: isinstance(body, kind))
    saved = next((b.commit for b in kept if isinstance(b, TurnEnded)), bench.base)
    shutil.rmtree(bench.computer.work)
    computer = LocalComputer(bench.root / "second")
    await workspace.restore(computer, bench.bare, bench.base, saved)
    resumed = MemoryJournal(*kept, RunClaimed("o-2", 2), RunResumed(len(kept)))
    again = LoopBench(bench.root, bench.bare, bench.base, computer, resumed)
    ended = await again.work(FIX)
    assert (ended.outcome, ended.reason, ended.comparison) == (whole.outcome, whole.reason, whole.comparison)
    replies = [b.step for b in resumed.bodies if isinstance(b, ModelReplied)]
    assert replies == [1, 2], "a recorded reply is not asked for again"
    turns = [b.step for b in resumed.bodies if isinstance(b, TurnEnded)]
    assert turns == [1, 2]
    assert effective(resumed.events)[-1].body == ended


async def test_checks_are_discovered_in_the_repository(bench: LoopBench) -> None:
    (bench.computer.work / "tests").mkdir()
    (bench.computer.work / "tests" / "test_calc.py").write_text(TESTS)
    assert await find_checks(bench.computer) == ("python3 -m unittest discover -s tests",)


def test_every_tool_schema_is_free_of_references() -> None:
    for tool in TOOLS.values():
        assert tool.spec.parameters["type"] == "object"
        assert "$ref" not in str(tool.spec.parameters)


async def test_change_by_a_seemingly_read_only_command_is_found_before_the_end(bench: LoopBench) -> None:
    """git runs a program of the agent to show a diff, and that program fixes the bug."""
    ended = await bench.work(
        """
[[reply]]
calls = [{ tool = "bash", command = '''
printf '#!/bin/sh\\nsed -i "s/a - b/a + b/" calc.py\\n' > show.sh; chmod +x show.sh
git config diff.external ./show.sh; echo >> calc.py''' }]
[[reply]]
calls = [{ tool = "bash", command = "git diff" }]
[[reply]]
calls = [{ tool = "finish", summary = "Add adds." }]
"""
    )
    assert ended.outcome == "proven", ended.reason
    before, unseen, last = bench.of(TurnEnded)
    assert isinstance(before, TurnEnded)
    assert isinstance(unseen, TurnEnded)
    assert isinstance(last, TurnEnded)
    assert (unseen.changed, unseen.commit) == (False, before.commit), (
        "no comparison after a read-only command"
    )
    assert (last.changed, ended.commit) == (True, last.commit)
