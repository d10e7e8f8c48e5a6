"""Decides which tests show a requested change, and which old failures have nothing to do with it. Pure."""

import re
from collections.abc import Collection, Iterable, Sequence

import msgspec

from cloister.core.diagnosis import Comparison, Diagnosis, TestResult
from cloister.feedback.check_commands import may_run_tests
from cloister.feedback.goals import Goals
from cloister.feedback.integrity.base_tests import grafted
from cloister.feedback.integrity.versions import Version
from cloister.feedback.integrity.weakening import is_test_code, is_test_file, is_test_place

_QUOTED = re.compile(r"['`\"‘]([\w./:-]{1,200})['`\"’]")
_NAMED = re.compile(
    r"(?:undefined: |undeclared name: |undefined reference to |symbol: +(?:class|method|variable) |name |function |"
    r"macro |value |type |attribute )([A-Za-z_]\w{1,100})"
)
_NOT_A_FUNCTION = re.compile(r"([\w.$]{1,200}) is not (?:a function|defined|a constructor)")
_FLEETING = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?|/tmp/\S+", re.IGNORECASE)
_CHARS = 4_000


def is_product(path: str) -> bool:
    """True if the file is source code that no test runner loads as a test."""
    return is_test_code(path) and not is_test_file(path) and not is_test_place(path)


def added_code(changed: Iterable[Version]) -> str:
    """The new lines of the product's code."""
    return "\n".join(line for one in changed if is_product(one.path) for line in one.new_lines())


def connected(message: str, changed: Sequence[Version]) -> bool:
    """True if a failure to load or build is about something that the change adds or repairs.

    The message names a thing that new code defines, or a file of the product that the change touched.
    """
    text = message[:_CHARS]
    names = {*_QUOTED.findall(text), *_NAMED.findall(text), *_NOT_A_FUNCTION.findall(text)}
    words = {part for name in names for part in re.split(r"[./:]+", name) if len(part) > 1}
    added = added_code(changed)
    defined = set(re.findall(r"\w{2,100}", added))
    new_modules = {one.path.rpartition("/")[2].partition(".")[0] for one in changed if one.before is None}
    if words & (defined | new_modules):
        return True
    touched = {one.path for one in changed if is_product(one.path) and one.before is not None}
    return any(re.search(rf"(?<![\w/]){re.escape(path)}\b", text) for path in touched) or any(
        re.search(rf"(?<!\w){re.escape(path.rpartition('/')[2])}(?:, line |:\d)", text) for path in touched
    )


def new_tests(baseline: Sequence[Diagnosis], now: Sequence[Diagnosis]) -> dict[str, str]:
    """Name → check of each passing test that the base does not have. Checks that could not run have none."""
    before = {one.check: {test.name for test in one.tests} for one in baseline}
    return {
        test.name: one.check
        for one in now
        if may_run_tests(one.check)
        for test in one.tests
        if test.status == "passed" and test.name not in before.get(one.check, set())
    }


class WithoutChange(msgspec.Struct, frozen=True):
    """The file operations that take the change away and leave its tests."""

    restore: tuple[str, ...]
    remove: tuple[str, ...]
    write: tuple[tuple[str, str], ...]


def without_change(changed: Sequence[Version], new: Collection[str]) -> WithoutChange:
    """The product of the base with the tests of the change. In Rust files only the code goes back."""
    restore: list[str] = []
    write: list[tuple[str, str]] = []
    for one in changed:
        if one.path in new or one.before is None or not is_product(one.path):
            continue
        restore.append(one.path)
        if one.path.endswith(".rs") and one.after is not None:
            mixed = grafted(msgspec.structs.replace(one, before=one.after, after=one.before))
            write += [(one.path, mixed)] if mixed is not None else []
    return WithoutChange(tuple(restore), tuple(name for name in new if is_product(name)), tuple(write))


def fails_for_want_of(
    names: Iterable[str], found: Sequence[Diagnosis], changed: Sequence[Version]
) -> tuple[str, ...]:
    """The tests that fail on the base for a reason connected with the change.

    A failing assertion is such a reason. A test that cannot be loaded or built must miss something that the change adds.
    """
    results = {test.name: test for one in found for test in one.tests}
    errors = "\n".join(
        part
        for one in found
        if not one.green
        for part in (
            *(test.message or "" for test in one.tests if test.status == "error"),
            *(each.message for each in one.diagnostics),
            one.tail,
        )
    )
    return tuple(name for name in names if _fails(results.get(name), errors, changed))


def _fails(test: TestResult | None, errors: str, changed: Sequence[Version]) -> bool:
    if test is None:
        return bool(errors) and connected(errors, changed)
    if test.status == "failed":
        return True
    return test.status == "error" and connected(test.message or errors, changed)


def base_shows(
    names: Iterable[str], baseline: Sequence[Diagnosis], changed: Sequence[Version]
) -> tuple[str, ...]:
    """The names of `fixed` items whose failure on the base says something about the change."""
    before = {one.check: one for one in baseline}
    kept: list[str] = []
    for name in names:
        if name in before and not before[name].not_run:
            kept.append(name)
        elif name in before:
            one = before[name]
            said = "\n".join([*(each.message for each in one.diagnostics), one.tail, one.not_run])
            kept += [name] if connected(said, changed) else []
        else:
            kept += fails_for_want_of([name], baseline, changed)
    return tuple(kept)


def left_over(comparison: Comparison, goals: Goals | None) -> tuple[str, ...]:
    """Old failures that may turn out to be independent: only these block, and neither caller nor prompt named them."""
    others = comparison.new or comparison.missing or comparison.skipped or comparison.weakened
    if others or goals is None or not goals.everything or not set(comparison.asked) <= set(comparison.still):
        return ()
    return comparison.asked


def fails_the_same(name: str, baseline: Sequence[Diagnosis], now: Sequence[Diagnosis]) -> bool:
    """True if a test or check fails with the same message as on the base, ignoring numbers."""
    return bool(said := _said(name, baseline)) and said == _said(name, now)


def _said(name: str, found: Sequence[Diagnosis]) -> str:
    for one in found:
        if one.check == name:
            return _FLEETING.sub("#", f"{one.exit_code} {one.tail}")
        for test in one.failing:
            if test.name == name:
                return _FLEETING.sub("#", f"{test.status} {test.message or '-'}")
    return ""


def excuse(comparison: Comparison, names: Collection[str]) -> Comparison:
    """`comparison` with these old failures listed as unrelated."""
    asked = tuple(name for name in comparison.asked if name not in names)
    lost = comparison.new or comparison.missing or comparison.skipped or comparison.weakened
    return msgspec.structs.replace(
        comparison,
        asked=asked,
        unrelated=(*comparison.unrelated, *(name for name in comparison.asked if name in names)),
        green=not lost and not asked,
    )
