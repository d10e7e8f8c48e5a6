"""The last words of an attempt whose budget is spent: what is done and what is left, for whoever takes over."""

from cloister.agent.budgeted import BudgetedModels
from cloister.agent.condense import said
from cloister.agent.context import Context
from cloister.agent.prompts import SYSTEM, WRAP_UP
from cloister.core.budget import WRAP_UP_TOKENS
from cloister.core.diagnosis import Comparison
from cloister.core.text import bounded, one_line
from cloister.model.api import Request, ToolSpec, UserMessage

_FACTS_CHARS = 6_000
_WORDS_CHARS = 1_500


async def last_words(
    models: BudgetedModels,
    name: str,
    context: Context,
    tools: tuple[ToolSpec, ...],
    reason: str,
    seconds: float,
) -> str:
    """In the model's words, from all it has seen or, if that is too dear, from the facts alone; empty when neither fits."""
    model = models.for_last_words(name)
    end = UserMessage(WRAP_UP.format(reason=reason))
    whole = Request(SYSTEM, (*context.messages(), end), tools, max_tokens=WRAP_UP_TOKENS)
    words = await said(model, whole, seconds / 2)
    if not words.strip():
        facts = UserMessage(context.facts.told(2**53, _FACTS_CHARS))
        words = await said(
            model, Request(SYSTEM, (facts, end), tools, max_tokens=WRAP_UP_TOKENS), seconds / 2
        )
    return bounded(words.strip(), _WORDS_CHARS)


def plainly(found: Comparison, has_checks: bool) -> str:
    """What is left, by the evidence alone."""
    if not has_checks:
        return "No check says what is left."
    if found.green:
        return "All checks are green; the model had not said that it was done."
    red = (*found.new, *found.missing, *found.still)
    names = ", ".join(one_line(name, 80) for name in red[:5])
    more = f" and {len(red) - 5} more" if len(red) > 5 else ""
    return f"Still red: {names}{more}."
