"""Decides which tests show a requested change, and which old failures have nothing to do with it. Pure."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from cloister.core.diagnosis import FOR_A_PERSON, Comparison, Diagnosis, TestResult
from cloister.feedback.check_commands import may_run_tests
from cloister.feedback.compare import inner_name, left_red
from cloister.feedback.goals import Goals
from cloister.feedback.integrity.base_tests import files_of, grafted
from cloister.feedback.integrity.renames import Place, renames
from cloister.feedback.integrity.text_tests import outlines
from cloister.feedback.integrity.versions import (
    Version,
    has_tests,
    inserted,
    is_allowed,
    is_product,
    is_test_code,
)

_QUOTED = re.compile(r"['`\"‘]([\w./:-]{1,200})['`\"’]")
_NAMED = re.compile(
    r"(?:undefined: |undeclared name: |undefined reference to |symbol: +(?:class|method|variable) |name |function |"
    r"macro |value |type |attribute )([A-Za-z_]\w{1,100})"
)
_NOT_A_FUNCTION = re.compile(r"([\w.$]{1,200}) is not (?:a function|defined|a constructor)")
_NOT_LOADED = re.compile(r"Failed to load url (?:[\w@.-]{0,80}/){0,20}([\w@-]{1,100})")
_UNQUOTED = (_NAMED, _NOT_A_FUNCTION, _NOT_LOADED)
_FLEETING = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?|/tmp/\S+", re.IGNORECASE)
_CHARS = 4_000


def added_code(changed: Iterable[Version]) -> str:
    """The new lines of the product's code."""
    return "\n".join(line for one in changed if is_product(one.path) for line in one.new_lines())


def connected(message: str, changed: Sequence[Version]) -> bool:
    """True if a failure to load or build is about something that the change adds or repairs.

    The message names a thing that new code defines, or a file of the product that the change touched.
    """
    text = message[:_CHARS]
    names = {*_QUOTED.findall(text), *(name for pattern in _UNQUOTED for name in pattern.findall(text))}
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
    return () if set(comparison.asked) & set(goals.told) else comparison.asked


def edited_tests(
    baseline: Sequence[Diagnosis],
    now: Sequence[Diagnosis],
    changed: Sequence[Version],
    free: Sequence[Version] = (),
) -> dict[str, str]:
    """Name → check of each test that passed on the base, passes now, and may have been made easier meanwhile.

    Its lines were changed, or lines around it, or a helper, or data. New tests and new lines of helpers do not count.
    Included are tests that have no result now: another test may have taken the name in another file, or the same
    assertions under another name; and checks that name no test. `free` are files that the task may change.
    """
    edits = [one for one in map(_edits, changed) if one is not None]
    given_up = [one for one in map(_edits, free) if one is not None]
    status = {(one.check, test.name): test.status for one in now for test in one.tests}

    def may_be_easier(test: TestResult, now: str | None) -> bool:
        if now is None:
            return not any(edit.concerns(test) for edit in given_up)
        return now == "passed" and any(edit.concerns(test) for edit in edits)

    found = {
        test.name: one.check
        for one in baseline
        for test in one.tests
        if test.status == "passed" and may_be_easier(test, status.get((one.check, test.name)))
    }
    silent = {one.check for one in now if one.green and not one.tests}
    whole = [one.check for one in baseline if one.green and not one.tests and may_run_tests(one.check)]
    return found | {check: check for check in whole if edits and check in silent}


class _Edits(msgspec.Struct, frozen=True):
    """What a change does to one file of tests."""

    path: str
    titles: frozenset[str]
    """The tests whose lines differ."""
    is_wide: bool
    """True if other tests may depend on it: there are no tests in it."""
    is_whole: bool
    """True if all its tests may be concerned: lines outside of them differ."""

    def concerns(self, test: TestResult) -> bool:
        if self.is_wide:
            return True
        if test.file is not None and self.path not in files_of(test):
            return False
        stem = self.path.rpartition("/")[2].partition(".")[0]
        mine = test.file is not None or stem in test.name
        return (self.is_whole and mine) or any(title in test.name for title in self.titles)


def _edits(one: Version) -> _Edits | None:
    if one.before is None or one.before == one.after or not has_tests(one.path):
        return None
    if not is_test_code(one.path):
        added = inserted(one.before.split("\n"), (one.after or "").split("\n"))
        return None if added is not None else _Edits(one.path, frozenset(), True, False)
    (old, around), (new, other) = (outlines(one.path, text or "") for text in (one.before, one.after))
    titles = {title.rpartition("::")[2] for title, lines in old.items() if lines != new.get(title)}
    outside = inserted(around, other) is None and not is_product(one.path)
    if not titles and not outside:
        return None
    return _Edits(one.path, frozenset(titles), outside and not old, outside)


_LITERAL = re.compile(
    r"\"[^\"\n]{0,200}\"|'[^'\n]{0,200}'|\b\d[\w.]{0,40}|[=!<>]=|[<>]|\b(?:not|in|is|assert\w*|expect|raises|"
    r"to[A-Z]\w*|(?:deep|strict|not)?[eE]quals?)\b"
)
_WANT = re.compile(
    r"NameError|AttributeError|ImportError|ModuleNotFoundError|has no attribute|unexpected keyword|missing \d+ required|"
    r"positional argument|is not a (?:function|constructor)|not defined|undefined|undeclared|exported member|not provide an export|[Cc]annot find|not found in|"
    r"Failed to (?:load url|resolve import)|no (?:field|method|member|such)|cannot be applied|(?:not enough|too many) arguments|implicit declaration|\bE0\d{3}\b"
)
_INTERPRETED = (".py", ".js", ".cjs", ".mjs", ".jsx")
_CALLED = re.compile(r"\b(\w{2,100})\(\) (?:got|takes|missing)")


