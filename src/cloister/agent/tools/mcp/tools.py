"""The tools of an MCP server as tools of a run, and its results as observations. Names, schemas and texts are hostile."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import mcp_types as types
import msgspec
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from cloister.agent.tools.api import (
    ARGUMENTS,
    AnyTool,
    Arguments,
    Observation,
    Show,
    Tool,
    arguments_text,
    observe,
)
from cloister.agent.tools.mcp.connection import Server
from cloister.agent.tools.schema import PROPERTY, SCHEMA_BYTES
from cloister.core.computer import Computer
from cloister.core.errors import HostError
from cloister.core.requests import McpServer
from cloister.core.text import bounded, harmless, one_line

NAME_CHARS = 64
DESCRIPTION_CHARS = 1_000
_RESULT_CHARS = 200_000
_PARTS = 200
_DEPTH = 12
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


def tools_of(
    server: Server, entry: McpServer, grant: Any, source: str, listed: Sequence[types.Tool]
) -> tuple[list[AnyTool], list[str]]:
    """The tools that the declaration wants, and one sentence for each that cannot be used."""
    found: list[AnyTool] = []
    problems: list[str] = []
    for one in listed:
        if entry.tools and one.name not in entry.tools:
            continue
        schema = cleaned(one.input_schema)
        if why := refused_by_providers(schema):
            problems.append(f"The tool {one_line(one.name, 60)!r} of {source} is left out: its schema {why}.")
            continue
        found.append(_tool(server, entry, grant, source, one, schema))
    if missing := sorted(set(entry.tools) - {one.name for one in listed}):
        problems.append(f"{source} has no tool {one_line(missing[0], 60)!r}.")
    return found, problems


def _tool(
    server: Server, entry: McpServer, grant: Any, source: str, one: types.Tool, schema: dict[str, object]
) -> AnyTool:
    name = _name(server.name, one.name)
    description = harmless(bounded((one.description or one.title or one.name).strip(), DESCRIPTION_CHARS))

    async def run(computer: Computer, args: Arguments, show: Show) -> Observation:
        del computer
        try:
            result = await server.call(one.name, args, entry.seconds, show)
        except HostError as error:
            return observe(False, error.message)
        return observe(not result.is_error, result_text(result))

    return Tool(
        name=name,
        description=description,
        args=ARGUMENTS,
        schema=schema,
        target=arguments_text,
        run=run,
        changes_files=not entry.url and entry.where == "sandbox",
        origin="server",
        action=f"mcp:{server.name}.{_plain(one.name)}",
        grant=grant,
        source=source,
        digest=hashlib.sha256(msgspec.json.encode((name, description, schema))).hexdigest()[:16],
    )


def _plain(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)[:NAME_CHARS] or "_"


def _name(server: str, tool: str) -> str:
    """A name that every provider takes; a long one ends in a hash."""
    name = f"{server}_{_NOT_IN_NAMES.sub('_', tool)}"
    if len(name) <= NAME_CHARS:
        return name
    return f"{name[: NAME_CHARS - 9]}_{hashlib.sha256(tool.encode()).hexdigest()[:8]}"


def cleaned(schema: Mapping[str, Any]) -> dict[str, object]:
    """The schema with its `$ref` resolved, without what a reader does not see, and not nested deeply."""
    definitions: dict[str, object] = {}
    for key in ("$defs", "definitions"):
        if isinstance(schema.get(key), dict):
            definitions |= {f"#/{key}/{name}": value for name, value in schema[key].items()}
    budget = [2_000]
    whole = {key: value for key, value in schema.items() if key not in ("$defs", "definitions", "$schema")}
    result = _clean(whole, definitions, 0, budget)
    return {"type": "object", **cast("dict[str, object]", result)}


def refused_by_providers(schema: dict[str, object]) -> str | None:
    """Why a request with this schema would fail, as the end of a sentence: one tool must not cost all of a run."""
    if len(msgspec.json.encode(schema)) > SCHEMA_BYTES:
        return f"has more than {SCHEMA_BYTES:,} bytes"
    if schema["type"] != "object" or {"anyOf", "oneOf", "allOf", "enum", "not"} & set(schema):
        return "is not that of one object"
    properties = schema.get("properties")
    named = cast("dict[str, object]", properties) if isinstance(properties, dict) else {}
    if wrong := next((name for name in named if not PROPERTY.fullmatch(name)), None):
        return f"has the property {one_line(wrong, 60)!r}: use at most 64 letters, digits, _, . and -"
    try:
        Draft202012Validator.check_schema(schema)
    except (SchemaError, RecursionError) as error:
        return f"is no JSON Schema ({one_line(getattr(error, 'message', 'nested too deeply'), 120)})"
    return None


def _clean(value: object, definitions: Mapping[str, object], depth: int, budget: list[int]) -> object:
    budget[0] -= 1
    if depth > _DEPTH or budget[0] < 0:
        return {}
    match value:
        case {"$ref": str(name)}:
            return _clean(definitions.get(name, {}), definitions, depth + 1, budget)
        case dict():
            table = cast("dict[str, object]", value)
            return {harmless(str(k)): _clean(v, definitions, depth + 1, budget) for k, v in table.items()}
        case list():
            return [_clean(one, definitions, depth + 1, budget) for one in cast("list[object]", value)]
        case str():
            return harmless(value)
        case _:
            return value


def result_text(result: types.CallToolResult) -> str:
    """The texts of a result; what is no text is named with its size."""
    parts: list[str] = []
    room = _RESULT_CHARS
    for one in result.content[:_PARTS]:
        text = _part(one)[: max(0, room)]
        room -= len(text)
        parts.append(text)
    if len(result.content) > _PARTS:
        parts.append(f"[{len(result.content) - _PARTS} more parts left out]")
    if not result.content and result.structured_content is not None:
        parts.append(msgspec.json.encode(result.structured_content).decode()[:_RESULT_CHARS])
    return "\n".join(parts) or "[no text]"


def _part(part: types.ContentBlock) -> str:
    match part:
        case types.TextContent(text=text):
            return text
        case types.ImageContent(data=data, mime_type=kind) | types.AudioContent(data=data, mime_type=kind):
            return f"[{one_line(kind, 60)}, about {len(data) * 3 // 4:,} bytes, not shown]"
        case types.ResourceLink(uri=uri, name=name):
            return f"[resource {one_line(name, 100)}: {one_line(str(uri), 300)}]"
        case types.EmbeddedResource(resource=resource):
            uri = one_line(str(resource.uri), 300)
            if isinstance(resource, types.TextResourceContents):
                return f"[resource {uri}]\n{resource.text}"
            return f"[resource {uri}, about {len(resource.blob) * 3 // 4:,} bytes, not shown]"
