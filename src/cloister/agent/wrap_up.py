"""The last words of an attempt whose budget is spent: what is done and what is left, for whoever takes over."""

from cloister.agent.budgeted import BudgetedModels
from cloister.agent.consult import asked
from cloister.agent.context import Context
from cloister.agent.prompts import SYSTEM, WRAP_UP
from cloister.core.budget import WRAP_UP_TOKENS
from cloister.core.diagnosis import Comparison
from cloister.core.errors import UserError
from cloister.core.text import bounded, one_line
from cloister.model.api import Failure, Reply, Request, ToolSpec, UserMessage

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
    try:
        model = models.for_last_words(name)
    except UserError:  # nobody is left to speak
        return ""
    end = UserMessage(WRAP_UP.format(reason=reason))
    whole = Request(SYSTEM, (*context.messages(), end), tools, max_tokens=WRAP_UP_TOKENS)
    answer = await asked(model, whole, seconds / 2)
    if answer is not None and _worth_another(answer):
        facts = UserMessage(context.facts.told(2**53, _FACTS_CHARS))
        brief = Request(SYSTEM, (facts, end), (), max_tokens=WRAP_UP_TOKENS)
        answer = await asked(model, brief, seconds / 2)
    return bounded(answer.text.strip(), _WORDS_CHARS) if isinstance(answer, Reply) else ""


def _worth_another(answer: Reply | Failure) -> bool:
    """It was too dear or too long, or the model would only act: with less, and without tools, it may speak."""
    if isinstance(answer, Reply):
        return not answer.text.strip()
    return answer.code in ("budget", "context_too_long")


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
