"""A model that replays a script, for tests, demonstrations, and exact reproduction of a run.

It keeps no position: the conversation alone determines the next reply, so it is right after a crash. Only deliberate
failures are counted in the process.
"""

import math
import re
import tomllib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, cast

import anyio
import anyio.lowlevel
import msgspec

from cloister.core.errors import UserError
from cloister.core.requests import ToolCall, Usage
from cloister.core.text import one_line
from cloister.model.api import (
    RETRYABLE,
    AssistantMessage,
    Failure,
    FailureCode,
    Message,
    Reply,
    Request,
    TextDelta,
)

# The file format: errors are found before a run starts and name file and reply number

SCRIPT_BYTES = 4_194_304
"""Largest script file."""

PLACEHOLDER = re.compile(r"(?<!\\)(\\*)(\{?)(\{\{([A-Za-z_]\w*)(:int)?\}\})")
"""`{{name}}`, or `{{name:int}}` as a whole argument. No spaces inside, so that other templates pass through.

After a backslash it is plain text, also with a third brace. Two backslashes are one, and the placeholder counts."""


class BranchEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The next reply if `when` matches the observation; without `when`, always."""

    goto: str
    when: str | None = None


class Fail(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A deliberate provider failure."""

    code: FailureCode
    message: str = "failed on purpose by the script"
    times: int = 1
    """The number of calls that fail before the reply."""
    retryable: bool | None = None
    """None: as for a real failure of this kind."""
    retry_seconds: float | None = None
    say: str = ""
    """Text to stream before the failure."""


class ReplyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[reply]]` table of the file."""

    name: str | None = None
    say: str | None = None
    calls: tuple[dict[str, object], ...] = ()
    expect: str | None = None
    goto: str | None = None
    branch: tuple[BranchEntry, ...] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None
    stop: Literal["end", "tools", "length"] | None = None
    wait_seconds: float = 0.0
    fail: Fail | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reply: tuple[dict[str, object], ...]
    pace_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; its arguments can contain placeholders."""

    tool: str
    arguments: dict[str, object]


@dataclass(frozen=True, slots=True)
class Branch:
    when: re.Pattern[str] | None
    goto: int
    """Index into the script's replies."""


@dataclass(frozen=True, slots=True)
class ScriptReply:
    """One reply, validated."""

    number: int
    """The number in the file, from 1."""
    entry: ReplyEntry
    calls: tuple[Call, ...]
    expect: re.Pattern[str] | None
    branches: tuple[Branch, ...]
    """Tried in order; empty if the script ends here."""

    @property
    def label(self) -> str:
        return _label(self.number, self.entry.name)


@dataclass(frozen=True, slots=True)
class Script:
    """A whole file, validated."""

    path: Path
    replies: tuple[ScriptReply, ...]
    pace_seconds: float
    """Pause between streamed fragments."""


@dataclass(frozen=True, slots=True)
class _Place:
    """File and reply, for error messages."""

    path: Path
    number: int
    name: object

    def wrong(self, what: str) -> NoReturn:
        name = self.name if isinstance(self.name, str) else None
        raise UserError("bad_script", f"Script {self.path}, {_label(self.number, name)}: {what}.") from None

    def regex(self, pattern: str) -> re.Pattern[str]:
        try:
            return re.compile(pattern, re.MULTILINE)
        except re.error as error:
            self.wrong(f"{pattern!r} is not a regular expression: {error}")


def load_script(path: Path) -> Script:
    """Read and validate a script. Raises `UserError` (`bad_script`), which names file and reply."""
    document = _read(path)
    try:
        file = msgspec.convert(document, _File)
    except msgspec.ValidationError as error:
        raise UserError("bad_script", f"Script {path}: {error}.") from None
    if not file.reply:
        raise UserError("bad_script", f"Script {path} has no [[reply]].")
    if file.pace_seconds < 0:
        raise UserError("bad_script", f"Script {path}: pace_seconds cannot be negative.")
    places = [_Place(path, at + 1, table.get("name")) for at, table in enumerate(file.reply)]
    entries = [_entry(place, table) for place, table in zip(places, file.reply, strict=True)]
    index: dict[str, int] = {}
    for at, (place, entry) in enumerate(zip(places, entries, strict=True)):
        if entry.name is not None and index.setdefault(entry.name, at) != at:
            place.wrong(f"reply {index[entry.name] + 1} has the same name")
    replies = tuple(
        ScriptReply(
            number=place.number,
            entry=entry,
            calls=tuple(_call(place, table) for table in entry.calls),
            expect=None if entry.expect is None else place.regex(entry.expect),
            branches=_branches(place, entry, index, last=at + 1 == len(entries)),
        )
        for at, (place, entry) in enumerate(zip(places, entries, strict=True))
    )
    _check_placeholders(places, replies)
    return Script(path, replies, file.pace_seconds)


def _read(path: Path) -> dict[str, object]:
    try:
        if not path.is_file():
            raise UserError("bad_script", f"There is no script {path}.")
        size = path.stat().st_size
        if size > SCRIPT_BYTES:
            raise UserError(
                "bad_script",
                f"Script {path} is {size:,} bytes and the limit is {SCRIPT_BYTES:,}: split the run.",
            )
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise UserError("bad_script", f"Script {path} is not UTF-8 text.") from None
    except OSError as error:
        raise UserError("bad_script", f"Script {path} cannot be read: {error.strerror}.") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError("bad_script", f"Script {path} is not valid TOML: {error}.") from None


def _entry(place: _Place, table: dict[str, object]) -> ReplyEntry:
    try:
        entry = msgspec.convert(table, ReplyEntry)
    except msgspec.ValidationError as error:
        place.wrong(str(error))
    if entry.say is None and not entry.calls and entry.fail is None:
        place.wrong('it does nothing: give it say, calls or fail (say = "" is an empty reply)')
    if entry.goto is not None and entry.branch:
        place.wrong("give it goto or branch, not both")
    if entry.wait_seconds < 0 or (entry.input_tokens or 0) < 0 or (entry.output_tokens or 0) < 0:
        place.wrong("seconds and tokens cannot be negative")
    if entry.fail is not None and entry.fail.times < 1:
        place.wrong("fail.times must be at least 1")
    return entry


def _branches(place: _Place, entry: ReplyEntry, index: dict[str, int], *, last: bool) -> tuple[Branch, ...]:
    written = entry.branch if entry.goto is None else (BranchEntry(entry.goto),)
    if not written:
        return () if last else (Branch(None, place.number),)
    found: list[Branch] = []
    for branch in written:
        if found and found[-1].when is None:
            place.wrong("a branch after the one without when can never be taken")
        if branch.goto not in index:
            place.wrong(f"there is no reply named {branch.goto!r} to go to")
        when = None if branch.when is None else place.regex(branch.when)
        found.append(Branch(when, index[branch.goto]))
    return tuple(found)


def _call(place: _Place, table: dict[str, object]) -> Call:
    arguments = dict(table)
    tool = arguments.pop("tool", None)
    if not isinstance(tool, str) or not tool:
        place.wrong('a call needs tool = "NAME"; its other keys are the arguments')
    for key, value in arguments.items():
        if not _is_json(value):
            place.wrong(f"the call of {tool} has a value in {key} that JSON cannot hold")
    return Call(tool, arguments)


def _is_json(value: object) -> bool:
    """TOML also has dates, times, infinity and nan."""
    match value:
        case str() | bool() | int():
            return True
        case float():
            return math.isfinite(value)
        case list():
            return all(_is_json(item) for item in cast("list[object]", value))
        case dict():
            return all(_is_json(item) for item in cast("dict[str, object]", value).values())
        case _:
            return False


def _check_placeholders(places: list[_Place], replies: tuple[ScriptReply, ...]) -> None:
    known: set[str] = set()
    for reply in replies:
        for pattern in (reply.expect, *(branch.when for branch in reply.branches)):
            known.update(pattern.groupindex if pattern is not None else ())
    for place, reply in zip(places, replies, strict=True):
        written = [reply.entry.say, [call.arguments for call in reply.calls]]
        for found in (found for text in _texts(written) for found in PLACEHOLDER.finditer(text)):
            if not _escaped(found) and found[4] not in known:
                place.wrong(
                    f"{found[3]} is not a group (?P<{found[4]}>…) of any pattern in the script; "
                    f"for the text itself, write \\{found[3]}"
                )


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            yield from (text for item in cast("list[object]", value) for text in _texts(item))
        case dict():
            yield from (text for item in cast("dict[str, object]", value).values() for text in _texts(item))
        case _:
            pass


def _escaped(found: re.Match[str]) -> bool:
    return len(found[1]) % 2 == 1


def _label(number: int, name: str | None) -> str:
    return f"reply {number}" if name is None else f'reply {number} ("{name}")'


__all__ = ["Script", "ScriptedModel", "load_script"]

SEEN_CHARS = 300
"""Characters of the observation's end in an off-script message."""

_PIECES = re.compile(r"\S*\s*", re.DOTALL)
_PIECE_CHARS = 24
_CHARS_PER_TOKEN = 4


class OffScript(Exception):
    """The run has left the script. The message names the reply and the observation."""


class _Mark(msgspec.Struct, frozen=True, tag_field="provider", tag="script"):
    """Identifies the reply in its `opaque`, so that a shortened history does not confuse the position."""

    reply: int
    """Index into the script's replies."""
    step: int
    """Number of replies so far, including this one."""
    captures: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Turn:
    """A reply and the state of the script at it."""

    reply: ScriptReply
    step: int
    captures: dict[str, str]


class ScriptedModel:
    """A `Model` that replays a script."""

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
    """Follow the conversation through the script to the next reply. Raises `OffScript`."""
    given: _Turn | None = None
    seen: list[str] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            given = _marked(script, message) or _advance(script, given, "\n".join(seen))
            seen = []
        else:
            pictures = (f"[picture: {one.media_type}, {len(one.data)} bytes]" for one in message.images)
            seen.append("\n".join((message.text, *pictures)))
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
    """Choose the next reply by the observation after `given`, and check what it expects."""
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
    """The reply with its placeholders replaced. Raises `OffScript`."""
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
    """An estimate: four bytes of JSON per token."""
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
    if whole is not None and whole[5] and whole[3] == text:
        captured = _captured(turn, whole)
        try:
            return int(captured)
        except ValueError:
            raise OffScript(
                f"{turn.reply.label} needs a whole number for {text}, not {one_line(captured)!r}."
            ) from None

    def fill(found: re.Match[str]) -> str:
        slashes = found[1][: len(found[1]) // 2]
        return slashes + found[2] + (found[3] if _escaped(found) else _captured(turn, found))

    return PLACEHOLDER.sub(fill, text)


def _captured(turn: _Turn, found: re.Match[str]) -> str:
    if found[4] not in turn.captures:
        raise OffScript(f"{turn.reply.label} uses {found[3]}, which nothing has captured yet.")
    return turn.captures[found[4]]


def _pieces(text: str) -> Iterator[str]:
    """Split `text` into fragments of a few words, as a model streams it."""
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
