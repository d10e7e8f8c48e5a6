"""Events to messages: what the model sees is a pure fold of the log.

The fold only ever adds at the end, except at two kinds of moment that the log itself fixes: when old observations
are elided, many at once, and when a summary takes the place of old turns. Between them each request begins with
the bytes of the one before, so that providers can cache it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never, cast, get_args

import msgspec

from cloister.agent.context.carryover import TELLING, Facts
from cloister.agent.context.prompts import (
    NO_CHECKS,
    NUDGE,
    PLANNED,
    REVIEWED,
    SUMMARY,
    SYSTEM,
    stuck_text,
    warned_text,
)
from cloister.core.events import (
    Advised,
    AnyBody,
    AttemptStarted,
    BaseFixed,
    BaselineTaken,
    BudgetWarned,
    ChecksChosen,
    ChecksRan,
    ContextSummarised,
    Event,
    ModelReplied,
    PromptReceived,
    RunAdmitted,
    RunResumed,
    SaveRefused,
    StuckNoticed,
    ToolReturned,
    TurnEnded,
)
from cloister.core.log import effective
from cloister.core.requests import ToolCall
from cloister.core.text import bounded
from cloister.feedback.compare import compare
from cloister.feedback.report import tell
from cloister.model.api import AssistantMessage, Message, Request, ToolMessage, ToolSpec, UserMessage

# How many tokens a text or a request is, roughly and cheaply. Pure.
#
# No tokeniser: each provider has its own. What a call really took comes with its reply and replaces the estimate.


BYTES_PER_TOKEN = 4
MESSAGE_TOKENS = 6
"""What a provider adds around each message."""


def text_tokens(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode("utf-8", errors="replace"))
    return size // BYTES_PER_TOKEN + 1


def message_tokens(message: Message) -> int:
    """One message; a reply counts as what goes back, the provider's own encoding where there is one."""
    if not isinstance(message, AssistantMessage):
        return text_tokens(message.text) + MESSAGE_TOKENS
    said = text_tokens(message.text)
    if message.calls:
        said += len(msgspec.json.encode(message.calls)) // BYTES_PER_TOKEN
    kept = 0 if message.opaque is None else text_tokens(message.opaque)
    return max(said, kept) + MESSAGE_TOKENS


def fixed_tokens(system: str, tools: Sequence[ToolSpec]) -> int:
    """What every request of a run starts with."""
    return text_tokens(system) + len(msgspec.json.encode(tools)) // BYTES_PER_TOKEN


def request_tokens(request: Request) -> int:
    """What goes in."""
    return fixed_tokens(request.system, request.tools) + sum(map(message_tokens, request.messages))


_Own = (
    ModelReplied
    | ToolReturned
    | ChecksRan
    | SaveRefused
    | StuckNoticed
    | BudgetWarned
    | Advised
    | ContextSummarised
    | TurnEnded
)
_OWN = frozenset(get_args(_Own))

WINDOW_TOKENS = 128_000
"""Of a model whose window is not known."""
REPLY_TOKENS = 8_192
KEPT_TURNS = 4
"""The last turns, whose observations are never elided."""
APART_TURNS = 10
"""Between two moments at which observations are elided, unless it is urgent."""
ELIDE_CHARS = 400
"""Shorter observations stay: a reference would not be shorter."""
NOTES_CHARS = 6_000
"""Of a model's summary."""
_CHECKS_TOKENS = 1_500
"""What the words about checks may take; counted before they are written."""


