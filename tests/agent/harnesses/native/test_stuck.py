"""A stuck attempt is nudged, then escalated, then ended. Other attempts are not affected."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.loop_bench import FIX, LoopBench, beginning, long_log, numbered, open_bench

from cloister.agent.harnesses.native.stuck import StuckDetector, StuckSign
from cloister.core import diagnosis
from cloister.core.attempts import Answer, Branch, GiveUp, Stuck, Switch
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.events import (
    AnyBody,
    AttemptStarted,
    ChecksRan,
    ModelReplied,
    ModelSwitched,
    PromptReceived,
    RunClaimed,
    RunResumed,
    StuckNoticed,
    ToolReturned,
    TurnEnded,
)
from cloister.core.model_config import ModelRoutes
from cloister.core.requests import Patience, ToolCall, Usage
from cloister.model.names import Access
from cloister.model.roles import Job, open_models


def act(
    step: int, command: str, result: str, *, changed: bool = False, red: tuple[str, ...] | None = None
) -> Iterator[AnyBody]:
    """One turn; with `red`, the checks ran after it."""
    call = ToolCall(f"c{step}", "bash", {"command": command})
    yield ModelReplied(0, step, "p:m", "", (call,), Usage(), 0.1)
    yield ToolReturned(0, call.id, "bash", True, result, 0.1, 0)
    if red is not None:
        tests = tuple(
            diagnosis.TestResult(name, "failed", message=f"{name} in 0.{step}s at 0x7f{step:x}")
            for name in red
        )
        found = Diagnosis("pytest", 1 if red else 0, 0.1, tests=tests)
        yield ChecksRan(0, step, (found,), Comparison(still=red, green=not red))
    yield TurnEnded(0, step, "c", changed)


def look(bodies: list[AnyBody], patience: Patience | None = None) -> StuckSign | None:
    circles = StuckDetector(0, patience or Patience())
    circles.update(numbered([*beginning(), *bodies]))
    return circles.found()


def turns(*each: Iterator[AnyBody]) -> list[AnyBody]:
    return [body for one in each for body in one]


def test_same_action_with_same_result_four_times_is_stuck() -> None:
    same = [act(n, "pytest -q", f"1 failed in 0.1{n}s") for n in range(1, 5)]
    found = look(turns(*same))
    assert found is not None
    assert (found.kind, found.step, found.earlier) == ("repeats", 4, 0)
    assert "pytest -q" in found.evidence
    three = [act(n, "pytest -q", "1 failed") for n in range(1, 4)]
    assert look(turns(*three)) is None


def test_waiting_turns_get_more_patience_but_not_forever() -> None:
    found = look(turns(*(act(n, "sleep 9; cat state", "building") for n in range(1, 17))))
    assert found is not None
    assert (found.kind, found.step) == ("repeats", 16)
    asleep = look(turns(*(act(n, "./sleeper --now", "x") for n in range(1, 5))))
    assert asleep is not None
    assert (asleep.kind, asleep.step) == ("repeats", 4), "a word in a name is no waiting"


def test_notice_survives_a_crash() -> None:
    same = turns(*(act(n, "ls", "a") for n in range(1, 5)))
    told = [*same, StuckNoticed(0, "repeats", "…", 4), *turns(*(act(n, "ls", "a") for n in range(5, 8)))]
    half = list(act(8, "ls", "a"))[:2]
    crashed: list[AnyBody] = [*told, *half, RunClaimed("o-2", 2), RunResumed(9)]
    rest = list(act(8, "ls", "a"))[1:]
    found = look([*crashed, *rest])
    assert found is not None
    assert (found.kind, found.step, found.earlier) == ("repeats", 8, 1)


def test_fork_does_not_inherit_stuck_turns() -> None:
    same = turns(*(act(n, "ls", "a") for n in range(1, 5)))
    told = [*same, StuckNoticed(0, "repeats", "…", 4), *turns(*(act(n, "ls", "a") for n in range(5, 8)))]
    anew = [*told, AttemptStarted(0, "p:m", parent=0)]
    assert look([*anew, *act(8, "ls", "a")]) is None, "three of these are not its own"
    found = look([*anew, *turns(*(act(n, "ls", "a") for n in range(8, 12)))])
    assert found is not None
    assert found.earlier == 0, "it has got no notice yet"


def test_two_alternating_turns_three_times_are_stuck() -> None:
    each = [
        act(n, "sed s/a/b/" if n % 2 else "sed s/b/a/", "ok", changed=True, red=("t",) if n % 2 else ("u",))
        for n in range(1, 7)
    ]
    found = look(turns(*each))
    assert found is not None
    assert found.kind == "alternations"
    assert "s/a/b/" in found.evidence
    assert "s/b/a/" in found.evidence


def test_changes_without_effect_on_the_diagnosis_are_stuck() -> None:
    each = [act(n, f"edit {n}", f"did {n}", changed=True, red=("test_a",)) for n in range(1, 9)]
    found = look(turns(*each))
    assert found is not None
    assert (found.kind, "test_a" in found.evidence) == ("unchanged", True)
    assert (
        look(turns(*each[:0], *[act(n, f"edit {n}", "", changed=True, red=("a",)) for n in range(1, 8)]))
        is None
    )


def test_invalid_calls_are_stuck() -> None:
    bodies: list[AnyBody] = []
    for step, call in enumerate(
        (
            ToolCall("1", "teleport", {}),
            ToolCall("2", "bash", {"_invalid": "ls"}),
            ToolCall("3", "read", {"path": 7}),
        ),
        start=1,
    ):
        bodies += [
            ModelReplied(0, step, "p:m", "", (call,), Usage(), 0.1),
            ToolReturned(0, call.id, call.name, False, f"no {step}", 0.1),
            TurnEnded(0, step, "c", False),
        ]
    found = look(bodies)
    assert found is not None
    assert found.kind == "malformed"
    one_is_fine = ToolCall("4", "bash", {"command": "ls"})
    bodies[-3] = msgspec.structs.replace(bodies[-3], calls=(ToolCall("3", "read", {"path": 7}), one_is_fine))
    assert look(bodies) is None


def test_thirty_turns_without_a_change_are_stuck() -> None:
    assert look(turns(*(act(n, f"cat {n}", str(n)) for n in range(1, 30)))) is None
    found = look(turns(*(act(n, f"cat {n}", str(n)) for n in range(1, 31))))
    assert found is not None
    assert found.kind == "idle"


def test_notice_resets_the_count_and_is_remembered() -> None:
    same = turns(*(act(n, "ls", "a") for n in range(1, 5)))
    noticed = [*same, StuckNoticed(0, "repeats", "…", 4)]
    assert look(noticed) is None
    again = look([*noticed, *turns(*(act(n, "ls", "a") for n in range(5, 9)))])
    assert again is not None
    assert again.earlier == 1


def test_progress_and_messages_reset_the_notices() -> None:
    first = [*turns(*(act(n, "ls", "a") for n in range(1, 5))), StuckNoticed(0, "repeats", "…", 4)]
    worse = turns(act(5, "e", "", changed=True, red=("a", "b")), act(6, "f", "", changed=True, red=("a",)))
    again = turns(*(act(n, "ls", "a") for n in range(7, 11)))
    found = look([*first, *worse, *again])
    assert found is not None
    assert found.earlier == 0, "it got further than before"
    helped = look([*first, PromptReceived("Look at calc.", "bob"), *again])
    assert helped is not None
    assert helped.earlier == 0
    in_between = turns(act(1, "ls", "a"), act(2, "ls", "a"))
    assert (
        look([*in_between, PromptReceived("Look.", "bob"), *turns(act(3, "ls", "a"), act(4, "ls", "a"))])
        is None
    )


def test_zero_turns_a_kind_off() -> None:
    never = Patience(repeats=0, alternations=0, unchanged=0, idle=0, malformed=0)
    assert look(turns(*(act(n, "ls", "a") for n in range(1, 90))), never) is None


@pytest.mark.parametrize(
    "ordinary",
    [
        [act(n, f"sed -n {n}p f", f"line {n}") for n in range(1, 28)],
        [
            act(n, "pytest -q", f"{30 - n} failed", changed=True, red=tuple("abcdefghijklmnop"[n:]))
            for n in range(12)
        ],
        [act(n, "make", "ok" if n % 3 else "error", changed=n % 2 == 0) for n in range(1, 25)],
        [act(n, "tail -1 log", f"{n * 10} % done") for n in range(1, 20)],
        [act(n, "sleep 60; cat state", "building") for n in range(1, 16)],
        [act(n, "sleep 60 && cat state", f"building, {60 * n} s so far") for n in range(1, 28)],
        [act(n, "sleep 60" if n % 2 else "tail -1 log", "" if n % 2 else "building") for n in range(1, 24)],
        [
            body
            for n in range(1, 24, 2)
            for body in (act(n, f"sed -i s/{n}/x/ f", "", changed=True), act(n + 1, "pytest -q", "1 failed"))
        ],
        [act(n, ("ls", "cat a", "cat b")[n % 3], ("l", "a", "b")[n % 3]) for n in range(1, 20)],
    ],
    ids=[
        "reads a file",
        "fixes one by one",
        "builds",
        "waits for something",
        "polls a build",
        "polls a slow build",
        "sleeps and looks",
        "the same test after edits",
        "three in turn",
    ],
)
def test_ordinary_work_is_not_stuck(ordinary: list[Iterator[AnyBody]]) -> None:
    circles = StuckDetector(0, Patience())
    bodies = beginning()
    for each in ordinary:
        bodies.extend(each)
        circles.update(numbered(bodies))
        assert circles.found() is None


def test_long_ordinary_log_is_not_stuck() -> None:
    circles = StuckDetector(0, Patience())
    circles.update(long_log(300))
    assert circles.found() is None


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.booleans()), max_size=40),
    cuts=st.lists(st.integers(0, 140), max_size=3),
)
def test_incremental_detection_equals_the_fold_of_the_whole_log(
    steps: list[tuple[str, str, bool]], cuts: list[int]
) -> None:
    bodies = beginning()
    for number, (command, result, changed) in enumerate(steps, start=1):
        bodies.extend(act(number, command, result, changed=changed, red=("t",) if changed else None))
    events = numbered(bodies)
    grown, whole = StuckDetector(0, Patience()), StuckDetector(0, Patience())
    for cut in sorted(cuts):
        grown.update(events[:cut])
    grown.update(events)
    whole.update(events)
    assert grown.found() == whole.found()


# Through the loop.

CIRCLE = '[[reply]]\nname = "again"\ncalls = [{ tool = "bash", command = "ls" }]\n'
TOGGLE = """
[[reply]]
name = "there"
calls = [{ tool = "bash", command = "sed -i 's/a - b/a * b/' calc.py" }]
[[reply]]
calls = [{ tool = "bash", command = "sed -i 's/a \\\\* b/a - b/' calc.py" }]
goto = "there"
"""
NO_EFFECT = (
    '[[reply]]\nname = "n"\ncalls = [{ tool = "bash", command = "date +%N >> n.txt; date +%N" }]\ngoto = "n"'
)
IDLE = '[[reply]]\nname = "n"\ncalls = [{ tool = "bash", command = "date +%N" }]\ngoto = "n"'
GARBLED = '[[reply]]\nname = "n"\ncalls = [{ tool = "teleport", to = "moon" }]\ngoto = "n"'


@pytest.fixture
async def bench(tmp_path: Path) -> LoopBench:
    return await open_bench(tmp_path)


def notices(bench: LoopBench) -> list[tuple[str, str]]:
    return [(b.kind, b.stage) for b in bench.journal.bodies if isinstance(b, StuckNoticed)]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("script", "kind", "most"),
    [
        pytest.param(CIRCLE + 'goto = "again"', "repeats", 8, id="repeats"),
        pytest.param(TOGGLE, "alternations", 8, id="alternations"),
        pytest.param(NO_EFFECT, "unchanged", 8, id="unchanged"),
        pytest.param(IDLE, "idle", 10, id="idle"),
        pytest.param(GARBLED, "malformed", 6, id="malformed"),
    ],
)
async def test_each_kind_is_nudged_and_then_ends_the_attempt(
    bench: LoopBench, script: str, kind: str, most: int
) -> None:
    bench.patience = Patience(alternations=2, unchanged=4, idle=5)
    ended = await bench.work(script)
    assert (ended.outcome, "is stuck" in ended.reason) == ("red", True)
    assert notices(bench) == [(kind, "nudge"), (kind, "stop")]
    assert len(bench.of(ModelReplied)) <= most


@pytest.mark.anyio
async def test_model_that_follows_the_nudge_continues(bench: LoopBench) -> None:
    script = CIRCLE + 'branch = [{ when = "Stop and think", goto = "fix" }, { goto = "again" }]\n'
    ended = await bench.work(script + FIX.replace("[[reply]]\nsay", '[[reply]]\nname = "fix"\nsay', 1))
    assert ended.outcome == "proven", ended.reason
    assert notices(bench) == [("repeats", "nudge")]


@pytest.mark.anyio
async def test_next_model_takes_over_the_same_conversation(bench: LoopBench, tmp_path: Path) -> None:
    stuck, other = tmp_path / "stuck.toml", tmp_path / "other.toml"
    stuck.write_text(CIRCLE + 'goto = "again"')
    # It follows the conversation: what the other model said before stands for its own first replies.
    other.write_text(
        CIRCLE
        + 'branch = [{ when = "repeats|same result: 4 turns", goto = "fix" }, { goto = "again" }]\n'
        + FIX.replace("[[reply]]\nsay", '[[reply]]\nname = "fix"\nsay', 1)
    )
    routes = ModelRoutes(code=(f"script:{stuck}", f"script:{other}"))
    async with open_models(Access(routes=routes), Job("repo")) as models:
        bench.models = lambda _: models
        ended = await bench.work("[[reply]]\nsay = ''")
    assert notices(bench)[:2] == [("repeats", "nudge"), ("repeats", "escalate")]
    [switched] = [b for b in bench.journal.bodies if isinstance(b, ModelSwitched)]
    assert (switched.from_model, switched.to_model) == (f"script:{stuck}", f"script:{other}")
    assert ended.outcome == "proven", ended.reason


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Branch((3,)), "attempt 3 continues"),
        (GiveUp("Nobody knows."), "Nobody knows."),
        (Switch("x:y"), "is stuck"),
    ],
)
async def test_escalation_decides_how_a_stuck_attempt_continues(
    bench: LoopBench, answer: Answer, reason: str
) -> None:
    asked: list[Stuck] = []

    async def escalate(stuck: Stuck) -> Answer:
        asked.append(stuck)
        return answer

    bench.escalate = escalate
    ended = await bench.work(CIRCLE + 'goto = "again"')
    assert (ended.outcome, reason in ended.reason) == ("red", True), ended.reason
    assert [stuck.step for stuck in asked] == [8]
    assert "ls" in asked[0].evidence
