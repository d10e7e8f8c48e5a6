"""Chooses the files to restore for the decisive question: do the failing tests pass as the base has them?

Rules can be evaded; running the original test cannot. Restored are the test's own file, its helpers and data, and the
hooks and settings of its runner; new tests are removed. In files with both code and tests, only the tests are restored
(`grafted`). Other tests may then fail to load; only the tests that failed on the base matter.
"""

import re
import sys
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from cloister.core.diagnosis import REWRITTEN, Diagnosis, TestResult, Weakening
from cloister.feedback.check_commands import may_run_tests
from cloister.feedback.integrity.runner_config import MAKEFILES, is_shared, with_base_settings
from cloister.feedback.integrity.text_tests import outlines
from cloister.feedback.integrity.versions import (
    Version,
    inserted,
    is_allowed,
    is_product,
    is_test_code,
    is_test_file,
    is_test_place,
)

# Rust has tests beside the code. Restoring the whole file would also remove the fix.

_HEAD = re.compile(
    r"^(\s*)(?:pub(?:\([\w: ]{1,60}\))? )?(?:(?:async|const|unsafe) ){0,3}(mod|fn) (\w{1,200})\b(.{0,2000})$"
)
_TESTED = re.compile(r"#\[(?:[\w:]{1,80}::)?(?:test|rstest|test_case|quickcheck)\b|#\[cfg\(.{0,200}\btest\b")
_LINES = 50_000


class _Item(msgspec.Struct, frozen=True):
    """A module or function in a file, with the attributes above it."""

    key: tuple[str, str, str, int]
    """Indent, kind, name, and the number among items of that name."""
    start: int
    stop: int
    is_test: bool


def grafted(version: Version, calm: Collection[str] = ()) -> str | None:
    """The current Rust file with the tests of the base; None if that changes nothing.

    Tests named in `calm` are left out: they passed, may be edited, and could break the build of the others.
    """
    if version.before is None or version.after is None or not version.path.endswith(".rs"):
        return None
    found = _rust(version.before, version.after, calm)
    return None if found == version.after else found


def without(text: str, calm: Collection[str]) -> str:
    """Remove the tests with these names from a Rust file."""
    lines = text.split("\n")
    tests = (item for item in _items(lines) if item.is_test and item.key[1] == "fn" and item.key[2] in calm)
    return _replaced(lines, dict.fromkeys(_apart(tests), ""))


_DOC = re.compile(r"^\s*(///|//!)")
_DOCUMENTED = re.compile(
    r"^\s*(?:pub(?:\([\w: ]{1,60}\))? )?(?:\w{1,20} (?:\"\w{1,20}\" )?){0,5}(?:macro_rules! )?(\w{1,200})"
)


def _docs(lines: Sequence[str]) -> Iterator[_Item]:
    """Each block of documentation with an example, by the item below it."""
    many: dict[tuple[str, str, str], int] = {}
    start = -1
    for at, line in enumerate([*lines, ""]):
        if _DOC.match(line):
            start = at if start < 0 else start
        elif start >= 0 and not line.strip().startswith("#"):
            text = "\n".join(lines[start:at])
            item = _DOCUMENTED.match(line[:400]) if "///" in text else None
            key = ("example", "", item[1] if item else "")
            many[key] = many.get(key, 0) + 1
            stop = next(end for end in range(at, start, -1) if _DOC.match(lines[end - 1]))
            if "```" in text:
                yield _Item((*key, many[key]), start, stop, is_test=True)
            start = -1


def _testing(lines: Sequence[str]) -> Iterator[_Item]:
    """Tests and examples, in order, outer ones first."""
    tests = (item for item in _items(lines) if item.is_test)
    return _apart(sorted((*tests, *_docs(lines)), key=lambda item: (item.start, -item.stop)))


def _rust(before: str, after: str, calm: Collection[str]) -> str:
    old, new = before.split("\n")[:_LINES], after.split("\n")
    olds = {item.key: item for item in _testing(old)}
    if not olds:
        return after
    said = {key: without("\n".join(old[item.start : item.stop]), calm) for key, item in olds.items()}
    inside = sorted((*_items(new[:_LINES]), *_docs(new[:_LINES])), key=lambda item: (item.start, -item.stop))
    places = [*_apart(item for item in inside if item.key in said)]
    found = {item.key for item in places}
    lost = [text for key, text in said.items() if key not in found and not key[0]]
    return "\n".join([_replaced(new, {item: said[item.key] for item in places}), *lost])


