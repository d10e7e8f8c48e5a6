"""JSON Schema, as far as tools declare their arguments with it: what is wrong with a schema, or with arguments. Pure."""

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

import msgspec

from cloister.core.text import one_line

SCHEMA_BYTES = 8_192
PROPERTY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""The names of arguments that every provider takes."""
_DEPTH = 12
_TYPES: Mapping[str, Callable[[object], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "null": lambda value: value is None,
}
_TEXTS = frozenset({"title", "description", "$comment", "format"})
_FREE = frozenset({"default", "examples", "const", "$schema"})
_NUMBERS = frozenset({"minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"})
_BOUNDS: Mapping[str, tuple[str, Callable[[Any, Any], bool], str]] = {
    "minimum": ("number", lambda value, bound: value >= bound, "is less than {}"),
    "maximum": ("number", lambda value, bound: value <= bound, "is more than {}"),
    "minLength": ("string", lambda value, bound: len(value) >= bound, "is shorter than {} characters"),
    "maxLength": ("string", lambda value, bound: len(value) <= bound, "is longer than {} characters"),
    "minItems": ("array", lambda value, bound: len(value) >= bound, "has fewer than {} entries"),
    "maxItems": ("array", lambda value, bound: len(value) <= bound, "has more than {} entries"),
}

Table = Mapping[str, object]


def schema_problem(schema: object) -> str | None:
    """Why `schema` cannot declare the arguments of a tool, as a clause; None if it can.

    A keyword that this module would not check is a problem, so that no declaration promises what does not hold.
    """
    if not isinstance(schema, dict):
        return "the schema must be an object"
    table = cast("Table", schema)
    try:
        if len(msgspec.json.encode(table)) > SCHEMA_BYTES:
            return f"the schema has more than {SCHEMA_BYTES:,} bytes"
    except (TypeError, ValueError, RecursionError):  # a date of TOML becomes text, infinity does not
        return "the schema is no JSON"
    if table.get("type", "object") != "object":
        return 'the schema of the arguments must have the type "object"'
    if problem := _wrong(table, "arguments", 0):
        return problem
    properties = cast("Table", table.get("properties", {}))
    odd = next((name for name in properties if not PROPERTY.fullmatch(name)), None)
    return (
        f"{one_line(odd, 60)!r} is no name of an argument: use at most 64 letters, digits, _, . and -"
        if odd is not None
        else None
    )


def _wrong(schema: object, where: str, depth: int) -> str | None:
    if not isinstance(schema, dict):
        return f"{where}: a schema is an object"
    if depth > _DEPTH:
        return f"{where}: it is nested too deeply"
    for key, value in cast("Table", schema).items():
        if (problem := _wrong_keyword(key, value, where, depth)) is not None:
            return problem
    return None


def _wrong_keyword(key: str, value: object, where: str, depth: int) -> str | None:
    match key, value:
        case "type", str() | list():
            return _wrong_type(cast("str | list[object]", value), where)
        case "properties", dict():
            found = (_wrong(one, f"{where}.{name}", depth + 1) for name, one in cast("Table", value).items())
            return next((problem for problem in found if problem), None)
        case "required", list() if all(isinstance(one, str) for one in cast("list[object]", value)):
            return None
        case "items", _:
            return _wrong(value, f"{where}[]", depth + 1)
        case "additionalProperties", bool():
            return None
        case "enum", list() if value:
            return None
        case "pattern", str():
            return _wrong_pattern(value, where)
        case _ if key in _FREE or (key in _TEXTS and isinstance(value, str)):
            return None
        case _ if key in _NUMBERS and _TYPES["number"](value):
            return None
        case _:
            return f"{where}: the keyword {one_line(key, 40)!r} is unknown, or its value is wrong"


def _wrong_type(value: str | list[object], where: str) -> str | None:
    for name in [value] if isinstance(value, str) else value:
        if not isinstance(name, str) or name not in _TYPES:
            return f"{where}: {one_line(str(name), 40)!r} is no type; use {', '.join(_TYPES)}"
    return None


def _wrong_pattern(value: str, where: str) -> str | None:
    if _pattern(value) is None:
        return f"{where}: the pattern {one_line(value, 60)!r} is no regular expression"
    return None


def _pattern(text: str) -> Any:
    """A pattern that takes linear time, or None."""
    engine = cast(Any, import_module("re2"))  # few tools have a pattern
    options = engine.Options()
    options.log_errors = False
    try:
        return engine.compile(text, options)
    except engine.error:
        return None


def arguments_problem(schema: object, value: object, where: str = "") -> str | None:
    """Why `value` does not fit `schema`, as a clause; None if it fits. Ignores what it does not understand."""
    if not isinstance(schema, dict):
        return None
    table, named = cast("Table", schema), where or "the arguments"
    kinds = table.get("type", "object" if "properties" in table else None)
    # SAFETY: schemas of servers are checked nowhere before.
    listed = (
        [kinds] if isinstance(kinds, str) else cast("list[object]", kinds if isinstance(kinds, list) else [])
    )
    allowed = [kind for kind in listed if isinstance(kind, str) and kind in _TYPES]
    if allowed and not any(_TYPES[kind](value) for kind in allowed):
        return f"{named} must be of the type {' or '.join(allowed)}"
    choices = table.get("enum")
    if isinstance(choices, list) and value not in cast("list[object]", choices):
        return f"{named} must be one of {one_line(msgspec.json.encode(choices).decode(), 200)}"
    if "const" in table and value != table["const"]:
        return f"{named} must be {one_line(msgspec.json.encode(table['const']).decode(), 200)}"
    if (problem := _out_of_bounds(table, value, named)) is not None:
        return problem
    match value:
        case dict():
            return _object_problem(table, cast("Table", value), where)
        case list():
            found = (
                arguments_problem(table.get("items"), one, f"{where}[{at}]")
                for at, one in enumerate(cast("list[object]", value))
            )
            return next((problem for problem in found if problem), None)
        case _:
            return None


def _out_of_bounds(table: Table, value: object, named: str) -> str | None:
    for key, (kind, holds, text) in _BOUNDS.items():
        bound = table.get(key)
        if _TYPES["number"](bound) and _TYPES[kind](value) and not holds(value, bound):
            return f"{named} {text.format(bound)}"
    pattern = table.get("pattern")
    if isinstance(pattern, str) and isinstance(value, str):
        compiled = _pattern(pattern)
        if compiled is not None and not compiled.search(value):
            return f"{named} does not match {one_line(pattern, 100)}"
    return None


def _object_problem(table: Table, value: Table, where: str) -> str | None:
    properties = table.get("properties")
    known: Table = cast("Table", properties) if isinstance(properties, dict) else {}
    required = table.get("required")
    for name in cast("list[object]", required) if isinstance(required, list) else ():
        if isinstance(name, str) and name not in value:
            return f"{where}.{one_line(name, 60)} is missing".lstrip(".")
    for name, one in value.items():
        inner = f"{where}.{one_line(name, 60)}".lstrip(".")
        if name not in known and table.get("additionalProperties") is False:
            return f"{inner} is unknown; there {_listed(known)}"
        if (problem := arguments_problem(known.get(name), one, inner)) is not None:
            return problem
    return None


def _listed(known: Table) -> str:
    return f"are {', '.join(list(known)[:20])}" if known else "are no arguments"
