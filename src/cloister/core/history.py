"""Which events still count after a resume."""

from collections.abc import Sequence

from cloister.core.events import (
    ActionDecided,
    AskRaised,
    ChecksRan,
    Event,
    FinishRefused,
    ModelReplied,
    ProofTaken,
    RunResumed,
    SaveRefused,
    ToolReturned,
    TurnEnded,
)

_OF_A_TURN = (ActionDecided, AskRaised, ToolReturned, ChecksRan, ProofTaken, SaveRefused, FinishRefused)


def effective(events: Sequence[Event]) -> tuple[Event, ...]:
    """The events without the results of turns that a resume cut off.

    A turn is a `ModelReplied` up to its `TurnEnded`. What a half-done turn did was lost with its sandbox,
    so its results are dropped; its reply is kept, because a recorded reply is not asked for again.
    """
    if not any(type(event.body) is RunResumed for event in events):
        return tuple(events)
    kept: list[Event] = []
    open_turn: dict[int, list[int]] = {}
    """Attempt → positions in `kept` of results since its last ended turn."""
    dropped: set[int] = set()
    for event in events:
        body = event.body
        match body:
            case ModelReplied():
                open_turn[body.attempt] = []
            case TurnEnded():
                open_turn[body.attempt] = []
            case RunResumed():
                for attempt, positions in open_turn.items():
                    if body.attempt is None or body.attempt == attempt:
                        dropped.update(positions)
                        positions.clear()
            case _ if isinstance(body, _OF_A_TURN):
                open_turn.setdefault(body.attempt, []).append(len(kept))
            case _:
                pass
        kept.append(event)
    return tuple(event for position, event in enumerate(kept) if position not in dropped)
