"""What each tool really printed, read: tests and complaints, one a line.

The files in `captured/` were written by the tools themselves, run on small broken programs; only paths were changed,
and what describes the machine was left out.
"""

from pathlib import Path

import pytest
from tests.feedback.captures import files

from cloister.core.diagnosis import Diagnosis
from cloister.feedback.api import CheckOutput, Parser
from cloister.feedback.diagnose import PARSERS, diagnose


def output(name: str) -> CheckOutput:
    def read(ending: str) -> bytes:
        return b"".join(path.read_bytes() for path in files(f"{name}.{ending}"))

    # Java tools write one report for each class: NAME.CLASS.xml.
    reports = tuple(p.read_bytes() for ending in ("json", "xml", "*.xml") for p in files(f"{name}.{ending}"))
    return CheckOutput(name, 1, None, 1.0, read("out"), read("err"), reports)


def name_of(parser: Parser) -> str:
    return str(getattr(parser, "__name__", ""))


def told(diagnosis: Diagnosis) -> list[str]:
    """The diagnosis as lines that are easy to compare."""
    lines = [
        f"{test.status} {test.name}" + (f" @ {test.file}:{test.line}" if test.line else "")
        for test in diagnosis.tests
    ]
    lines += [f"{diagnosis.unlisted} more passed"] if diagnosis.unlisted else []
    for one in diagnosis.diagnostics:
        place = ":".join(str(part) for part in (one.file, one.line, one.column) if part is not None)
        lines.append(
            " ".join(
                part for part in (one.severity, place, one.code, "|", one.message.split("\n")[0]) if part
            )
        )
    return lines


def _expected() -> dict[str, tuple[str, list[str]]]:
    """Name of the captured output → the parser that understands it first, and what is told."""
    found: dict[str, tuple[str, list[str]]] = {}
    for section in (Path(__file__).parents[1] / "expected.txt").read_text().split("## ")[1:]:
        head, _, body = section.partition("\n")
        name, parser = head.split()
        found[name] = (parser, body.strip("\n").split("\n"))
    return found


EXPECTED = _expected()


@pytest.mark.parametrize("name", EXPECTED)
def test_captured_output_gives_the_expected_result(name: str) -> None:
    parser, expected = EXPECTED[name]
    captured = output(name)

    assert next(name_of(one) for one in PARSERS if one(captured)) == parser
    assert told(diagnose(captured)) == expected


def test_every_parser_has_captured_output() -> None:
    tried = {parser for parser, _ in EXPECTED.values()}
    elsewhere = {
        "pytest_text",
        "unittest_text",
        "console_text",
        "tracebacks",
        "matchers",
        "mentions",
        "absent_programs",
    }

    assert {name_of(parser) for parser in PARSERS} == tried | elsewhere


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("jest", "jest_text"),
        ("vitest", "vitest_text"),
        ("mocha_json", "mocha_spec"),
        ("mocha_json", "mocha_tap"),
        ("node_tap", "node_spec"),
        ("node_tap", "node_junit"),
        ("go_test_json", "go_test_text"),
        ("go_test_json", "go_test_v"),
        ("surefire_junit4", "maven_junit4"),
        ("surefire_junit5", "maven_junit5"),
        ("surefire_junit5", "maven_quiet"),
        ("gradle_reports", "gradle_test"),
        ("gradle_reports", "gradle_full"),
    ],
)
def test_a_test_has_the_same_name_in_every_report_format(one: str, other: str) -> None:
    """So that a report that is missing once does not make every test a new one."""

    def failing(name: str) -> set[tuple[str, str]]:
        return {(test.name, test.status) for test in diagnose(output(name)).failing}

    assert failing(one) == failing(other)
    assert failing(one)


def test_a_complaint_tells_the_sentence_whole() -> None:
    found = diagnose(output("jest_text")).failing

    assert "Expected: 3" in (found[1].message or "")
    assert "node_modules" not in "".join(test.message or "" for test in diagnose(output("jest")).failing[1:])


def test_a_test_in_rusts_documentation_keeps_its_name_when_lines_are_added_above_it() -> None:
    moved = output("cargo_parts").out.replace(b"(line 3)", b"(line 9)").replace(b"(line 7)", b"(line 10)")
    found = [
        diagnose(CheckOutput("cargo test", 1, None, 1.0, out, b""))
        for out in (output("cargo_parts").out, moved)
    ]

    assert {test.name for test in found[0].tests} == {test.name for test in found[1].tests}
    assert "src/lib.rs - add" in {test.name for test in found[0].failing}


def test_an_unexpected_panic_is_reported_without_frames() -> None:
    said = {test.name: test.message for test in diagnose(output("cargo_parts")).failing}

    assert said["tests::overflows"] == (
        "something else\npanic did not contain expected string\n"
        '      panic message: "something else"\n expected substring: "overflow"'
    )
    assert said["tests::refuses"] == "test did not panic as expected"
