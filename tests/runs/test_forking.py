"""What a forked run has of the one it goes on from."""

from cloister.agent.taint import Provenance
from cloister.core.attempts import ForkedFrom
from cloister.core.events import (
    AnyBody,
    AttemptStarted,
    BaseFixed,
    ConnectionDecided,
    Event,
    Inherited,
    RunAdmitted,
    TurnEnded,
)
from cloister.core.ids import RunId
from cloister.core.requests import NewRun
from cloister.runs.attempts.tree import inheritance
from cloister.testing.loop_bench import MemoryJournal

OUT = ConnectionDecided("s", "example.org", 443, "allow", "r")
REFUSED = ConnectionDecided("s", "example.org", 443, "deny", "r")


def inherited(*work: AnyBody) -> tuple[AnyBody, ...]:
    """What a run gets that is forked from the save point behind `work`."""
    bodies = (
        RunAdmitted(NewRun("p", "/repo"), "ada"),
        BaseFixed("b" * 40, "main"),
        AttemptStarted(0, "m"),
        *work,
        TurnEnded(0, 1, "c" * 40, True),
    )
    events = [Event(RunId("r-1"), seq, float(seq), body) for seq, body in enumerate(bodies, start=1)]
    after = Event(RunId("r-1"), len(events) + 1, 99.0, OUT)
    new = NewRun("p", "/repo", forked_from=ForkedFrom(RunId("r-1"), len(events)))
    return inheritance([*events, after], new, "ada")[1]


def test_a_fork_of_a_run_that_reached_out_is_one_that_has_read_text_from_outside() -> None:
    """Else a fork would be the way around what is asked of high-impact actions."""
    bodies = inherited(REFUSED, OUT, OUT)
    assert next(body.body for body in bodies if isinstance(body, Inherited)) == OUT
    assert sum(isinstance(body, Inherited) and body.body == OUT for body in bodies) == 1
    assert Provenance(0, MemoryJournal(*bodies)).untrusted


def test_a_fork_from_before_that_is_not() -> None:
    bodies = inherited(REFUSED)
    assert not Provenance(0, MemoryJournal(*bodies)).untrusted
