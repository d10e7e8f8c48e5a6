"""Model calls in other roles than `code`: plan, classify, review, last words. One call each, with a time limit."""

from collections.abc import Sequence
from typing import NamedTuple

import anyio
import msgspec

from cloister.agent.budget.metering import BudgetedModel, BudgetedModels
from cloister.agent.context.messages import Context
from cloister.agent.context.prompts import CLASSIFY, PLAN, REVIEW, SYSTEM, WRAP_UP
from cloister.agent.progress import stands_in
from cloister.core.budget import WRAP_UP_TOKENS
from cloister.core.diagnosis import Comparison
from cloister.core.errors import UserError
from cloister.core.events import Advised, Event, ModelFailed
from cloister.core.log import Journal
from cloister.core.text import bounded, harmless, one_line
from cloister.model.api import Failure, Message, Reply, Request, Role, TextDelta, ToolSpec, UserMessage


class Heard(NamedTuple):
    """An answer, and the model that gave it."""

    model: str
    reply: Reply


class Adviser(NamedTuple):
    """The models to consult, and the journal for their failures."""

    models: BudgetedModels
    journal: Journal
    attempt: int

    def named(self, role: Role) -> bool:
        """True if the settings name other models for this role than for `code`."""
        return self.models.chain(role) != self.models.chain("code")


async def consult(adviser: Adviser, role: Role, asking: Request, seconds: float) -> Heard | Failure:
    """Ask the models of the role's chain until one answers. Record each failure."""
    names = adviser.models.chain(role)
    for at, name in enumerate(names):
        answer = await _one(adviser.models, role, name, asking, seconds)
        if isinstance(answer, Heard) or answer.code == "budget":
            return answer
        more = at + 1 < len(names) and stands_in(answer)
        wait = 0.0 if more else None
        failed = ModelFailed(adviser.attempt, answer.code, answer.message, wait, name, role)
        await adviser.journal.append(failed)
        if not more:
            return answer
    return Failure("bad_request", f"No model is named for {role}.")


async def _one(
    models: BudgetedModels, role: Role, name: str, asking: Request, seconds: float
) -> Heard | Failure:
    try:
        model = models.in_role(role, name)
    except UserError as error:
        return Failure("bad_request", error.message)
    answer = await call_once(model, asking, seconds)
    if answer is None:
        return Failure("network", f"The model did not answer within {seconds:g} s.", retryable=True)
    return Heard(model.name, answer) if isinstance(answer, Reply) else answer


async def call_once(model: BudgetedModel, asking: Request, seconds: float) -> Reply | Failure | None:
    """One call with a time limit; None after a time-out."""
    with anyio.CancelScope() as patience:

        def begun() -> None:
            patience.deadline = anyio.current_time() + seconds

        async with model.stream(asking, begun) as items:
            async for item in items:
                match item:
                    case TextDelta():
                        pass
                    case Reply() | Failure():
                        return item
    return None


# Plan: advice before the first step of an attempt.

PLAN_TOKENS = 2_048
PLAN_SECONDS = 300.0
PLAN_CHARS = 6_000


async def make_plan(adviser: Adviser, messages: Sequence[Message]) -> Advised | None:
    """The plan to record; None without a planner or an answer."""
    if not adviser.named("plan"):
        return None
    asking = Request(PLAN, tuple(messages), (), max_tokens=PLAN_TOKENS)
    heard = await consult(adviser, "plan", asking, PLAN_SECONDS)
    if not isinstance(heard, Heard):
        return None
    text = bounded(harmless(heard.reply.text).strip(), PLAN_CHARS)
    return Advised(adviser.attempt, "plan", heard.model, text) if text else None


# Classify: the kind of the task, for settings that choose models by it.

CLASSIFY_SECONDS = 60.0
CLASSIFY_TOKENS = 512
_TASK_CHARS = 8_000
NO_KIND = "none"


class _Choice(msgspec.Struct, frozen=True):
    kind: str


def known_kind(bodies: Sequence[object]) -> str | None:
    """The recorded kind: empty if no kind fits, None if no model was asked."""
    return next((b.text for b in bodies if isinstance(b, Advised) and b.role == "classify"), None)


async def classify(adviser: Adviser, task: str, kinds: Sequence[str]) -> str:
    """Choose one of `kinds` and record it; empty without a fitting kind, a model for this role or an answer."""
    if not kinds or not adviser.named("classify"):
        return ""
    choose = ToolSpec(
        "choose",
        "Choose the kind of the task.",
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


# Review: may send a proven change back, a limited number of times. It cannot accept a change that is not proven.

REVIEWS = 2
"""How often a review may send one attempt back."""
REVIEW_SECONDS = 300.0
REVIEW_TOKENS = 2_048
_DIFF_CHARS = 60_000
_REVIEW_TASK_CHARS = 20_000
_OBJECTION_CHARS = 4_000


class _Verdict(msgspec.Struct, frozen=True):
    approve: bool
    objections: str = ""


_VERDICT = ToolSpec(
    "verdict",
    "Approve the change or object to it.",
    {
        "type": "object",
        "properties": {"approve": {"type": "boolean"}, "objections": {"type": "string"}},
        "required": ["approve", "objections"],
        "additionalProperties": False,
    },
)


def sent_back(events: Sequence[Event], attempt: int) -> int:
    """How often a review has sent this attempt back."""
    bodies = (event.body for event in events)
    return sum(
        isinstance(body, Advised) and body.attempt == attempt and body.role == "review" and bool(body.text)
        for body in bodies
    )


async def review(adviser: Adviser, task: str, diff: str, summary: str) -> str:
    """Ask the reviewer and record the verdict. Returns objections; empty without a reviewer or a usable answer."""
    if not adviser.named("review") or sent_back(adviser.journal.events, adviser.attempt) >= REVIEWS:
        return ""
    told = (
        f"Task:\n{bounded(task, _REVIEW_TASK_CHARS)}\n\nSummary by its author:\n{bounded(summary, _OBJECTION_CHARS)}\n\n"
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


# Last words: what is done and what is left, when the budget is spent.

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
    """Ask with the whole conversation or, if that is too expensive, with the facts alone. Empty if neither fits."""
    try:
        model = models.for_last_words(name)
    except UserError:
        return ""
    end = UserMessage(WRAP_UP.format(reason=reason))
    whole = Request(SYSTEM, (*context.messages(), end), tools, max_tokens=WRAP_UP_TOKENS)
    answer = await call_once(model, whole, seconds / 2)
    if answer is not None and _worth_another(answer):
        facts = UserMessage(context.facts.told(2**53, _FACTS_CHARS))
        brief = Request(SYSTEM, (facts, end), (), max_tokens=WRAP_UP_TOKENS)
        answer = await call_once(model, brief, seconds / 2)
    return bounded(answer.text.strip(), _WORDS_CHARS) if isinstance(answer, Reply) else ""


def _worth_another(answer: Reply | Failure) -> bool:
    """True if a shorter request without tools may succeed."""
    if isinstance(answer, Reply):
        return not answer.text.strip()
    return answer.code in ("budget", "context_too_long")


def what_is_left(found: Comparison, has_checks: bool) -> str:
    """What is left to do, by the check results alone."""
    if not has_checks:
        return "There are no checks that show what is left."
    if found.green:
        return "All checks are green, but the model did not call finish."
    red = (*found.new, *found.missing, *found.still)
    names = ", ".join(one_line(name, 80) for name in red[:5])
    more = f" and {len(red) - 5} more" if len(red) > 5 else ""
    return f"Still red: {names}{more}."
