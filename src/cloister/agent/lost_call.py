"""Whether an owner died while it asked a model: what that call took is in no log, and still counts. Pure."""

from collections.abc import Sequence

from cloister.agent.progress import progress
from cloister.core.events import (
    ActionDecided,
    AskRaised,
    AttemptEnded,
    ChecksRan,
    Event,
    FinishRefused,
    ModelReplied,
    ModelSpent,
    ProofTaken,
    RunClaimed,
    RunResumed,
    SandboxClosed,
    SandboxOpened,
    SaveRefused,
    ToolReturned,
)
from cloister.core.history import effective

LOST = "lost"
"""The purpose of what is counted for such a call."""

_BUSY = (
    ActionDecided,
    AskRaised,
    AttemptEnded,
    ChecksRan,
    FinishRefused,
    ModelReplied,
    ProofTaken,
    SaveRefused,
    ToolReturned,
)
"""After these an attempt does something else than ask."""
_BEFORE = (RunResumed, SandboxClosed, SandboxOpened)


def call_was_lost(events: Sequence[Event], attempt: int) -> bool:
    """Whether the owner before this one seems to have died in a call for the next step of `attempt`.

    Nobody can know: it is so if the last that it wrote is something after which it asks. Who went in order has
    recorded what the call took until then. False once the owner of now has written about the attempt.
    """
    claims = [at for at, event in enumerate(events) if isinstance(event.body, RunClaimed)]
    if len(claims) < 2 or any(_is_own(event, attempt) for event in events[claims[-1] :]):
        return False
    if progress(effective(events), attempt).pending is not None:
        return False
    began = False
    for event in reversed(events[claims[-2] : claims[-1]]):
        if _is_own(event, attempt):
            recorded = isinstance(event.body, ModelSpent) and event.body.purpose == "code"
            return not recorded and not isinstance(event.body, _BUSY)
        began = began or isinstance(event.body, SandboxOpened)
    return began and any(_is_own(event, attempt) for event in events[: claims[-2]])


def _is_own(event: Event, attempt: int) -> bool:
    """Whether the loop of the attempt wrote it; what is done so that it can begin does not count."""
    body = event.body
    return getattr(body, "attempt", None) == attempt and not isinstance(body, _BEFORE)
