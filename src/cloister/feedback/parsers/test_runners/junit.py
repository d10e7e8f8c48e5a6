"""JUnit XML, which nearly every test runner can write. Parsed as a stream; a DOCTYPE is refused."""

import re
from textwrap import dedent
from xml.parsers import expat

from cloister.core import limits
from cloister.core.diagnosis import TestResult, TestStatus
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.parsers import plain

_TEXT_CHARS = 16_384
_DEPTH = 40
_PLACE = re.compile(r"^([^\s:]{1,300}):(\d{1,9}):(?: |$)")
_FOR_A_CLASS = ("initializationError", "classMethod")
_VERDICTS: dict[str, TestStatus] = {"failure": "failed", "error": "error", "skipped": "skipped"}


class _Refused(Exception):
    """The document has a DOCTYPE or an entity."""


def junit(output: CheckOutput) -> Found | None:
    """Read the report files, or else a document on stdout."""
    tests: list[TestResult] = []
    for report in output.reports:
        tests.extend(_read(report))
    if not tests and b"<testcase" in output.out and b"<testsuite" in output.out:
        start, end = output.out.find(b"<testsuite"), output.out.rfind(b"</testsuite")
        close = output.out.find(b">", end)
        tests.extend(_read(output.out[start : close + 1]) if 0 <= start < end < close else ())
    return Found.of(tests)


def _read(document: bytes) -> list[TestResult]:
    if b"<testcase" not in document and document[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        return []
    if len(document) > limits.JUNIT_BYTES:
        return []
    reader = _Reader()
    try:
        reader.parse(document)
    except (expat.ExpatError, _Refused, LookupError, ValueError):
        return []
    return reader.tests


class _Reader:
    """Collects test cases from expat's events, without a tree."""

    def __init__(self) -> None:
        self.tests: list[TestResult] = []
        self._suites: list[str] = []
        self._case: dict[str, str] | None = None
        self._status: TestStatus = "passed"
        self._inside: str | None = None
        self._said = ""
        self._text = ""

    def parse(self, data: bytes) -> None:
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._refuse
        parser.EntityDeclHandler = self._refuse
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.Parse(data, True)

    def _refuse(self, *_: object) -> None:
        raise _Refused

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        tag = tag.rpartition(":")[2]
        if tag == "testsuite":
            self._suites.append(attributes.get("name", ""))
        elif tag == "testcase":
            self._case, self._said, self._text = attributes, "", ""
            self._status = (
                "skipped" if attributes.get("status") == "disabled" else "passed"
            )  # as CTest writes it
        elif self._case is not None and tag in _VERDICTS and self._inside is None:
            self._inside = tag
            if _worse(_VERDICTS[tag], self._status):
                self._status = _VERDICTS[tag]
                self._said = attributes.get("message", "")
                self._text = ""

    def _characters(self, text: str) -> None:
        if self._inside is not None and _VERDICTS[self._inside] == self._status:
            self._text = (self._text + text)[-_TEXT_CHARS:]

    def _end(self, tag: str) -> None:
        tag = tag.rpartition(":")[2]
        if tag == "testsuite" and self._suites:
            self._suites.pop()
        elif tag == self._inside:
            self._inside = None
        elif tag == "testcase" and self._case is not None:
            by_pytest = bool(self._suites) and self._suites[-1] == "pytest"
            if self._case.get("classname") == "test" and len(self._suites) < _DEPTH:
                # node gives every test the same class name and nests its suites.
                self._case = {
                    **self._case,
                    "classname": "",
                    "name": " > ".join([*filter(None, self._suites), self._case.get("name", "")]),
                }
            self.tests.append(_result(self._case, self._status, self._said, self._text, by_pytest=by_pytest))
            self._case = self._inside = None


def for_the_class(owner: str, short: str, status: TestStatus) -> tuple[str, TestStatus]:
    """Name and status of a Java test. A class that failed to start is reported as an error of the class, so that
    its placeholder test is not missed once the class runs."""
    if owner and short in _FOR_A_CLASS and status in ("failed", "error"):
        return owner, "error"
    return f"{owner}::{short}" if owner and short and owner != short else owner or short, status


def _worse(one: TestStatus, other: TestStatus) -> bool:
    order: tuple[TestStatus, ...] = ("passed", "skipped", "failed", "error")
    return order.index(one) > order.index(other)


def _result(case: dict[str, str], status: TestStatus, said: str, text: str, *, by_pytest: bool) -> TestResult:
    file = plain.path(case["file"]) if case.get("file") else None
    line = plain.number(case.get("line"))
    classname, short = case.get("classname", ""), case.get("name", "")
    if by_pytest:
        # pytest counts lines from 0, and reports a module that it could not collect as a test.
        line = None if line is None else line + 1
        name = _pytest_name(file, classname, short)
    else:
        name, status = for_the_class(classname, short, status)
    if status == "passed":
        return TestResult(plain.name(name), status, file, line)
    file, line = _place(text) or plain.place_in_stack(text.split("\n")) or (file, line)
    why = _reason(said, text) if status in ("failed", "error") else said
    return TestResult(plain.name(name), status, file, line, plain.message(why) or None)


def _pytest_name(file: str | None, classname: str, name: str) -> str:
    """The node id, as pytest accepts it on its command line."""
    if not classname:
        return file or name.replace(".", "/") + ".py"
    parts = classname.split(".")
    if file is None:
        # Without a file attribute the module ends before the first capitalised part, the class.
        modules = next((i for i, part in enumerate(parts) if part[:1].isupper() and i), len(parts))
        file = "/".join(parts[:modules]) + ".py"
    else:
        modules = len(file.removesuffix(".py").split("/"))
    return "::".join([file, *parts[modules:], name])


def _place(text: str) -> tuple[str, int | None] | None:
    """The innermost place in the repository that the text of the failure names."""
    found = None
    for line in text.split("\n"):
        place = _PLACE.match(line)
        if place and not plain.is_foreign(place[1]):
            found = (plain.path(place[1]), plain.number(place[2]))
    return found


def _reason(said: str, text: str) -> str:
    """The message, else the lines that pytest marks with `E`, else the text."""
    if said and said != "collection failure":
        return said
    marked = "\n".join(line[1:] for line in text.split("\n") if line.startswith("E  "))
    return dedent(marked) or said or text
