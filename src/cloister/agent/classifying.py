"""What kind of task a run is, by the model that is named to say so, for settings that choose models by it."""

from collections.abc import Sequence

import msgspec

from cloister.agent.consult import Adviser, Heard, consult
from cloister.agent.prompts import CLASSIFY
from cloister.core.events import Advised
from cloister.core.text import bounded
from cloister.model.api import Request, ToolSpec, UserMessage

CLASSIFY_SECONDS = 60.0
CLASSIFY_TOKENS = 512
_TASK_CHARS = 8_000
NO_KIND = "none"


class _Choice(msgspec.Struct, frozen=True):
    kind: str


def known_kind(bodies: Sequence[object]) -> str | None:
    """What was said of it before; empty when it is none of the kinds, None when nobody was asked."""
    return next((b.text for b in bodies if isinstance(b, Advised) and b.role == "classify"), None)


async def classify(adviser: Adviser, task: str, kinds: Sequence[str]) -> str:
    """One of `kinds`, recorded; empty when it is none of them, nobody is named for this, or nobody could tell."""
    if not kinds or not adviser.named("classify"):
        return ""
    choose = ToolSpec(
        "choose",
        "Say which kind of task it is.",
        {
            "type": "object",
            "properties": {"kind": {"type": "string", "enum": [*kinds, NO_KIND]}},
            "required": ["kind"],
            "additionalProperties": False,
        },
    )
    told = f"Kinds: {', '.join(kinds)}\n\nTask:\n{bounded(task, _TASK_CHARS)}"
    asking = Request(CLASSIFY, (UserMessage(told),), (choose,), max_tokens=CLASSIFY_TOKENS)
    heard = await consult(adviser, "classify", asking, CLASSIFY_SECONDS)
    if not isinstance(heard, Heard):
        return ""
    kind = ""
    for call in heard.reply.calls:
        try:
            said = msgspec.convert(call.arguments, _Choice).kind
        except msgspec.ValidationError:
            continue
        kind = said if said in kinds else kind
    await adviser.journal.append(Advised(adviser.attempt, "classify", heard.model, kind))
    return kind
