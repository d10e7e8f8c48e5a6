"""The fold: what people are shown of a run."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.core import diagnosis
from cloister.core.attempts import Score
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.errors import Bug
from cloister.core.events import (
    ActionDecided,
    Advised,
    AnyBody,
    AskAnswered,
    AskRaised,
    AttemptEnded,
    AttemptForked,
    AttemptsRanked,
    AttemptStarted,
    BaseFixed,
    BaselineSampled,
    BaselineTaken,
    BudgetExtended,
    BudgetSpent,
    BudgetWarned,
    CandidatesTried,
    ChangeDelivered,
    ChangeMade,
    ChecksChosen,
    ChecksRan,
    ConnectionClosed,
    ConnectionDecided,
    ContextSummarised,
    Delegated,
    DelegationEnded,
    DeliveryFailed,
    EnvironmentPrepared,
    Event,
    FaultLocalised,
    FinishRefused,
    Inherited,
    InstructionsGiven,
    InterruptRequested,
    JudgeSpoke,
    ModelChosen,
    ModelFailed,
    ModelReplied,
    ModelSpent,
    ModelSwitched,
    NoteProposed,
    OfferedTool,
    PagesPictured,
    PatchChosen,
    PatchFound,
    PauseRequested,
    PhaseEnded,
    PhaseStarted,
    PinnedSkill,
    PolicyFixed,
    PromptReceived,
    ProofTaken,
    QuestionAnswered,
    QuestionAsked,
    RequestDecided,
    ResumeRequested,
    RewindRequested,
    RunAdmitted,
    RunClaimed,
    RunContinued,
    RunFinished,
    RunPaused,
    RunResumed,
    SandboxClosed,
    SandboxOpened,
    SandboxUsed,
    SaveRefused,
    ServiceFailed,
    SkillsPinned,
    StopRequested,
    StuckNoticed,
    Suspect,
    ToolReturned,
    ToolsOffered,
    TurnEnded,
)
from cloister.core.ids import RunId
from cloister.core.requests import Budget, FileChange, Isolation, NewRun, ToolCall, Usage
from cloister.runs.view import AttemptView, Message, RunView, fold

RUN = RunId("r-0000")
ADMITTED = RunAdmitted(NewRun(prompt="fix it", repo="/repo"), "ann")
CLAIMED = RunClaimed("o-0000", 1)
ISOLATION = Isolation("container", "crun 1", True, "overlay")
FAILING = Diagnosis(
    "pytest",
    1,
    1.0,
    tests=(
        diagnosis.TestResult("a", "failed"),
        diagnosis.TestResult("b", "error"),
        diagnosis.TestResult("c", "passed"),
    ),
)
UNREAD = Diagnosis("make", 2, 1.0)
GREEN = Comparison(fixed=("a", "b"), passed=3, green=True)
HALF = Comparison(fixed=("a",), still=("b",), passed=2)
SCORE = Score(0, "proven", 0, 0, 0, 3, 30, "alone")
FILES = (FileChange("x.py", 1, 2),)


def log(*bodies: AnyBody) -> list[Event]:
    """One event per second, the first at 100."""
    return [Event(RUN, seq, 99.0 + seq, body) for seq, body in enumerate(bodies, start=1)]


def replied(attempt: int, step: int, tokens: int = 10) -> ModelReplied:
    return ModelReplied(attempt, step, "p:m", "t", (), Usage(tokens, 1, 2), 0.5)


def ran(attempt: int, comparison: Comparison) -> ChecksRan:
    return ChecksRan(attempt, 1, (), comparison)


def ended(attempt: int, comparison: Comparison) -> AttemptEnded:
    return AttemptEnded(attempt, "proven", "done", f"c{attempt}", comparison)


BUDGET_NOTES = (
    BudgetWarned("run", RUN, "tokens", 80, 100, 0),
    BudgetExtended("run", RUN, "tokens", 25, "bob", 0),
    BudgetSpent("organisation", "all", "dollars", 5, 5, 0),
)
EVERY: tuple[AnyBody, ...] = (
    ADMITTED,
    CLAIMED,
    PhaseStarted("fetch"),
    BaseFixed("base", "main", "two files are not committed"),
    PolicyFixed(("built-in",), ("steps: 5 instead of 60 (limits.steps, p:1)",)),
    PhaseEnded("fetch", 1.0),
    SandboxOpened("s-0000", ISOLATION),
    ChecksChosen(("pytest",), True),
    BaselineTaken((FAILING, UNREAD)),
    Inherited(7, 5.0, replied(0, 1)),
    AttemptStarted(0, "p:m", temperature=0.5),
    PromptReceived("mind the lock", "bob"),
    ModelFailed(0, "overloaded", "busy", 1.0),
    ModelSwitched(0, "p:m", "p:n", "busy"),
    ModelChosen("p:m", "bob"),
    replied(0, 1),
    ActionDecided(0, "call", "tool:bash", "ask", "host:3"),
    AskRaised("q", 0, "tool:bash", "rm -r build", 1_000.0),
    AskAnswered("q", "allow", "bob"),
    ConnectionDecided("s-0000", "example.org", 443, "deny", "built-in"),
    ConnectionClosed("s-0000", "example.org", 443, 1, 2, 0.1),
    RequestDecided("s-0000", "example.org", 443, "GET", "/", "allow", "allow connect:example.org"),
    ToolReturned(0, "call", "bash", True, "ok", 0.1, 0),
    ran(0, HALF),
    SaveRefused(0, 1, "too large"),
    FinishRefused(0, "b is red"),
    TurnEnded(0, 1, "c1", True),
    FaultLocalised(("b",), (Suspect("a.py", 3, 1.0),), "coverage", 1, 0.1),
    CandidatesTried(0, 40, 90, 1, 0.5),
    PatchFound(0, 7, 90, "comparison", "a.py", 3, "-a < b\n+a <= b\n", ("b",)),
    PatchChosen(0, 7, "comparison", "a.py", "it changes least"),
    RunClaimed("o-1111", 2),
    RunResumed(22),
    RunPaused("The disk is full.", 1_700_000_022.0),
    replied(0, 2, 20),
    ran(0, GREEN),
    ProofTaken(0, 2, "c2", (), GREEN),
    PagesPictured(0, "c2", (), (), ("no browser",)),
    ModelSpent(0, "summarise", "p:m", Usage(0, 0), 0.1, 0.25),
    ModelSpent(None, "judge", "p:j", Usage(0, 0), 0.1, 0.5),
    ContextSummarised(0, 5, "notes"),
    StuckNoticed(0, "repeats", "the same", 2),
    *BUDGET_NOTES,
    TurnEnded(0, 2, "c2", True),
    RewindRequested(22, "bob"),
    AttemptForked(1, 0, 22, "Rewound.", Budget(), "", asked=30),
    ended(0, GREEN),
    AttemptsRanked((SCORE,)),
    JudgeSpoke("p:judge", (0, 1), 0, "It reads better.", 0.1),
    Advised(0, "review", "p:r", "Name it."),
    InstructionsGiven(0, "api/AGENTS.md", "a1b2", "Use tabs.", "api"),
    ToolsOffered(0, (OfferedTool("deploy", ".cloister/tools/deploy.toml"),), ("x.toml: no description.",)),
    EnvironmentPrepared("env-1", built=True, seconds=2.0, plan=("npm because package.json",)),
    ChangeMade("cloister/fix-it", "c3", FILES, "Fixed it."),
    DeliveryFailed("git.example.org/team/shop", "it is down"),
    ChangeDelivered("/repo", "cloister/fix-it"),
    SandboxClosed("s-0000", "done"),
    ServiceFailed("s-0000", "error: Redis did not answer"),
    QuestionAsked("q-1", 0, "c9", "Which?", ("a", "b"), "a", 4e9),
    QuestionAnswered("q-1", "b", "bob"),
    PauseRequested("bob"),
    SkillsPinned(
        0, (PinnedSkill("deploy", "How to deploy.", "repository", ".claude/skills/deploy", "ab"),), ("x.",)
    ),
    Delegated(7, 0, "Where is the lock?", "c1", Budget(), "p:m"),
    DelegationEnded(7, "done", "In lock.py.", "c1"),
    NoteProposed(0, "Tests need Redis."),
    BaselineSampled((FAILING,)),
    ResumeRequested("bob"),
    StopRequested("bob"),
    InterruptRequested("bob"),
    SandboxUsed(0, "s-1", "terminal", "bash", "bob"),
    RunFinished("proven", "all green", 0),
)


def test_a_whole_run_is_shown_as_it_was() -> None:
    assert {type(body) for body in EVERY} == set(get_args(AnyBody)) - {RunContinued}
    assert fold(log(*EVERY), now=9_999.0) == RunView(
        id=RUN,
        state="finished",
        prompt="fix it",
        repo="/repo",
        who="ann",
        created_at=100.0,
        last_seq=len(EVERY),
        phase=None,
        base_commit="base",
        base_branch="main",
        note="two files are not committed",
        models=("p:m",),
        checks=("pytest",),
        red_before=3,
        red_now=0,
        fixed=("a", "b"),
        steps=2,
        usage=Usage(30, 2, 4),
        seconds=len(EVERY) - 2.0,
        files=FILES,
        branch="cloister/fix-it",
        commit="c3",
        delivered_to="/repo",
        summary="Fixed it.",
        outcome="proven",
        reason="all green",
        winner=0,
        isolation=ISOLATION,
        attempts=(
            AttemptView(
                *(0, "p:m", 2, Usage(30, 2, 4), "c0", GREEN, "proven", "done"),
                cost=0.25,
                temperature=0.5,
                harness="native",
            ),
            AttemptView(1, None, 0, Usage(), None, None, "stopped", "all green", parent=0, at=22),
        ),
        asks=(),
        messages=(Message("mind the lock", "bob", 111.0),),
        stopping=False,
        ranking=(SCORE,),
        cost=0.75,
        budget_notes=BUDGET_NOTES,
        notes=("Tests need Redis.",),
    )


def test_a_continued_run_is_queued_again_with_an_open_outcome_and_keeps_its_change() -> None:
    again = (*EVERY, RunContinued("bob", "review"), PromptReceived("rename it", "bob", "review"))
    view, last = fold(log(*again), now=9_999.0), 99.0 + len(again)
    assert (view.state, view.outcome, view.winner, view.rounds) == ("queued", None, None, 2)
    assert (view.stopping, view.asks, view.commit, view.seconds) == (False, (), "c3", len(EVERY) - 2.0)
    assert [one.outcome for one in view.attempts] == ["proven", "stopped"]
    driven = (*again, RunClaimed("o-2222", 3), AttemptForked(2, 0, 22, "Continued.", Budget(), ""))
    view = fold(log(*driven), now=last + 11.0)
    assert (view.state, view.seconds) == ("running", len(EVERY) - 2.0 + 10.0)
    assert [one.outcome for one in view.attempts] == ["proven", "stopped", None]
    remade = (*driven, ChangeMade("cloister/fix-it", "c4", FILES, "More."), RunFinished("red", "no", 2))
    view = fold(log(*remade))
    assert (view.state, view.outcome, view.commit, view.delivered_to) == ("finished", "red", "c4", None)


def test_unclaimed_run_is_queued_and_took_no_time() -> None:
    view = fold(log(ADMITTED), now=500.0)
    assert (view.state, view.seconds, view.red_before, view.red_now) == ("queued", 0.0, None, None)


def test_time_runs_from_the_first_claim_to_now_and_never_backwards() -> None:
    events = log(ADMITTED, CLAIMED, PhaseStarted("create"))
    assert fold(events, now=161.0).seconds == 60.0
    assert fold(events).seconds == 1.0
    assert fold(events, now=50.0).seconds == 0.0
    again = log(ADMITTED, CLAIMED, PhaseStarted("create"), RunClaimed("o-1111", 2))
    assert fold(again, now=161.0).seconds == 60.0


def test_the_innermost_open_phase_is_shown_and_a_new_owner_starts_without_one() -> None:
    begun = (ADMITTED, CLAIMED, PhaseStarted("work"), PhaseStarted("fork"))
    assert fold(log(*begun)).phase == "fork"
    assert fold(log(*begun, PhaseEnded("fork", 1.0))).phase == "work"
    assert fold(log(*begun, RunClaimed("o-1111", 2))).phase is None
    assert fold(log(*begun, RunFinished("failed", "no"))).phase is None


def test_before_the_first_checks_what_is_red_is_the_baseline() -> None:
    view = fold(log(ADMITTED, CLAIMED, BaselineTaken((FAILING,))))
    assert (view.red_before, view.red_now, view.fixed) == (2, 2, ())


def test_of_several_attempts_the_furthest_counts_until_one_has_won() -> None:
    worse = Comparison(new=("z",), still=("a", "b"))
    both = (ADMITTED, CLAIMED, ran(0, worse), ran(1, HALF))
    view = fold(log(*both))
    assert (view.red_now, view.fixed) == (1, ("a",))
    assert [attempt.comparison for attempt in view.attempts] == [worse, HALF]
    assert fold(log(*both, RunFinished("red", "budget", 0))).red_now == 3
    assert fold(log(*both, RunFinished("red", "budget"))).red_now == 1


def test_checks_of_a_turn_that_was_cut_off_do_not_count_and_its_tokens_do() -> None:
    view = fold(
        log(
            ADMITTED,
            CLAIMED,
            BaselineTaken((FAILING,)),
            replied(0, 1),
            ran(0, GREEN),
            RunClaimed("o-1111", 2),
            RunResumed(5),
        )
    )
    assert (view.red_now, view.steps, view.usage.total) == (2, 1, 11)


def test_a_question_is_open_until_it_is_answered_or_too_late_or_the_run_is_over() -> None:
    ask = AskRaised("q", 0, "tool:bash", "rm -r build", 200.0)
    asked = (ADMITTED, CLAIMED, ask)
    assert fold(log(*asked)).asks == (ask,)
    assert fold(log(*asked), now=200.0).asks == ()
    assert fold(log(*asked, AskAnswered("other", "deny", "bob"))).asks == (ask,)
    assert fold(log(*asked, AskAnswered("q", "deny", "bob"))).asks == ()
    assert fold(log(*asked, RunFinished("stopped", "stop"))).asks == ()


def test_a_run_that_was_asked_to_stop_is_stopping_until_it_ends() -> None:
    paused = fold(log(ADMITTED, RunClaimed("o-1", 1), PauseRequested("bob")))
    assert (paused.state, paused.reason) == ("paused", "Paused by bob.")
    again = fold(log(ADMITTED, RunClaimed("o-1", 1), PauseRequested("bob"), RunClaimed("o-2", 2)))
    assert again.state == "paused"
    assert fold(log(ADMITTED, StopRequested("bob"))).stopping
    assert not fold(log(ADMITTED, StopRequested("bob"), RunFinished("stopped", "bob"))).stopping


def test_what_is_no_log_of_a_run_is_a_bug() -> None:
    for events in ([], log(CLAIMED)):
        with pytest.raises(Bug):
            fold(events)


def test_a_view_goes_over_the_wire_and_back() -> None:
    view = fold(log(*EVERY))
    assert msgspec.json.decode(msgspec.json.encode(view), type=RunView) == view


def test_a_tool_call_of_a_reply_is_no_step_of_its_own() -> None:
    reply = msgspec.structs.replace(
        replied(0, 1), calls=(ToolCall("c", "bash", {}), ToolCall("d", "bash", {}))
    )
    assert fold(log(ADMITTED, CLAIMED, reply)).steps == 1


@settings(deadline=None)
@given(st.lists(st.sampled_from(EVERY[1:]), max_size=40))
def test_any_log_can_be_shown_and_counts_every_reply(bodies: list[AnyBody]) -> None:
    view = fold(log(ADMITTED, *bodies))
    assert view.steps == sum(isinstance(body, ModelReplied) for body in bodies)
    assert view.last_seq == len(bodies) + 1
    assert view.seconds >= 0
    assert (view.outcome is not None) == (view.state == "finished")
