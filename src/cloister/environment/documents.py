"""Parse TOML, JSON and YAML from strangers: bounded in depth and size, never more than an exception of one kind."""

from collections.abc import Callable, Iterator
from typing import cast

import msgspec

from cloister.core.repository import parse_toml

_DEPTH = 60
_EVENTS = 60_000
_MERGED = 5_000
"""Pairs that `<<` may add to a YAML document: a few aliases in a row would multiply without a bound."""


class Unreadable(ValueError):
    """The text is malformed, nested too deeply or too large."""


def read_toml(text: str) -> object:
    """Raises `Unreadable`."""
    try:
        return parse_toml(text)
    except ValueError as error:
        raise Unreadable(str(error)) from None


def read_json(text: str) -> object:
    """Raises `Unreadable`."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Unreadable(str(error)) from None


def read_yaml(text: str) -> object:
    """The first document; every scalar is a string. Raises `Unreadable`.

    It is built from the events of the parser: the loaders of the library recurse in C, and deep nesting ends the process.
    """
    # Imported here: 20 ms that most repositories need only for their workflows.
    import yaml  # noqa: PLC0415

    try:
        parse = cast("Callable[[str, type], Iterator[object]]", yaml.parse)  # pyright: ignore[reportUnknownMemberType]
        return _Builder().build(parse(text, yaml.CSafeLoader))
    except (yaml.YAMLError, UnicodeError) as error:
        raise Unreadable(str(error)) from None


class _Builder:
    """Builds plain lists and dictionaries from the events of one document."""

    def __init__(self) -> None:
        self._anchors: dict[str, object] = {}
        self._open: list[tuple[dict[object, object] | list[object], list[object]]] = []
        """Each open collection, with the key that waits for its value."""
        self._merged = 0
        self._result: object = None

    def build(self, events: "Iterator[object]") -> object:
        for number, event in enumerate(events):
            if number > _EVENTS or len(self._open) > _DEPTH:
                raise Unreadable("it is nested too deeply, or too large")
            kind = type(event).__name__
            if kind == "DocumentEndEvent":
                break
            self._take(kind, event)
        return self._result

    def _take(self, kind: str, event: object) -> None:
        anchor = cast("str | None", getattr(event, "anchor", None))
        match kind:
            case "ScalarEvent":
                value: object = cast("str", getattr(event, "value", ""))
            case "AliasEvent":
                self._add(self._anchors.get(anchor or "", ""))
                return
            case "MappingStartEvent":
                value = cast("dict[object, object]", {})
            case "SequenceStartEvent":
                value = cast("list[object]", [])
            case "MappingEndEvent" | "SequenceEndEvent":
                self._add(self._open.pop()[0])
                return
            case _:
                return
        if anchor:
            self._anchors[anchor] = value
        if isinstance(value, str):
            self._add(value)
        else:
            self._open.append((value, []))

    def _add(self, value: object) -> None:
        if not self._open:
            self._result = value
            return
        inside, keys = self._open[-1]
        if isinstance(inside, list):
            inside.append(value)
        elif not keys:
            keys.append(value)
        else:
            key = keys.pop()
            if key == "<<" and isinstance(value, dict):
                found = cast("dict[object, object]", value)
                self._merged += len(found)
                if self._merged > _MERGED:
                    raise Unreadable("it merges too much")
                inside.update({name: one for name, one in found.items() if name not in inside})
            elif isinstance(key, str):
                inside[key] = value