def hidden_by_edits(
    names: Collection[str],
    again: Sequence[Diagnosis],
    changed: Sequence[Version],
    gone: Collection[str] = (),
    *,
    all_restored: bool = False,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of tests that passed before and pass as changed: those that are red as the base has them, and notes.

    If the old form needs something that the change removed or renamed, the new form may stand for it, as long as it
    says everything that the old one said. Tests that are `gone` must be there again as the base has them. So must all
    others, if all files of tests are those of the base and each is loaded for itself, as nothing is compiled.
    """
    results = {test.name: test for one in again for test in one.tests}
    for one in again:
        if not one.tests and one.check in names:
            results[one.check] = TestResult(one.check, "passed" if one.green else "failed")
    inner = {inner_name(name): test for name, test in results.items()}
    errors = "\n".join(
        part
        for one in again
        if not one.green
        for part in (one.tail, *(each.message for each in one.diagnostics))
    )
    undone = [msgspec.structs.replace(one, before=one.after, after=one.before) for one in changed]
    forms = _Forms(changed, {one.check for one in again})
    files = [one.path for one in changed if has_tests(one.path) and is_test_code(one.path)]
    alone = all_restored and all(path.endswith(_INTERPRETED) for path in files)
    red: list[str] = []
    notes: list[str] = []
    for name in names:
        test = results.get(name) or inner.get(inner_name(name))
        is_lost = name in gone and not any(other.startswith(f"{name}::") for other in results)
        if test is None and not errors:
            red += [name] if is_lost and results else []
            continue  # the check does not name it
        if test is not None and test.status not in ("failed", "error"):
            continue
        said = (test.message if test is not None else None) or errors
        called = set(_CALLED.findall(said)) & set(re.findall(r"\w{2,100}", added_code(undone)))
        wants = _WANT.search(said) and (called or connected(said, undone))
        if wants and forms.say_as_much(name):
            notes.append(f"changed along with what it uses: {name}")
        elif test is not None or wants or is_lost or alone:
            red.append(name)
    return tuple(red), tuple(notes)


class _Forms:
    """The forms of the tests on the base and now."""

    def __init__(self, changed: Sequence[Version], checks: Collection[str]) -> None:
        self._checks = checks
        files = [one for one in changed if has_tests(one.path) and is_test_code(one.path)]
        self._old = _outlined((one.path, one.before) for one in files if _edits(one) is not None)
        self._new = _outlined((one.path, one.after) for one in files)
        self._moved = renames(changed)

    def say_as_much(self, name: str) -> bool:
        """True if a changed test has all values, comparisons and expectations that it had, wherever it is now."""
        return all(
            any(not _literals(lines) - _literals(now) for now in self._now(place))
            for place, lines in self._old.items()
            if _last(place) in name or name in self._checks
        )

    def _now(self, place: Place) -> list[Sequence[str]]:
        """What may be the test now: it, or what was renamed, or the tests with its name in other files."""
        if found := self._new.get(place) or self._new.get(self._moved.get(place, place)):
            return [found]
        return [lines for other, lines in self._new.items() if _last(other) == _last(place)]


def _outlined(texts: Iterable[tuple[str, str | None]]) -> dict[Place, Sequence[str]]:
    return {
        (path, title): lines for path, text in texts for title, lines in outlines(path, text or "")[0].items()
    }


def _last(place: Place) -> str:
    return place[1].rpartition("::")[2]


def _literals(lines: Sequence[str]) -> Counter[str]:
    return Counter(literal for line in lines for literal in _LITERAL.findall(line))


def refused_for_tests(found: Sequence[Diagnosis], comparison: Comparison) -> bool:
    """True if a person may permit all that is wrong: base tests are lost, or red as the base has them, or code is for tests."""
    weak = [one for check in found for one in check.weakened if one.how != "moved"]
    lost = comparison.missing or comparison.skipped or comparison.weakened
    return (
        bool(lost)
        and not comparison.new
        and not comparison.asked
        and all(
            (one.how == "base" and one.file != ".") or one.detail.startswith(FOR_A_PERSON) for one in weak
        )
    )


def permit(
    comparison: Comparison,
    baseline: Sequence[Diagnosis],
    allowed: Collection[str],
    given_up: Collection[str] = (),
) -> Comparison:
    """`comparison` without the lost tests of files that the task may change, and those that a person gave up."""
    if not (allowed or given_up) or not (comparison.missing or comparison.skipped):
        return comparison
    tests = [test for one in baseline for test in one.tests]
    free = {test.name for test in tests if any(is_allowed(path, allowed) for path in files_of(test))}
    free.update(given_up)
    missing = tuple(name for name in comparison.missing if name not in free)
    skipped = tuple(name for name in comparison.skipped if name not in free)
    lost = comparison.new or missing or skipped or comparison.weakened or comparison.asked
    return msgspec.structs.replace(
        comparison, missing=missing, skipped=skipped, green=bool(comparison.ran) and not lost
    )


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


def excuse(comparison: Comparison, names: Mapping[str, str]) -> Comparison:
    """`comparison` with these old failures listed as unrelated, each with the reason."""
    asked = tuple(name for name in comparison.asked if name not in names)
    lost = comparison.new or comparison.missing or comparison.skipped or comparison.weakened
    return msgspec.structs.replace(
        comparison,
        asked=asked,
        unrelated=(*comparison.unrelated, *(name for name in comparison.asked if name in names)),
        notes=(*comparison.notes, *left_red(names)),
        green=not lost and not asked,
    )
