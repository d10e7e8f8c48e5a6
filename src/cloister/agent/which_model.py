"""Which model takes the next step of an attempt: a fold of the log, so that a resume goes on with the same one. Pure."""

from collections.abc import Sequence

from cloister.core.events import Event, ModelChosen, ModelSwitched
from cloister.model.api import Failure


class InCharge:
    """The model in charge of an attempt whose log grows: what was taken in is not looked at again."""

    def __init__(self, attempt: int) -> None:
        self._attempt = attempt
        self._taken = 0
        self._chosen: str | None = None

    def ring(self, events: Sequence[Event], chain: Sequence[str]) -> tuple[str, ...]:
        """The models to ask, the one that is in charge first, then those that stand in for it, round to its start."""
        for event in events[self._taken :]:
            match event.body:
                case ModelSwitched() as body if body.attempt == self._attempt:
                    self._chosen = body.to_model
                case ModelChosen() as body:
                    self._chosen = body.model
                case _:
                    pass
        self._taken = len(events)
        current = self._chosen or chain[0]
        if current not in chain:
            return (current, *chain)
        at = chain.index(current)
        return (*chain[at:], *chain[:at])


def stands_in(failure: Failure) -> bool:
    """Whether another model, asked the same, need not fail."""
    return failure.retryable or failure.code in ("auth", "quota", "bad_request")
