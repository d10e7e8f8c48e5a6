"""A review by the model that is named for it, of a change that the checks have proven.

It may send the change back with objections, a bounded number of times; evidence is never overruled by it.
"""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from cloister.agent.consult import Adviser, Heard, consult
from cloister.agent.prompts import REVIEW
from cloister.core.events import Advised, Event
from cloister.core.text import bounded, harmless
from cloister.model.api import Reply, Request, ToolSpec, UserMessage

REVIEWS = 2
"""How often one attempt may be sent back."""
REVIEW_SECONDS = 300.0
REVIEW_TOKENS = 2_048
_DIFF_CHARS = 60_000
_TASK_CHARS = 20_000
_OBJECTION_CHARS = 4_000

Review = Callable[[str, str], Awaitable[str]]
"""What is to be changed about a commit with this summary before it is handed over; empty when nothing is."""


class _Verdict(msgspec.Struct, frozen=True):
    approve: bool
    objections: str = ""


_VERDICT = ToolSpec(
    "verdict",
    "Say whether the change may be handed over.",
    {
        "type": "object",
        "properties": {"approve": {"type": "boolean"}, "objections": {"type": "string"}},
        "required": ["approve", "objections"],
        "additionalProperties": False,
    },
)


def sent_back(events: Sequence[Event], attempt: int) -> int:
    """How often a review has sent this attempt's change back."""
    bodies = (event.body for event in events)
    return sum(
        isinstance(body, Advised) and body.attempt == attempt and body.role == "review" and bool(body.text)
        for body in bodies
    )


async def review(adviser: Adviser, task: str, diff: str, summary: str) -> str:
    """Ask, and record the verdict. Empty when it is approved, nobody is named, or nobody gave a usable answer."""
    if not adviser.named("review") or sent_back(adviser.journal.events, adviser.attempt) >= REVIEWS:
        return ""
    told = (
        f"Task:\n{bounded(task, _TASK_CHARS)}\n\nWhat its author says of it:\n{bounded(summary, _OBJECTION_CHARS)}\n\n"
        f"The change:\n{bounded(diff, _DIFF_CHARS)}"
    )
    asking = Request(REVIEW, (UserMessage(told),), (_VERDICT,), max_tokens=REVIEW_TOKENS)
    heard = await consult(adviser, "review", asking, REVIEW_SECONDS)
    verdict = _understood(heard.reply) if isinstance(heard, Heard) else None
    if not isinstance(heard, Heard) or verdict is None:
        return ""
    objections = "" if verdict.approve else harmless(verdict.objections).strip()
    text = bounded(objections, _OBJECTION_CHARS)
    await adviser.journal.append(Advised(adviser.attempt, "review", heard.model, text))
    return text


def _understood(reply: Reply) -> _Verdict | None:
    for call in reply.calls:
        if call.name == _VERDICT.name:
            try:
                return msgspec.convert(call.arguments, _Verdict)
            except msgspec.ValidationError:
                continue
    return None
