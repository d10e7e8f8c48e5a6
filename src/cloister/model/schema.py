"""Whether a value is what a JSON schema asks for. Pure; the part of JSON schema that our own schemas use."""

from collections.abc import Mapping, Sequence
from typing import cast

Schema = Mapping[str, object]

_KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def problem(value: object, schema: Schema, where: str = "$") -> str | None:
    """What is wrong with `value`, as a few words with the place; None when nothing is."""
    for key in ("anyOf", "oneOf"):
        if choices := cast("Sequence[Schema] | None", schema.get(key)):
            found = [problem(value, choice, where) for choice in choices]
            return None if None in found else f"{where} fits none of {len(choices)} forms"
    if "const" in schema and value != schema["const"]:
        return f"{where} is not {schema['const']!r}"
    if "enum" in schema and value not in cast("Sequence[object]", schema["enum"]):
        return f"{where} is not one of the values allowed"
    return _of_kind(value, schema, where)


def _of_kind(value: object, schema: Schema, where: str) -> str | None:
    wanted = schema.get("type")
    names = [wanted] if isinstance(wanted, str) else cast("list[str]", wanted or [])
    if names and not any(_is(value, name) for name in names):
        return f"{where} is not of type {' or '.join(names)}"
    if isinstance(value, dict):
        return _object(cast("dict[str, object]", value), schema, where)
    if isinstance(value, list) and isinstance(items := schema.get("items"), dict):
        inner = cast(Schema, items)
        parts = (
            problem(item, inner, f"{where}[{at}]") for at, item in enumerate(cast("list[object]", value))
        )
        return next((found for found in parts if found), None)
    return None


def _is(value: object, name: str) -> bool:
    # In Python a bool is an int, in JSON it is not.
    return isinstance(value, _KINDS.get(name, ())) and (name == "boolean" or not isinstance(value, bool))


def _object(value: dict[str, object], schema: Schema, where: str) -> str | None:
    for name in cast("Sequence[str]", schema.get("required", ())):
        if name not in value:
            return f"{where}.{name} is missing"
    known = cast("Mapping[str, Schema]", schema.get("properties", {}))
    for name, item in value.items():
        if name in known:
            if found := problem(item, known[name], f"{where}.{name}"):
                return found
        elif schema.get("additionalProperties") is False:
            return f"{where} has the unknown field {name[:40]!r}"
    return None
