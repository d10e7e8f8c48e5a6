"""What Gradle prints: tests in a sentence each, and what is wrong with a build script."""

import re
from collections.abc import Iterator, Sequence

from cloister.core.diagnosis import Diagnostic, TestResult, TestStatus
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.formats.junit import for_the_class

_VERDICT = re.compile(r"^([\w$.]{1,300}) > (\S.{0,400}) (PASSED|FAILED|SKIPPED)$")
_COUNTS = re.compile(
    r"^(\d{1,9}) tests? completed(?:, (\d{1,9}) failed)?(?:, (\d{1,9}) skipped)?$",
)
_AT = re.compile(r"^(\S.{0,300}) at ([\w$]{1,200}\.\w{1,12}):(\d{1,9})$")
_SCRIPT = re.compile(r"^(?:Build|Settings|Script) file '([^']{1,400})' line: (\d{1,9})$")
_UP_TO_DATE = re.compile(r"^(?:> Task )?((?::[\w.-]{1,100}){0,20}):(\w{0,100}[tT]est) UP-TO-DATE$")
_DIRECTORIES = 100
_STATUSES: dict[str, TestStatus] = {"PASSED": "passed", "FAILED": "failed", "SKIPPED": "skipped"}
_STORY = 200


def gradle_text(output: CheckOutput) -> Found | None:
    """A `Parser`. What is printed of tests is the build's own choice: failing ones are always named."""
    if b" actionable task" not in output.out and b" completed, " not in output.err:
        return None
    text = output.out_lines
    tests: list[TestResult] = []
    for index, line in enumerate(text):
        if " > " in line and (verdict := _VERDICT.match(line)):
            tests.append(_result(verdict, text[index + 1 : index + _STORY]))
    named = sum(test.status == "passed" for test in tests)
    counted = [found for line in (*output.err_lines, *text) if (found := _COUNTS.match(line))]
    passed = sum(int(one[1]) - int(one[2] or 0) - int(one[3] or 0) for one in counted)
    unlisted = max(0, passed - named)
    return Found(tests=tuple(tests), unlisted=unlisted) if tests or unlisted else None


def _result(verdict: re.Match[str], below: Sequence[str]) -> TestResult:
    owner, said, status = verdict[1], verdict[2], _STATUSES[verdict[3]]
    name, status = for_the_class(owner, said, status)
    if status in ("passed", "skipped"):
        return TestResult(plain.name(name), status)
    story: list[str] = []
    for line in below:
        if line and not line.startswith("    "):
            break
        story.append(line[4:])
    if short := _AT.match(story[0] if story else ""):
        return TestResult(plain.name(name), status, short[2], plain.number(short[3]), plain.message(short[1]))
    frames = next((at for at, line in enumerate(story) if line.startswith("    at ")), len(story))
    file, number = plain.place_in_stack(story[frames:]) or (None, None)
    return TestResult(
        plain.name(name), status, file, number, plain.message("\n".join(story[:frames])) or None
    )


def untouched(out: bytes) -> tuple[str, ...]:
    """Directories with the reports of tests that Gradle did not run again, because nothing they look at has changed."""
    if b" UP-TO-DATE" not in out:
        return ()
    found = (_UP_TO_DATE.match(line) for line in plain.lines(out))
    places = (f".{one[1].replace(':', '/')}/build/test-results/{one[2]}" for one in found if one)
    return tuple(dict.fromkeys(place for place in places if "/../" not in place))[:_DIRECTORIES]


def gradle_errors(output: CheckOutput) -> Found | None:
    """A `Parser`: where a build script is wrong. What the compiler says is in a form of its own, which others read."""
    if b"* What went wrong:" not in output.err:
        return None
    found = tuple(_errors(output.err_lines))
    return Found(diagnostics=found) if found else None


def _errors(text: Sequence[str]) -> Iterator[Diagnostic]:
    place: re.Match[str] | None = None
    for index, line in enumerate(text):
        if line.startswith("* Where:"):
            place = _SCRIPT.match(text[index + 1]) if index + 1 < len(text) else None
        elif line.startswith("* What went wrong:") and place is not None:
            said: list[str] = []
            for below in text[index + 1 : index + 20]:
                if not below.strip():
                    break
                said.append(below.removeprefix("> "))
            yield plain.complaint("gradle", "\n".join(said), place[1], (plain.number(place[2]), None))
            place = None
