"""Java, as text: Maven (surefire, compiler, POM errors) and Gradle (tests, build scripts)."""

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

from cloister.core.diagnosis import Diagnostic, TestResult, TestStatus
from cloister.feedback.api import CheckOutput, Found, marked
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.test_runners.junit import for_the_class

_TAG = re.compile(r"^\[(ERROR|WARNING|FATAL)\] ?(.*)$")
_COUNTS = r"Tests run: (\d{1,9}), Failures: (\d{1,9}), Errors: (\d{1,9}), Skipped: (\d{1,9})"
_CLASS = re.compile(rf"^\[(?:INFO|ERROR|WARNING)\] {_COUNTS}, Time elapsed: .{{1,60}} - in (\S{{1,400}})$")
_TOTAL = re.compile(rf"^\[(?:INFO|ERROR|WARNING)\] {_COUNTS}$")
_CASE = re.compile(r"^\[ERROR\] (\S.{0,400}?) {1,2}Time elapsed: .{1,40} <<< (FAILURE|ERROR)!$")
_OF_CLASS = re.compile(r"^(.{1,300})\(([\w$.]{1,300})\)$")
_FRAME = re.compile(r"^\s{1,16}at ([\w$.]{1,400})\.([\w$<>]{1,200})\(")
_COMPLAINT = re.compile(r"^(\S{1,400}\.\w{1,12}):\[(\d{1,9})(?:,(\d{1,9}))?\] (\S.*)$")
_POM = re.compile(r"^(?:(\S{1,300}), )?line (\d{1,9}), column (\d{1,9})$")
_UNREADABLE = re.compile(r"^Non-parseable POM (\S{1,300}): ")
_GOAL = re.compile(
    r"^Failed to execute goal (?:\S{1,300} (?:\(\S{1,100}\) )?)?on project (\S{1,200}): (.{1,2000}?)(?: -> \[Help \d{1,3}\])?$"
)
_SAID_ALREADY = ("There are test failures", "Compilation failure", "There was a")
_STATUSES: dict[str, TestStatus] = {"FAILURE": "failed", "ERROR": "error"}
_STORY = 200


@marked(b"Tests run: ")
def maven_text(output: CheckOutput) -> Found | None:
    """Failing tests by name, the others as a count."""
    text = output.out_lines
    tests: list[TestResult] = []
    whole = of_classes = 0
    owner = ""
    for index, line in enumerate(text):
        if "Tests run: " in line:
            if found := _CLASS.match(line):
                owner = found[5]
                of_classes += _passed(found)
            elif found := _TOTAL.match(line):
                whole += _passed(found)
        elif " <<< " in line and (case := _CASE.match(line)):
            tests.append(_failing(case, owner, text[index + 1 : index + _STORY]))
    # With -q Maven prints only the total.
    return Found.of(tests, unlisted=max(whole, of_classes))


def _passed(counts: re.Match[str]) -> int:
    run, *others = (int(counts[number]) for number in range(1, 5))
    return max(0, run - sum(others))


def _failing(case: re.Match[str], owner: str, below: Sequence[str]) -> TestResult:
    story = list(takewhile(lambda line: not line.startswith(("[INFO] ", "[ERROR] ")), below))
    frames = next((index for index, line in enumerate(story) if _FRAME.match(line)), len(story))
    file, number = plain.place_in_stack(story[frames:]) or (None, None)
    message = plain.message("\n".join(story[:frames])) or None
    owner, short = _name(case[1], owner, story[frames:])
    name, status = for_the_class(owner, short, _STATUSES[case[2]])
    return TestResult(plain.name(name), status, file, number, message)


def _name(said: str, owner: str, frames: Sequence[str]) -> tuple[str, str]:
    """Class and test, as in surefire's report. JUnit 4 prints the class after the test, JUnit 5 only above."""
    if found := _OF_CLASS.match(said):
        return found[2], found[1]
    # Only the stack names a nested class.
    method = re.split(r"[({\[]", said, maxsplit=1)[0]
    inner = (found[1] for line in frames if (found := _FRAME.match(line)) and found[2] == method)
    nested = next((one for one in inner if one.startswith(f"{owner}$")), owner)
    return nested, said


@marked(b"[ERROR] ", b"[WARNING] ")
def maven_errors(output: CheckOutput) -> Found | None:
    """Compiler errors, POM errors, and goals that failed for other reasons."""
    return Found.of(diagnostics=_errors(output.out_lines))


def _errors(text: Sequence[str]) -> Iterator[Diagnostic]:
    for index, line in enumerate(text):
        tag = _TAG.match(line)
        if tag is None:
            continue
        how = "warning" if tag[1] == "WARNING" else "error"
        if found := _COMPLAINT.match(tag[2]):
            said = "\n".join([found[4], *_below(text[index + 1 : index + 8])])
            at = (plain.number(found[2]), plain.number(found[3]))
            yield plain.complaint("javac", said, found[1], at, how)
        elif (place := _POM.match(tag[2].rpartition(" @ ")[2])) and not tag[2].startswith(" "):
            said = tag[2].rpartition(" @ ")[0].strip()
            where = _UNREADABLE.match(said)
            file = where[1] if where else place[1] or "pom.xml"
            at = (plain.number(place[2]), plain.number(place[3]))
            yield plain.complaint("maven", said[where.end() :] if where else said, file, at, how)
        elif (found := _GOAL.match(tag[2])) and not found[2].startswith(_SAID_ALREADY):
            yield plain.complaint("maven", found[2], "pom.xml")


