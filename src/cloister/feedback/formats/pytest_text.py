"""pytest's terminal text, for when it left no JUnit file: the short summary, verbose lines and the counts."""

import re
from collections.abc import Iterator, Sequence
from textwrap import dedent

import msgspec

from cloister.core.diagnosis import TestResult, TestStatus
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found

_END = re.compile(
    r"^(?:=+ )?((?:\d{1,9} (?:subtests )?[a-z]{1,20}(?:, )?){1,12}) in \d[\d.]{0,15}s(?: \([\w:, ]{1,40}\))?(?: =+)?$"
)
_COUNT = re.compile(r"(\d{1,9}) ([a-z]+)")
_SUMMARY = re.compile(r"^=+ short test summary info =+$")
_WORD = re.compile(r" (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)(?= |$)")
_AFTER_WORD = re.compile(r"^(?: \(.*\))? *(?:\[ *\d{1,3}%\])?$")
_WORKER = re.compile(r"^\[gw\d{1,4}\] (?:\[ *\d{1,3}%\] )?([A-Z]+) (\S.*)$")
_PART = re.compile(r"^SUBFAILED(?:\[.{0,300}?\]|\(.{0,300}?\))* (?=\S{1,300}::)")
_PLACE = re.compile(r"^([^\s:]{1,300}):(\d{1,9}):(?: |$)")
_AT = re.compile(r"^ERROR (?:at (?:setup|teardown) of|collecting) ")
_STATUSES: dict[str, TestStatus] = {
    "PASSED": "passed",
    "XPASS": "passed",
    "FAILED": "failed",
    "ERROR": "error",
    "SKIPPED": "skipped",
    "XFAIL": "skipped",
}


class _Section(msgspec.Struct):
    """What pytest printed at length about one failure."""

    title: str
    is_error: bool
    file: str | None = None
    line: int | None = None
    reasons: list[str] = []


def pytest_text(output: CheckOutput) -> Found | None:
    """A `Parser`: failing tests by name; passing ones by name where pytest was verbose, else by number."""
    text = output.out_lines
    counts = _counts(text)
    sections = _sections(text)
    tests: dict[str, TestResult] = {}
    for status, name, said in [*_verbose(text), *_summary(text)]:
        if status in ("failed", "error"):
            section = _section_of(name, sections)
            tests[name] = _failing(status, name, said, section)
        else:
            tests.setdefault(name, TestResult(name, status))
    if counts and not any(test.status in ("failed", "error") for test in tests.values()):
        for section in sections:
            name = plain.name(section.title)
            tests[name] = _failing("error" if section.is_error else "failed", name, "", section)
    named = sum(test.status == "passed" for test in tests.values())
    unlisted = max(0, counts.get("passed", 0) + counts.get("xpassed", 0) - named)
    if not tests and not unlisted:
        return None
    return Found(tests=tuple(tests.values()), unlisted=unlisted)


def _counts(text: Sequence[str]) -> dict[str, int]:
    """What the last line of the session counts."""
    for line in reversed(text):
        if end := _END.match(line):
            return {word: int(number) for number, word in _COUNT.findall(end[1])}
    return {}


def _verbose(text: Sequence[str]) -> Iterator[tuple[TestStatus, str, str]]:
    """Lines such as `tests/test_x.py::test_y PASSED [ 50%]`."""
    for line in text:
        if "::" not in line:
            continue
        worker = _WORKER.match(line) if line.startswith("[gw") else None
        if worker and worker[1] in _STATUSES and _is_node(worker[2]):
            yield _STATUSES[worker[1]], plain.name(worker[2]), ""
            continue
        for word in _WORD.finditer(line):
            if _AFTER_WORD.match(line[word.end() :]) and _is_node(line[: word.start()]):
                yield _STATUSES[word[1]], plain.name(line[: word.start()]), ""
                break


def _verdict(line: str) -> tuple[str, str]:
    """The word in front, and what it is about. A part of a test that failed is that test, whatever it is called."""
    if part := _PART.match(line):
        return "FAILED", line[part.end() :]
    word, _, rest = line.partition(" ")
    return word, rest


def _summary(text: Sequence[str]) -> Iterator[tuple[TestStatus, str, str]]:
    """Lines such as `FAILED tests/test_x.py::test_y - reason` below their headline."""
    below = False
    for line in text:
        if _SUMMARY.match(line):
            below = True
        elif below and (line.startswith("===") or _END.match(line)):
            below = False
        elif below:
            word, rest = _verdict(line)
            if word in _STATUSES and word != "SKIPPED" and rest:
                name, said = _split(rest)
                yield _STATUSES[word], plain.name(name), said


def _is_node(text: str) -> bool:
    file, colons, rest = text.partition("::")
    return bool(colons and rest) and " " not in file and ("." in file or "/" in file)


def _split(text: str) -> tuple[str, str]:
    """Node id and reason. A parameter in brackets may itself hold ` - `."""
    at = text.find(" - ")
    while at >= 0:
        name = text[:at]
        if "[" not in name or name.endswith("]"):
            return name, text[at + 3 :]
        at = text.find("] - ", at + 1)
        at = at + 1 if at >= 0 else -1
    return text, ""


def _sections(text: Sequence[str]) -> list[_Section]:
    found: list[_Section] = []
    current: _Section | None = None
    for line in text:
        if title := _title(line):
            is_error = _AT.match(title) is not None
            current = _Section(_AT.sub("", title), is_error, reasons=[])
            found.append(current)
        elif line.startswith("===") and line.endswith("==="):
            current = None
        elif current is not None:
            _read(line, current)
    return found


def _title(line: str) -> str:
    """`____ title ____` → title; the dashed rule between frames has none."""
    if not (line.startswith("_") and line.endswith("_")):
        return ""
    left, _, rest = line.partition(" ")
    middle, _, right = rest.rpartition(" ")
    if not middle.strip("_ ") or left.strip("_") or right.strip("_"):
        return ""
    return middle


def _read(line: str, section: _Section) -> None:
    if line.startswith("E  "):
        section.reasons.append(line[1:].rstrip())
    elif (place := _PLACE.match(line)) and not plain.is_foreign(place[1]):
        section.file, section.line = plain.path(place[1]), plain.number(place[2])


def _section_of(name: str, sections: Sequence[_Section]) -> _Section | None:
    file, _, inner = name.partition("::")
    title = inner.replace("::", ".") if inner else file
    same = [section for section in sections if section.title == title]
    in_file = [section for section in same if section.file == file]
    return next(iter(in_file or same), None)


def _failing(status: TestStatus, name: str, said: str, section: _Section | None) -> TestResult:
    file = name.partition("::")[0] if "::" in name or name.endswith(".py") else None
    if section is None:
        return TestResult(name, status, file, None, plain.message(said) or None)
    why = plain.message(dedent("\n".join(section.reasons))) or plain.message(said) or None
    return TestResult(name, status, section.file or file, section.line, why)
