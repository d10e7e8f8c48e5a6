"""A plan by the model that is named for it, before the first step of an attempt. Advice: whoever codes may see better."""

from collections.abc import Sequence

from cloister.agent.consult import Adviser, Heard, consult
from cloister.agent.prompts import PLAN
from cloister.core.events import Advised
from cloister.core.text import bounded, harmless
from cloister.model.api import Message, Request

PLAN_TOKENS = 2_048
PLAN_SECONDS = 300.0
PLAN_CHARS = 6_000


async def make_plan(adviser: Adviser, messages: Sequence[Message]) -> Advised | None:
    """What to put into the log; None when nobody is named for it, or nobody answered."""
    if not adviser.named("plan"):
        return None
    asking = Request(PLAN, tuple(messages), (), max_tokens=PLAN_TOKENS)
    heard = await consult(adviser, "plan", asking, PLAN_SECONDS)
    if not isinstance(heard, Heard):
        return None
    text = bounded(harmless(heard.reply.text).strip(), PLAN_CHARS)
    return Advised(adviser.attempt, "plan", heard.model, text) if text else None
