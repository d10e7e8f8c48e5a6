"""The checks now against the checks on the untouched base: what got better, what got worse, what went away."""

from collections.abc import Mapping, Sequence

from cloister.core.diagnosis import Comparison, Diagnosis, TestResult

_RED = ("failed", "error")
_FIXTURES = ("::setUpClass", "::tearDownClass", "::setUpModule", "::tearDownModule")


def compare(baseline: Sequence[Diagnosis], now: Sequence[Diagnosis]) -> Comparison:
    """Compare test by test, check by check.

    A check without tests that we understood is one item under its own command line; so is one that is red
    though none of its tests is. A check that could not even collect its tests says nothing about them.
    """
    before = {diagnosis.check: diagnosis for diagnosis in baseline}
    tally = _Tally()
    for diagnosis in now:
        tally.add(before.get(diagnosis.check), diagnosis)
    ran = {diagnosis.check for diagnosis in now}
    tally.missing.extend(check for check in before if check not in ran)
    return Comparison(
        fixed=tuple(tally.fixed),
        new=tuple(tally.new),
        still=tuple(tally.still),
        missing=tuple(tally.missing),
        passed=tally.passed,
        green=bool(now) and all(diagnosis.green for diagnosis in now) and not tally.missing,
    )


class _Tally:
    """The lists of a comparison while they grow."""

    def __init__(self) -> None:
        self.fixed: list[str] = []
        self.new: list[str] = []
        self.still: list[str] = []
        self.missing: list[str] = []
        self.passed = 0

    def add(self, before: Diagnosis | None, now: Diagnosis) -> None:
        red_before = _red(before) if before else set[str]()
        blind = before is not None and _collected_nothing(before)
        for name in sorted(_red(now)):
            # Where the base collected nothing, what is red now cannot be this run's doing.
            (self.still if name in red_before or blind else self.new).append(name)
        self.passed += now.unlisted + sum(test.status == "passed" for test in now.tests)
        if not _has_tests(now) and now.green:
            self.passed += 1
        if before is not None:
            self._compare_names(before, now, red_before)

    def _compare_names(self, before: Diagnosis, now: Diagnosis, red_before: set[str]) -> None:
        if before.check in red_before and now.green:
            self.fixed.append(now.check)
        if _collected_nothing(now):
            return
        here = {test.name: test.status for test in now.tests}
        # Where only numbers are known, an absent name stands for a test that passes, unless there are fewer.
        absent_passes = now.unlisted > 0 and _ran(now) >= _ran(before)
        gone: list[str] = []
        for test in before.tests:
            status = here.get(test.name)
            if test.status == "skipped" or status in _RED:
                continue
            if status == "passed" or (status is None and absent_passes):
                if test.status in _RED:
                    self.fixed.append(test.name)
            elif status is None and _stood_for_others(test) and _others_run(test.name, here):
                self.fixed.append(test.name)
            else:
                gone.append(test.name)
        self.missing.extend(gone)
        lost = _ran(before) - _ran(now) - len(gone) - sum(map(_stood_for_others, before.tests))
        if now.green and lost > 0 and before.unlisted:
            self.missing.append(f"{lost} test{'' if lost == 1 else 's'} of {now.check}")


def _has_tests(diagnosis: Diagnosis) -> bool:
    return bool(diagnosis.tests) or diagnosis.unlisted > 0


def _ran(diagnosis: Diagnosis) -> int:
    return diagnosis.unlisted + sum(test.status != "skipped" for test in diagnosis.tests)


def _red(diagnosis: Diagnosis) -> set[str]:
    """The names that are red: tests, and the check itself where its tests do not explain it."""
    tests = {test.name for test in diagnosis.failing}
    explained = diagnosis.green or (tests and diagnosis.killed is None)
    return tests if explained else tests | {diagnosis.check}


def _collected_nothing(diagnosis: Diagnosis) -> bool:
    """Red, and no test came to a verdict of its own: killed, or broken before the tests could run."""
    if diagnosis.green:
        return False
    only_errors = not diagnosis.unlisted and all(test.status == "error" for test in diagnosis.tests)
    return diagnosis.killed is not None or only_errors


def _stood_for_others(test: TestResult) -> bool:
    """Whether the name is that of a module or of a fixture, in whose place its tests now run."""
    return test.status == "error" and ("::" not in test.name or test.name.endswith(_FIXTURES))


def _others_run(name: str, here: Mapping[str, str]) -> bool:
    owner = name.rpartition("::")[0] or name
    return any(other.startswith((owner + "::", owner + ".")) for other in here)