def _replaced(lines: Sequence[str], places: Mapping[_Item, str]) -> str:
    """Replace each of the places, which are in order and do not overlap, by a text or by nothing."""
    made: list[str] = []
    done = 0
    for item, text in places.items():
        made += lines[done : item.start]
        made += [text] if text else []
        done = item.stop
    return "\n".join([*made, *lines[done:]])


def _apart(items: Iterable[_Item]) -> Iterator[_Item]:
    """The items that are not inside another one."""
    end = 0
    for item in items:
        if item.start >= end:
            end = item.stop
            yield item


def _items(lines: Sequence[str]) -> Iterator[_Item]:
    """Every module and function, outer ones first. The indent of a closing brace tells where an item ends."""
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
    """The index after the first of these lines that follows `at`."""
    place = bisect_right(ends, at)
    return ends[place] + 1 if place < len(ends) else most


_RUNNER_FILES = re.compile(
    r"(?:^|/)(?:conftest\.py|sitecustomize\.py|usercustomize\.py|[^/]{1,200}\.pth|\.?pytest\.(?:ini|toml)|noxfile\.py|"
    r"\.coveragerc|\.?coverage\.toml|unittest\.cfg|\.nycrc(?:\.\w{2,5})?|\.c8rc(?:\.\w{2,5})?|\.taprc|"
    r"\.mocharc(?:\.\w{2,5})?|(?:jest|vitest|vite|babel|ava|karma|playwright|cypress|wdio|nyc|c8)\.(?:config|conf)\.\w{2,4}|"
    r"vitest\.workspace\.\w{2,4}|\.jasmine\.(?:json|js)|\.babelrc(?:\.\w{2,5})?|\.swcrc|\.npmrc|\.yarnrc(?:\.yml)?|"
    r"\.cargo/config(?:\.toml)?|\.config/nextest\.toml|CTest(?:Custom|Config|Testfile)\.cmake|\.rspec)$|"
    r"(?:^|/)(?:[^/]{1,200}\.(?:dist|egg)-info|node_modules)/"
)
"""Files that only configure a test runner, or that Python loads before it. Plugins register by package metadata."""
_MODULE = re.compile(
    r"^((?:[\w.-]{1,80}/){0,8}(?:src/|lib/)|tests?/)?(\w{1,80})(?:/__(?:init|main)__)?\.(?:py|pyc|(?:[\w.-]{1,80}\.)?so)$"
)
_TOOLS = ("unittest", "pytest", "_pytest", "pluggy", "py", "iniconfig", "packaging", "coverage", "nose2")
_BUILDS = re.compile(r"(?:^|/)(?:go\.(?:mod|work)|pom\.xml|build\.gradle(?:\.kts)?)$")
_SOMETHING_IS_MISSING = re.compile(
    r"fixture '[^']{1,100}' not found|No module named|ModuleNotFoundError|Cannot find module|FileNotFoundError|"
    r"ENOENT|No such file or directory|Jest encountered an unexpected token|Failed to resolve import|Failed to load url"
)

_SCRIPT = re.compile(r"\.[cm]?[jt]sx?$")
_CHECKS = re.compile(r"test|check|verify|spec|^ci\b", re.IGNORECASE)
"""Names of scripts that check something, as opposed to scripts under test."""
_BUILT_TOGETHER = (".go", ".java", ".kt", ".scala", ".c", ".cc", ".cpp", ".cxx", ".rs", ".swift")


class PutBack(msgspec.Struct, frozen=True):
    """The file operations that restore the tests of the base."""

    restore: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    write: tuple[tuple[str, str], ...] = ()
    """(path, content)"""

    @property
    def rebuilds(self) -> bool:
        """True if programs must be built again: a description of the build was put back."""
        paths = (*self.restore, *self.remove, *(path for path, _ in self.write))
        return any(
            re.search(r"(?i)(?:^|/)(?:\w*makefile|cmakelists\.txt|[^/]*\.cmake)$", path) for path in paths
        )


