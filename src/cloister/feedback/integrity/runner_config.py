"""Merges the base's settings of test runners into a file that also holds other settings.

The merge works on the text by sections, so that comments survive, and a dependency that the change adds stays. If the
result would not have the settings of the base, the whole file of the base is the result.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, cast

import msgspec

from cloister.feedback.integrity.versions import Version, inserted
from cloister.feedback.parsers.json import decoded

_Table = dict[str, object]
MAKEFILES = ("GNUmakefile", "makefile", "Makefile")


def is_shared(path: str) -> bool:
    """True if the file may hold settings of a test runner among others."""
    return path.rpartition("/")[2] in _MERGED


class _Absent(NamedTuple):
    tests: Collection[str]
    """New tests, which are removed."""
    sources: Collection[str]
    """Names without ending of the files that the change deleted."""


def with_base_settings(
    version: Version, tests: Collection[str] = (), deleted: Iterable[str] = ()
) -> str | None:
    """The file now, with the runner settings of the base; None if that changes nothing.

    `tests` are new test files that are removed, `deleted` files that the change deleted.
    """
    if version.after is None or version.name not in _MERGED:
        return None
    absent = _Absent(tests, {_stem(name) for name in deleted})
    merged = _MERGED[version.name](version.before or "", version.after, absent)
    return None if merged == version.after else merged


def _stem(word: str) -> str:
    return word.rpartition("/")[2].partition(".")[0]


# TOML and INI

_HEADER = re.compile(r"^[ \t]*\[{1,2}([^\[\]\n]{1,200})\]{1,2}[ \t]*(?:[#;].*)?$")
_PYTHON_TABLES = re.compile(
    r"^tool\.(?:pytest|coverage|tox|nox|poe|taskipy|hatch\.envs|pdm\.scripts)\b|pytest11$"
)
_CARGO_TABLES = re.compile(r"^(?:test|bench|profile\.\w{1,40}(?:\..{1,100})?)$")
_CARGO_KEYS = {
    "lib": ("test", "doctest", "harness", "path", "bench"),
    "package": ("autotests", "autolib", "autobenches"),
    "workspace": ("default-members", "exclude"),
}
_INI_SECTIONS = re.compile(
    r"^(?:tool:pytest|pytest|coverage:.{1,80}|testenv\b.{0,80}|tox(?::.{1,80})?|nosetests|unittest|aliases)$"
)


def _sections(text: str) -> list[tuple[str, str]]:
    """Each section by the name in its header, the text before the first one by an empty name."""
    found: list[tuple[str, list[str]]] = [("", [])]
    for line in text.split("\n"):
        if header := _HEADER.match(line[:400]):
            found.append((re.sub(r"[\s\"']", "", header[1]), []))
        found[-1][1].append(line)
    return [(name, "\n".join(lines)) for name, lines in found if lines]


def _by_sections(before: str, after: str, is_theirs: Callable[[str, str], bool]) -> str:
    """`after` with those sections of `before`, in the place of its own."""
    theirs = [text for name, text in _sections(before) if is_theirs(name, text)]
    made: list[str] = []
    for name, text in _sections(after):
        if is_theirs(name, text):
            made, theirs = [*made, *theirs], []
        else:
            made.append(text)
    return "\n".join([*made, *theirs])


def _pyproject(before: str, after: str, _: _Absent) -> str:
    def settings(document: _Table) -> object:
        tool, project = _table(document.get("tool")), _table(document.get("project"))
        hatch, poetry, pdm = (_table(tool.get(name)) for name in ("hatch", "poetry", "pdm"))
        names = ("pytest", "coverage", "tox", "nox", "poe", "taskipy")
        plugins = [
            _table(one).get("pytest11") for one in (project.get("entry-points"), poetry.get("plugins"))
        ]
        return [tool.get(name) for name in names], hatch.get("envs"), pdm.get("scripts"), plugins

    merged = _by_sections(before, after, lambda name, _: bool(_PYTHON_TABLES.search(name)))
    return _checked(before, after, merged, settings)


def _cargo(before: str, after: str, _: _Absent) -> str:
    def settings(document: _Table) -> object:
        keys = [_table(document.get(name)).get(key) for name, keys in _CARGO_KEYS.items() for key in keys]
        return keys, document.get("test"), document.get("profile")

    kept = "\n".join(_with_keys(before, _sections(after)))
    merged = _by_sections(before, kept, lambda name, _: bool(_CARGO_TABLES.match(name)))
    was, now = (_members(text) for text in (before, merged))
    return before if was - now else _checked(before, after, merged, settings)


def _members(text: str) -> set[str]:
    members = _table(_table(_read(text)).get("workspace")).get("members")
    return {str(one) for one in cast("list[object]", members)} if isinstance(members, list) else set()


def _with_keys(before: str, sections: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The sections with the runner's keys as they are in `before`."""
    left = {name: text for name, text in _sections(before) if name in _CARGO_KEYS}
    for name, text in sections:
        keys = _CARGO_KEYS.get(name, ())
        lines = [line for line in text.split("\n") if not _sets(line, keys)]
        theirs = [line for line in left.pop(name, "").split("\n") if _sets(line, keys)]
        yield "\n".join([*lines[:1], *theirs, *lines[1:]])
    for name, text in left.items():
        if theirs := [line for line in text.split("\n") if _sets(line, _CARGO_KEYS[name])]:
            yield "\n".join([f"[{name}]", *theirs])


