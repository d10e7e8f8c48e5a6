"""Events to messages: the conversation is a pure fold of the log.

The fold only appends, with two exceptions that the log determines: it elides old observations, many at once, and it
replaces old turns by a summary. Otherwise each request begins with the bytes of the one before, so that providers can
cache it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never, cast, get_args

import msgspec

from cloister.agent.context.prompts import (
    BASE_RUNNING,
    BY_HAND,
    DELEGATED,
    INTERRUPTED,
    NO_CHECKS,
    NUDGE,
    PLANNED,
    REVIEWED,
    SEVERAL,
    SUMMARY,
    SYSTEM,
    TELLING,
    Facts,
    instructed_text,
    localised_text,
    skills_text,
    stuck_text,
    warned_text,
)
from cloister.core.events import (
    Advised,
    AnyBody,
    AttemptStarted,
    BaseFixed,
    BaselineSampled,
    BaselineTaken,
    BudgetWarned,
    ChecksChosen,
    ChecksRan,
    ContextSummarised,
    Delegated,
    EnvironmentPrepared,
    Event,
    FaultLocalised,
    InstructionsGiven,
    InterruptRequested,
    ModelReplied,
    PromptReceived,
    RunAdmitted,
    RunResumed,
    SandboxUsed,
    SaveRefused,
    ServiceFailed,
    SkillsPinned,
    StuckNoticed,
    ToolReturned,
    TurnEnded,
)
from cloister.core.log import effective
from cloister.core.requests import Attachment, PictureType, ToolCall, told
from cloister.core.text import bounded
from cloister.feedback.compare import compare
from cloister.feedback.report import tell
from cloister.model.api import AssistantMessage, Image, Message, Request, ToolMessage, ToolSpec, UserMessage

# Token estimates. Each provider has its own tokeniser; the usage in a reply replaces the estimate.

BYTES_PER_TOKEN = 4
MESSAGE_TOKENS = 6
"""Overhead of each message."""
IMAGE_TOKENS = 1_600
"""About what providers count for a large picture."""

Attached = Callable[[Attachment], bytes | None]
"""Reads the bytes of an attachment; None if they are gone."""


def text_tokens(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode("utf-8", errors="replace"))
    return size // BYTES_PER_TOKEN + 1


def message_tokens(message: Message) -> int:
    """A reply counts as the provider's own encoding if that is longer."""
    if not isinstance(message, AssistantMessage):
        return text_tokens(message.text) + MESSAGE_TOKENS + IMAGE_TOKENS * len(message.images)
    said = text_tokens(message.text)
    if message.calls:
        said += len(msgspec.json.encode(message.calls)) // BYTES_PER_TOKEN
    kept = 0 if message.opaque is None else text_tokens(message.opaque)
    return max(said, kept) + MESSAGE_TOKENS


def fixed_tokens(system: str, tools: Sequence[ToolSpec]) -> int:
    """The system prompt and the tools, which every request begins with."""
    return text_tokens(system) + len(msgspec.json.encode(tools)) // BYTES_PER_TOKEN


def request_tokens(request: Request) -> int:
    return fixed_tokens(request.system, request.tools) + sum(map(message_tokens, request.messages))


_Own = (
    ModelReplied
    | ToolReturned
    | ChecksRan
    | SaveRefused
    | StuckNoticed
    | BudgetWarned
    | Advised
    | Delegated
    | ContextSummarised
    | InstructionsGiven
    | SkillsPinned
    | TurnEnded
)
_OWN = frozenset(get_args(_Own))

WINDOW_TOKENS = 128_000
"""The window of a model that the catalog does not know."""
REPLY_TOKENS = 8_192
KEPT_TURNS = 4
"""The observations of this many last turns are never elided."""
APART_TURNS = 10
"""Turns between two rounds of eliding, unless the window is nearly full."""
ELIDE_CHARS = 400
"""Shorter observations stay: a reference would save nothing."""
NOTES_CHARS = 6_000
"""Limit of a model's summary."""
_CHECKS_TOKENS = 1_500
"""Limit and estimate for a report of the checks."""


@dataclass(frozen=True, slots=True)
class Window:
    """How a model's window is divided, in tokens."""

    room: int
    """For the conversation, without system prompt, tools and reply."""
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
        """Limit of one message."""
        return self.room // 4


