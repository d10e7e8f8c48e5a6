"""Converts our messages to pydantic-ai's, and its response to ours."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import msgspec
from pydantic import ValidationError
from pydantic_ai.messages import (
    BinaryContent,
    InstructionPart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from cloister.core import limits
from cloister.core.requests import ToolCall, Usage
from cloister.core.text import bounded, whole
from cloister.model.api import (
    INVALID_ARGUMENTS,
    AssistantMessage,
    Image,
    Message,
    Request,
    ToolMessage,
    ToolSpec,
    UserMessage,
)

# Names and ids of tool calls that every API accepts. A model can invent names, and a server can give two calls the same
# id; sent back unchanged, they make a provider reject the rest of the conversation.

_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_NAME_CHARS = 64
NAMELESS = "nameless"

_ANY_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_IDS = {"mistral": re.compile(r"[a-zA-Z0-9]{9}")}
"""The id format of APIs that are stricter than the others."""


def tidy(response: ModelResponse) -> ModelResponse:
    """The reply with valid names, and with a unique id for each call."""
    parts = list(_tidied(response.parts))
    return response if parts == list(response.parts) else replace(response, parts=parts)


def _tidied(parts: Iterable[ModelResponsePart]) -> Iterable[ModelResponsePart]:
    seen: set[str] = set()
    for part in parts:
        if isinstance(part, TextPart | ThinkingPart):
            yield part if part.content == whole(part.content) else replace(part, content=whole(part.content))
            continue
        if not isinstance(part, ToolCallPart):
            yield part
            continue
        sent, count = whole(part.tool_call_id), 1
        own = sent
        while own in seen:
            count += 1
            own = f"{sent[:30]}-{count}"
        seen.add(own)
        args = cast("str | dict[str, object] | None", _repaired(part.args))
        yield replace(part, tool_name=wire_name(part.tool_name), args=args, tool_call_id=own)


def _repaired(value: object) -> object:
    """A JSON value without unpaired surrogates."""
    match value:
        case str():
            return whole(value)
        case dict():
            table = cast("dict[str, object]", value)
            return {whole(key): _repaired(item) for key, item in table.items()}
        case list():
            return [_repaired(item) for item in cast("list[object]", value)]
        case _:
            return value


def wire_name(name: str) -> str:
    return _NAME.sub("_", name)[:_NAME_CHARS] or NAMELESS


def wire_id(call: str, provider: str) -> str:
    """The id for `provider` of a call of another model; always the same for the same call."""
    if _IDS.get(provider, _ANY_ID).fullmatch(call):
        return call
    return "c" + hashlib.sha256(call.encode("utf-8", errors="replace")).hexdigest()[:8]


INVALID_CHARS = 2_000
"""Characters that are kept of arguments that are not a JSON object."""

_PROMPTED = "Reply with one JSON object that fits this JSON schema, and with nothing else:\n\n{schema}"

LOST_RESULT = "This call has no result: the run was interrupted before it ended."


class _Opaque(msgspec.Struct, frozen=True):
    """A reply in pydantic-ai's format, with the provider and model to which it can be sent back."""

    provider: str
    response: msgspec.Raw
    model: str = ""
    """Empty in old logs, which did not record it."""


def parameters(request: Request, *, native: bool) -> ModelRequestParameters:
    """The system prompt, the tools and the form of the reply. `native`: the API can enforce a schema."""
    plain = ModelRequestParameters(
        function_tools=[_tool(spec) for spec in request.tools],
        instruction_parts=[InstructionPart(content=request.system)] if request.system else None,
    )
    if request.schema is None:
        return plain
    form = OutputObjectDefinition(request.schema, name="reply", strict=False)
    return replace(
        plain,
        output_mode="native" if native else "prompted",
        output_object=form,
        prompted_output_template=None if native else _PROMPTED,
    )


def unfenced(text: str) -> str:
    """The JSON in a reply that wraps it into a code block."""
    bare = text.strip()
    return bare.removeprefix("```json").removeprefix("```").removesuffix("```").strip()


def _tool(spec: ToolSpec) -> ToolDefinition:
    # strict=False: strict modes rewrite schemas, and our tools check their arguments themselves.
    return ToolDefinition(
        name=spec.name, parameters_json_schema=spec.parameters, description=spec.description, strict=False
    )


