"""Asking a model in another role than `code`: once, for a limited time, and its stand-ins when it fails."""

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
    """Who answered, and what."""

    model: str
    reply: Reply


class Adviser(NamedTuple):
    """Who can be consulted, and where it is recorded when one of them fails."""

    models: BudgetedModels
    journal: Journal
    attempt: int
    """On whose behalf."""

    def named(self, role: Role) -> bool:
        """Whether the settings give this role to somebody: what falls to `code` anyway need not be asked apart."""
        return self.models.chain(role) != self.models.chain("code")


async def consult(adviser: Adviser, role: Role, asking: Request, seconds: float) -> Heard | Failure:
    """What the first model of the role's chain that can answer says; each that fails is an event."""
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
    answer = await asked(model, asking, seconds)
    if answer is None:
        return Failure("network", f"It did not answer in {seconds:g} s.", retryable=True)
    return Heard(model.name, answer) if isinstance(answer, Reply) else answer


async def asked(model: BudgetedModel, asking: Request, seconds: float) -> Reply | Failure | None:
    """What comes of one call within a time; None when nothing does."""
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


# A plan by the model that is named for it, before the first step of an attempt. Advice: whoever codes may see better.


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


# What kind of task a run is, by the model that is named to say so, for settings that choose models by it.


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


# A review by the model that is named for it, of a change that the checks have proven.
#
# It may send the change back with objections, a bounded number of times; evidence is never overruled by it.


REVIEWS = 2
"""How often one attempt may be sent back."""
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
        f"Task:\n{bounded(task, _REVIEW_TASK_CHARS)}\n\nWhat its author says of it:\n{bounded(summary, _OBJECTION_CHARS)}\n\n"
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


# The last words of an attempt whose budget is spent: what is done and what is left, for whoever takes over.


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


def what_is_left(found: Comparison, has_checks: bool) -> str:
    """What is left, by the evidence alone."""
    if not has_checks:
        return "No check says what is left."
    if found.green:
        return "All checks are green; the model had not said that it was done."
    red = (*found.new, *found.missing, *found.still)
    names = ", ".join(one_line(name, 80) for name in red[:5])
    more = f" and {len(red) - 5} more" if len(red) > 5 else ""
    return f"Still red: {names}{more}."
