"""Events to messages: what the model sees is a pure fold of the log."""

from collections.abc import Sequence

from cloister.agent.prompts import NO_CHECKS, NUDGE, SYSTEM
from cloister.core.events import (
    BaseFixed,
    BaselineTaken,
    ChecksChosen,
    ChecksRan,
    Event,
    ModelReplied,
    PromptReceived,
    RunAdmitted,
    SaveRefused,
    ToolReturned,
    TurnEnded,
)
from cloister.feedback.compare import compare
from cloister.feedback.tell import tell
from cloister.model.api import AssistantMessage, Message, Request, ToolMessage, ToolSpec, UserMessage


class _Conversation:
    """Messages in an order that every provider accepts: all results of a reply directly after it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._open: set[str] = set()
        self._later: list[str] = []

    def say(self, text: str) -> None:
        if self._open:
            self._later.append(text)
        else:
            self.messages.append(UserMessage(text))

    def reply(self, body: ModelReplied) -> None:
        self.messages.append(AssistantMessage(body.text, body.calls, body.opaque))
        self._open = {call.id for call in body.calls}

    def result(self, body: ToolReturned) -> None:
        if body.call not in self._open:
            return
        self._open.discard(body.call)
        self.messages.append(ToolMessage(body.call, body.tool, body.text))
        if not self._open:
            self._flush()

    def _flush(self) -> None:
        later, self._later = self._later, []
        self.messages.extend(UserMessage(text) for text in later)


def _task(events: Sequence[Event]) -> str:
    """The first message: the task, where it starts and what is red now."""
    parts: list[str] = []
    for event in events:
        match event.body:
            case RunAdmitted() as body:
                parts.append(f"Task:\n{body.request.prompt}")
            case BaseFixed() as body:
                where = f" of {body.branch}" if body.branch else ""
                parts.append(f"The repository in /work is at commit {body.commit[:12]}{where}.")
            case ChecksChosen() as body:
                lines = "\n".join(f"- {check}" for check in body.checks)
                parts.append(f"Checks that must be green:\n{lines}" if body.checks else NO_CHECKS)
            case BaselineTaken() as body if body.diagnoses:
                compared = body.comparison or compare(body.diagnoses, body.diagnoses)
                found = tell(compared, body.diagnoses)
                parts.append(f"On the untouched base:\n{found}")
            case _:
                pass
    return "\n\n".join(parts)


def request(events: Sequence[Event], attempt: int, tools: Sequence[ToolSpec]) -> Request:
    """The next request for one attempt, from its effective events."""
    conversation = _Conversation()
    conversation.say(_task(events))
    silent = False
    for event in events:
        match event.body:
            case ModelReplied() as body if body.attempt == attempt:
                conversation.reply(body)
                silent = not body.calls
            case ToolReturned() as body if body.attempt == attempt:
                conversation.result(body)
            case ChecksRan() as body if body.attempt == attempt:
                conversation.say(tell(body.comparison, body.diagnoses))
            case SaveRefused() as body if body.attempt == attempt:
                conversation.say(body.text)
            case TurnEnded() as body if body.attempt == attempt and silent:
                conversation.say(NUDGE)
            case PromptReceived() as body:
                conversation.say(f"Message from {body.who}:\n{body.text}")
            case _:
                pass
    return Request(SYSTEM, tuple(conversation.messages), tuple(tools))
