"""An attempt with any harness: begin or resume, keep the time, save on a time-out, and record exactly one end."""

from collections.abc import Sequence
from typing import assert_never

from cloister.agent.evidence.evidence import Claim, Evidence
from cloister.agent.harnesses.api import Ending, Harness, OutOfBudget, Unfinished, Workplace
from cloister.agent.roles import what_is_left
from cloister.core.events import (
    AttemptEnded,
    Event,
    FinishRefused,
    ModelReplied,
    ProofTaken,
    ToolReturned,
)
from cloister.core.log import Index, replayed, round_start
from cloister.core.requests import Outcome, ToolCall
from cloister.core.text import one_line

_CUT_OFF = "Interrupted: the time budget ran out. Changes made until then are kept."


async def work(place: Workplace, evidence: Evidence, harness: Harness) -> AttemptEnded:
    """Drive the attempt to its end, which is in the log when this returns. Resume if the log has turns of it.

    The computer may still be on its way: `evidence.begin` is called before it arrives.
    """
    while True:
        ending: Ending | None = None
        with place.clock.running():
            if place.clock.left > 0:
                ending = await _as_replayed(place, evidence) or await harness.drive(place, evidence)
        match ending:
            case AttemptEnded():
                return ending
            case Unfinished(outcome, reason):
                return await _end(evidence, outcome, reason)
            case OutOfBudget(reason):
                await _save_interrupted(place, evidence)
                return await _wrap_up(place, evidence, harness, reason)
            case None:
                await _save_interrupted(place, evidence)
                reason = place.clock.over
                if not await place.clock.more():
                    return await _wrap_up(place, evidence, harness, reason)
            case _:
                assert_never(ending)


async def _as_replayed(place: Workplace, evidence: Evidence) -> AttemptEnded | None:
    """Prove a change that was replayed on a moved base without conflicts. None: it takes work."""
    events = place.journal.events
    start = round_start(events)
    own = Index(events[start:])
    if not replayed(events) or own.first(ModelReplied, ProofTaken, FinishRefused, attempt=place.attempt):
        return None
    before = Index(events[:start]).last(AttemptEnded)
    claim = Claim(place.progress().steps, before.reason if before else "", len(events))
    result = await evidence.try_finish(claim)
    if isinstance(result, AttemptEnded):
        return result
    await evidence.record(FinishRefused(place.attempt, one_line(result.why)))
    return None


async def _save_interrupted(place: Workplace, evidence: Evidence) -> None:
    """Save the files, and end the turn that the time-out interrupted."""
    so_far = place.progress()
    saved = await evidence.save_unchecked()
    if saved or so_far.pending is not None:
        calls = _without_result(place.journal.events, so_far.pending)
        results = (ToolReturned(place.attempt, call.id, call.name, False, _CUT_OFF, 0.0) for call in calls)
        await evidence.end_turn(so_far.steps, *results)


async def _wrap_up(place: Workplace, evidence: Evidence, harness: Harness, reason: str) -> AttemptEnded:
    """Let the harness say what is left, and end."""
    words = await harness.last_words(place, evidence, reason)
    left = words or what_is_left(evidence.comparison, bool(evidence.checks))
    return await _end(evidence, "budget", f"{reason} {left}")


async def _end(evidence: Evidence, outcome: Outcome, reason: str) -> AttemptEnded:
    """End without acceptance. The last save point is kept."""
    end = AttemptEnded(evidence.attempt, outcome, reason, evidence.commit, evidence.comparison)
    await evidence.record(end)
    return end


def _without_result(events: Sequence[Event], reply: ModelReplied | None) -> list[ToolCall]:
    """The calls of `reply` that have no result."""
    if reply is None:
        return []
    done: set[str] = set()
    for event in reversed(events):
        match event.body:
            case ToolReturned() as body if body.attempt == reply.attempt:
                done.add(body.call)
            case ModelReplied() as body if body == reply:
                break
            case _:
                pass
    return [call for call in reply.calls if call.id not in done]
