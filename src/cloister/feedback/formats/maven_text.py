"""What Maven prints: its tests by surefire, its compiler's complaints, and why a build could not even begin."""

import re
from collections.abc import Iterator, Sequence

from cloister.core.diagnosis import Diagnostic, TestResult, TestStatus
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.formats.junit import for_the_class

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


def maven_text(output: CheckOutput) -> Found | None:
    """A `Parser`: failing tests by name, the others by number."""
    if b"Tests run: " not in output.out:
        return None
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
    passed = max(
        whole, of_classes
    )  # quiet, it counts only at the end; of classes that passed it says nothing
    return Found(tests=tuple(tests), unlisted=passed) if tests or passed else None


def _passed(counts: re.Match[str]) -> int:
    run, *others = (int(counts[number]) for number in range(1, 5))
    return max(0, run - sum(others))


def _failing(case: re.Match[str], owner: str, below: Sequence[str]) -> TestResult:
    story: list[str] = []
    for line in below:
        if line.startswith(("[INFO] ", "[ERROR] ")):
            break
        story.append(line)
    frames = next((index for index, line in enumerate(story) if _FRAME.match(line)), len(story))
    file, number = plain.place_in_stack(story[frames:]) or (None, None)
    message = plain.message("\n".join(story[:frames])) or None
    owner, short = _name(case[1], owner, story[frames:])
    name, status = for_the_class(owner, short, _STATUSES[case[2]])
    return TestResult(plain.name(name), status, file, number, message)


def _name(said: str, owner: str, frames: Sequence[str]) -> tuple[str, str]:
    """Class and test as in surefire's report: JUnit 4 prints the class behind the test, JUnit 5 leaves it to the head."""
    if found := _OF_CLASS.match(said):
        return found[2], found[1]
    # Of a nested class only the stack tells.
    method = re.split(r"[({\[]", said, maxsplit=1)[0]
    inner = (found[1] for line in frames if (found := _FRAME.match(line)) and found[2] == method)
    nested = next((one for one in inner if one.startswith(f"{owner}$")), owner)
    return nested, said


def maven_errors(output: CheckOutput) -> Found | None:
    """A `Parser`: the compiler's complaints, what is wrong with the POM, and goals that failed for other reasons."""
    if b"[ERROR] " not in output.out and b"[WARNING] " not in output.out:
        return None
    found = tuple(_errors(output.out_lines))
    return Found(diagnostics=found) if found else None


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
    """What a complaint says on further lines, which are indented, with the tag before them or without."""
    for line in lines:
        bare = line.removeprefix("[ERROR] ")
        if not bare.startswith("  ") or not bare.strip():
            return
        yield bare.rstrip()