def to_wire(messages: Sequence[Message], provider: str, model: str) -> list[ModelMessage]:
    """The conversation for `model` of `provider`, alternating requests and responses.

    Providers reject a call without a result, so a missing one is filled in, and they require results before any
    other message.
    """
    wire: list[ModelMessage] = []
    said: list[UserMessage | ToolMessage] = []
    calls: dict[str, ToolCall] = {}
    own = [_kept(message, provider, model) for message in messages]
    used = {call.id for message, kept in zip(messages, own, strict=True) if kept for call in _calls(message)}
    for message, kept in zip(messages, own, strict=True):
        if isinstance(message, AssistantMessage):
            _add_request(wire, said, calls)
            # Its own replies keep their ids. The ids of other models may be invalid for it, or not unique.
            ids = {call.id: call.id if kept else _new_id(call.id, provider, used) for call in message.calls}
            wire.append(kept or _response(message, ids))
            said, calls = [], {ids[call.id]: call for call in message.calls}
        else:
            said.append(message)
    _add_request(wire, said, calls)
    return wire


def _calls(message: Message) -> tuple[ToolCall, ...]:
    return message.calls if isinstance(message, AssistantMessage) else ()


def _new_id(call: str, provider: str, used: set[str]) -> str:
    """An id that is unique in the conversation: some servers restart their ids with each reply."""
    found, times = wire_id(call, provider), 1
    while found in used:
        times += 1
        found = wire_id(f"{call}#{times}", provider)
    used.add(found)
    return found


def _kept(message: Message, provider: str, model: str) -> ModelResponse | None:
    """The original reply, if this model wrote it."""
    if not isinstance(message, AssistantMessage) or message.opaque is None:
        return None
    return _from_opaque(message.opaque, provider, model)


def _add_request(
    wire: list[ModelMessage], said: Iterable[UserMessage | ToolMessage], calls: Mapping[str, ToolCall]
) -> None:
    results = {message.call: message for message in said if isinstance(message, ToolMessage)}
    parts: list[ModelRequestPart] = []
    for wired, call in calls.items():
        result = results.get(call.id) or ToolMessage(call.id, call.name, LOST_RESULT)
        content = _content(result.text, result.images)
        parts.append(ToolReturnPart(tool_name=wire_name(call.name), content=content, tool_call_id=wired))
    parts.extend(
        UserPromptPart(_content(message.text, message.images))
        for message in said
        if isinstance(message, UserMessage)
    )
    if parts:
        wire.append(ModelRequest(parts))


def _content(text: str, images: Sequence[Image]) -> str | list[UserContent]:
    if not images:
        return text
    parts: list[UserContent] = [text] if text else []
    for image in images:
        if len(image.data) > limits.IMAGE_BYTES:
            parts.append(f"(An image of {len(image.data):,} bytes was left out: it is too large.)")
        else:
            parts.append(BinaryContent(image.data, media_type=image.media_type))
    return parts


def _response(message: AssistantMessage, ids: Mapping[str, str]) -> ModelResponse:
    parts: list[ModelResponsePart] = [TextPart(message.text)] if message.text else []
    parts.extend(
        ToolCallPart(wire_name(call.name), call.arguments, tool_call_id=ids[call.id])
        for call in message.calls
    )
    return ModelResponse(parts or [TextPart("(no reply)")])


def to_opaque(response: ModelResponse, provider: str, model: str) -> str:
    """Encode the reply with everything its model needs again, including thinking and signatures."""
    [encoded] = msgspec.json.decode(ModelMessagesTypeAdapter.dump_json([response]), type=list[msgspec.Raw])
    return msgspec.json.encode(_Opaque(provider, encoded, model)).decode()


def _from_opaque(opaque: str, provider: str, model: str) -> ModelResponse | None:
    """None if another model wrote it, or if its format is outdated."""
    try:
        kept = msgspec.json.decode(opaque, type=_Opaque)
        if kept.provider != provider or kept.model not in ("", model):
            return None
        [message] = ModelMessagesTypeAdapter.validate_json(b"[" + bytes(kept.response) + b"]")
    except (msgspec.MsgspecError, ValidationError):
        return None
    return message if isinstance(message, ModelResponse) else None


def calls_of(response: ModelResponse) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(part.tool_call_id, part.tool_name, _arguments(part.args))
        for part in response.parts
        if isinstance(part, ToolCallPart)
    )


def _arguments(sent: str | Mapping[str, object] | None) -> dict[str, object]:
    """Decode the arguments; `INVALID_ARGUMENTS` if they are not an object."""
    if not isinstance(sent, str):
        return dict(sent or {})
    if not sent.strip():
        return {}
    try:
        return msgspec.json.decode(sent, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError):
        return {INVALID_ARGUMENTS: bounded(sent, INVALID_CHARS)}


def counted(usage: RequestUsage) -> Usage:
    """The usage that a provider reports, made plausible: not negative, and the cache is part of the input."""
    into = _count(usage.input_tokens, limits.CALL_TOKENS)
    read = _count(usage.cache_read_tokens, into)
    return Usage(
        into,
        _count(usage.output_tokens, limits.CALL_TOKENS),
        read,
        _count(usage.cache_write_tokens, into - read),
    )


def _count(said: int, most: int) -> int:
    return max(0, min(int(said), most))
