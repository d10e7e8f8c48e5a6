"""Compares the checks now with the checks on the base: what is fixed, new, still failing or missing."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from cloister.core import limits
from cloister.core.diagnosis import Comparison, Diagnosis, Diagnostic, TestResult
from cloister.core.text import one_line
from cloister.feedback.check_commands import is_source, may_run_tests
from cloister.feedback.goals import Goals, excluding, named, parts, reason, wanted, wanted_check

_RED = ("failed", "error")
_FIXTURES = ("::setUpClass", "::tearDownClass", "::setUpModule", "::tearDownModule")
_NEW_COMPLAINTS = 50
_NAMED = 20
"""Old failures that a note names for one reason."""
_LINE = re.compile(r"\blines? \d{1,9}")
_CHANCE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]{8,20}|\d\d:\d\d:\d\d|\d{1,20}\.\d{8,20}|\d{10,20}")
"""A random number or a time in the name of a test, which has another one in each run."""


def _weakened(baseline: Sequence[Diagnosis], now: Sequence[Diagnosis]) -> dict[str, str]:
    from cloister.feedback.integrity.weakening import weakened  # noqa: PLC0415

    return weakened(baseline, now)


def compare(
    baseline: Sequence[Diagnosis], now: Sequence[Diagnosis], asked: Goals | None = None
) -> Comparison:
    """Compare test by test and check by check; `asked` is what had to be fixed, None means everything.

    A check without parsed tests is one item, named by its command line; so is a check that failed without a failing
    test. A check that could not collect its tests tells nothing about them.
    """
    before = {diagnosis.check: diagnosis for diagnosis in baseline}
    tally = _Tally(asked)
    for diagnosis in now:
        tally.add(before.get(diagnosis.check), diagnosis)
    ran = {diagnosis.check for diagnosis in now}
    tally.missing.extend(check for check in before if check not in ran)
    easier = _weakened(baseline, now) if now else {}
    unmet = [*tally.asked, *_unmet(asked, now, tally)]
    lost = tally.new or tally.missing or tally.skipped
    # If tests were made easier, a passing check proves nothing.
    fixed = tuple(name for name in tally.fixed if name not in easier and not (easier and name in before))
    return Comparison(
        fixed=fixed,
        new=tuple(tally.new),
        still=tuple(tally.still),
        missing=tuple(tally.missing),
        passed=tally.passed,
        green=bool(now) and not lost and not easier and not unmet,
        asked=tuple(unmet),
        unrelated=tuple(tally.unrelated),
        skipped=tuple(tally.skipped),
        weakened=tuple(easier.values()),
        flaky=tuple(tally.flaky),
        not_run=tuple(tally.not_run),
        ran=sum(not diagnosis.not_run for diagnosis in now),
        shown=tuple(name for name in fixed if _shows(before.get(name), name, asked)),
        notes=left_red({name: reason(asked, name) for name in tally.unrelated} if asked else {}),
    )


def left_red(reasons: Mapping[str, str]) -> tuple[str, ...]:
    """A note for each reason why old failures stay, with their names."""
    by_reason: dict[str, list[str]] = {}
    for name, why in reasons.items():
        by_reason.setdefault(why, []).append(one_line(name, 160))
    return tuple(
        f"left red, {why}: {', '.join(names[:_NAMED])}"
        + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")
        for why, names in by_reason.items()
    )


def _shows(before: Diagnosis | None, name: str, asked: Goals | None) -> bool:
    """True if a test or check that became green shows the requested change: the task is about it, or it runs tests."""
    if asked is not None and excluding(asked.excluded, name):
        return False
    if before is None or asked is None or wanted(asked, before.check, before.check):
        return True
    return may_run_tests(before.check) and not before.not_run


class _Tally:
    """Collects the lists of a comparison."""

    def __init__(self, asked: Goals | None) -> None:
        self._wish = asked
        self.fixed: list[str] = []
        self.new: list[str] = []
        self.still: list[str] = []
        self.missing: list[str] = []
        self.skipped: list[str] = []
        self.asked: list[str] = []
        self.unrelated: list[str] = []
        self.flaky: list[str] = []
        self.not_run: list[str] = []
        self.passed = 0

    def add(self, before: Diagnosis | None, now: Diagnosis) -> None:
        if now.not_run and (before is None or before.not_run):
            self.not_run.append(one_line(f"{now.check}: {now.not_run}", 400))
            if before is not None and wanted_check(self._wish, now.check):
                self.asked.append(now.check)
                self.still.append(now.check)
            return
        chance = set(before.flaky if before else ())
        red_before = _red(before) - chance if before else chance
        blind = before is not None and _collected_nothing(before)
        self.flaky.extend(now.flaky)
        for name in sorted(_red(now).difference(now.flaky)):
            if name in chance:
                # Flaky on the base already: ignored, unless the task is to fix it.
                (self.asked if named(self._wish, name) else self.flaky).append(name)
                continue
            # If the base collected nothing, this run did not cause the failure.
            if name in red_before or blind:
                self.still.append(name)
                # Without a result on the base, a failure may be the change's own.
                unknown = before is not None and bool(before.not_run) and before.killed is None
                mine = (unknown or wanted(self._wish, now.check, name)) and not (
                    self._wish and excluding(self._wish.excluded, name)
                )
                (self.asked if mine else self.unrelated).append(name)
            else:
                self.new.append(name)
        self.passed += now.unlisted + sum(test.status == "passed" for test in now.tests)
        if not _has_tests(now) and now.green:
            self.passed += 1
        if before is not None:
            self._compare_names(before, now, red_before)
            if now.check in red_before and now.check in self.still:
                self.new.extend(_new_complaints(before, now))

    def _compare_names(self, before: Diagnosis, now: Diagnosis, red_before: set[str]) -> None:
        if before.check in red_before and now.green:
            self.fixed.append(now.check)
        if _collected_nothing(now):
            return
        from cloister.feedback.integrity.weakening import moved_names  # noqa: PLC0415  (slow to load, and first needed after the first request)

        here, moved = _Results(now), moved_names(before, now)
        # If the output only counts passing tests, an absent name passes, unless fewer tests ran.
        absent_passes = now.unlisted > 0 and _ran(now) >= _ran(before)
        gone: list[str] = []
        skipped: list[str] = []
        for test in before.tests:
            status = here.status.get(moved.get(test.name, test.name)) or _as_a_whole(test, here)
            if test.status == "skipped" or status in _RED:
                continue
            if status == "passed" or (status is None and absent_passes):
                if test.status in _RED and (test.name in red_before or named(self._wish, test.name)):
                    self.fixed.append(test.name)
            elif status is None and _stood_for_others(test) and here.has_part_of(test.name):
                self.fixed.append(test.name)
            else:
                (gone if status is None else skipped).append(test.name)
        gone = _not_moved(gone, before, now)
        self.missing.extend(gone)
        self.skipped.extend(skipped)
        known = len(gone) + len(skipped) + sum(map(_stood_for_others, before.tests))
        lost = _ran(before) - _ran(now) - known
        if now.green and lost > 0 and before.unlisted:
            self.missing.append(f"{lost} test{'' if lost == 1 else 's'} of {now.check}")


def _unmet(asked: Goals | None, now: Sequence[Diagnosis], tally: _Tally) -> list[str]:
    """The names that the caller gave and that no passing test has."""
    if asked is None or not asked.exactly:
        return []
    passing = {test.name for diagnosis in now for test in diagnosis.tests if test.status == "passed"}
    passing |= {diagnosis.check for diagnosis in now if diagnosis.green} | set(tally.fixed)
    told = set[str]().union(*(asked.loose & parts(name) for name in (*passing, *tally.new, *tally.asked)))
    return [wish for wish in asked.names if wish not in told]


def _new_complaints(before: Diagnosis, now: Diagnosis) -> list[str]:
    """New complaints of a check that failed before and still fails, ignoring moved lines."""
    if len(before.diagnostics) >= limits.DIAGNOSTICS_KEPT or not before.diagnostics:
        return []
    worst = "error" if any(one.severity == "error" for one in now.diagnostics) else "warning"
    known = Counter(map(_complaint, before.diagnostics))
    there = {one.file for one in now.diagnostics}
    # Complaints of files that have none now: the file may have been renamed.
    homeless = Counter(_complaint(one)[1:] for one in before.diagnostics if one.file not in there)
    found: list[str] = []
    for one in now.diagnostics:
        key = _complaint(one)
        known[key] -= 1
        if known[key] >= 0 or one.severity != worst:
            continue
        homeless[key[1:]] -= 1
        if homeless[key[1:]] < 0:
            place = f"{one.file}:{one.line}: " if one.file else ""
            found.append(one_line(f"{place}{one.message}", 300))
    return found[:_NEW_COMPLAINTS]


def _complaint(one: Diagnostic) -> tuple[str | None, str | None, str]:
    """The identity of a complaint without line numbers, also in its message."""
    return one.file, one.code, _LINE.sub("line", one.message)


def _not_moved(gone: Sequence[str], before: Diagnosis, now: Diagnosis) -> list[str]:
    """The missing names that did not move to another file, or got another number. Only a passing test can have done so.

    The proof runs those that moved as the base has them.
    """
    old = {test.name: test.status for test in before.tests}
    found = Counter(
        inner_name(test.name) for test in now.tests if test.name not in old and test.status == "passed"
    )
    lost: list[str] = []
    for name in gone:
        inner = inner_name(name)
        if old[name] == "passed" and found[inner] > 0:
            found[inner] -= 1
        else:
            lost.append(name)
    return lost


def inner_name(name: str) -> str:
    """The name of a test inside its file or module."""
    owner, mark, test = _CHANCE.sub("#", name).partition("::")
    is_class = mark and "/" not in owner and owner.rpartition(".")[2][:1].isupper()
    return f"{owner.rpartition('.')[2]}::{test}" if is_class else test or owner


def _has_tests(diagnosis: Diagnosis) -> bool:
    return bool(diagnosis.tests) or diagnosis.unlisted > 0


def _ran(diagnosis: Diagnosis) -> int:
    return diagnosis.unlisted + sum(test.status != "skipped" for test in diagnosis.tests)


def _red(diagnosis: Diagnosis) -> set[str]:
    """The failing names: tests, and the check itself if no failing test explains it."""
    tests = {test.name for test in diagnosis.failing}
    explained = diagnosis.green or (tests and diagnosis.killed is None)
    return tests if explained else tests | {diagnosis.check}


def _collected_nothing(diagnosis: Diagnosis) -> bool:
    """True if the check failed before any test had a result: killed, or only errors."""
    if diagnosis.green:
        return False
    only_errors = not diagnosis.unlisted and all(test.status == "error" for test in diagnosis.tests)
    return diagnosis.killed is not None or only_errors


def _stood_for_others(test: TestResult) -> bool:
    """True if the name is a module or a fixture that failed in place of its tests."""
    return test.status == "error" and ("::" not in test.name or test.name.endswith(_FIXTURES))


class _Results:
    """The tests of a check by name, also by the beginning of a name."""

    def __init__(self, now: Diagnosis) -> None:
        self.status = {test.name: test.status for test in now.tests}
        self._sorted = sorted(self.status)

    def has_part_of(self, name: str) -> bool:
        """True if a test belongs to the module, class or package of `name`."""
        owner = name.rpartition("::")[0] or name
        return any(self._begins(owner + mark) for mark in ("::", "."))

    def _begins(self, prefix: str) -> bool:
        at = bisect_left(self._sorted, prefix)
        return at < len(self._sorted) and self._sorted[at].startswith(prefix)


def _as_a_whole(test: TestResult, here: _Results) -> str | None:
    """The status of a test if now only its package is named, or the reverse: go names only failing tests by default."""
    owner, mark, _ = test.name.partition("::")
    if mark:
        return "passed" if here.status.get(owner) == "passed" and not is_source(owner) else None
    return "passed" if test.status == "passed" and here.has_part_of(test.name) else None


# A second run tells flaky tests from red ones.


def suspects(now: Diagnosis, baseline: Sequence[Diagnosis] | None) -> set[str]:
    """Failing tests that may be flaky."""
    failing = {test.name for test in now.failing}
    if baseline is None:
        return failing
    before = [diagnosis for diagnosis in baseline if diagnosis.check == now.check]
    seen = compare(before, [now])
    return {*seen.new, *seen.flaky} & failing if before else set()


def file_of(test: TestResult) -> str:
    """The test's own file; its failure may be in another one."""
    owner = test.name.partition("::")[0]
    return owner if is_source(owner) else test.file or owner


def settled(first: Diagnosis, second: Diagnosis, baseline: Sequence[Diagnosis] | None) -> Diagnosis:
    """Mark suspects of the first run that pass in the second as flaky.

    A second run that is green replaces the first, so that its passing tests count. On the base the first run stays.
    """
    if second.killed is not None:
        return first
    now = {test.name: test.status for test in second.tests}
    calm = second.unlisted > 0 or second.green
    doubtful = suspects(first, baseline)
    flaky = tuple(sorted(name for name in doubtful if now.get(name, "passed" if calm else "") == "passed"))
    counts = second if second.green and baseline is not None else first
    return msgspec.structs.replace(counts, flaky=flaky)
