"""The tree of a run's attempts, as a fold of its log, and what a forked run inherits of another."""

from pathlib import Path

import pytest
from tests.agent.loop_bench import MemoryJournal

from cloister.agent.taint import Provenance
from cloister.core.attempts import ForkedFrom
from cloister.core.errors import UserError
from cloister.core.events import (
    AnyBody,
    AttemptForked,
    AttemptStarted,
    BaseFixed,
    ConnectionDecided,
    Event,
    Inherited,
    ModelReplied,
    RunAdmitted,
    RunClaimed,
    RunFinished,
    TurnEnded,
)
from cloister.core.ids import RunId
from cloister.core.requests import Budget, NewRun, Usage
from cloister.forge.host import LocalRepositories
from cloister.runs.attempts.compare import Subject, compare_runs
from cloister.runs.attempts.tree import inheritance, point_at, rewindable, tree
from cloister.runs.view import fold

BASE = "b" * 40


def log(*bodies: AnyBody) -> tuple[Event, ...]:
    """One event each second."""
    begun = (RunAdmitted(NewRun("p", "/repo", n=2), "ada"), RunClaimed("o-1", 1), BaseFixed(BASE, "main"))
    numbered = enumerate((*begun, *bodies), start=1)
    return tuple(Event(RunId("r-1"), seq, float(seq), body) for seq, body in numbered)


WORK = (
    AttemptStarted(0, "m"),
    AttemptStarted(1, "m"),
    ModelReplied(0, 1, "m", "x", (), Usage(1, 1), 0.1),
    TurnEnded(0, 1, BASE, False),
    ModelReplied(0, 2, "m", "x", (), Usage(1, 1), 0.1),
    TurnEnded(0, 2, BASE, False),
)


@pytest.mark.anyio
async def test_attempts_that_a_stopped_run_cut_off_no_longer_work(tmp_path: Path) -> None:
    working = log(*WORK)
    assert [node.outcome for node in tree(working).nodes] == [None, None]
    stopped = log(*WORK, RunFinished("stopped", "Stopped by ada."))
    nodes = tree(stopped).nodes
    assert [(node.outcome, node.ended) for node in nodes] == [("stopped", "Stopped by ada.")] * 2
    assert [one.outcome for one in fold(stopped, 1_000.0).attempts] == ["stopped", "stopped"]
    found = await compare_runs(LocalRepositories(tmp_path), Subject(stopped, 0), Subject(stopped, 1), 1_000.0)
    assert (found.a.outcome, found.a.seconds, found.b.seconds) == ("stopped", 6.0, 5.0), "its clock stands"
    with pytest.raises(UserError, match=r"Both sides are r-1/0: name two runs"):
        await compare_runs(LocalRepositories(tmp_path), Subject(stopped, 0), Subject(stopped, 0), 1_000.0)


def test_an_event_that_is_no_save_point_is_answered_with_the_nearest_and_how_to_see_all() -> None:
    events = log(*WORK)
    with pytest.raises(UserError) as refused:
        point_at(events, 4)
    assert refused.value.message == (
        "Event 4 of run r-1 is no save point: the nearest are 7, 9; `cloister tree r-1 --json` lists all."
    )
    assert {point.seq for node in tree(events).nodes for point in node.points} == {7, 9}


def test_a_run_with_as_many_attempts_as_there_may_be_is_forked_and_not_rewound() -> None:
    many = tuple(AttemptForked(number, 0, 7, "r", Budget(), "") for number in range(2, 16))
    assert rewindable(log(*WORK, *many[:-1]), 7).seq == 7
    with pytest.raises(UserError) as refused:
        rewindable(log(*WORK, *many), 7)
    assert refused.value.code == "too_many_attempts"
    assert "cloister fork r-1 --at 7" in refused.value.message
    assert rewindable(log(*WORK, *many, RunFinished("red", "Done.", 0)), 7).seq == 7


# Forks.

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
