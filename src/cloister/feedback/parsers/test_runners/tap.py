"""The Test Anything Protocol, including the subtests and YAML blocks of `node --test` and the titles of tape."""

import re
from collections.abc import Sequence

from cloister.core.diagnosis import TestResult, TestStatus
from cloister.feedback.api import CheckOutput, Found, marked
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.test_runners.javascript import where

_POINT = re.compile(r"^( {0,80})(not ok|ok)(?: (\d{1,9}))?(?: -)?(?: (.*))?$")
_PLAN = re.compile(r"^ {0,80}\d{1,9}\.\.\d{1,9}(?: |$)")
_DIRECTIVE = re.compile(r"(?:^| )# ?(SKIP|TODO)\b", re.IGNORECASE)
_LOCATION = re.compile(r"^ *(?:location|at): '?(.{1,400}?):(\d{1,9}):\d{1,9}'?$")
_SUMS = re.compile(r"^ *# (?:tests|suites|pass|fail|cancelled|skipped|todo|duration_ms|Subtest:)\b")
_PASSED_OVER = re.compile(r"^# (?:SKIP|TODO) (.{1,400})$")
_ERROR = re.compile(r"^ *(?:error|message): (.*)$")


@marked(b"ok ")
def tap(output: CheckOutput) -> Found | None:
    """Skip points that only summarise their subtests."""
    text = output.out_lines
    if not any(line.startswith("TAP version ") or _PLAN.match(line) for line in text):
        return None
    points = [(index, point) for index, line in enumerate(text) if (point := _POINT.match(line))]
    titles = _titles(text)
    owners = {} if titles else _owners(text)
    tests = [TestResult(plain.name(title), "skipped") for title in _passed_over(text)] if titles else []
    for number, (index, point) in enumerate(points):
        stop = points[number + 1][0] if number + 1 < len(points) else len(text)
        block = text[index + 1 : min(stop, index + 120)]
        if not any(line.strip() == "type: 'suite'" for line in block[:4]):
            tests.append(_result(point, owners.get(index, ()), block, titles.get(index)))
    return Found.of(tests)


def _owners(text: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """For each line that is a point, the titles of the enclosing subtests, which node prints above."""
    found: dict[int, tuple[str, ...]] = {}
    stack: list[tuple[int, str]] = []
    for index, line in enumerate(text):
        bare = line.lstrip(" ")
        depth = len(line) - len(bare)
        if bare.startswith("# Subtest: ") and len(stack) < 40:
            while stack and stack[-1][0] >= depth:
                stack.pop()
            stack.append((depth, bare.removeprefix("# Subtest: ")))
        elif bare.startswith(("ok ", "not ok ")):
            found[index] = tuple(title for at, title in stack if at < depth)
    return found


def _titles(text: Sequence[str]) -> dict[int, str]:
    """For each point of tape, the title of its test, which tape prints above the assertions.

    Most assertions have no name, so a test gets the worst verdict of its assertions. Empty for every other
    dialect, which does not begin with a title.
    """
    start = next((index for index, line in enumerate(text) if line.startswith("TAP version ")), None)
    if start is None or not any(line.startswith("# ") for line in text[start + 1 : start + 2]):
        return {}
    found: dict[int, str] = {}
    title = ""
    for index, line in enumerate(text[start + 1 :], start + 1):
        if line.startswith("# Subtest: "):
            return {}
        if _PLAN.match(line):
            break  # only totals follow
        if line.startswith("# ") and not _PASSED_OVER.match(line):
            title = line[2:].strip()
        elif line.startswith(("ok ", "not ok ")) and title:
            found[index] = title
    return found


def _passed_over(text: Sequence[str]) -> list[str]:
    return [found[1] for line in text if (found := _PASSED_OVER.match(line))]


def _result(
    point: re.Match[str], owners: tuple[str, ...], block: Sequence[str], test: str | None
) -> TestResult:
    said = point[4] or point[3] or ""
    directive = _DIRECTIVE.search(said)
    title = said[: directive.start()] if directive else said
    name = plain.name(test or " > ".join([*owners, title.strip()]))
    status: TestStatus = "passed" if point[2] == "ok" else "failed"
    if directive:
        status = "skipped"
    if status != "failed":
        return TestResult(name, status)
    located = plain.first_match(_LOCATION, block)
    file, line = (plain.path(located[1]), plain.number(located[2])) if located else ("", None)
    stack = where(list(block), file)
    file, line = stack if stack[1] is not None else (file, line)
    why = _why(block) if test is None else _compared(title.strip(), block)
    return TestResult(name, status, file or None, line, plain.message(why) or None)


def _compared(title: str, block: Sequence[str]) -> str:
    """The assertion of tape, with the expected and the actual value."""
    kept = [title]
    for line in block[1:]:
        if line.startswith(("    at: ", "    stack: ", "  ...")):
            break
        if not line.startswith("    operator: "):
            kept.append(line.strip())
    return "\n".join(kept)


def _why(block: Sequence[str]) -> str:
    """The error in the YAML block, or the text itself if there is no block."""
    for index, line in enumerate(block):
        if error := _ERROR.match(line):
            if not error[1].startswith("|"):
                return error[1].strip("'\"")
            depth = len(line) - len(line.lstrip(" "))
            inner: list[str] = []
            for below in block[index + 1 : index + 40]:
                if below.strip() and len(below) - len(below.lstrip(" ")) <= depth:
                    break
                inner.append(below.strip())
            return "\n".join(inner).strip()
    kept = [line.strip("# ").rstrip() for line in block if not _PLAN.match(line) and not _SUMS.match(line)]
    return "\n".join(line for line in kept if not line.startswith("at "))
