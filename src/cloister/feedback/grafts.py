"""Files that are code or settings and tests at once: as they are now, with the base's tests in them.

Rust has its tests beside the code, `package.json` says how they are started beside all else. Such a file cannot go back
whole, or the fix would go with it.
"""

import re
from collections.abc import Collection, Iterator
from typing import cast

import msgspec

from cloister.feedback.versions import Version

_HEAD = re.compile(
    r"^(\s*)(?:pub(?:\([\w: ]{1,60}\))? )?(?:(?:async|const|unsafe) ){0,3}(mod|fn) (\w{1,200})\b(.{0,2000})$"
)
_TESTED = re.compile(r"#\[(?:[\w:]{1,80}::)?(?:test|rstest|test_case|quickcheck)\b|#\[cfg\(.{0,200}\btest\b")
_LINES = 50_000
_RUNNERS = ("jest", "mocha", "vitest", "ava", "tap", "nyc", "c8", "babel")
_STARTS_TESTS = re.compile(r"test|check|spec|verify|^ci\b")


class _Item(msgspec.Struct, frozen=True):
    """A module or function of tests in a file, with the marks above it."""

    key: tuple[str, str, str, int]
    """Indent, kind, name, and which of that name it is."""
    start: int
    stop: int
    is_test: bool


def grafted(version: Version, calm: Collection[str] = ()) -> str | None:
    """The file now, with the base's tests in the place of its own; None where that changes nothing.

    Tests whose names are in `calm` are left out: they passed, may be edited, and could keep the others from being built.
    """
    if version.before is None or version.after is None:
        return None
    name = version.path.rpartition("/")[2]
    if name == "package.json":
        found = _package(version.before, version.after)
    elif name.endswith(".rs"):
        found = _rust(version.before, version.after, calm)
    else:
        return None
    return None if found == version.after else found


def without(text: str, calm: Collection[str]) -> str:
    """A file of tests in Rust without the tests of these names."""
    lines = text.split("\n")
    for item in reversed([*_items(lines)]):
        if item.is_test and item.key[1] == "fn" and item.key[2] in calm:
            del lines[item.start : item.stop]
    return "\n".join(lines)


def _rust(before: str, after: str, calm: Collection[str]) -> str:
    old, new = before.split("\n")[:_LINES], after.split("\n")
    olds = {item.key: item for item in _outermost(_items(old)) if item.is_test}
    if not olds:
        return after
    found = {item.key: item for item in _items(new[:_LINES])}
    said = {key: without("\n".join(old[item.start : item.stop]), calm) for key, item in olds.items()}
    places = sorted((found[key] for key in olds if key in found), key=lambda item: -item.start)
    lines = list(new)
    for item in places:
        lines[item.start : item.stop] = said[item.key].split("\n")
    lost = [said[key] for key in olds if key not in found and not key[0]]
    return "\n".join([*lines, *lost])


def _outermost(items: Iterator[_Item]) -> Iterator[_Item]:
    """Those that are in none of the others."""
    end = 0
    for item in items:
        if item.is_test and item.start >= end:
            end = item.stop
            yield item


def _items(lines: list[str]) -> Iterator[_Item]:
    """Every module and function in order, outer ones before what is in them; an end is told by its indent."""
    many: dict[tuple[str, str, str], int] = {}
    for at, line in enumerate(lines):
        head = _HEAD.match(line[:2_400])
        if head is None:
            continue
        start = at
        while start and lines[start - 1].strip().startswith(("#[", "///")):
            start -= 1
        key = (head[1], head[2], head[3])
        many[key] = many.get(key, 0) + 1
        marks = "\n".join(lines[start:at])
        yield _Item((*key, many[key]), start, _end(lines, at, head[1]), _TESTED.search(marks) is not None)


def _end(lines: list[str], at: int, indent: str) -> int:
    if lines[at].rstrip().endswith((";", "}")):
        return at + 1
    for index in range(at + 1, len(lines)):
        if lines[index].startswith(f"{indent}}}"):
            return index + 1
    return len(lines)


def _package(before: str, after: str) -> str:
    """The scripts that start tests, what runs around them, and the settings of runners, as the base has them."""
    old, new = _object(before), _object(after)
    if old is None or new is None:
        return after
    were, are = _scripts(old), _scripts(new)
    kept = {name: line for name, line in were.items() if _STARTS_TESTS.search(name)}
    hooks = {f"{when}{name}" for name in kept for when in ("pre", "post")} - set(were)
    scripts = {name: line for name, line in are.items() if name not in hooks} | kept
    settings = {name: old[name] for name in _RUNNERS if name in old}
    rest = {name: value for name, value in new.items() if name not in _RUNNERS}
    whole = {**rest, **settings, "scripts": scripts}
    is_same = scripts == are and settings == {name: new[name] for name in _RUNNERS if name in new}
    return after if is_same else msgspec.json.format(msgspec.json.encode(whole), indent=2).decode() + "\n"


def _object(text: str) -> dict[str, object] | None:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def _scripts(package: dict[str, object]) -> dict[str, object]:
    found = package.get("scripts")
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}
