"""Tells a model the result of the checks: counts first, then what to fix, within a size limit."""

from collections.abc import Iterator, Sequence

from cloister.core.diagnosis import Comparison, Diagnosis, Diagnostic, TestResult
from cloister.core.text import bounded, harmless, one_line

_NAMES = 20
_MESSAGE_CHARS = 700


def tell(comparison: Comparison, diagnoses: Sequence[Diagnosis], limit_chars: int = 6_000) -> str:
    """Describe the checks now, compared with the base, in at most `limit_chars` characters."""
    if not diagnoses:
        return "There are no checks."[:limit_chars]
    head = "\n".join(_headlines(comparison, diagnoses))
    room = limit_chars - len(head)
    parts: list[str] = []
    details = list(_details(comparison, diagnoses))
    for index, detail in enumerate(details):
        left = len(details) - index
        # Each detail can use its share and what the ones before it did not use.
        note = f"\n[… {left} more omitted …]"
        share = max(room // left, 400)
        text = "\n" + (detail if len(detail) <= share else _shortened(detail, share - 1))
        if len(text) + (len(note) if left > 1 else 0) > room:
            parts.append(note)
            break
        parts.append(text)
        room -= len(text)
    return _shortened(head + "".join(parts), limit_chars)


def _headlines(comparison: Comparison, diagnoses: Sequence[Diagnosis]) -> Iterator[str]:
    failing = sum(len(diagnosis.failing) for diagnosis in diagnoses)
    total = sum(
        diagnosis.unlisted + sum(test.status != "skipped" for test in diagnosis.tests)
        for diagnosis in diagnoses
    )
    red_before = len(comparison.fixed) + len(comparison.still)
    red_now = len(comparison.new) + len(comparison.still)
    was = f" (was {red_before})" if red_before != red_now else ""
    if comparison.green and comparison.unrelated:
        yield "Green: no new failures, and the requested tests pass."
    elif comparison.green and not comparison.ran:
        yield "No check could run, so nothing can be shown."
    elif comparison.green:
        passing = total - failing
        tests = f" {passing} test{_s(passing)} pass{'es' if passing == 1 else ''}." if passing else ""
        yield f"All checks are green{was}.{tests}"
    elif failing:
        yield f"{failing} of {total} test{_s(total)} fail{was}{_changes(comparison)}"
    elif red := sum(not diagnosis.green for diagnosis in diagnoses):
        tests = f", though no test fails ({total} ran)" if total else ""
        yield f"{red} of {len(diagnoses)} check{_s(len(diagnoses))} failed{tests}{was}."
    yield from _losses(comparison)
    yield from _rest(comparison)


def _rest(comparison: Comparison) -> Iterator[str]:
    """What is fixed, and what is not counted or not shown."""
    if comparison.fixed:
        yield f"Fixed: {_names(comparison.fixed)}"
    if comparison.unrelated:
        count = len(comparison.unrelated)
        yield f"{count} failed on the base already and {'is' if count == 1 else 'are'} not part of the task; leave unchanged: {_names(comparison.unrelated)}"
    if comparison.not_run:
        yield f"Could not run, neither on the base nor now: {_names(comparison.not_run)}"
    if comparison.green and comparison.ran and not comparison.shown:
        yield (
            "No test shows the requested change yet. If it changes behaviour, add a test that fails without the change "
            "and passes with it."
        )
    yield from comparison.notes
    if comparison.flaky:
        yield f"Flaky (failed and passed on the same files), not counted: {_names(comparison.flaky)}"


def _losses(comparison: Comparison) -> Iterator[str]:
    """Tests that were deleted, skipped or made easier."""
    if comparison.weakened:
        yield f"Weakened, which is not a fix; restore: {_names(comparison.weakened)}"
    if comparison.skipped:
        yield f"Ran on the base and skipped now, which is not a fix; restore: {_names(comparison.skipped)}"
    if comparison.missing:
        count = len(comparison.missing)
        yield (
            f"{count} that ran on the base do{'es' if count == 1 else ''} not run now; "
            f"deleting or skipping a test is not a fix; restore: {_names(comparison.missing)}"
        )
    told = {*comparison.still, *comparison.new}
    if unmet := [name for name in comparison.asked if name not in told]:
        yield f"Requested, but nothing with that name passes: {_names(unmet)}"


def _changes(comparison: Comparison) -> str:
    if not comparison.new or not comparison.still:
        return ", none of which failed on the base." if comparison.new and comparison.fixed else "."
    return f": {len(comparison.new)} new, {len(comparison.still)} failing on the base already."


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(one_line(name, 160) for name in names[:_NAMES])
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return bounded(shown, 1_200) + more


def _details(comparison: Comparison, diagnoses: Sequence[Diagnosis]) -> Iterator[str]:
    """The failures to fix: new ones first, then the requested ones. The headlines name the rest."""
    new, aside = set(comparison.new), {*comparison.unrelated, *comparison.flaky}
    for diagnosis in diagnoses:
        if diagnosis.green or diagnosis.check in aside:
            continue
        failing = [test for test in diagnosis.failing if test.name not in aside]
        if diagnosis.failing and not failing and diagnosis.killed is None:
            continue
        yield f"`{one_line(diagnosis.check, 300)}` {_ended(diagnosis)}"
        for test in sorted(failing, key=lambda test: test.name not in new):
            yield _test(test, is_new=test.name in new and bool(comparison.still or comparison.fixed))
        yield from map(_diagnostic, _useful(diagnosis.diagnostics, new))
        explained = diagnosis.failing or any(one.severity != "note" for one in diagnosis.diagnostics)
        if not explained and diagnosis.tail:
            yield "The output ends with:\n" + diagnosis.tail
        if diagnosis.log is not None:
            yield f"The whole output is in {diagnosis.log}"


def _useful(found: Sequence[Diagnostic], new: set[str]) -> list[Diagnostic]:
    """New complaints first, otherwise in order of severity."""
    fresh = [
        one for one in found if one.file and any(name.startswith(f"{one.file}:{one.line}:") for name in new)
    ]
    return [*fresh, *(one for one in found if one not in fresh)] if fresh else list(found)


def _ended(diagnosis: Diagnosis) -> str:
    if diagnosis.killed == "time":
        return f"timed out after {diagnosis.seconds:.0f} s:"
    if diagnosis.killed is not None:
        return f"was stopped ({one_line(diagnosis.killed)}):"
    return (
        f"exited with {diagnosis.exit_code}:"
        if diagnosis.exit_code is not None
        else "was killed by a signal:"
    )


def _test(test: TestResult, *, is_new: bool) -> str:
    place = _place(test.file, test.line, None)
    first = f"{'ERROR' if test.status == 'error' else 'FAIL'} {test.name}"
    first += f" at {place}" if place and place != test.name else ""
    first += " (new)" if is_new else ""
    message = bounded(test.message or "", _MESSAGE_CHARS).strip("\n")
    return first + _indented(message) + _indented(test.source)


def _indented(text: str | None) -> str:
    return "".join(f"\n    {line}" for line in text.split("\n")) if text else ""


def _diagnostic(diagnostic: Diagnostic) -> str:
    place = _place(diagnostic.file, diagnostic.line, diagnostic.column)
    code = f" [{one_line(diagnostic.code, 60)}]" if diagnostic.code else ""
    message = bounded(diagnostic.message, _MESSAGE_CHARS)
    said = f"{place + ': ' if place else ''}{diagnostic.severity}: {message}{code}"
    return said + _indented(diagnostic.source)


def _place(file: str | None, line: int | None, column: int | None) -> str:
    if not file:
        return ""
    return ":".join(str(part) for part in (file, line, column) if part is not None)


def _shortened(text: str, limit: int) -> str:
    """Cut the end of `text`, so that it has at most `limit` characters."""
    return text if len(text) <= limit else text[: max(0, limit - 1)].rstrip() + "…"[: max(0, limit)]


# Source lines around a place

_ABOVE, _BELOW = 2, 2
_LINE_CHARS = 160


def around(text: str, line: int) -> str | None:
    """Numbered lines around `line`, which is marked; None if the text has no such line."""
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        return None
    first, last = max(1, line - _ABOVE), min(len(lines), line + _BELOW)
    width = len(str(last))
    shown = [
        f"{'>' if number == line else ' '} {number:>{width}} | {harmless(lines[number - 1][:_LINE_CHARS])}".rstrip()
        for number in range(first, last + 1)
    ]
    return "\n".join(shown)