def put_back(
    changed: Sequence[str],
    new: Sequence[str],
    known: Collection[str],
    baseline: Sequence[Diagnosis],
    texts: Mapping[str, Version] | None = None,
    allowed: Collection[str] = (),
) -> tuple[PutBack, ...]:
    """Ways to restore the tests of the base, each more thorough than the one before; one that passes is enough.

    Empty if the change did not touch the tests. `changed` are files of the base that differ or were deleted, `new`
    are added files, `known` all files of the base, `texts` the contents of the changed and new ones, `allowed` patterns of files that the task is about. Where tests are compiled together, a passing test that was
    edited along with the code would break the build in its old form: there it may stay as it is now, or is left out if
    its tests are known.
    """
    changed = [name for name in changed if not is_allowed(name, allowed)]
    new = [name for name in new if not is_allowed(name, allowed)]
    modules = {_module(name) for name in known if not is_test_place(name)}
    named = {word.removeprefix("./") for one in baseline for word in one.check.split()}
    scripts = {name for name in named if _CHECKS.search(name.rpartition("/")[2])}
    touched = [name for name in changed if _is_of_tests(name) or name in scripts]
    remove = tuple(
        name for name in new if _RUNNER_FILES.search(name) or _takes_its_place(name, modules, known)
    )
    tests = tuple(name for name in new if _is_test(name) and name not in remove)
    inside = {name: one for name, one in (texts or {}).items() if name in {*changed, *new}}
    settings = _settings(inside, {*touched, *remove}, tests)
    grafts = (*settings, *_grafts(inside, touched, ()))
    if not touched and not remove and not tests and not grafts:
        return ()
    whole = PutBack(tuple(touched), (*remove, *tests), grafts)
    calm = {name for name in _calm(baseline) if name.endswith(_BUILT_TOGETHER)}
    lean = _lean(whole, inside, settings, baseline)
    if lean is None and calm.intersection(touched):
        lean = PutBack(tuple(name for name in touched if name not in calm), whole.remove, grafts)
    return (whole,) if lean is None else (lean, whole)


def configures_tests(path: str) -> bool:
    """True if a change of the file may change how tests are built or run."""
    return bool(_RUNNER_FILES.search(path) or _BUILDS.search(path)) or is_shared(path)


def _settings(
    inside: Mapping[str, Version], elsewhere: Collection[str], tests: Collection[str]
) -> tuple[tuple[str, str], ...]:
    """Files with the runner settings of the base among other settings. Deleted ones come back."""
    deleted = [name for name, one in inside.items() if one.after is None]
    made: list[tuple[str, str]] = []
    for name, one in inside.items():
        if name in elsewhere or not is_shared(name):
            continue
        text = one.before if one.after is None else with_base_settings(one, tests, deleted)
        made += [(name, text)] if text is not None else []
    return tuple(made)


def _grafts(
    inside: Mapping[str, Version], touched: Sequence[str], calm: Collection[str]
) -> tuple[tuple[str, str], ...]:
    made = ((name, grafted(one, calm)) for name, one in inside.items() if name not in touched)
    return tuple((name, text) for name, text in made if text is not None)


def _lean(
    whole: PutBack,
    inside: Mapping[str, Version],
    settings: tuple[tuple[str, str], ...],
    baseline: Sequence[Diagnosis],
) -> PutBack | None:
    """`whole` without passing tests: Go files that have no other tests, and Rust functions. None if nothing is left out."""
    red = {_function(test.name) for diagnosis in baseline for test in diagnosis.failing}
    calm = {_function(test.name) for one in baseline for test in one.tests if test.status == "passed"} - red
    before = {name: inside[name].before or "" for name in whole.restore if name in inside}
    gone = {
        name
        for name, text in before.items()
        if name.endswith(".go") and (there := outlines(name, text)[0].keys()) and not there & red
    }
    cut = {name: without(text, calm) for name, text in before.items() if name.endswith(".rs")}
    cut = {name: text for name, text in cut.items() if text != before[name]}
    grafts = (*settings, *_grafts(inside, whole.restore, calm))
    if not gone and not cut and grafts == whole.write:
        return None
    restore = tuple(name for name in whole.restore if name not in gone and name not in cut)
    return PutBack(restore, (*whole.remove, *sorted(gone)), (*grafts, *cut.items()))