def _sets(line: str, keys: Collection[str]) -> bool:
    return line.partition("=")[0].strip().strip("\"'") in keys and "=" in line


def _checked(before: str, after: str, merged: str, settings: Callable[[_Table], object]) -> str:
    """`after` or `merged`, the first that has the settings of the base; else all of `before`."""
    wanted = settings(_read(before) or {})
    for text in (after, merged):
        found = _read(text)
        if found is not None and settings(found) == wanted:
            return text
    return before


def _read(text: str) -> _Table | None:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return None


def _table(value: object) -> _Table:
    return cast("_Table", value) if isinstance(value, dict) else {}


def _ini(before: str, after: str, _: _Absent) -> str:
    return _by_sections(
        before, after, lambda name, text: bool(_INI_SECTIONS.match(name)) or "pytest11" in text
    )


# package.json

_RUNNERS = ("jest", "mocha", "vitest", "ava", "tap", "nyc", "c8", "babel", "jasmine", "wireit")
_STARTS_TESTS = re.compile(r"test|check|spec|verify|^ci\b")


def _package(before: str, after: str, _: _Absent) -> str:
    """Restore the test scripts, the scripts that they start, pre and post hooks, and the settings of runners."""
    old, new = (decoded(text.encode(), _Table) for text in (before or "{}", after))
    if old is None or new is None:
        return after
    were, are = _table(old.get("scripts")), _table(new.get("scripts"))
    kept = {name: line for name, line in were.items() if _STARTS_TESTS.search(name)}
    started = {word for line in kept.values() for word in re.split(r"[\s&|;'\"]+", str(line))}
    kept |= {name: line for name, line in were.items() if name in started}
    hooks = {f"{when}{name}" for name in kept for when in ("pre", "post")} - set(were)
    scripts = {name: line for name, line in are.items() if name not in hooks} | kept
    settings = {name: old[name] for name in _RUNNERS if name in old}
    rest = {name: value for name, value in new.items() if name not in _RUNNERS}
    if scripts == are and settings == {name: new[name] for name in _RUNNERS if name in new}:
        return after
    whole = {**rest, **settings, "scripts": scripts}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode() + "\n"


# CMake and make: a build description is also part of the fix. Sources and libraries that it adds stay.

_HARMLESS = re.compile(
    r"^[\w./+$(){}@%*-]{1,200}\.(?:c|cc|cpp|cxx|h|hh|hpp|s|S|o|a|so|rc)$|^-[lIL][\w./$(){}-]{1,200}$|"
    r"^-(?:std=[\w+]{1,20}|pthread|g|O[0-3s]|W[a-z][\w-]{0,60}|f[a-z][\w-]{0,60})$"
)
_ADDS = (
    *(
        "add_library",
        "add_executable",
        "target_sources",
        "target_link_libraries",
        "target_include_directories",
    ),
    *("find_package", "find_library", "include_directories", "target_compile_features", "install"),
)
_LISTS = re.compile(
    r"^(?!.*MAKE)(?:.*_)?(?:SRCS?|SOURCES?|OBJS?|OBJECTS?|LIBS?|LDLIBS|HEADERS?|DEPS|CFLAGS|CXXFLAGS|LDFLAGS)[ \t:+?]*$"
)
"""Variables of a Makefile that list sources, libraries or flags."""
_CMAKE_COMMAND = re.compile(r"^[ \t]*(\w{1,60})\s*\(")
_TESTLIKE = re.compile(r"test|spec|check", re.IGNORECASE)
_RULE = re.compile(r"^([^\s#:=][^#:=]{0,400}):(?!=)")
_LINES = 20_000
_COMPARED = 100_000
"""Pairs of changed units that are compared; of more, those of the base count."""


def _cmake(before: str, after: str, absent: _Absent) -> str:
    gone: set[str] = set()
    known = set(re.findall(r"[^\s()]+", before))

    def may_be_new(unit: str) -> bool:
        command = _CMAKE_COMMAND.match(unit)
        words = [*re.findall(r"[^\s()]+", unit.partition("(")[2])]
        if command is None or not words:
            return not unit.strip() or unit.lstrip().startswith("#")
        if any(name.endswith(word) for word in words[1:] for name in absent.tests) or words[0] in gone:
            gone.add(words[0])
            return False
        name = command[1].lower()
        if name in ("set", "list"):
            is_known = name == "set" and words[0] in known
            return not is_known and all(map(_HARMLESS.match, words[2 if name == "list" else 1 :]))
        return name in _ADDS and (name != "add_executable" or not _TESTLIKE.search(unit))

    old, new = (_units(text, _in_brackets("(", ")")) for text in (before, after))
    return _merged(old, new, may_be_new, absent)


