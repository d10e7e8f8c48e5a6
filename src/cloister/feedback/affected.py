"""Which checks a change can have touched, and in which order they answer soonest."""

import re
import shlex
from collections.abc import Collection, Sequence

import msgspec

from cloister.core.diagnosis import Check, CheckKind, Diagnosis
from cloister.feedback import kinds
from cloister.feedback.kinds import tool_of, words

_ORDER: tuple[CheckKind, ...] = ("format", "lint", "types", "build", "test", "other")
ALONE: tuple[CheckKind, ...] = ("build", "test", "other")
"""Kinds that may write where another of them reads: one of these at a time."""

_ENDINGS: dict[str, tuple[str, ...]] = {
    kinds.PYTHON: (".py", ".pyi", ".pyx", ".toml", ".cfg", ".ini", ".txt", ".json", ".yaml", ".yml", ".csv"),
    kinds.SCRIPT: (
        *(".js", ".jsx", ".ts", ".tsx", ".mjs", ".cjs", ".mts", ".cts", ".vue", ".svelte"),
        *(".json", ".css", ".html", ".snap", ".yaml", ".yml", ".txt"),
    ),
    kinds.GO: (".go", ".mod", ".sum", ".tmpl", ".golden", ".json", ".txt", ".yaml", ".yml", ".s"),
    kinds.RUST: (".rs", ".toml", ".lock", ".json", ".txt", ".snap"),
    kinds.C: (".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx", ".cmake", ".txt", ".s", ".in"),
    kinds.JAVA: (
        ".java",
        ".kt",
        ".kts",
        ".scala",
        ".groovy",
        ".gradle",
        ".xml",
        ".properties",
        ".json",
        ".yml",
    ),
    kinds.SHELL: (".sh", ".bash", ".bats", ".zsh"),
}
_ALWAYS = ("Makefile", "makefile", "GNUmakefile", "Dockerfile")
_NEVER = (".md", ".rst", ".adoc")
"""Words for people; a check that knows its language does not read them."""


def plan(changed: Collection[str] | None, checks: Sequence[Check]) -> tuple[Check, ...]:
    """The checks that the changed files can have touched, quickest kind first; None is any change at all.

    Where nothing can be told apart everything runs: a check too many costs time, one too few a wrong verdict.
    """
    touched = [check for check in checks if changed is None or _touches(changed, check)]
    return tuple(sorted(touched, key=lambda check: _ORDER.index(check.kind)))


def batches(checks: Sequence[Check], width: int) -> tuple[tuple[Check, ...], ...]:
    """The checks in groups that may run side by side: at most `width`, and never two that may write."""
    found: list[list[Check]] = []
    for check in checks:
        beside = found and len(found[-1]) < max(1, width)
        if beside and check.kind not in ALONE and all(other.kind not in ALONE for other in found[-1]):
            found[-1].append(check)
        else:
            found.append([check])
    return tuple(tuple(group) for group in found)


def _touches(changed: Collection[str], check: Check) -> bool:
    if not check.languages:
        return True
    endings = tuple(ending for language in check.languages for ending in _ENDINGS.get(language, ()))
    return any(_matters(name, endings, check.kind) for name in changed)


def _matters(name: str, endings: tuple[str, ...], kind: CheckKind) -> bool:
    last = name.rpartition("/")[2]
    if last in _ALWAYS or last.endswith(endings):
        return True
    # A file without a known ending may be what a test reads.
    return kind in ALONE and not last.endswith((*_NEVER, *_EVERY))


_EVERY = tuple(sorted({ending for endings in _ENDINGS.values() for ending in endings}))


# The tests nearest to a change, to be run before the long rest of their check.


_TEST = re.compile(
    r"^(?:test_(?P<a>.+)|(?P<b>.+)_test)\.py$|^(?P<c>.+)\.(?:test|spec)\.[cm]?[jt]sx?$",
)
_SCRIPT = (".js", ".jsx", ".ts", ".tsx", ".mjs", ".cjs", ".mts", ".cts")
_TOOLS = {"pytest": (".py",), "jest": _SCRIPT, "vitest": _SCRIPT}
_FILES = 20
WORTH_SECONDS = 5.0
"""A check that takes less is run whole."""


class Near(msgspec.Struct, frozen=True):
    """A part of one check."""

    line: str
    """The command line that runs it."""
    files: tuple[str, ...]


def nearest(check: Check, known: Diagnosis, changed: Sequence[str], files: Collection[str]) -> Near | None:
    """The part of `check` that looks at the changed files: tests that changed, and those named after what did.

    None where that would save nothing, or where the check cannot be asked for a part of itself.
    """
    tool = tool_of(check.command) or ""
    parts = words(check.command)
    if tool not in _TOOLS or known.seconds < WORTH_SECONDS or known.unlisted or not known.tests:
        return None
    if not parts or any(part.endswith((*_TOOLS[tool], "/")) for part in parts[1:]):
        return None  # it names files already
    stems = {_stem(name) for name in changed}
    wanted = set(changed)
    found = sorted(
        name
        for name in files
        if name.endswith(_TOOLS[tool])
        and (test := _TEST.match(name.rpartition("/")[2]))
        and (name in wanted or next(filter(None, test.groups()), "") in stems)
    )
    if not found or len(found) > _FILES:
        return None
    line = " ".join([check.run or check.command, *map(shlex.quote, found)])
    return Near(line, tuple(found))


def merged(known: Diagnosis, part: Diagnosis, files: Sequence[str]) -> Diagnosis:
    """What is known of the whole check after a red part of it: that part anew, the rest as it was."""
    anew = {test.name for test in part.tests}
    rest = [
        test for test in known.tests if test.name not in anew and test.name.partition("::")[0] not in files
    ]
    # As slow as before, so that the next look starts with a part again.
    return msgspec.structs.replace(part, tests=(*part.tests, *rest), seconds=known.seconds)


def _stem(path: str) -> str:
    name = path.rpartition("/")[2]
    return name.partition(".")[0]
