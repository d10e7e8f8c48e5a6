"""Which of several attempts is the result: evidence decides."""

from collections.abc import Sequence

from cloister.core.events import AttemptEnded

_ORDER = ("green", "unproven", "red", "budget", "stopped", "failed")


def best(ended: Sequence[AttemptEnded]) -> AttemptEnded:
    """The attempt to keep: green first, then the least left to do, then the most fixed, then the earliest."""

    def rank(one: AttemptEnded) -> tuple[int, int, int, int]:
        found = one.comparison
        return (_ORDER.index(one.outcome), found.open, -len(found.fixed), one.attempt)

    return min(ended, key=rank)
