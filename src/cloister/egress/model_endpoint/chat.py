"""OpenAI's Chat Completions API, as programs inside the sandbox use it."""

import secrets
import time
from typing import Any, Literal

import msgspec

from cloister.core.requests import ToolCall, Usage
from cloister.egress.model_endpoint.api import (
    FREE,
    Asked,
    BadRequest,
    Caller,
    Content,
    Grammar,
    JsonObject,
    Writer,
    arguments,
    content_of,
    distinct,
    event,
    free_text,
    free_tool,
    max_tokens,
    openai_error,
    tool,
    understood,
    written,
)
from cloister.model.api import (
    AssistantMessage,
    Failure,
    Message,
    Reply,
    Request,
    ToolMessage,
    ToolSpec,
    UserMessage,
)

_FINISH = {"end": "stop", "tools": "tool_calls", "length": "length"}


class _Function(msgspec.Struct, frozen=True):
    name: str = ""
    arguments: str = "{}"
    description: str | None = None
    parameters: JsonObject | None = None


class _Custom(msgspec.Struct, frozen=True):
    """A free-form tool, or a call of one."""

    name: str = ""
    input: str = ""
    description: str | None = None
    format: "_Shape | None" = None


class _Shape(msgspec.Struct, frozen=True):
    grammar: Grammar | None = None


class _Call(msgspec.Struct, frozen=True):
    id: str
    function: _Function = _Function()
    custom: _Custom | None = None


class _Tool(msgspec.Struct, frozen=True):
    type: str = "function"
    function: _Function = _Function()
    custom: _Custom = _Custom()


class _Said(msgspec.Struct, frozen=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    tool_calls: tuple[_Call, ...] | None = None
    tool_call_id: str = ""
    name: str | None = None


class _Schema(msgspec.Struct, frozen=True):
    schema: JsonObject


class _Format(msgspec.Struct, frozen=True):
    type: str
    json_schema: _Schema | None = None


class _Options(msgspec.Struct, frozen=True):
    include_usage: bool = False


class _Body(msgspec.Struct, frozen=True):
    messages: tuple[_Said, ...]
    model: str = "default"
    tools: tuple[_Tool, ...] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    stream: bool | None = None
    stream_options: _Options | None = None
    response_format: _Format | None = None
    n: int | None = None


class Chat:
    """`POST /v1/chat/completions`."""

    def read(self, body: bytes) -> Asked:
        found = understood(body, _Body)
        if found.n not in (None, 1):
            raise BadRequest("Only n = 1 is supported.")
        system, messages = _conversation(found.messages)
        schema = found.response_format.json_schema if found.response_format else None
        request = Request(
            system,
            messages,
            distinct([spec for one in found.tools or () if (spec := _tool(one))]),
            max_tokens(found.max_completion_tokens, found.max_tokens),
            found.temperature,
            schema.schema if schema else None,
        )
        options = found.stream_options or _Options()
        free = {one.custom.name for one in found.tools or () if one.type == "custom"}
        callers = {name: Caller(name, free=True) for name in free}
        return Asked(request, found.model, bool(found.stream), options.include_usage, callers)

    def writer(self, asked: Asked) -> Writer:
        return _Writer(asked)

    def error(self, status: int, code: str, message: str) -> bytes:
        return openai_error(status, code, message)


def _tool(one: _Tool) -> ToolSpec | None:
    """None for a tool that a provider runs."""
    match one.type:
        case "function":
            return tool(one.function.name, one.function.description, one.function.parameters)
        case "custom":
            grammar = one.custom.format.grammar if one.custom.format else None
            return free_tool(one.custom.name, one.custom.description, grammar)
        case _:
            return None


def _taken(call: _Call) -> ToolCall:
    """A call that the program gives back."""
    if call.custom is not None:
        return ToolCall(call.id, call.custom.name, {FREE: call.custom.input})
    return ToolCall(call.id, call.function.name, arguments(call.function.arguments))


def _conversation(said: tuple[_Said, ...]) -> tuple[str, tuple[Message, ...]]:
    system: list[str] = []
    messages: list[Message] = []
    names: dict[str, str] = {}
    for one in said:
        text, images = content_of(one.content)
        match one.role:
            case "system" | "developer":
                system.append(text)
            case "user":
                messages.append(UserMessage(text, images))
            case "assistant":
                calls = tuple(_taken(call) for call in one.tool_calls or ())
                names.update({call.id: call.name for call in calls})
                messages.append(AssistantMessage(text, calls))
            case "tool":
                messages.append(
                    ToolMessage(one.tool_call_id, names.get(one.tool_call_id, one.name or ""), text, images)
                )
    if not messages:
        raise BadRequest("The request has no message to answer.")
    return "\n\n".join(system), tuple(messages)


def _usage(usage: Usage) -> JsonObject:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


class _Writer:
    def __init__(self, asked: Asked) -> None:
        self._counts = asked.usage
        self._callers = asked.callers
        self._base: JsonObject = {
            "id": "chatcmpl-" + secrets.token_hex(12),
            "created": int(time.time()),
            "model": asked.model,
        }

    def _chunk(self, delta: JsonObject, finish: str | None = None) -> bytes:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return event({**self._base, "object": "chat.completion.chunk", "choices": choices})

    def begin(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def text(self, text: str) -> bytes:
        return self._chunk({"content": text})

    def end(self, reply: Reply) -> bytes:
        calls = [{"index": number, **self._call(call)} for number, call in enumerate(reply.calls)]
        pieces = [self._chunk({"tool_calls": [call]}) for call in calls]
        pieces.append(self._chunk({}, _FINISH[reply.stop]))
        if self._counts:
            usage: JsonObject = {
                "object": "chat.completion.chunk",
                "choices": [],
                "usage": _usage(reply.usage),
            }
            pieces.append(event({**self._base, **usage}))
        return b"".join([*pieces, b"data: [DONE]\n\n"])

    def failed(self, failure: Failure) -> bytes:
        return event({"error": {"message": failure.message, "type": failure.code, "code": failure.code}})

    def whole(self, reply: Reply) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
        if reply.calls:
            message["tool_calls"] = [self._call(call) for call in reply.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _FINISH[reply.stop]}
        whole = {"object": "chat.completion", "choices": [choice], "usage": _usage(reply.usage)}
        return msgspec.json.encode({**self._base, **whole})

    def _call(self, call: ToolCall) -> JsonObject:
        if call.name in self._callers:
            return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": free_text(call)}}
        function = {"name": call.name, "arguments": written(call)}
        return {"id": call.id, "type": "function", "function": function}
