"""When to ask a model again after a failure, and how long to wait first. Pure."""

from cloister.model.api import Failure, FailureCode

MAX_TRIES = 5
FIRST_SECONDS = 1.0
LONGEST_SECONDS = 60.0
"""Longest wait of our own choosing."""
PATIENCE_SECONDS = 300.0
"""Longest wait a provider may ask for; beyond it we give up."""

RETRYABLE: frozenset[FailureCode] = frozenset({"rate_limit", "overloaded", "network", "bad_reply"})
"""Failures after which the same request may work."""


def next_wait(failure: Failure, tries: int) -> float | None:
    """Seconds to wait before the next try, after `tries` tries have failed; None means give up.

    Doubles from one second to a minute, unless the provider said how long to wait.
    """
    if not failure.retryable or tries >= MAX_TRIES:
        return None
    if failure.retry_seconds is None:
        return min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** max(0, tries - 1))
    if failure.retry_seconds > PATIENCE_SECONDS:
        return None
    return max(0.0, failure.retry_seconds)
