"""Which question of a run a person answers: of a rule, which waits for allow or deny, or of the model."""

import time
from collections.abc import Sequence

from cloister.core.errors import UserError
from cloister.core.events import (
    AskAnswered,
    AskRaised,
    Event,
    PromptReceived,
    QuestionAnswered,
    QuestionAsked,
)
from cloister.core.ids import RunId
from cloister.core.log import Index
from cloister.core.text import one_line


def question_of(events: Sequence[Event], name: str | None) -> QuestionAsked:
    """The question of the model that a person answers: by its id, or the only one without an answer of a person."""
    index, run = Index(events), events[0].run
    answered = {body.question for body in index.of(QuestionAnswered) if body.who != "deadline"}
    answered |= {body.ref for body in index.of(PromptReceived)}
    asked = {body.question: body for body in index.of(QuestionAsked)}
    left = [each for each in asked.values() if each.question not in answered]
    if name is None:
        now = time.time()
        waiting = [each for each in left if each.deadline > now] or left
        if not waiting:
            raise UserError(
                "no_such_question",
                f"The model of run {run} asks nothing. Answer a rule's question with allow or deny.",
            )
        if len(waiting) > 1:
            named = "; ".join(f"{each.question} ({one_line(each.text, 60)})" for each in waiting)
            raise UserError("several_questions", f"Run {run} asks several questions, so name one: {named}.")
        return waiting[0]
    if name not in asked:
        raise UserError("no_such_question", f"The model of run {run} never asked {name[:64]!r}.")
    if name in answered:
        raise UserError(
            "question_answered", f"{name} is answered already: `cloister say` tells the run more."
        )
    return asked[name]


def in_time(events: Sequence[Event], asked: QuestionAsked, own: Event | None) -> bool:
    """Whether no answer, nor the deadline, came before `own`, or before now."""
    found = Index(events).events(QuestionAnswered)
    first = next((event for event, body in found if body.question == asked.question), None)
    if own is None:
        return first is None and asked.deadline > time.time()
    return first == own


def only_one(run: RunId, pending: dict[str, AskRaised]) -> str:
    if not pending:
        raise UserError("no_such_ask", f"Run {run} asks nothing now: it waits for no answer.")
    if len(pending) > 1:
        named = "; ".join(f"{ask} ({one_line(body.action, 60)})" for ask, body in pending.items())
        raise UserError("several_asks", f"Run {run} asks several questions, so name one: {named}.")
    return next(iter(pending))


def not_asked(events: Sequence[Event], ask: str, pending: Sequence[str]) -> UserError:
    """Why `ask`, which is not pending, cannot be answered."""
    waiting = f"it waits for {', '.join(pending)}" if pending else "it waits for no answer"
    given = [
        each.body.answer for each in events if isinstance(each.body, AskAnswered) and each.body.ask == ask
    ]
    if given:
        return UserError("ask_answered", f"{ask[:64]} is answered already: {given[-1]}.")
    if any(isinstance(each.body, AskRaised) and each.body.ask == ask for each in events):
        return UserError("ask_answered", f"The deadline of {ask[:64]} has passed: {waiting}.")
    return UserError("no_such_ask", f"Run {events[0].run} never asked {ask[:64]!r}: {waiting}.")
