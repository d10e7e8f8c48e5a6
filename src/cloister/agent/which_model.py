"""Which model takes the next step of an attempt: a fold of the log, so that a resume goes on with the same one. Pure."""

from collections.abc import Sequence

from cloister.core.events import Event, ModelChosen, ModelSwitched
from cloister.model.api import Failure


def ring(events: Sequence[Event], attempt: int, chain: Sequence[str]) -> tuple[str, ...]:
    """The models to ask, the one that is in charge first, then those that stand in for it, round to its start."""
    current = chain[0]
    for event in events:
        match event.body:
            case ModelSwitched() as body if body.attempt == attempt:
                current = body.to_model
            case ModelChosen() as body:
                current = body.model
            case _:
                pass
    if current not in chain:
        return (current, *chain)
    at = chain.index(current)
    return (*chain[at:], *chain[:at])


def stands_in(failure: Failure) -> bool:
    """Whether another model, asked the same, need not fail."""
    return failure.retryable or failure.code in ("auth", "quota", "bad_request")