@dataclass(frozen=True, slots=True)
class Window:
    """A model's window, divided. All numbers are tokens."""

    room: int
    """For the conversation: without the system prompt, the tools and the reply."""
    reply: int

    @staticmethod
    def of(tokens: int, tools: Sequence[ToolSpec] = ()) -> "Window":
        reply = min(REPLY_TOKENS, tokens // 4)
        return Window(max(512, tokens - reply - fixed_tokens(SYSTEM, tools)), reply)

    @property
    def elide_at(self) -> int:
        return self.room * 5 // 10

    @property
    def elide_to(self) -> int:
        return self.room * 3 // 10

    @property
    def summarise_at(self) -> int:
        return self.room * 8 // 10

    @property
    def one(self) -> int:
        """What one message may take."""
        return self.room // 4


@dataclass(slots=True)
class _Entry:
    """One message with the event it comes from."""

    seq: int
    tokens: int
    message: Message | None = None
    write: Callable[[], str] | None = None
    """Writes a message of ours that is only needed if it is still there in the end."""
    reference: Callable[[], str] | None = None
    """Writes what stands in its place once it is elided."""
    unseen: bool = False
    """It may have come while the model was already writing its next reply."""

    def made(self) -> Message:
        if self.message is None:
            self.message = UserMessage(self.write() if self.write else "")
        return self.message

    def elide(self) -> int:
        """Put the reference in its place; how many tokens that saves."""
        if self.reference is None:
            return 0
        text, self.reference, self.write = self.reference(), None, None
        old = self.message
        self.message = (
            ToolMessage(old.call, old.tool, text) if isinstance(old, ToolMessage) else UserMessage(text)
        )
        saved = self.tokens - message_tokens(self.message)
        self.tokens -= saved
        return saved


class Context:
    """The conversation of one attempt, kept as the log grows."""

    def __init__(self, attempt: int, window: Window) -> None:
        self._attempt = attempt
        self._window = window
        self._taken = 0
        self._begin()

    def _begin(self) -> None:
        self._surroundings: list[str] = []
        self._task: list[str] = []
        self._entries: list[_Entry] = []
        self._tokens = 0
        self._open: set[str] = set()
        self._later: list[_Entry] = []
        self._silent = False
        self._turns: list[int] = []
        """Events that ended the turns which are still here."""
        self._marks: list[int] = []
        """How many entries there were at the end of each of those turns."""
        self._elided = 0
        """Entries up to here are elided."""
        self._since_elided = APART_TURNS
        self._facts = Facts()
        self._notes = ""
        """The model's last summary."""
        self.summarised_up_to = 0
        self.turns_since_summary = 0

    def update(self, events: Sequence[Event]) -> None:
        """Take in what the log has beyond what was taken before; `events` is all of it, not only what still counts."""
        fresh = events[self._taken :]
        if self._taken and any(isinstance(event.body, RunResumed) for event in fresh):
            self._begin()
            fresh = effective(events)
        elif not self._taken:
            fresh = effective(events)
        self._taken = len(events)
        for event in fresh:
            self._take(event)

    @property
    def tokens(self) -> int:
        """Of the conversation, estimated."""
        return self._tokens + text_tokens(self._task_text())

    @property
    def facts(self) -> Facts:
        return self._facts

    @property
    def turns(self) -> Sequence[int]:
        """The events that ended the turns which are still shown, oldest first."""
        return self._turns

    def messages(self) -> tuple[Message, ...]:
        return (
            UserMessage(self._task_text()),
            *(entry.made() for entry in self._entries),
            *(entry.made() for entry in self._later),
        )

    def _task_text(self) -> str:
        """What is there, then what to do: the last words are the ones that small models heed."""
        room = self._window.room // 2 * BYTES_PER_TOKEN
        task = bounded("\n\n".join(self._task), room * 3 // 4)
        there = bounded("\n\n".join(self._surroundings), room - len(task))
        return f"{there}\n\n{task}" if there else task

    def _take(self, event: Event) -> None:
        body = event.body
        kind = type(body)
        if kind in TELLING:
            self._facts.take(event, self._attempt)
        if kind in _OWN:
            own = cast("_Own", body)
            if own.attempt == self._attempt:
                self._take_own(event.seq, own)
        elif kind is PromptReceived:
            said = cast("PromptReceived", body)
            self._say(event.seq, f"Message from {said.who}:\n{said.text}", unseen=True)
        elif kind is AttemptStarted:
            self._hinted(event.seq, cast("AttemptStarted", body))
        elif kind is RunAdmitted:
            self._task.append(f"Task:\n{cast('RunAdmitted', body).request.prompt}")
        else:
            self._surroundings.extend(_surroundings(body))

    def _hinted(self, seq: int, body: AttemptStarted) -> None:
        """What all its turns should heed belongs to the task; what a fork is told, to where it begins."""
        if body.attempt == self._attempt and body.hint:
            if body.parent is None:
                self._task.append(body.hint)
            else:
                self._say(seq, body.hint)

    def _take_own(self, seq: int, body: _Own) -> None:
        match body:
            case ModelReplied():
                self._reply(seq, body)
            case ToolReturned():
                self._result(seq, body)
            case ChecksRan():
                self._checks(seq, body)
            case SaveRefused():
                self._say(seq, body.text)
            case StuckNoticed():
                self._say(seq, stuck_text(body))
            case BudgetWarned():
                self._say(seq, warned_text(body), unseen=True)
            case Advised():
                self._advised(seq, body)
            case ContextSummarised():
                self._summarised(seq, body)
            case TurnEnded():
                self._turn_ended(seq)
            case _:
                assert_never(body)

    def _add(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._tokens += entry.tokens

    def _put(self, entry: _Entry) -> None:
        """Say it now, or after the results that the last reply waits for: every provider wants those first."""
        if self._open:
            self._later.append(entry)
        else:
            self._add(entry)

    def _say(self, seq: int, text: str, *, unseen: bool = False) -> None:
        message = UserMessage(bounded(text, self._window.one * BYTES_PER_TOKEN))
        self._put(_Entry(seq, message_tokens(message), message, unseen=unseen))

    def _advised(self, seq: int, body: Advised) -> None:
        if body.role == "plan":
            self._say(seq, PLANNED.format(text=body.text))
        elif body.role == "review" and body.text:
            self._say(seq, REVIEWED.format(text=body.text))

    def _reply(self, seq: int, body: ModelReplied) -> None:
        missed: list[_Entry] = []
        if body.seen is not None:
            while self._entries and self._entries[-1].unseen and self._entries[-1].seq > body.seen:
                missed.insert(0, self._entries.pop())
                self._tokens -= missed[0].tokens
        message = AssistantMessage(body.text, body.calls, body.opaque)
        tokens = message_tokens(message)
        if tokens > self._window.one:
            message = _shortened(message, self._window.one * BYTES_PER_TOKEN)
            tokens = message_tokens(message)
        self._add(_Entry(seq, tokens, message))
        self._open = {call.id for call in body.calls}
        self._silent = not body.calls
        for entry in missed:
            self._put(entry)

    def _result(self, seq: int, body: ToolReturned) -> None:
        if body.call not in self._open:
            return
        self._open.discard(body.call)
        text = bounded(body.text, self._window.one * BYTES_PER_TOKEN)
        message = ToolMessage(body.call, body.tool, text)
        reference = partial(_reference, seq, body) if len(text) > ELIDE_CHARS else None
        self._add(_Entry(seq, message_tokens(message), message, reference=reference))
        if not self._open:
            self._flush()

    def _flush(self) -> None:
        later, self._later = self._later, []
        for entry in later:
            self._add(entry)

    def _checks(self, seq: int, body: ChecksRan) -> None:
        room = min(_CHECKS_TOKENS, self._window.one)
        red = body.comparison.red
        state = "they were green" if body.comparison.green else f"{red} failed"
        self._put(
            _Entry(
                seq,
                room if red else 60,
                write=lambda: bounded(tell(body.comparison, body.diagnoses), room * BYTES_PER_TOKEN),
                reference=lambda: (
                    f"[elided: what the checks said after step {body.step} ({state}); "
                    f'recall it with recall(id="e{seq}")]'
                ),
            )
        )

    def _turn_ended(self, seq: int) -> None:
        self._open.clear()
        self._flush()
        if self._silent:
            self._say(seq, NUDGE)
        self._turns.append(seq)
        self._marks.append(len(self._entries))
        self.turns_since_summary += 1
        self._since_elided += 1
        enough = self._since_elided >= APART_TURNS or self._tokens > self._window.summarise_at
        if self._tokens > self._window.elide_at and enough and len(self._marks) > KEPT_TURNS:
            self._since_elided = 0
            self._elide(self._marks[-1 - KEPT_TURNS])

    def _elide(self, end: int) -> None:
        """References for observations, the oldest first, until there is room again. Seldom, and then many."""
        while self._elided < end and self._tokens > self._window.elide_to:
            self._tokens -= self._entries[self._elided].elide()
            self._elided += 1

    def _summarised(self, seq: int, body: ContextSummarised) -> None:
        self._facts.touch(body.files)
        self._notes = body.text or self._notes
        gone = sum(turn <= body.up_to_seq for turn in self._turns)
        if body.kept_turns is not None:
            gone = max(0, len(self._turns) - body.kept_turns)
        cut = self._marks[gone - 1] if gone else 0
        up_to = self._turns[gone - 1] if gone else body.up_to_seq
        rest = self._entries[cut:]
        self._turns = self._turns[gone:]
        text = self.summary_text(up_to, self._notes)
        message = UserMessage(text)
        self._entries = [_Entry(seq, message_tokens(message), message), *rest]
        self._marks = [mark - cut + 1 for mark in self._marks[gone:]]
        self._elided = max(1, self._elided - cut + 1)
        self._tokens = sum(entry.tokens for entry in self._entries)
        self.summarised_up_to = up_to
        self.turns_since_summary = len(self._turns)

    def summary_text(self, up_to_seq: int, notes: str) -> str:
        """What stands in place of the turns up to `up_to_seq`: what the log says of them, then the model's words."""
        room = self._window.one * BYTES_PER_TOKEN
        told = self._facts.told(up_to_seq, min(room * 2 // 3, 16_000))
        return SUMMARY.format(facts=told, notes=bounded(notes, min(room // 3, NOTES_CHARS)) or "(nothing)")

    def tokens_after(self, up_to_seq: int, notes: str) -> int:
        """What `tokens` would be if the turns up to `up_to_seq` were summarised so."""
        gone = sum(turn <= up_to_seq for turn in self._turns)
        cut = self._marks[gone - 1] if gone else 0
        rest = sum(entry.tokens for entry in self._entries[cut:])
        return rest + text_tokens(self.summary_text(up_to_seq, notes)) + text_tokens(self._task_text())


def _reference(seq: int, body: ToolReturned) -> str:
    size = len(body.text.encode("utf-8", errors="replace"))
    return f'[elided: result of {body.tool}, {size:,} bytes; recall it with recall(id="e{seq}")]'


def _shortened(message: AssistantMessage, limit_chars: int) -> AssistantMessage:
    """A reply that would fill the window, with its long arguments cut; the provider's encoding goes with them."""
    share = max(100, limit_chars // max(1, 2 * len(message.calls)))
    calls = tuple(
        ToolCall(call.id, call.name, cast("dict[str, object]", _cut(call.arguments, share)))
        for call in message.calls
    )
    return AssistantMessage(bounded(message.text, limit_chars // 2), calls)


def _cut(value: object, limit: int) -> object:
    match value:
        case str():
            return bounded(value, limit)
        case dict():
            table = cast("dict[str, object]", value)
            return {key: _cut(item, max(60, limit // max(1, len(table)))) for key, item in table.items()}
        case list():
            return bounded(msgspec.json.encode(cast("list[object]", value)).decode(), limit)
        case _:
            return value


def _surroundings(body: AnyBody) -> list[str]:
    """Where the task starts, and what is red there."""
    match body:
        case BaseFixed():
            where = f" on the branch {body.branch}" if body.branch else ""
            return [f"The repository in /work is{where or ' checked out'}."]
        case ChecksChosen():
            lines = "\n".join(f"- {check}" for check in body.checks)
            return [f"Checks that must be green:\n{lines}" if body.checks else NO_CHECKS]
        case BaselineTaken() if body.diagnoses:
            compared = body.comparison or compare(body.diagnoses, body.diagnoses)
            found = tell(compared, body.diagnoses)
            return [f"On the untouched base:\n{found}"]
        case _:
            return []


def request(
    events: Sequence[Event], attempt: int, tools: Sequence[ToolSpec], window_tokens: int = WINDOW_TOKENS
) -> Request:
    """The next request for one attempt, from its whole log."""
    context = Context(attempt, Window.of(window_tokens, tools))
    context.update(events)
    return request_of(context, tools, window_tokens)


def request_of(context: Context, tools: Sequence[ToolSpec], window_tokens: int = WINDOW_TOKENS) -> Request:
    reply = Window.of(window_tokens, tools).reply
    return Request(SYSTEM, context.messages(), tuple(tools), max_tokens=reply)
