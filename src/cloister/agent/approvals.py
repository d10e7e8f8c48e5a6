"""Waiting for a person's answer, and believing only one whose role may give it."""

import time

import anyio

from cloister.core.events import AskAnswered, AskRaised
from cloister.core.log import Journal


async def answered(journal: Journal, ask: AskRaised) -> AskAnswered:
    """Wait for a person; after the deadline the default is the answer, and is recorded as one."""
    with anyio.move_on_after(max(0.0, ask.deadline - time.time())):
        seen = 0
        while True:
            for event in journal.events[seen:]:
                body = event.body
                if isinstance(body, AskAnswered) and body.ask == ask.ask and _counts(body, ask):
                    return body
            seen = len(journal.events)
            await journal.changed(seen)
    answer = AskAnswered(ask.ask, ask.default, "deadline")
    await journal.append(answer)
    return answer


def _counts(answer: AskAnswered, ask: AskRaised) -> bool:
    """Whether whoever answered may say this; the server asked before, and the log is the last to be believed."""
    return answer.answer == "deny" or answer.role == "admin" or answer.role == ask.approver
