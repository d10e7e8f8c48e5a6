"""`ask`: a question to the people who watch the run. The loop answers; after a deadline the default is the answer.

It is not the question of a rule, which a person answers with allow or deny (`cloister.agent.approvals`).
"""

import secrets
import time
from typing import Annotated

import anyio
import msgspec
from msgspec import Meta

from cloister.agent.tools.api import Observation, Tool, answered_by_the_loop, observe
from cloister.core.events import QuestionAnswered, QuestionAsked
from cloister.core.log import Journal

USUAL_SECONDS = 120.0


class AskArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    question: Annotated[
        str, Meta(min_length=1, max_length=2_000, description="One decision that only a person can make.")
    ]
    default: Annotated[
        str, Meta(min_length=1, max_length=500, description="What you do if no one answers in time.")
    ]
    choices: Annotated[
        tuple[Annotated[str, Meta(max_length=200)], ...],
        Meta(max_length=8, description="Answers to choose from, if they are few."),
    ] = ()
    wait_seconds: Annotated[
        float, Meta(ge=0, le=3_600, description="How long to wait for the answer; 0 does not wait.")
    ] = USUAL_SECONDS


ASK = Tool(
    name="ask",
    description="Ask a person. Waits, then goes on with your default; a later answer comes as a message. Ask rarely.",
    args=AskArgs,
    target=lambda args: args.question,
    run=answered_by_the_loop,
)


async def ask_people(journal: Journal, attempt: int, call: str, args: AskArgs, most: float) -> Observation:
    """The answer to a call of `ask`, after at most `most` seconds. Called again after a crash, it asks nothing twice."""
    asked = next(
        (body for body in journal.index.of(QuestionAsked, attempt=attempt) if body.call == call), None
    )
    if asked is None:
        deadline = time.time() + min(args.wait_seconds, most)
        asked = QuestionAsked(
            f"q-{secrets.token_hex(4)}", attempt, call, args.question, args.choices, args.default, deadline
        )
        await journal.append(asked)
    answer = await _answer(journal, asked)
    if answer.who == DEADLINE:
        return observe(
            True,
            f"No one has answered in time: go on with your default: {asked.default}\n"
            "If an answer comes later, you get it as a message.",
        )
    return observe(True, f"{answer.who} answers: {answer.text}")


DEADLINE = "deadline"
"""Who answers with the default."""


async def _answer(journal: Journal, asked: QuestionAsked) -> QuestionAnswered:
    """Wait for the first answer. After the deadline, record the default, unless an answer came just before it."""

    def given() -> QuestionAnswered | None:
        return next((b for b in journal.index.of(QuestionAnswered) if b.question == asked.question), None)

    with anyio.move_on_after(max(0.0, asked.deadline - time.time())):
        while given() is None:
            await journal.changed(len(journal.events))
    default = QuestionAnswered(asked.question, asked.default, DEADLINE)
    while (answer := given()) is None:
        if await journal.append_at(len(journal.events), default):
            return default
    return answer