def _below(lines: Sequence[str]) -> Iterator[str]:
    """The continuation lines of a complaint: indented, with or without the tag."""
    for line in lines:
        bare = line.removeprefix("[ERROR] ")
        if not bare.startswith("  ") or not bare.strip():
            return
        yield bare.rstrip()


# Gradle

_VERDICT = re.compile(r"^([\w$.]{1,300}) > (\S.{0,400}) (PASSED|FAILED|SKIPPED)$")
_GRADLE_COUNTS = re.compile(
    r"^(\d{1,9}) tests? completed(?:, (\d{1,9}) failed)?(?:, (\d{1,9}) skipped)?$",
)
_AT = re.compile(r"^(\S.{0,300}) at ([\w$]{1,200}\.\w{1,12}):(\d{1,9})$")
_SCRIPT = re.compile(r"^(?:Build|Settings|Script) file '([^']{1,400})' line: (\d{1,9})$")
_UP_TO_DATE = re.compile(r"^(?:> Task )?((?::[\w.-]{1,100}){0,20}):(\w{0,100}[tT]est) UP-TO-DATE$")
_DIRECTORIES = 100
_GRADLE_STATUSES: dict[str, TestStatus] = {"PASSED": "passed", "FAILED": "failed", "SKIPPED": "skipped"}
_GRADLE_STORY = 200


@marked(b" actionable task", b" completed, ", where="text")
def gradle_text(output: CheckOutput) -> Found | None:
    """The build decides which tests Gradle prints; it always names failing ones."""
    text = output.out_lines
    tests: list[TestResult] = []
    for index, line in enumerate(text):
        if " > " in line and (verdict := _VERDICT.match(line)):
            tests.append(_result(verdict, text[index + 1 : index + _GRADLE_STORY]))
    named = sum(test.status == "passed" for test in tests)
    counted = [found for line in (*output.err_lines, *text) if (found := _GRADLE_COUNTS.match(line))]
    passed = sum(int(one[1]) - int(one[2] or 0) - int(one[3] or 0) for one in counted)
    unlisted = max(0, passed - named)
    return Found.of(tests, unlisted=unlisted)


def _result(verdict: re.Match[str], below: Sequence[str]) -> TestResult:
    owner, said, status = verdict[1], verdict[2], _GRADLE_STATUSES[verdict[3]]
    name, status = for_the_class(owner, said, status)
    if status in ("passed", "skipped"):
        return TestResult(plain.name(name), status)
    story = [line[4:] for line in takewhile(lambda line: not line or line.startswith("    "), below)]
    if short := _AT.match(story[0] if story else ""):
        return TestResult(plain.name(name), status, short[2], plain.number(short[3]), plain.message(short[1]))
    frames = next((at for at, line in enumerate(story) if line.startswith("    at ")), len(story))
    file, number = plain.place_in_stack(story[frames:]) or (None, None)
    return TestResult(
        plain.name(name), status, file, number, plain.message("\n".join(story[:frames])) or None
    )


def untouched(out: bytes) -> tuple[str, ...]:
    """Report directories of the test tasks that Gradle skipped as up to date."""
    if b" UP-TO-DATE" not in out:
        return ()
    found = (_UP_TO_DATE.match(line) for line in plain.lines(out))
    places = (f".{one[1].replace(':', '/')}/build/test-results/{one[2]}" for one in found if one)
    return tuple(dict.fromkeys(place for place in places if "/../" not in place))[:_DIRECTORIES]


@marked(b"* What went wrong:", where="text")
def gradle_errors(output: CheckOutput) -> Found | None:
    """Errors in build scripts. Other parsers read the compiler's errors."""
    return Found.of(diagnostics=_gradle_errors(output.err_lines))


def _gradle_errors(text: Sequence[str]) -> Iterator[Diagnostic]:
    place: re.Match[str] | None = None
    for index, line in enumerate(text):
        if line.startswith("* Where:"):
            place = _SCRIPT.match(text[index + 1]) if index + 1 < len(text) else None
        elif line.startswith("* What went wrong:") and place is not None:
            said = [line.removeprefix("> ") for line in takewhile(str.strip, text[index + 1 : index + 20])]
            yield plain.complaint("gradle", "\n".join(said), place[1], (plain.number(place[2]), None))
            place = None


# The console launcher of JUnit prints a tree: engine, class, nested classes, tests.

_NODE = re.compile(r"^([│| ]{0,200})(?:├─|└─|\+--|'--) (\S.{0,1000})")
_MARK = re.compile(r" (✔|✘|↷|■|\[(?:OK|X|S|A)\])(?= |$)")
_NODE_STATUSES: dict[str, TestStatus] = {"✔": "passed", "[OK]": "passed", "↷": "skipped", "[S]": "skipped"}


@marked(b" tests found  ", b" containers found  ")
def console_text(output: CheckOutput) -> Found | None:
    """The leaves of the tree, by their classes."""
    nodes = [
        (len(node[1]), node[2][: mark.start()], mark[1], node[2][mark.end() :].strip())
        for line in output.out_lines
        if (node := _NODE.match(line)) and (mark := _MARK.search(node[2]))
    ]
    path: list[tuple[int, str]] = []
    tests: list[TestResult] = []
    for (depth, name, mark, said), following in zip(nodes, [*nodes[1:], None], strict=False):
        path = [*(one for one in path if one[0] < depth), (depth, name)]
        is_leaf = following is None or following[0] <= depth
        if is_leaf and len(path) > 2:
            owner = "$".join(part for _, part in path[1:-1])
            status = _NODE_STATUSES.get(mark, "failed")
            tests.append(TestResult(plain.name(f"{owner}::{name}"), status, message=said or None))
    return Found.of(tests)
