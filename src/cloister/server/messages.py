"""The messages of the streams: two closed sets from the server, one from clients, and their JSON Schema."""

import time
from collections import OrderedDict, deque
from typing import Annotated, Any, assert_never

import msgspec
from websockets.frames import Frame, Opcode

from cloister.app.overview import OverviewItem
from cloister.app.verbs.api import RunVerbs, Verbs
from cloister.core.errors import UserError, describe
from cloister.core.events import Delta, Event
from cloister.core.ids import RunId
from cloister.core.requests import Attachment, Origin
from cloister.server.errors import Problem

SEQ_MAX = 2**53
"""Beyond this JSON numbers are not exact everywhere."""

Seq = Annotated[int, msgspec.Meta(ge=1, le=SEQ_MAX)]
Key = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
Text = Annotated[str, msgspec.Meta(max_length=4_096)]


# From the server, about one run.


class EventMessage(msgspec.Struct, frozen=True, tag_field="type", tag="event"):
    """One entry of the log, in order, each exactly once."""

    event: Event


class DeltaMessage(msgspec.Struct, frozen=True, tag_field="type", tag="delta"):
    """A live fragment. Not stored; a slow client misses some."""

    delta: Delta


class Watchers(msgspec.Struct, frozen=True, tag_field="type", tag="watchers"):
    """The people who watch this run now, by name; the first 50."""

    watchers: tuple[str, ...]


class Done(msgspec.Struct, frozen=True, tag_field="type", tag="done"):
    """The client's message with this id is done, now or earlier."""

    id: str
    run: RunId
    """The run that it concerns now: another one after `fork`, and after `rewind` of a finished run."""
    seq: int | None
    """The event that it caused; None if it made or continues another run."""