@dataclass(slots=True)
class _Item:
    """One message and its event."""

    seq: int
    tokens: int
    message: Message | None = None
    write: Callable[[], str] | None = None
    """Renders the message on demand."""
    reference: Callable[[], str] | None = None
    """Renders the reference that replaces the elided message."""
    unseen: bool = False
    """True if it may have arrived while the model wrote its next reply."""

    def made(self) -> Message:
        if self.message is None:
            self.message = UserMessage(self.write() if self.write else "")
        return self.message

    def elide(self) -> int:
        """Replace the message by its reference; return the tokens saved."""
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
    """The conversation of one attempt, updated as the log grows."""

    def __init__(self, attempt: int, window: Window, attached: Attached = lambda _: None) -> None:
        self._attempt = attempt
        self._window = window
        self._attached = attached
        self._taken = 0
        self._begin()

    def _begin(self) -> None:
        self._surroundings: list[str] = []
        self._task: list[str] = []
        self._pictures: tuple[Image, ...] = ()
        """Of the task."""
        self._begun = self._based = False
        """The attempt has started; the baseline came before that."""
        self._entries: list[_Item] = []
        self._tokens = 0
        self._open: set[str] = set()
        self._later: list[_Item] = []
        self._silent = False
        self._turns: list[int] = []
        """The `TurnEnded` events of the turns that are still shown."""
        self._marks: list[int] = []
        """The number of entries at the end of each of those turns."""
        self._elided = 0
        """The number of entries that are elided."""
        self._since_elided = APART_TURNS
        self._facts = Facts()
        self._hands: set[str] = set()
        """The people who work in the sandbox as well."""
        self._failed: set[str] = set()
        """The services that did not start."""
        self._notes = ""
        """The last summary."""
        self.summarised_up_to = 0
        self.turns_since_summary = 0

    def update(self, events: Sequence[Event]) -> None:
        """Add the new events. `events` is the whole log, superseded events included."""
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
        """Estimated size of the conversation."""
        return self._tokens + text_tokens(self._task_text()) + IMAGE_TOKENS * len(self._pictures)

    @property
    def facts(self) -> Facts:
        return self._facts

    @property
    def turns(self) -> Sequence[int]:
        """The `TurnEnded` events of the turns that are still shown, oldest first."""
        return self._turns

    def messages(self) -> tuple[Message, ...]:
        return (
            UserMessage(self._task_text(), self._pictures),
            *(entry.made() for entry in self._entries),
            *(entry.made() for entry in self._later),
        )

    def _task_text(self) -> str:
        """The surroundings, then the task: small models follow the end of a prompt best."""
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
            text, images = self._with(f"Message from {said.who}:\n{said.text}", said.attachments)
            self._say(event.seq, text, unseen=True, images=images)
        elif kind in (InterruptRequested, SandboxUsed):
            self._stepped_in(event.seq, cast("InterruptRequested | SandboxUsed", body))
        elif kind is FaultLocalised:
            self._say(event.seq, localised_text(cast("FaultLocalised", body)), unseen=True)
        elif kind is AttemptStarted:
            self._started(event.seq, cast("AttemptStarted", body))
        elif self._begun and kind in (ChecksChosen, BaselineSampled, BaselineTaken, ServiceFailed):
            self._late(event.seq, body)
        elif kind is RunAdmitted:
            request = cast("RunAdmitted", body).request
            text, self._pictures = self._with(f"Task:\n{request.prompt}", request.attachments)
            self._task.append(text)
        else:
            self._based = self._based or kind is BaselineTaken
            # Of a moved base only the new one counts.
            kept = [] if kind is BaseFixed else self._surroundings
            self._surroundings = [*kept, *surroundings(body)]

    def _with(self, text: str, attachments: Sequence[Attachment]) -> tuple[str, tuple[Image, ...]]:
        """A message with what its attachments say, and its pictures."""
        found = [(one, self._attached(one)) for one in attachments]
        said = (text, *(told(one, data) for one, data in found))
        return "\n\n".join(said), self._images(attachments)

    def _images(self, given: Sequence[Attachment]) -> tuple[Image, ...]:
        found = [(one, self._attached(one)) for one in given if one.is_picture]
        return tuple([Image(data, cast("PictureType", one.media_type)) for one, data in found if data])

    def _stepped_in(self, seq: int, body: InterruptRequested | SandboxUsed) -> None:
        """Say once of each person that files may be theirs; what they only look at changes nothing."""
        if isinstance(body, InterruptRequested):
            self._say(seq, INTERRUPTED.format(who=body.who), unseen=True)
        elif body.attempt == self._attempt and body.how != "port" and body.who not in self._hands:
            self._hands.add(body.who)
            self._say(seq, BY_HAND.format(who=body.who), unseen=True)

    def _late(self, seq: int, body: AnyBody) -> None:
        """What the base is like, found out while the attempt works.

        Of a service it is said once: it starts in every sandbox, and its log has other times in each.
        """
        if isinstance(body, ServiceFailed):
            if (which := body.problem.partition(";")[0]) not in self._failed:
                self._say(seq, surroundings(body)[0], unseen=True)
            self._failed.add(which)
            return
        for text in surroundings(body):
            message = UserMessage(bounded(text, min(_CHECKS_TOKENS, self._window.one) * BYTES_PER_TOKEN))
            known = partial(str, f'[elided: the checks on the base; recall it with recall(id="e{seq}")]')
            self._put(_Item(seq, message_tokens(message), message, reference=known, unseen=True))

    def _delegated(self, body: Delegated) -> None:
        """A helper sees nothing of the work before it."""
        self._begun = True
        self._task = [DELEGATED.format(task=body.task)]
        self._entries, self._later, self._tokens, self._facts = [], [], 0, Facts()

    def _started(self, seq: int, body: AttemptStarted) -> None:
        """A hint belongs to the task; the hint of a fork to the place where it begins."""
        if body.attempt == self._attempt:
            self._begun = True
            if not self._based:
                self._surroundings.append(BASE_RUNNING)
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
            case SaveRefused() | StuckNoticed() | BudgetWarned() | InstructionsGiven() | SkillsPinned():
                self._told(seq, body)
            case Advised():
                self._advised(seq, body)
            case Delegated():
                self._delegated(body)
            case ContextSummarised():
                self._summarised(seq, body)
            case TurnEnded():
                self._turn_ended(seq)
            case _:
                assert_never(body)

    def _told(
        self, seq: int, body: SaveRefused | StuckNoticed | BudgetWarned | InstructionsGiven | SkillsPinned
    ) -> None:
        match body:
            case SaveRefused():
                self._say(seq, body.text)
            case StuckNoticed():
                self._say(seq, stuck_text(body))
            case BudgetWarned():
                self._say(seq, warned_text(body), unseen=True)
            case InstructionsGiven() if body.always:
                self._surroundings.append(instructed_text(body))
            case InstructionsGiven():
                self._say(seq, instructed_text(body), unseen=True)
            case SkillsPinned(skills=skills):
                self._surroundings += [skills_text(body)] if skills else []

    def _add(self, entry: _Item) -> None:
        self._entries.append(entry)
        self._tokens += entry.tokens

    def _put(self, entry: _Item) -> None:
        """Add it now, or after the pending tool results: providers require those directly after the calls."""
        if self._open:
            self._later.append(entry)
        else:
            self._add(entry)

    def _say(self, seq: int, text: str, *, unseen: bool = False, images: tuple[Image, ...] = ()) -> None:
        message = UserMessage(bounded(text, self._window.one * BYTES_PER_TOKEN), images)
        self._put(_Item(seq, message_tokens(message), message, unseen=unseen))

    def _advised(self, seq: int, body: Advised) -> None:
        if body.role == "plan":
            self._say(seq, PLANNED.format(text=body.text))
        elif body.role == "review" and body.text:
            self._say(seq, REVIEWED.format(text=body.text))

    def _reply(self, seq: int, body: ModelReplied) -> None:
        missed: list[_Item] = []
        if body.seen is not None:
            while self._entries and self._entries[-1].unseen and self._entries[-1].seq > body.seen:
                missed.insert(0, self._entries.pop())
                self._tokens -= missed[0].tokens
        message = AssistantMessage(body.text, body.calls, body.opaque)
        tokens = message_tokens(message)
        if tokens > self._window.one:
            message = _shortened(message, self._window.one * BYTES_PER_TOKEN)
            tokens = message_tokens(message)
        self._add(_Item(seq, tokens, message))
        self._open = {call.id for call in body.calls}
        self._silent = not body.calls
        for entry in missed:
            self._put(entry)

    def _result(self, seq: int, body: ToolReturned) -> None:
        if body.call not in self._open:
            return
        self._open.discard(body.call)
        text = bounded(body.text, self._window.one * BYTES_PER_TOKEN)
        message = ToolMessage(body.call, body.tool, text, self._images(body.pictures))
        reference = partial(_reference, seq, body) if len(text) > ELIDE_CHARS or body.pictures else None
        self._add(_Item(seq, message_tokens(message), message, reference=reference))
        if not self._open:
            self._flush()

    def _flush(self) -> None:
        later, self._later = self._later, []
        for entry in later:
            self._add(entry)

    def _checks(self, seq: int, body: ChecksRan) -> None:
        room = min(_CHECKS_TOKENS, self._window.one)
        red = body.comparison.red
        state = "green" if body.comparison.green else f"{red} failed"
        told = "\n".join(filter(None, (body.note, tell(body.comparison, body.diagnoses))))
        self._put(
            _Item(
                seq,
                room if red else 60,
                write=lambda: bounded(told, room * BYTES_PER_TOKEN),
                reference=lambda: (
                    f"[elided: check results after step {body.step} ({state}); "
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
        """Replace the oldest observations by references until there is room. Rarely, and then many at once."""
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
        self._entries = [_Item(seq, message_tokens(message), message), *rest]
        self._marks = [mark - cut + 1 for mark in self._marks[gone:]]
        self._elided = max(1, self._elided - cut + 1)
        self._tokens = sum(entry.tokens for entry in self._entries)
        self.summarised_up_to = up_to
        self.turns_since_summary = len(self._turns)

    def summary_text(self, up_to_seq: int, notes: str) -> str:
        """The text that replaces the turns up to `up_to_seq`: the facts of the log, then the notes."""
        room = self._window.one * BYTES_PER_TOKEN
        told = self._facts.told(up_to_seq, min(room * 2 // 3, 16_000))
        return SUMMARY.format(facts=told, notes=bounded(notes, min(room // 3, NOTES_CHARS)) or "(nothing)")

    def tokens_after(self, up_to_seq: int, notes: str) -> int:
        """The value of `tokens` if `notes` replaced the turns up to `up_to_seq`."""
        gone = sum(turn <= up_to_seq for turn in self._turns)
        cut = self._marks[gone - 1] if gone else 0
        rest = sum(entry.tokens for entry in self._entries[cut:])
        return rest + text_tokens(self.summary_text(up_to_seq, notes)) + text_tokens(self._task_text())


def _reference(seq: int, body: ToolReturned) -> str:
    size = len(body.text.encode("utf-8", errors="replace"))
    return f'[elided: result of {body.tool}, {size:,} bytes; recall it with recall(id="e{seq}")]'


def _shortened(message: AssistantMessage, limit_chars: int) -> AssistantMessage:
    """An oversized reply with its long arguments cut, and without the provider's encoding."""
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


def surroundings(body: AnyBody) -> list[str]:
    """What the model needs to know about the repository and its base."""
    match body:
        case BaseFixed() if body.parts:
            places = "".join(
                f"\n- {part.folder}/" + (f" on the branch {part.branch}" if part.branch else "")
                for part in body.parts
            )
            return [f"{SEVERAL}{places}"]
        case BaseFixed():
            where = f"on the branch {body.branch}" if body.branch else "checked out"
            return [f"The repository in /work is {where}."]
        case EnvironmentPrepared() if not body.commit:
            failed = f"Installing what the repository needs failed, so checks may not run: {body.problem}"
            return [failed if body.problem else "The dependencies of the repository are installed."]
        case ServiceFailed():
            return [
                f"A service did not start in a sandbox of this run, so tests that need it may fail: {body.problem}"
            ]
        case ChecksChosen():
            lines = "".join(f"\n- {check}" for check in body.checks)
            return [f"These checks must be green:{lines}" if body.checks else NO_CHECKS]
        case BaselineSampled():
            found = tell(compare(body.diagnoses, body.diagnoses), body.diagnoses)
            return [f"On the untouched base, of the tests the task is about (the rest still run):\n{found}"]
        case BaselineTaken() if body.diagnoses:
            found = tell(body.comparison or compare(body.diagnoses, body.diagnoses), body.diagnoses)
            return [f"On the untouched base:\n{found}"]
        case _:
            return []


def request(
    events: Sequence[Event], attempt: int, tools: Sequence[ToolSpec], window_tokens: int = WINDOW_TOKENS
) -> Request:
    """The next request of an attempt, from its whole log."""
    context = Context(attempt, Window.of(window_tokens, tools))
    context.update(events)
    return request_of(context, tools, window_tokens)


def request_of(context: Context, tools: Sequence[ToolSpec], window_tokens: int = WINDOW_TOKENS) -> Request:
    reply = Window.of(window_tokens, tools).reply
    return Request(SYSTEM, context.messages(), tuple(tools), max_tokens=reply)
