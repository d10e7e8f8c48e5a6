"""Which files are put back to ask the decisive question: do the tests that were red pass as the base has them?

Rules can be got round; a test that is run as it was cannot. What a test is made of goes back: its own file, what helps
it, its data, the hooks and settings of its runner; tests that are new go away. Other tests that no longer load then
say nothing: only those that were red are looked at.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from cloister.core.diagnosis import Diagnosis, TestResult
from cloister.feedback.kinds import may_run_tests
from cloister.feedback.weakening import is_test_code, is_test_file, is_test_place

_RUNNERS = re.compile(
    r"(?:^|/)(?:conftest\.py|sitecustomize\.py|usercustomize\.py|\.?pytest\.(?:ini|toml)|"
    r"\.mocharc\.\w{2,5}|(?:jest|vitest|ava|karma|playwright)\.config\.\w{2,4})$"
)
_SOMETHING_IS_MISSING = re.compile(
    r"fixture '[^']{1,100}' not found|No module named|ModuleNotFoundError|Cannot find module|FileNotFoundError|"
    r"ENOENT|No such file or directory"
)

_CHECKS = re.compile(r"test|check|verify|spec|^ci\b", re.IGNORECASE)
"""How a script is called that is there to check something; one that is checked is called otherwise."""
_BUILT_TOGETHER = (".go", ".java", ".kt", ".scala", ".c", ".cc", ".cpp", ".cxx", ".rs", ".swift")


class PutBack(msgspec.Struct, frozen=True):
    """What makes the tests those of the base again."""

    restore: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


def put_back(
    changed: Sequence[str], new: Sequence[str], known: Collection[str], baseline: Sequence[Diagnosis]
) -> tuple[PutBack, ...]:
    """Ways to put the base's tests back, each going further than the one before; any of them may do.

    None when the change has not touched them.

    `changed` are files of the base that differ or are gone, `new` those it has not, `known` all that it has.
    Where tests are compiled together, one that passed and was edited along with the code would keep all from being
    built: there it may also stay as it is now.
    """
    modules = {_module(name) for name in known if not is_test_place(name)}
    named = {word.removeprefix("./") for one in baseline for word in one.check.split()}
    scripts = {name for name in named if _CHECKS.search(name.rpartition("/")[2])}
    touched = [name for name in changed if _is_of_tests(name) or name in scripts]
    remove = tuple(name for name in new if _RUNNERS.search(name) or _takes_its_place(name, modules))
    tests = tuple(name for name in new if is_test_file(name) and name not in remove)
    if not touched and not remove and not tests:
        return ()
    whole = PutBack(tuple(touched), (*remove, *tests))
    calm = {name for name in _calm(baseline) if name.endswith(_BUILT_TOGETHER)}
    if not calm.intersection(touched):
        return (whole,)
    return (PutBack(tuple(name for name in touched if name not in calm), whole.remove), whole)


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
    if name.endswith(".rs") and not is_test_place(name):
        return False  # tests live beside the code there
    return bool(is_test_file(name) or is_test_place(name) or _RUNNERS.search(name))


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
