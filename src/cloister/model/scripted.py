"""A model that replays a script: for tests, for demonstrations, and to reproduce a run exactly.

It keeps no position. Where the run is in the script follows from the conversation alone, so after a crash
the next reply is the right one. Only failures made on purpose are counted in the process.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import cast

import anyio
import anyio.lowlevel
import msgspec

from cloister.core.records import ToolCall, Usage
from cloister.core.text import one_line
from cloister.model.api import AssistantMessage, Failure, Message, Reply, Request, TextDelta
from cloister.model.retry import RETRYABLE
from cloister.model.script import PLACEHOLDER, Fail, Script, ScriptReply, load_script

__all__ = ["Script", "ScriptedModel", "load_script"]

SEEN_CHARS = 300
"""How much of the observation's end an off-script message shows."""

_PIECES = re.compile(r"\S*\s*", re.DOTALL)
_PIECE_CHARS = 24
_CHARS_PER_TOKEN = 4


class OffScript(Exception):
    """The run has left the script. The message says where and what was observed."""


class _Mark(msgspec.Struct, frozen=True, tag_field="provider", tag="script"):
    """What a reply carries back to us: which reply it was, so that shortened history cannot mislead."""

    reply: int
    """Index into the script's replies."""
    step: int
    """Replies given so far, this one included."""
    captures: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Turn:
    """The reply to give, or the one that was given."""

    reply: ScriptReply
    step: int
    captures: dict[str, str]


