"""Which events still count after a resume."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.core.diagnosis import Comparison
from cloister.core.events import (
    ActionDecided,
    AnyBody,
    AskAnswered,
    AskRaised,
    ChecksRan,
    Event,
    FinishRefused,
    ModelReplied,
    PromptReceived,
    ProofTaken,
    RunClaimed,
    RunResumed,
    SaveRefused,
    ToolReturned,
    TurnEnded,
)
from cloister.core.ids import RunId
from cloister.core.log import effective
from cloister.core.requests import Usage

RUN = RunId("r-0000")
RESULTS = (ActionDecided, AskRaised, ToolReturned, ChecksRan, ProofTaken, SaveRefused, FinishRefused)


def log(*bodies: AnyBody) -> list[Event]:
    return [Event(RUN, seq, 0.0, body) for seq, body in enumerate(bodies, start=1)]


def replied(attempt: int = 0) -> ModelReplied:
    return ModelReplied(attempt, 1, "p:m", "t", (), Usage(), 0.0)


def returned(attempt: int = 0, text: str = "ok") -> ToolReturned:
    return ToolReturned(attempt, "c", "bash", True, text, 0.0)


def results(attempt: int) -> tuple[AnyBody, ...]:
    return (
        ActionDecided(attempt, "c", "tool:bash", "allow", "r"),
        AskRaised("q", attempt, "tool:bash", "d", 1.0),
        returned(attempt),
        ChecksRan(attempt, 1, (), Comparison()),
        ProofTaken(attempt, 1, "c", (), Comparison()),
        SaveRefused(attempt, 1, "too large"),
        FinishRefused(attempt, "red"),
    )


def result(attempt: int, which: int) -> AnyBody:
    return results(attempt)[which]


def turn_ended(attempt: int = 0) -> TurnEnded:
    return TurnEnded(attempt, 1, "c", True)


def kept(*bodies: AnyBody) -> list[AnyBody]:
    return [event.body for event in effective(log(*bodies))]


def test_without_a_resume_everything_counts() -> None:
    bodies = (replied(), *results(0), RunClaimed("o-1111", 2), turn_ended())
    assert kept(*bodies) == list(bodies)


def test_results_of_a_turn_that_was_cut_off_are_dropped_and_its_reply_is_kept() -> None:
    assert kept(replied(), *results(0), RunClaimed("o-1111", 2), RunResumed(6)) == [
        replied(),
        RunClaimed("o-1111", 2),
        RunResumed(6),
    ]


def test_an_ended_turn_stays_whole() -> None:
    whole = (replied(), *results(0), turn_ended())
    assert kept(*whole, replied(), returned(), RunResumed(9)) == [*whole, replied(), RunResumed(9)]


def test_what_people_said_in_the_meantime_stays() -> None:
    said = (PromptReceived("x", "me"), AskAnswered("q", "allow", "me"))
    assert kept(replied(), returned(), *said, RunResumed(4)) == [replied(), *said, RunResumed(4)]


def test_each_attempt_is_cut_at_its_own_last_turn() -> None:
    assert kept(
        replied(0),
        replied(1),
        returned(0, "a"),
        returned(1, "b"),
        turn_ended(1),
        RunResumed(5),
    ) == [replied(0), replied(1), returned(1, "b"), turn_ended(1), RunResumed(5)]


def test_losing_one_attempts_sandbox_cuts_that_attempt_only() -> None:
    assert kept(replied(0), replied(1), returned(0, "a"), returned(1, "b"), RunResumed(4, attempt=1)) == [
        replied(0),
        replied(1),
        returned(0, "a"),
        RunResumed(4, attempt=1),
    ]


def test_each_resume_cuts_what_the_one_before_redid() -> None:
    assert kept(
        replied(),
        returned(0, "1"),
        RunResumed(2),
        returned(0, "2"),
        RunResumed(4),
        returned(0, "3"),
        turn_ended(),
    ) == [replied(), RunResumed(2), RunResumed(4), returned(0, "3"), turn_ended()]


ATTEMPTS = st.integers(0, 2)
BODIES = st.lists(
    st.one_of(
        st.builds(replied, ATTEMPTS),
        st.builds(returned, ATTEMPTS, st.text(max_size=2)),
        st.builds(result, ATTEMPTS, st.integers(0, 6)),
        st.builds(turn_ended, ATTEMPTS),
        st.builds(RunResumed, st.just(0), st.one_of(st.none(), ATTEMPTS)),
        st.just(PromptReceived("x", "me")),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(BODIES)
def test_it_drops_only_results_keeps_the_order_and_does_so_once(bodies: list[AnyBody]) -> None:
    events = log(*bodies)
    once = effective(events)
    assert effective(once) == once
    seqs = [event.seq for event in once]
    assert seqs == sorted(set(seqs))
    stay = set(seqs)
    assert all(event.seq in stay for event in events if not isinstance(event.body, RESULTS))


@settings(deadline=None)
@given(BODIES)
def test_it_never_drops_what_an_ended_turn_holds(bodies: list[AnyBody]) -> None:
    events = log(*bodies)
    stay = {event.seq for event in effective(events)}
    for attempt in range(3):
        turn: list[int] = []
        """Results of this attempt since it last ended a turn or was resumed."""
        for event in events:
            body = event.body
            if isinstance(body, RunResumed) and body.attempt in (None, attempt):
                turn.clear()
            elif isinstance(body, RESULTS) and body.attempt == attempt:
                turn.append(event.seq)
            elif isinstance(body, TurnEnded) and body.attempt == attempt:
                assert stay.issuperset(turn)
                turn.clear()


@settings(deadline=None)
@given(BODIES, BODIES)
def test_what_was_settled_by_an_ended_turn_is_not_undone_by_what_follows(
    before: list[AnyBody], after: list[AnyBody]
) -> None:
    ended = [*before, *(turn_ended(attempt) for attempt in range(3))]
    assert effective(log(*ended, *after))[: len(effective(log(*ended)))] == effective(log(*ended))
