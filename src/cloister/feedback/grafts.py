"""Files that are code or settings and tests at once: as they are now, with the base's tests in them.

Rust has its tests beside the code, `package.json` says how they are started beside all else. Such a file cannot go back
whole, or the fix would go with it.
"""

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
    tests = (item for item in _items(lines) if item.is_test and item.key[1] == "fn" and item.key[2] in calm)
    return _replaced(lines, dict.fromkeys(_apart(tests), ""))


def _rust(before: str, after: str, calm: Collection[str]) -> str:
    old, new = before.split("\n")[:_LINES], after.split("\n")
    olds = {item.key: item for item in _apart(item for item in _items(old) if item.is_test)}
    if not olds:
        return after
    said = {key: without("\n".join(old[item.start : item.stop]), calm) for key, item in olds.items()}
    places = [*_apart(item for item in _items(new[:_LINES]) if item.key in said)]
    found = {item.key for item in places}
    lost = [text for key, text in said.items() if key not in found and not key[0]]
    return "\n".join([_replaced(new, {item: said[item.key] for item in places}), *lost])


def _replaced(lines: Sequence[str], places: Mapping[_Item, str]) -> str:
    """The lines with another text, or none, in each of the places, which are in order and apart."""
    made: list[str] = []
    done = 0
    for item, text in places.items():
        made += lines[done : item.start]
        made += [text] if text else []
        done = item.stop
    return "\n".join([*made, *lines[done:]])


def _apart(items: Iterable[_Item]) -> Iterator[_Item]:
    """Those that are in none of the others."""
    end = 0
    for item in items:
        if item.start >= end:
            end = item.stop
            yield item


def _items(lines: Sequence[str]) -> Iterator[_Item]:
    """Every module and function in order, outer ones before what is in them; an end is told by its indent."""
    many: dict[tuple[str, str, str], int] = {}
    ends: dict[str, list[int]] = {}
    for at, line in enumerate(lines):
        if (rest := line.lstrip()).startswith("}"):
            ends.setdefault(line[: len(line) - len(rest)], []).append(at)
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
        stop = at + 1 if line.rstrip().endswith((";", "}")) else _end(ends.get(head[1], ()), at, len(lines))
        yield _Item((*key, many[key]), start, stop, _TESTED.search(marks) is not None)


def _end(ends: Sequence[int], at: int, most: int) -> int:
    """Behind the first of these lines after `at`."""
    place = bisect_right(ends, at)
    return ends[place] + 1 if place < len(ends) else most


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
