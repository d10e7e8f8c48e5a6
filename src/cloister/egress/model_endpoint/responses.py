"""OpenAI's Responses API, as programs inside the sandbox use it. It keeps no state between requests."""

import secrets
import time
from typing import Literal

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
    grouped,
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


class _Item(msgspec.Struct, frozen=True):
    """A message, a call, the output of a call, or an item that only OpenAI can read."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Content = None
    call_id: str = ""
    name: str = ""
    namespace: str | None = None
    arguments: str = "{}"
    input: str = ""
    """Of a free-form tool."""
    output: Content = None


class _Tool(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: JsonObject | None = None
    format: Grammar | None = None
    tools: "tuple[_Tool, ...]" = ()
    """Of a namespace."""


class _Format(msgspec.Struct, frozen=True):
    type: str = "text"
    schema: JsonObject | None = None


class _Text(msgspec.Struct, frozen=True):
    format: _Format = _Format()


class _Body(msgspec.Struct, frozen=True):
    input: str | tuple[_Item, ...]
    model: str = "default"
    instructions: str | None = None
    tools: tuple[_Tool, ...] | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    stream: bool | None = None
    text: _Text | None = None
    previous_response_id: str | None = None


class Responses:
    """`POST /v1/responses`."""

    def read(self, body: bytes) -> Asked:
        found = understood(body, _Body)
        if found.previous_response_id is not None:
            raise BadRequest("This endpoint keeps no state: send the whole conversation as input.")
        items = (_Item(role="user", content=found.input),) if isinstance(found.input, str) else found.input
        system, messages = _conversation(items)
        tools, callers = _tools(found.tools or ())
        request = Request(
            "\n\n".join(part for part in (found.instructions, system) if part),
            messages,
            tools,
            max_tokens(found.max_output_tokens),
            found.temperature,
            found.text.format.schema if found.text else None,
        )
        return Asked(request, found.model, bool(found.stream), callers=callers)

    def writer(self, asked: Asked) -> Writer:
        return _Writer(asked)

    def error(self, status: int, code: str, message: str) -> bytes:
        return openai_error(status, code, message)


def _tools(given: tuple[_Tool, ...]) -> tuple[tuple[ToolSpec, ...], dict[str, Caller]]:
    """Functions, those of namespaces and free-form tools. Tools that a provider runs are left out."""
    specs: list[ToolSpec] = []
    callers: dict[str, Caller] = {}

    def add(one: _Tool, namespace: str) -> None:
        name = grouped(namespace, one.name or "")
        match one.type:
            case "function":
                specs.append(tool(name, one.description, one.parameters))
            case "custom":
                specs.append(free_tool(name, one.description, one.format))
            case _:
                return
        if namespace or one.type == "custom":
            callers.setdefault(name, Caller(one.name or "", namespace, one.type == "custom"))

    for one in given:
        if one.type == "namespace":
            for inner in one.tools:
                add(inner, one.name or "tools")
        else:
            add(one, "")
    return distinct(specs), callers


class _Turns:
    """Convert items to messages. Consecutive calls and the text before them form one reply."""

    def __init__(self) -> None:
        self.system: list[str] = []
        self.messages: list[Message] = []
        self._text = ""
        self._calls: list[ToolCall] = []
        self._names: dict[str, str] = {}

    def add(self, item: _Item) -> None:
        text, images = content_of(item.content) if item.type == "message" else ("", ())
        match item.type, item.role:
            case "message", "system" | "developer":
                self.system.append(text)
            case "message", "assistant":
                self.close()
                self._text = text
            case "message", _:
                self.close()
                self.messages.append(UserMessage(text, images))
            case ("function_call" | "custom_tool_call") as kind, _:
                name = self._names[item.call_id] = grouped(item.namespace, item.name)
                given: JsonObject = (
                    arguments(item.arguments) if kind == "function_call" else {FREE: item.input}
                )
                self._calls.append(ToolCall(item.call_id, name, given))
            case "function_call_output" | "custom_tool_call_output", _:
                self.close()
                text, images = content_of(item.output)
                self.messages.append(
                    ToolMessage(item.call_id, self._names.get(item.call_id, ""), text, images)
                )
            case "reasoning", _:
                pass  # of another conversation: the run's model has not thought it
            case kind, _:
                raise BadRequest(f"Input of the type {kind[:40]!r} is not supported here.")

    def close(self) -> None:
        if self._text or self._calls:
            self.messages.append(AssistantMessage(self._text, tuple(self._calls)))
        self._text, self._calls = "", []


def _conversation(items: tuple[_Item, ...]) -> tuple[str, tuple[Message, ...]]:
    turns = _Turns()
    for item in items:
        turns.add(item)
    turns.close()
    if not turns.messages:
        raise BadRequest("The request has no message to answer.")
    return "\n\n".join(turns.system), tuple(turns.messages)


def _usage(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total,
    }


def _part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": list[object]()}


class _Writer:
    def __init__(self, asked: Asked) -> None:
        self._callers = asked.callers
        self._base: JsonObject = {
            "id": "resp_" + secrets.token_hex(12),
            "object": "response",
            "created_at": int(time.time()),
            "model": asked.model,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
        }
        self._message = "msg_" + secrets.token_hex(12)
        self._texted = False
        self._count = 0

    def _event(self, kind: str, fields: JsonObject) -> bytes:
        self._count += 1
        return event({"type": kind, "sequence_number": self._count - 1, **fields}, kind)

    def _response(self, status: str, output: list[JsonObject], usage: Usage | None) -> JsonObject:
        return {
            **self._base,
            "status": status,
            "output": output,
            "usage": None if usage is None else _usage(usage),
        }

    def begin(self) -> bytes:
        started = self._response("in_progress", [], None)
        return self._event("response.created", {"response": started}) + self._event(
            "response.in_progress", {"response": started}
        )

    def text(self, text: str) -> bytes:
        opening = b""
        if not self._texted:
            self._texted = True
            item = self._item("in_progress")
            opening = self._event("response.output_item.added", {"output_index": 0, "item": item})
            opening += self._event("response.content_part.added", {**self._where(), "part": _part("")})
        return opening + self._event("response.output_text.delta", {**self._where(), "delta": text})

    def end(self, reply: Reply) -> bytes:
        pieces: list[bytes] = []
        output = self._output(reply)
        if self._texted:
            where = self._where()
            pieces.append(self._event("response.output_text.done", {**where, "text": reply.text}))
            pieces.append(self._event("response.content_part.done", {**where, "part": _part(reply.text)}))
        for number, item in enumerate(output):
            pieces += self._item_events(number, item)
        kind = "response.incomplete" if reply.stop == "length" else "response.completed"
        pieces.append(self._event(kind, {"response": self._ended(reply, output)}))
        return b"".join(pieces)

    def _item_events(self, number: int, item: JsonObject) -> list[bytes]:
        where: JsonObject = {"output_index": number}
        done = self._event
        if item["type"] == "message":
            return [done("response.output_item.done", {**where, "item": item})]
        call: JsonObject = {**where, "item_id": item["id"]}
        if item["type"] == "custom_tool_call":
            begun = {**item, "input": "", "status": "in_progress"}
            return [
                done("response.output_item.added", {**where, "item": begun}),
                done("response.custom_tool_call_input.delta", {**call, "delta": item["input"]}),
                done("response.custom_tool_call_input.done", {**call, "input": item["input"]}),
                done("response.output_item.done", {**where, "item": item}),
            ]
        begun = {**item, "arguments": "", "status": "in_progress"}
        text = item["arguments"]
        return [
            done("response.output_item.added", {**where, "item": begun}),
            done("response.function_call_arguments.delta", {**call, "delta": text}),
            done("response.function_call_arguments.done", {**call, "arguments": text, "name": item["name"]}),
            done("response.output_item.done", {**where, "item": item}),
        ]

    def _ended(self, reply: Reply, output: list[JsonObject]) -> JsonObject:
        cut = reply.stop == "length"
        response = self._response("incomplete" if cut else "completed", output, reply.usage)
        return {**response, "incomplete_details": {"reason": "max_output_tokens"} if cut else None}

    def _where(self) -> JsonObject:
        return {"item_id": self._message, "output_index": 0, "content_index": 0}

    def _item(self, status: str, *parts: JsonObject) -> JsonObject:
        message: JsonObject = {"id": self._message, "type": "message", "role": "assistant"}
        return {**message, "status": status, "content": list(parts)}

    def _output(self, reply: Reply) -> list[JsonObject]:
        items = [self._item("completed", _part(reply.text))] if reply.text or self._texted else []
        return [*items, *map(self._call, reply.calls)]

    def _call(self, call: ToolCall) -> JsonObject:
        caller = self._callers.get(call.name, Caller(call.name))
        item: JsonObject = {"id": "fc_" + secrets.token_hex(12), "status": "completed"}
        item |= {"call_id": call.id, "name": caller.name}
        if caller.namespace:
            item["namespace"] = caller.namespace
        if caller.free:
            return {**item, "type": "custom_tool_call", "input": free_text(call)}
        return {**item, "type": "function_call", "arguments": written(call)}

    def failed(self, failure: Failure) -> bytes:
        response = self._response("failed", [], None)
        error = {"code": failure.code, "message": failure.message}
        return self._event("response.failed", {"response": {**response, "error": error}})

    def whole(self, reply: Reply) -> bytes:
        return msgspec.json.encode(self._ended(reply, self._output(reply)))