def _function(name: str) -> str:
    """The function name of a Go or Rust test."""
    return name.rpartition("::")[2].partition("/")[0]


def spoils(changed: Iterable[str], rewritten: Iterable[str]) -> tuple[Weakening, ...]:
    """Tests and their data that the checks rewrote, and any code if the change touched tests, settings or scripts.

    Otherwise the checks are those of the base, and may for example format code.
    """
    only_code = all(
        is_product(name) and not _RUNNER_FILES.search(name) and not re.search(r"\.sh$|(?:^|/)[^./]+$", name)
        for name in changed
    )
    return tuple(
        Weakening(name, "deceived", detail=REWRITTEN)
        for name in rewritten
        if is_test_file(name) or is_test_place(name) or (is_test_code(name) and not only_code)
    )


def must_pass_as_before(baseline: Sequence[Diagnosis], fixed: Iterable[str]) -> tuple[set[str], set[str]]:
    """The fixed tests that must also pass with the original tests of the base, and those with their own old file only.

    Not linters, whose complaints may be about tests. Of tests that failed because something was missing, only the own
    file counts: adding the rest is the fix.
    """
    lacking = {
        test.name
        for diagnosis in baseline
        for test in diagnosis.failing
        if _SOMETHING_IS_MISSING.search(test.message or "")
    }
    others = {diagnosis.check for diagnosis in baseline if not may_run_tests(diagnosis.check)}
    return set(fixed) - lacking - others, set(fixed) & lacking


def own_file(name: str, baseline: Sequence[Diagnosis], texts: Mapping[str, Version]) -> str | None:
    """The changed file of a test that lacked something, if more was done to the test than to add lines."""
    tests = [test for one in baseline for test in one.failing if test.name == name]
    for one in (texts[path] for test in tests for path in files_of(test) if path in texts):
        old, new = (outlines(one.path, text or "")[0] for text in (one.before, one.after))
        mine = {title: lines for title, lines in old.items() if title.rpartition("::")[2] in name} or old
        if any(inserted(lines, new.get(title, ())) is None for title, lines in mine.items()):
            return one.path
    return None


def _is_of_tests(name: str) -> bool:
    return bool(is_test_file(name) or is_test_place(name) or _RUNNER_FILES.search(name))


def _is_test(name: str) -> bool:
    """Runners of JavaScript also find tests by their directory. Python runs a package before its tests."""
    by_place = is_test_place(name) and (_SCRIPT.search(name) or name.endswith("/__init__.py"))
    return is_test_file(name) or bool(by_place)


def _takes_its_place(name: str, modules: Collection[str], known: Collection[str]) -> bool:
    """True for a new module that shadows one of Python, of its test tools or of the program, or a Makefile before another."""
    where, _, last = name.rpartition("/")
    if module := _MODULE.match(name):
        is_deep = (module[1] or "").count("/") > 1
        if module[2] in _TOOLS or (module[2] in sys.stdlib_module_names and not is_deep):
            return True
    if last in MAKEFILES:
        return any(f"{where}/{other}".removeprefix("/") in known for other in MAKEFILES)
    return is_test_place(name) and is_test_code(name) and not is_test_file(name) and _module(name) in modules


def _module(name: str) -> str:
    return name.removesuffix("/__init__.py").rpartition("/")[2].partition(".")[0]


def _calm(baseline: Sequence[Diagnosis]) -> Iterator[str]:
    """Test files without a failing test: they may be edited freely."""
    if any(not one.green and not one.failing and may_run_tests(one.check) for one in baseline):
        return  # a check failed and no test explains it
    red = {file for diagnosis in baseline for test in diagnosis.failing for file in files_of(test)}
    for diagnosis in baseline:
        for test in diagnosis.tests:
            yield from (file for file in files_of(test) if file not in red)


def files_of(test: TestResult) -> Iterator[str]:
    """The paths by which the name of a test may mean its file."""
    owner = test.name.partition("::")[0]
    yield owner
    parts = owner.split(".")
    # `tests.test_shop.TotalTest`: a module, perhaps followed by a class.
    yield from ("/".join(parts[:end]) + ".py" for end in range(1, len(parts) + 1))
    if test.file is not None:
        yield test.file
