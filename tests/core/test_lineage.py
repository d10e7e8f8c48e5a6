"""What a forked attempt sees of the log."""

from cloister.core.diagnosis import Comparison
from cloister.core.events import (
    AnyBody,
    AttemptEnded,
    AttemptForked,
    AttemptStarted,
    ChecksRan,
    Event,
    Inherited,
    ModelReplied,
    PromptReceived,
    TurnEnded,
)
from cloister.core.ids import RunId
from cloister.core.log import ancestors, attempts_of, of_attempt, root_of, save_points, seen_by
from cloister.core.requests import Budget, Usage


def log(*bodies: AnyBody) -> list[Event]:
    return [Event(RunId("r-0000"), seq, float(seq), body) for seq, body in enumerate(bodies, start=1)]


def replied(attempt: int, step: int) -> ModelReplied:
    return ModelReplied(attempt, step, "m", f"{attempt}.{step}", (), Usage(10, 5), 0.1)


def forked(attempt: int, parent: int, at: int) -> AttemptForked:
    return AttemptForked(attempt, parent, at, "stuck", Budget(), "Take another way.")


RED = Comparison(still=("a",))
EVENTS = log(
    AttemptStarted(0, "m"),
    AttemptStarted(1, "m"),
    replied(0, 1),
    replied(1, 1),
    ChecksRan(0, 1, (), RED),
    TurnEnded(0, 1, "c1", True),
    TurnEnded(1, 1, "d1", True),
    replied(0, 2),
    PromptReceived("hurry", "ada"),
    TurnEnded(0, 2, "c2", True),
    forked(2, 0, 6),
    AttemptEnded(0, "red", "stuck", "c2", RED),
    replied(2, 2),
    TurnEnded(2, 2, "e2", True),
    forked(3, 2, 14),
    forked(4, 2, 6),
    replied(3, 3),
)


def said(attempt: int) -> list[str]:
    bodies = [event.body for event in seen_by(EVENTS, attempt)]
    return [body.text for body in bodies if isinstance(body, ModelReplied) and body.attempt == attempt]


def test_a_fork_has_its_parents_conversation_up_to_the_save_point_and_no_further() -> None:
    assert said(0) == ["0.1", "0.2"]
    assert said(1) == ["1.1"]
    assert said(2) == ["0.1", "2.2"]


def test_forks_of_forks_inherit_along_the_line() -> None:
    assert said(3) == ["0.1", "2.2", "3.3"]
    assert said(4) == ["0.1"]
    assert ancestors(EVENTS, 4) == {2: 6, 0: 6}
    assert [root_of(EVENTS, n) for n in range(5)] == [0, 1, 0, 0, 0]
    assert attempts_of(EVENTS) == (0, 1, 2, 3, 4)


def test_numbers_stay_and_the_end_of_a_parent_is_not_inherited() -> None:
    seen = seen_by(EVENTS, 2)
    assert [event.seq for event in seen] == [event.seq for event in EVENTS]
    assert [e.body.attempt for e in seen if isinstance(e.body, AttemptEnded)] == [0]


def test_save_points_carry_their_evidence() -> None:
    first, second = save_points(EVENTS, 2)
    assert (first.seq, first.commit, first.comparison) == (6, "c1", RED)
    assert (second.seq, second.step, second.commit) == (14, 2, "e2")


def test_the_log_of_one_attempt_has_its_line_and_what_concerns_the_run() -> None:
    kept = of_attempt(EVENTS, 2)
    assert [event.seq for event in kept] == [1, 3, 5, 6, 9, 11, 13, 14]


def test_what_a_run_inherited_from_another_belongs_to_each_of_its_attempts() -> None:
    events = log(
        Inherited(40, 1.0, replied(5, 1)),
        Inherited(41, 1.0, TurnEnded(5, 1, "c1", True)),
        AttemptStarted(0, "m"),
        AttemptStarted(1, "m"),
        AttemptForked(2, 0, 0, "anew", Budget(), ""),
        AttemptForked(3, 1, 2, "rewound", Budget(), ""),
    )
    assert [point.seq for point in save_points(events, 0)] == [2]
    assert [point.commit for point in save_points(events, 1)] == ["c1"]
    assert save_points(events, 2) == ()
    assert [point.commit for point in save_points(events, 3)] == ["c1"]