class Failed(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """The client's message was refused. Nothing else changes."""

    error: Problem
    id: str | None = None
    """None if the message had no readable id."""


class End(msgspec.Struct, frozen=True, tag_field="type", tag="end"):
    """The stream is over; only as SSE, where there is no close code."""

    code: int
    """As the close code of the WebSocket; after 1000 there is nothing to come back for."""
    reason: str


RunMessage = EventMessage | DeltaMessage | Watchers | Done | Failed | End
OverviewMessage = OverviewItem | Failed | End


# From clients, about one run. `id` is the client's own: sent again with it, the message is done once.


class _ClientMessage(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag=str.lower
):
    id: Key


class Say(_ClientMessage, frozen=True):
    """Tell the run something; it reads it before its next step."""

    text: str
    origin: Origin = "user"
    attachments: tuple[Attachment, ...] = ()
    """As `PUT /v1/attachments` answered."""


class Stop(_ClientMessage, frozen=True):
    """End the run; its work up to the last save point is kept."""


class Interrupt(_ClientMessage, frozen=True):
    """Stop its current step."""


class Pause(_ClientMessage, frozen=True):
    """Wait before its next step."""


class Resume(_ClientMessage, frozen=True):
    """Let it go on."""


class Approve(_ClientMessage, frozen=True):
    """Allow the action of an `AskRaised` event; without `ask` the only one that waits."""

    ask: str | None = None


class Deny(_ClientMessage, frozen=True):
    """Forbid it."""

    ask: str | None = None


class Answer(_ClientMessage, frozen=True):
    """Answer a `QuestionAsked` event; without `question` the only open one."""

    text: str
    question: str | None = None


class Model(_ClientMessage, frozen=True):
    """Continue with another model from the next step."""

    model: Text


class Fork(_ClientMessage, frozen=True):
    """A new run from a save point; without `at` that of the result, or of the furthest work."""

    at: Seq | None = None
    prompt: str | None = None


class Rewind(_ClientMessage, frozen=True):
    """Continue from an earlier save point."""

    to: Seq


_Steering = Say | Stop | Interrupt | Pause | Resume | Approve | Deny | Answer | Model
ClientMessage = _Steering | Fork | Rewind


class _Id(msgspec.Struct):
    id: str | None = None


_decode = msgspec.json.Decoder(ClientMessage).decode


def read_message(data: bytes | str) -> ClientMessage:
    """The message as a record. Raises `UserError` (`bad_message`)."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise UserError("bad_message", describe(error, ClientMessage)) from None
    except (UnicodeDecodeError, RecursionError):
        raise UserError("bad_message", "The message is not JSON in UTF-8.") from None


def id_of(data: bytes | str) -> str | None:
    """The id of a message that may be wrong otherwise."""
    try:
        found = msgspec.json.decode(data, type=_Id).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if found is not None and len(found) <= 100 else None


async def take(verbs: Verbs, run: RunId, message: ClientMessage) -> Done:
    """Do what a message asks. Raises as its verb."""
    match message:
        case Fork(id=key, at=at, prompt=prompt):
            return Done(key, (await verbs.runs.fork(run, at, prompt, key)).id, None)
        case Rewind(id=key, to=to):
            return Done(key, await verbs.runs.rewind(run, to, key), None)
        case _:
            event = await _steer(verbs.runs, run, message)
            return Done(message.id, event.run, event.seq)


async def _steer(runs: RunVerbs, run: RunId, message: _Steering) -> Event:
    match message:
        case Say(id=key, text=text, origin=origin, attachments=attachments):
            return await runs.say(run, text, origin, key, attachments)
        case Stop(id=key):
            return await runs.stop(run, key)
        case Interrupt(id=key):
            return await runs.interrupt(run, key)
        case Pause(id=key):
            return await runs.pause(run, key)
        case Resume(id=key):
            return await runs.resume(run, key)
        case Approve(id=key, ask=ask):
            return await runs.answer(run, ask, "allow", key)
        case Deny(id=key, ask=ask):
            return await runs.answer(run, ask, "deny", key)
        case Answer(id=key, text=text, question=question):
            return await runs.reply(run, question, text, key)
        case Model(id=key, model=model):
            return await runs.use_model(run, model, key)
        case _:
            assert_never(message)


class Pace:
    """Bounds how many messages per second a client may send."""

    def __init__(self, most: int = 40, seconds: float = 1.0) -> None:
        self._most = most
        self._seconds = seconds
        self._times: deque[float] = deque()

    def check(self) -> None:
        """Raises `UserError` (`too_many_messages`): this message is not done."""
        now = time.monotonic()
        while self._times and now - self._times[0] >= self._seconds:
            self._times.popleft()
        if len(self._times) >= self._most:
            raise UserError(
                "too_many_messages",
                f"More than {self._most} messages in a second: send this one again a second later.",
            )
        self._times.append(now)


encode = msgspec.json.Encoder().encode


class EventTexts:
    """Encodes events. The many followers of a run share the encoding."""

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._known: OrderedDict[int, tuple[Event, bytes, str]] = OrderedDict()

    def of(self, event: Event) -> str:
        """The message of an event, as text."""
        return self._both(event)[1]

    def frame(self, event: Event) -> bytes:
        """The message of an event, as a frame of a WebSocket."""
        return self._both(event)[0]

    def _both(self, event: Event) -> tuple[bytes, str]:
        known = self._known.get(id(event))  # the entry keeps the event, and so its identity
        if known is None:
            data = encode(EventMessage(event))
            known = (event, Frame(Opcode.TEXT, data).serialize(mask=False), data.decode())
            self._known[id(event)] = known
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        return known[1], known[2]


def stream_schema() -> dict[str, Any]:
    """The JSON Schema of all messages: `$defs` names the three sets `RunMessage`, `OverviewMessage`, `ClientMessage`."""
    sets = {"RunMessage": RunMessage, "OverviewMessage": OverviewMessage, "ClientMessage": ClientMessage}
    found, components = msgspec.json.schema_components(
        tuple(sets.values()), schema_hook=_any, ref_template="#/$defs/{name}"
    )
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Messages of Cloister's streams",
        "$defs": {**dict(zip(sets, found, strict=True)), **components},
    }
    return msgspec.json.decode(msgspec.json.encode(schema))


def _any(kind: type) -> dict[str, Any]:
    if kind is object:
        return {"description": "Any value."}
    raise NotImplementedError
