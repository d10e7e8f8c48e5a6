from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from cloister.core.events import AnyBody, Event, ModelReplied, RunResumed, ToolReturned, TurnEnded
from cloister.core.ids import RunId
from cloister.core.log import effective
from cloister.core.requests import Usage


def log(*bodies: AnyBody) -> tuple[Event, ...]:
    return tuple(Event(RunId("r-test"), seq, float(seq), body) for seq, body in enumerate(bodies, 1))


def reply(attempt: int = 0, step: int = 1) -> ModelReplied:
    return ModelReplied(attempt, step, "m", "", (), Usage(), 0.0)


def result(attempt: int = 0) -> ToolReturned:
    return ToolReturned(attempt, "c", "bash", True, "", 0.0)


def ended(attempt: int = 0, step: int = 1) -> TurnEnded:
    return TurnEnded(attempt, step, "0" * 40, True)


def bodies(events: Sequence[Event]) -> list[AnyBody]:
    return [event.body for event in events]


def test_without_a_resume_everything_counts() -> None:
    events = log(reply(), result(), ended(), reply(), result())
    assert effective(events) == events


def test_results_of_a_half_done_turn_do_not_count_after_a_resume_but_its_reply_does() -> None:
    events = log(reply(), result(), ended(), reply(), result(), RunResumed(5), result(), ended())
    assert bodies(effective(events)) == [
        reply(),
        result(),
        ended(),
        reply(),
        RunResumed(5),
        result(),
        ended(),
    ]


def test_the_loss_of_one_attempts_sandbox_leaves_the_other_attempts_alone() -> None:
    events = log(reply(0), result(0), reply(1), result(1), RunResumed(4, attempt=1))
    assert bodies(effective(events)) == [reply(0), result(0), reply(1), RunResumed(4, attempt=1)]


def test_a_second_resume_drops_what_was_done_after_the_first() -> None:
    events = log(reply(), result(), RunResumed(2), result(), RunResumed(4), result(), ended())
    assert bodies(effective(events)) == [reply(), RunResumed(2), RunResumed(4), result(), ended()]


some_bodies = st.lists(
    st.one_of(
        st.builds(reply, st.integers(0, 2)),
        st.builds(result, st.integers(0, 2)),
        st.builds(ended, st.integers(0, 2)),
        st.builds(RunResumed, st.just(0), st.one_of(st.none(), st.integers(0, 2))),
    ),
    max_size=40,
)


@given(some_bodies)
def test_the_fold_is_idempotent_keeps_order_and_never_drops_an_ended_turn(found: list[AnyBody]) -> None:
    events = log(*found)
    kept = effective(events)
    assert effective(kept) == kept
    assert list(kept) == sorted(kept, key=lambda event: event.seq)
    assert [e for e in kept if isinstance(e.body, TurnEnded)] == [
        e for e in events if isinstance(e.body, TurnEnded)
    ]
    assert [e for e in kept if isinstance(e.body, ModelReplied)] == [
        e for e in events if isinstance(e.body, ModelReplied)
    ]
