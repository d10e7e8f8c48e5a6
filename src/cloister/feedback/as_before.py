"""Which files are put back to ask the decisive question: do the tests that were red pass as the base has them?

Rules can be got round; a test that is run as it was cannot. What a test is made of goes back: its own file, what helps
it, its data, the hooks and settings of its runner; tests that are new go away. In files that are both, only what is of
tests goes back (`grafts`). Other tests that no longer load then
say nothing: only those that were red are looked at.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from cloister.core.diagnosis import Diagnosis, TestResult, Weakening
from cloister.feedback.grafts import grafted, without
from cloister.feedback.kinds import may_run_tests
from cloister.feedback.tests_text import titles
from cloister.feedback.versions import Version
from cloister.feedback.weakening import is_test_code, is_test_file, is_test_place

_RUNNERS = re.compile(
    r"(?:^|/)(?:conftest\.py|sitecustomize\.py|usercustomize\.py|\.?pytest\.(?:ini|toml)|"
    r"\.mocharc(?:\.\w{2,5})?|(?:jest|vitest|vite|babel|ava|karma|playwright)\.config\.\w{2,4}|vitest\.workspace\.\w{2,4}|"
    r"\.babelrc(?:\.\w{2,5})?|\.swcrc|\.npmrc|\.yarnrc(?:\.yml)?|\.cargo/config(?:\.toml)?)$"
)
_SOMETHING_IS_MISSING = re.compile(
    r"fixture '[^']{1,100}' not found|No module named|ModuleNotFoundError|Cannot find module|FileNotFoundError|"
    r"ENOENT|No such file or directory|Jest encountered an unexpected token|Failed to resolve import|Failed to load url"
)

_SCRIPT = re.compile(r"\.[cm]?[jt]sx?$")
_CHECKS = re.compile(r"test|check|verify|spec|^ci\b", re.IGNORECASE)
"""How a script is called that is there to check something; one that is checked is called otherwise."""
_BUILT_TOGETHER = (".go", ".java", ".kt", ".scala", ".c", ".cc", ".cpp", ".cxx", ".rs", ".swift")


class PutBack(msgspec.Struct, frozen=True):
    """What makes the tests those of the base again."""

    restore: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    write: tuple[tuple[str, str], ...] = ()
    """Files with what is to be in them."""


def put_back(
    changed: Sequence[str],
    new: Sequence[str],
    known: Collection[str],
    baseline: Sequence[Diagnosis],
    texts: Mapping[str, Version] | None = None,
) -> tuple[PutBack, ...]:
    """Ways to put the base's tests back, each going further than the one before; any of them may do.

    None when the change has not touched them.

    `changed` are files of the base that differ or are gone, `new` those it has not, `known` all that it has, `texts` what is in
    those that `is_looked_into`. Where tests are compiled together, one that passed and was edited along with the code
    would keep all from being built: there it may also stay as it is now, or is left out where its tests are known.
    """
    modules = {_module(name) for name in known if not is_test_place(name)}
    named = {word.removeprefix("./") for one in baseline for word in one.check.split()}
    scripts = {name for name in named if _CHECKS.search(name.rpartition("/")[2])}
    touched = [name for name in changed if _is_of_tests(name) or name in scripts]
    remove = tuple(name for name in new if _RUNNERS.search(name) or _takes_its_place(name, modules))
    tests = tuple(name for name in new if _is_test(name) and name not in remove)
    inside = {name: one for name, one in (texts or {}).items() if name in changed}
    grafts = _grafts(inside, touched, ())
    if not touched and not remove and not tests and not grafts:
        return ()
    whole = PutBack(tuple(touched), (*remove, *tests), grafts)
    calm = {name for name in _calm(baseline) if name.endswith(_BUILT_TOGETHER)}
    lean = _lean(whole, inside, baseline)
    if lean is None and calm.intersection(touched):
        lean = PutBack(tuple(name for name in touched if name not in calm), whole.remove, grafts)
    return (whole,) if lean is None else (lean, whole)


def is_looked_into(name: str) -> bool:
    """Whether what is in the file decides what of it is put back."""
    return name.endswith((".rs", ".go")) or name.rpartition("/")[2] == "package.json"


def _grafts(
    inside: Mapping[str, Version], touched: Sequence[str], calm: Collection[str]
) -> tuple[tuple[str, str], ...]:
    made = ((name, grafted(one, calm)) for name, one in inside.items() if name not in touched)
    return tuple((name, text) for name, text in made if text is not None)


def _lean(whole: PutBack, inside: Mapping[str, Version], baseline: Sequence[Diagnosis]) -> PutBack | None:
    """The same without tests that passed: files of Go with no other tests, and functions of Rust. None where it is no less."""
    red = {_function(test.name) for diagnosis in baseline for test in diagnosis.failing}
    calm = {_function(test.name) for one in baseline for test in one.tests if test.status == "passed"} - red
    before = {name: inside[name].before or "" for name in whole.restore if name in inside}
    gone = {
        name
        for name, text in before.items()
        if name.endswith(".go") and (there := titles(name, text)) and not there & red
    }
    cut = {name: without(text, calm) for name, text in before.items() if name.endswith(".rs")}
    cut = {name: text for name, text in cut.items() if text != before[name]}
    grafts = _grafts(inside, whole.restore, calm)
    if not gone and not cut and grafts == whole.write:
        return None
    restore = tuple(name for name in whole.restore if name not in gone and name not in cut)
    return PutBack(restore, (*whole.remove, *sorted(gone)), (*grafts, *cut.items()))


def _function(name: str) -> str:
    """What a test of Go or Rust is called in its file."""
    return name.rpartition("::")[2].partition("/")[0]


def spoils(changed: Iterable[str], rewritten: Iterable[str]) -> tuple[Weakening, ...]:
    """What the checks themselves did to the program, where the change touched more than that.

    Otherwise it is the checks' habit: they are those of the base, and may put code in order.
    """
    if all(is_test_code(name) and not _starts_something(name) for name in changed):
        return ()
    detail = "it was rewritten while the checks ran"
    return tuple(Weakening(name, "deceived", detail=detail) for name in rewritten if is_test_code(name))


def _starts_something(name: str) -> bool:
    return bool(is_test_file(name) or is_test_place(name) or _RUNNERS.search(name) or name.endswith(".sh"))


def must_pass_as_before(baseline: Sequence[Diagnosis], fixed: Iterable[str]) -> set[str]:
    """Of what became green, that which must be so with the base's own tests too.

    A linter may complain about tests, and be content when those are mended. Where a test was red because something that it needs was not there, to add that is the fix.
    """
    lacking = {
        test.name
        for diagnosis in baseline
        for test in diagnosis.failing
        if _SOMETHING_IS_MISSING.search(test.message or "")
    }
    others = {diagnosis.check for diagnosis in baseline if not may_run_tests(diagnosis.check)}
    return set(fixed) - lacking - others


def _is_of_tests(name: str) -> bool:
    if name.endswith(".rs") and not is_test_place(name) and not is_test_file(name):
        return False  # tests live beside the code there
    return bool(is_test_file(name) or is_test_place(name) or _RUNNERS.search(name))


def _is_test(name: str) -> bool:
    """Runners of JavaScript know tests by their place as well."""
    return is_test_file(name) or (is_test_place(name) and _SCRIPT.search(name) is not None)


def _takes_its_place(name: str, modules: Collection[str]) -> bool:
    """A module beside the tests that is found before the one it is named after."""
    return is_test_place(name) and is_test_code(name) and not is_test_file(name) and _module(name) in modules


def _module(name: str) -> str:
    path = name.removesuffix("/__init__.py")
    return path.rpartition("/")[2].partition(".")[0]


def _calm(baseline: Sequence[Diagnosis]) -> Iterator[str]:
    """Files of tests none of which was red: they may be edited freely."""
    if any(not one.green and not one.failing and may_run_tests(one.check) for one in baseline):
        return  # a check was red and no test says why
    red = {file for diagnosis in baseline for test in diagnosis.failing for file in _files(test)}
    for diagnosis in baseline:
        for test in diagnosis.tests:
            yield from (file for file in _files(test) if file not in red)


def _files(test: TestResult) -> Iterator[str]:
    owner = test.name.partition("::")[0]
    yield owner
    parts = owner.split(".")
    # `tests.test_shop.TotalTest`: a module, perhaps with a class behind it.
    yield from ("/".join(parts[:end]) + ".py" for end in range(1, len(parts) + 1))
    if test.file is not None:
        yield test.file