class ScriptedModel:
    """A `Model` that says what its script says."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._failed: dict[tuple[int, int], int] = {}

    @property
    def name(self) -> str:
        return f"script:{self._script.path}"

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[TextDelta | Reply | Failure]]:
        async with aclosing(self._items(request)) as items:
            yield items

    async def _items(self, request: Request) -> AsyncGenerator[TextDelta | Reply | Failure]:
        try:
            turn = next_turn(self._script, request.messages)
            reply = _written(turn, request)
        except OffScript as error:
            yield Failure("off_script", f"script {self._script.path}: {error}")
            return
        fail = self._failure_due(turn)
        await anyio.sleep(turn.reply.entry.wait_seconds)
        for piece in _pieces(reply.text if fail is None else fail.say):
            await anyio.sleep(self._script.pace_seconds)
            yield TextDelta(piece)
        await anyio.lowlevel.checkpoint()
        yield reply if fail is None else _failure(fail)

    def _failure_due(self, turn: _Turn) -> Fail | None:
        fail = turn.reply.entry.fail
        if fail is None:
            return None
        key = (turn.step, turn.reply.number)
        count = self._failed.get(key, 0)
        if count >= fail.times:
            return None
        self._failed[key] = count + 1
        return fail


def next_turn(script: Script, messages: Sequence[Message]) -> _Turn:
    """Follow the conversation through the script to the reply that is due. Raises `OffScript`."""
    given: _Turn | None = None
    seen: list[str] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            given = _marked(script, message) or _advance(script, given, "\n".join(seen))
            seen = []
        else:
            seen.append(message.text)
    return _advance(script, given, "\n".join(seen))


def _marked(script: Script, message: AssistantMessage) -> _Turn | None:
    if message.opaque is None:
        return None
    try:
        mark = msgspec.json.decode(message.opaque, type=_Mark)
    except msgspec.MsgspecError:
        return None
    if not 0 <= mark.reply < len(script.replies):
        raise OffScript(
            f"the run was given reply {mark.reply + 1}, and the script has only {len(script.replies)}: "
            "it was changed after the run began."
        )
    return _Turn(script.replies[mark.reply], mark.step, mark.captures)


def _advance(script: Script, given: _Turn | None, observation: str) -> _Turn:
    """One step: choose the next reply on what was observed after `given`, and check what it expects."""
    captures = {} if given is None else dict(given.captures)
    reply = script.replies[0] if given is None else _chosen(script, given.reply, observation, captures)
    if reply.expect is not None:
        found = reply.expect.search(observation)
        if found is None:
            raise OffScript(f"{reply.label} expects {reply.expect.pattern!r}, {_ending(observation)}")
        captures.update(_groups(found))
    return _Turn(reply, 1 if given is None else given.step + 1, captures)


def _chosen(script: Script, given: ScriptReply, observation: str, captures: dict[str, str]) -> ScriptReply:
    for branch in given.branches:
        if branch.when is None:
            return script.replies[branch.goto]
        if found := branch.when.search(observation):
            captures.update(_groups(found))
            return script.replies[branch.goto]
    if not given.branches:
        raise OffScript(f"after {given.label} the script is over, {_ending(observation)}")
    raise OffScript(f"after {given.label} no branch matches, {_ending(observation)}")


def _groups(found: re.Match[str]) -> dict[str, str]:
    return {name: value for name, value in found.groupdict().items() if value is not None}


def _ending(observation: str) -> str:
    tail = one_line(observation[-SEEN_CHARS:], SEEN_CHARS)
    return f"and the observation ends with: {tail}" if tail else "and the observation is empty."


def _written(turn: _Turn, request: Request) -> Reply:
    """The reply with its placeholders filled in. Raises `OffScript`."""
    reply, entry = turn.reply, turn.reply.entry
    text = str(_filled(turn, entry.say or ""))
    calls = tuple(
        ToolCall(f"call-{turn.step}-{k}", call.tool, _filled_table(turn, call.arguments))
        for k, call in enumerate(reply.calls, start=1)
    )
    usage = Usage(
        input_tokens=_tokens(request) if entry.input_tokens is None else entry.input_tokens,
        output_tokens=_tokens([text, calls]) if entry.output_tokens is None else entry.output_tokens,
    )
    mark = _Mark(reply.number - 1, turn.step, turn.captures)
    stop = entry.stop or ("tools" if calls else "end")
    return Reply(text, calls, usage, stop, msgspec.json.encode(mark).decode())


def _tokens(value: object) -> int:
    """An estimate: what the value's JSON would be, at four bytes a token."""
    return max(1, len(msgspec.json.encode(value)) // _CHARS_PER_TOKEN)


def _filled_table(turn: _Turn, table: dict[str, object]) -> dict[str, object]:
    return {key: _filled(turn, value) for key, value in table.items()}


def _filled(turn: _Turn, value: object) -> object:
    match value:
        case str():
            return _filled_text(turn, value)
        case list():
            return [_filled(turn, item) for item in cast("list[object]", value)]
        case dict():
            return _filled_table(turn, cast("dict[str, object]", value))
        case _:
            return value


def _filled_text(turn: _Turn, text: str) -> str | int:
    whole = PLACEHOLDER.fullmatch(text)
    if whole is not None and whole.group(2):
        captured = _captured(turn, whole)
        try:
            return int(captured)
        except ValueError:
            raise OffScript(
                f"{turn.reply.label} needs a whole number for {whole.group()}, not {one_line(captured)!r}."
            ) from None
    return PLACEHOLDER.sub(lambda found: _captured(turn, found), text)


def _captured(turn: _Turn, found: re.Match[str]) -> str:
    name = found.group(1)
    if name not in turn.captures:
        raise OffScript(f"{turn.reply.label} uses {found.group()}, which nothing has captured yet.")
    return turn.captures[name]


def _pieces(text: str) -> Iterator[str]:
    """`text` in fragments of a few words, as a model would stream it."""
    piece = ""
    for found in _PIECES.finditer(text):
        piece += found.group()
        if len(piece) >= _PIECE_CHARS:
            yield piece
            piece = ""
    if piece:
        yield piece


def _failure(fail: Fail) -> Failure:
    retryable = fail.code in RETRYABLE if fail.retryable is None else fail.retryable
    return Failure(fail.code, fail.message, retryable, fail.retry_seconds)