def _makefile(before: str, after: str, absent: _Absent) -> str:
    known = set(re.findall(r"\w+", before))

    def may_be_new(unit: str) -> bool:
        if not unit.strip() or unit.startswith("#"):
            return True
        if rule := _RULE.match(unit):
            return all(map(_HARMLESS.match, rule[1].split()))
        name, mark, value = unit.partition("=")
        adds = name.endswith("+") or name.strip(" \t:?") not in known
        return bool(mark and adds and _LISTS.search(name)) and all(map(_HARMLESS.match, value.split()))

    def goes_on(depth: int, line: str, following: str) -> int:
        return int(line.endswith("\\") or following.startswith("\t"))

    return _merged(_units(before, goes_on), _units(after, goes_on), may_be_new, absent)


_GoesOn = Callable[[int, str, str], int]
"""(depth before a line, the line, the one that follows) → depth after it."""


def _in_brackets(opening: str, closing: str) -> _GoesOn:
    def goes_on(depth: int, line: str, following: str) -> int:
        bare = line.partition("#")[0]
        return max(0, depth + bare.count(opening) - bare.count(closing))

    return goes_on


def _units(text: str, goes_on: _GoesOn) -> list[str]:
    """Split a text into units of lines: a unit ends where the depth is 0."""
    found: list[list[str]] = [[]]
    depth = 0
    lines = text.split("\n")[:_LINES]
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        found[-1].append(line)
        depth = goes_on(depth, line, following)
        if not depth:
            found.append([])
    return ["\n".join(unit) for unit in found if unit]


def _merged(
    old: Sequence[str], new: Sequence[str], may_be_new: Callable[[str], bool], absent: _Absent
) -> str:
    """The units of the base, with those of `new` that only add sources, or may be new."""
    made: list[str] = []
    matcher = difflib.SequenceMatcher(None, [*map(_spaced, old)], [*map(_spaced, new)])
    for kind, start, stop, first, last in matcher.get_opcodes():
        ours = [*new[first:last]]
        if kind == "equal":
            made += ours
            continue
        if (stop - start) * len(ours) > _COMPARED:
            made += old[start:stop]
            continue
        for unit in old[start:stop]:
            richer = next((one for one in ours if _only_adds(unit, one, absent.sources)), None)
            made.append(unit if richer is None else richer)
            ours = [one for one in ours if one is not richer]
        made += [unit for unit in ours if may_be_new(unit)]
    return "\n".join(made)


def _spaced(unit: str) -> str:
    return " ".join(unit.replace("\\\n", " ").replace("(", " ( ").replace(")", " ) ").split())


def _only_adds(old: str, new: str, deleted: Collection[str]) -> bool:
    """True if `new` is `old` with more sources or libraries, and without deleted ones."""
    were, words = _spaced(old).split(), _spaced(new).split()
    there = set(words)
    wanted = [
        word for word in were if word in there or not _HARMLESS.match(word) or _stem(word) not in deleted
    ]
    added = inserted(wanted, words)
    return added is not None and bool(wanted) and all(_HARMLESS.match(words[index]) for index in added)


# Maven and Gradle

_ELEMENTS = ("profiles", "build", "reporting")
_ELEMENT = re.compile(r"<(?:profiles|build|reporting)\b")
_SKIPPING = re.compile(r"<(?:skip\w{1,40}|maven\.test\.[\w.]{1,60}|surefire[\w.]{0,60}|argLine)>")
_GRADLE = re.compile(
    r"^(?:dependencies|plugins|repositories|import|group|version|java|kotlin|description)\b|^\s*(?://.*)?$"
)


def _pom(before: str, after: str, _: _Absent) -> str:
    merged = after
    for name in _ELEMENTS:
        theirs, ours = _element(before, name), _element(merged, name)
        if ours:
            merged = merged.replace(ours, theirs, 1)
        elif theirs:
            merged = merged.replace("</project>", f"{theirs}\n</project>", 1)
    skips = [[line for line in text.split("\n") if _SKIPPING.search(line)] for text in (before, merged)]
    is_whole = len(_ELEMENT.findall(merged)) == len(_ELEMENT.findall(before)) and skips[0] == skips[1]
    return merged if is_whole else before


def _element(text: str, name: str) -> str:
    start, end = text.find(f"<{name}>"), text.find(f"</{name}>")
    return text[start : end + len(name) + 3] if 0 <= start < end else ""


def _gradle(before: str, after: str, _: _Absent) -> str:
    old, new = (_units(text, _in_brackets("{", "}")) for text in (before, after))
    theirs, ours = ([unit for unit in units if not _GRADLE.match(unit)] for units in (old, new))
    return after if theirs == ours else "\n".join([*(unit for unit in new if _GRADLE.match(unit)), *theirs])


_MERGED: dict[str, Callable[[str, str, _Absent], str]] = {
    "pyproject.toml": _pyproject,
    "Cargo.toml": _cargo,
    "setup.cfg": _ini,
    "tox.ini": _ini,
    "package.json": _package,
    "CMakeLists.txt": _cmake,
    **dict.fromkeys(MAKEFILES, _makefile),
    "pom.xml": _pom,
    "build.gradle": _gradle,
    "build.gradle.kts": _gradle,
}
