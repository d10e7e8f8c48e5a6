"""The interface of the three wire formats: decode a request, write a reply."""

import base64
import binascii
from collections.abc import Mapping
from typing import Protocol, TypeVar, cast

import msgspec

from cloister.core import limits
from cloister.core.requests import ToolCall
from cloister.model.api import INVALID_ARGUMENTS, Failure, Image, Model, Reply, Request, ToolSpec

JsonObject = dict[str, object]

MAX_TOKENS = 32_000
"""The most tokens of one reply, whatever the program inside asks for."""


class InsideModel(Model, Protocol):
    """A model for programs inside."""

    @property
    def window(self) -> int | None:
        """The context window in tokens; None if unknown."""
        ...

    def tokens(self, request: Request) -> int:
        """The estimated tokens of a request."""
        ...


class BadRequest(Exception):
    """The request is invalid. The message says why in one sentence."""


class Caller(msgspec.Struct, frozen=True):
    """How the program calls a tool, where that is not just a function with the name that the model sees."""

    name: str
    namespace: str = ""
    """The group that the program has it in."""
    free: bool = False
    """True if its argument is one text instead of an object."""


class Asked(msgspec.Struct, frozen=True):
    """One request from a program inside."""

    request: Request
    model: str
    """The model that the program asked for. The run's own model answers under this name."""
    stream: bool = False
    usage: bool = True
    """True if the stream must end with its token usage, where the format makes that optional."""
    callers: Mapping[str, Caller] = {}
    """Tools by the name that the model sees."""


class Writer(Protocol):
    """Writes one reply. `begin`, `text` and `end` are parts of an event stream; `whole` is a complete reply."""

    def begin(self) -> bytes: ...

    def text(self, text: str) -> bytes: ...

    def end(self, reply: Reply) -> bytes: ...

    def failed(self, failure: Failure) -> bytes:
        """The end of a stream that failed."""
        ...

    def whole(self, reply: Reply) -> bytes: ...


class Wire(Protocol):
    """One wire format."""

    def read(self, body: bytes) -> Asked:
        """Decode a body. Raises `BadRequest`."""
        ...

    def writer(self, asked: Asked) -> Writer: ...

    def error(self, status: int, code: str, message: str) -> bytes:
        """A complete error reply."""
        ...


T = TypeVar("T")


def understood(body: bytes, kind: type[T]) -> T:
    """Decode a body into the record of the format: fields that it does not name are skipped. Raises `BadRequest`."""
    if sum(map(body.count, (b",", b"[", b"{"))) > limits.ENDPOINT_BODY_PARTS:
        raise BadRequest(f"A request has at most {limits.ENDPOINT_BODY_PARTS:,} values.")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{error}.") from None
    except (msgspec.DecodeError, RecursionError):
        raise BadRequest("The body is not JSON.") from None


def openai_error(status: int, code: str, message: str) -> bytes:
    """The error body of both OpenAI formats."""
    kind = "invalid_request_error" if status == 400 else code
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def event(data: object, name: str | None = None) -> bytes:
    """One event of a stream."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


def max_tokens(*asked: int | None) -> int:
    """The first given limit, at most the limit of one reply."""
    said = next((tokens for tokens in asked if tokens is not None), MAX_TOKENS)
    if said < 1:
        raise BadRequest("A reply has at least one token.")
    return min(said, MAX_TOKENS)


def tool(name: str | None, description: str | None, parameters: JsonObject | None) -> ToolSpec:
    if not name:
        raise BadRequest("A tool needs a name.")
    return ToolSpec(name, description or "", parameters or {"type": "object", "properties": {}})


# Tools that are no plain functions. Those that a provider would run are left out: a program copes with a tool that is
# never called.

FREE = "input"
"""The only argument of a free-form tool."""
_NAME_CHARS = 64
_FREE_PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {FREE: {"type": "string"}},
    "required": [FREE],
    "additionalProperties": False,
}


class Grammar(msgspec.Struct, frozen=True):
    """What the text of a free-form tool looks like."""

    type: str = "text"
    syntax: str = ""
    definition: str = ""


def grouped(namespace: str | None, name: str) -> str:
    """The name that the model sees for a tool in a group."""
    return f"{namespace}__{name}"[:_NAME_CHARS] if namespace else name


def free_tool(name: str | None, description: str | None, grammar: Grammar | None) -> ToolSpec:
    """A free-form tool as a function with one text."""
    words = [description or ""]
    if grammar is not None and grammar.definition:
        words.append(
            f"The text follows this {grammar.syntax[:20] or 'grammar'} grammar:\n{grammar.definition}"
        )
    return tool(name, "\n".join(words), _FREE_PARAMETERS)


def free_text(call: ToolCall) -> str:
    """The text of a call of a free-form tool."""
    text = call.arguments.get(FREE)
    return text if isinstance(text, str) else written(call)


def distinct(tools: list[ToolSpec]) -> tuple[ToolSpec, ...]:
    """The first of each name: providers refuse a second one."""
    return tuple({one.name: one for one in reversed(tools)}.values())[::-1]


# Parts of a conversation that every wire format has, each written a little differently: texts, pictures, arguments.


_DATA = "data:"
_KINDS = ("image/png", "image/jpeg", "image/gif", "image/webp")


def arguments(text: str) -> JsonObject:
    """The arguments of a call that the program gives back, as it had them from us."""
    try:
        found: object = msgspec.json.decode(text.encode() or b"{}")
    except (msgspec.DecodeError, RecursionError):
        return {INVALID_ARGUMENTS: text}
    return cast("JsonObject", found) if isinstance(found, dict) else {INVALID_ARGUMENTS: text}


def written(call: ToolCall) -> str:
    """The arguments of a call as a JSON text."""
    return msgspec.json.encode(call.arguments).decode()


def picture(media_type: str, data: str) -> Image:
    """A picture in base64. Raises `BadRequest`."""
    if media_type not in _KINDS:
        raise BadRequest("A picture is PNG, JPEG, GIF or WebP.")
    try:
        return Image(base64.b64decode(data, validate=True), media_type)
    except (binascii.Error, ValueError):
        raise BadRequest("A picture is not valid base64.") from None


def picture_at(url: str) -> Image:
    """A picture in a `data:` URL; others are not fetched. Raises `BadRequest`."""
    head, comma, data = url.partition(",")
    if not head.startswith(_DATA) or not head.endswith(";base64") or not comma:
        raise BadRequest("A picture comes as a data: URL in base64; others are not fetched.")
    return picture(head.removeprefix(_DATA).removesuffix(";base64"), data)


class _Url(msgspec.Struct, frozen=True):
    url: str


class Part(msgspec.Struct, frozen=True):
    """A part of a message in both OpenAI formats."""

    type: str
    text: str = ""
    refusal: str = ""
    image_url: str | _Url | None = None


Content = str | tuple[Part, ...] | None


def content_of(content: Content) -> tuple[str, tuple[Image, ...]]:
    """The text and the pictures of a message. Raises `BadRequest`."""
    if content is None or isinstance(content, str):
        return content or "", ()
    texts: list[str] = []
    images: list[Image] = []
    for part in content:
        match part.type, part.image_url:
            case "text" | "input_text" | "output_text", _:
                texts.append(part.text)
            case "refusal", _:
                texts.append(part.refusal)
            case "image_url", _Url(url):
                images.append(picture_at(url))
            case "input_image", str(url):
                images.append(picture_at(url))
            case _:
                raise BadRequest(f"Content of the type {part.type[:40]!r} is not supported here.")
    return "\n".join(texts), tuple(images)
