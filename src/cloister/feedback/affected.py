"""Selects the checks that a change can affect, quickest first, and the tests nearest to the change."""

import re
import shlex
from collections.abc import Collection, Sequence

import msgspec

from cloister.core.diagnosis import Check, CheckKind, Diagnosis, TestResult
from cloister.feedback import check_commands
from cloister.feedback.check_commands import tool_of, words

_ORDER: tuple[CheckKind, ...] = ("format", "lint", "types", "build", "test", "other")
ALONE: tuple[CheckKind, ...] = ("build", "test", "other")
"""Kinds that may write files which another of them reads: only one of these runs at a time."""

_ENDINGS: dict[str, tuple[str, ...]] = {
    language: tuple(endings.split())
    for language, endings in (
        (check_commands.PYTHON, ".py .pyi .pyx .toml .cfg .ini .txt .json .yaml .yml .csv"),
        (
            check_commands.SCRIPT,
            ".js .jsx .ts .tsx .mjs .cjs .mts .cts .vue .svelte .json .css .html .snap .yaml .yml .txt",
        ),
        (check_commands.GO, ".go .mod .sum .tmpl .golden .json .txt .yaml .yml .s"),
        (check_commands.RUST, ".rs .toml .lock .json .txt .snap"),
        (check_commands.C, ".c .cc .cpp .cxx .h .hh .hpp .hxx .cmake .txt .s .in"),
        (check_commands.JAVA, ".java .kt .kts .scala .groovy .gradle .xml .properties .json .yml"),
        (check_commands.SHELL, ".sh .bash .bats .zsh"),
    )
}
_ALWAYS = ("Makefile", "makefile", "GNUmakefile", "Dockerfile")
_NEVER = (".md", ".rst", ".adoc")
"""Documentation, which checks of a known language do not read."""


def plan(changed: Collection[str] | None, checks: Sequence[Check]) -> tuple[Check, ...]:
    """The checks that the changed files can affect, quickest kind first; None means any change.

    In doubt a check runs: an unneeded one costs time, a missing one gives a wrong verdict.
    """
    touched = [check for check in checks if changed is None or _touches(changed, check)]
    return tuple(sorted(touched, key=lambda check: _ORDER.index(check.kind)))


def batches(checks: Sequence[Check], width: int) -> tuple[tuple[Check, ...], ...]:
    """Group the checks that can run in parallel: at most `width`, and never two that may write."""
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
    # A test may read a file with an unknown ending.
    return kind in ALONE and not last.endswith((*_NEVER, *_EVERY))


_EVERY = tuple(sorted({ending for endings in _ENDINGS.values() for ending in endings}))


# The tests nearest to a change run before the rest of their check

_TEST = re.compile(
    r"^(?:test_(?P<a>.+)|(?P<b>.+)_test)\.py$|^(?P<c>.+)\.(?:test|spec)\.[cm]?[jt]sx?$|^(?P<d>.+)_test\.go$",
)
_SCRIPT = (".js", ".jsx", ".ts", ".tsx", ".mjs", ".cjs", ".mts", ".cts")
_TOOLS = {"pytest": (".py",), "jest": _SCRIPT, "vitest": _SCRIPT}
_FILES = 20
WORTH_SECONDS = 5.0
"""A shorter check runs as a whole."""
LONG_SECONDS = 60.0
"""Of a longer one, some tests run first on the base."""


class Near(msgspec.Struct, frozen=True):
    """A part of a check."""

    line: str
    """The command line that runs it."""
    files: tuple[str, ...]


def nearest(check: Check, known: Diagnosis, changed: Sequence[str], files: Collection[str]) -> Near | None:
    """The part of `check` for the changed files: tests that changed, and tests named after a changed file.

    None if it would save nothing, or if the check cannot run a part.
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


def first(
    before: Diagnosis, meant: Collection[str], changed: Collection[str], files: Collection[str]
) -> tuple[str, ...]:
    """The test files of a long suite to run before the rest: what is meant, what failed, what is named after a change.

    `meant` has names of tests and of files, `changed` the files that differ since `before`.
    """
    if before.seconds < LONG_SECONDS or before.killed is not None:
        return ()
    red = {test.name for test in before.failing}
    there = {name for test in before.tests if (name := _file_of(test)) in files}
    found = {_file_of(test) for test in before.tests if test.name in meant or test.name in red}
    touched = {*changed, *(name for name in files if name in meant or name.rpartition("/")[2] in meant)}
    stems = {_stem(name) for name in touched}
    named = {name for name in there if name in touched or _tested(name) in stems}
    chosen = sorted((found & there) | named)
    return tuple(chosen) if chosen and len(chosen) <= _FILES and len(chosen) < len(there) else ()


def _file_of(test: TestResult) -> str:
    return test.file or test.name.partition("::")[0]


def _tested(path: str) -> str:
    """What a test file is named after; empty if its name does not tell."""
    found = _TEST.match(path.rpartition("/")[2])
    return next(filter(None, found.groups()), "") if found else ""


def merged(known: Diagnosis, part: Diagnosis, files: Sequence[str]) -> Diagnosis:
    """The diagnosis of the whole check after its part failed: the part as it is now, the rest as before."""
    again = {test.name for test in part.tests}
    rest = [
        test for test in known.tests if test.name not in again and test.name.partition("::")[0] not in files
    ]
    # Keep the old duration, so that the next run also starts with a part.
    return msgspec.structs.replace(part, tests=(*part.tests, *rest), seconds=known.seconds)


def _stem(path: str) -> str:
    name = path.rpartition("/")[2]
    return name.partition(".")[0]
