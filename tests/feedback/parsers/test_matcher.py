"""Problem matchers that a repository brings along."""

import json
import time

from tests.feedback.captures import captured

from cloister.core.diagnosis import Diagnostic
from cloister.feedback.api import CheckOutput
from cloister.feedback.diagnose import diagnose
from cloister.feedback.parsers.lint.problem_matcher import matchers


def output(text: bytes, *patterns: dict[str, object], severity: str = "error") -> CheckOutput:
    file = {"problemMatcher": [{"owner": "own", "severity": severity, "pattern": list(patterns)}]}
    return CheckOutput("own", 1, None, 1.0, text, b"", (), (json.dumps(file).encode(),))


def test_a_problem_matcher_describes_an_unknown_tool() -> None:
    pattern: dict[str, object] = {"regexp": r"^<(\w+)> (.+)\[(\d+)/(\d+)\] #(\w+) (.*)$"}
    pattern |= {"severity": 1, "file": 2, "line": 3, "column": 4, "code": 5, "message": 6}

    found = matchers(output(b"noise\n<WARNING> src/a.x[3/7] #Q1 not so\n", pattern))

    assert found is not None
    assert found.diagnostics == (Diagnostic("not so", "src/a.x", 3, 7, "warning", "Q1", "own"),)


def test_a_matcher_over_several_lines_loops_over_its_last() -> None:
    """The shape that GitHub documents for eslint, on what eslint printed."""
    file: dict[str, object] = {"regexp": r"^([^\s].*)$", "file": 1}
    line: dict[str, object] = {"regexp": r"^\s+(\d+):(\d+)\s+(error|warning)\s+(.*?)(?:\s\s+(\S+))?$"}
    line |= {"line": 1, "column": 2, "severity": 3, "message": 4, "code": 5, "loop": True}

    found = matchers(output(captured("eslint_text.out"), file, line))

    assert found is not None
    assert [(d.file, d.line, d.severity, d.code) for d in found.diagnostics] == [
        ("src/a.js", 1, "warning", "no-var"),
        ("src/a.js", 1, "error", "no-unused-vars"),
        ("src/a.js", 3, "error", "no-debugger"),
        ("src/a.js", 4, "error", "no-undef"),
        ("src/a.js", 5, "error", "no-unused-vars"),
        ("src/b.js", 2, "error", None),
    ]


def test_matches_are_part_of_the_diagnosis() -> None:
    found = diagnose(
        output(
            b"oops at a.q line 4", {"regexp": r"oops at (\S+) line (\d+)", "file": 1, "line": 2, "message": 1}
        )
    )

    assert [(d.file, d.line, d.tool) for d in found.diagnostics] == [("a.q", 4, "own")]


def test_an_expression_that_would_backtrack_forever_elsewhere_takes_no_time() -> None:
    started = time.process_time()
    found = matchers(
        output(
            b"a" * 1_900 + b"!\n" + (b"a" * 1_900 + b"!\n") * 200,
            {"regexp": "^(a|a)*(a|a)*(a+)+$", "message": 1},
        )
    )

    assert found is None
    assert time.process_time() - started < 2


def test_an_expression_that_cannot_be_had_in_linear_time_is_left_out() -> None:
    for expression in (r"(?=a)", r"(a)\1", "(", "a{1000}{1000}", "x" * 5_000):
        assert matchers(output(b"aa\n", {"regexp": expression, "message": 1})) is None


def test_a_broken_file_is_as_none() -> None:
    for data in (
        b"",
        b"{",
        b'{"problemMatcher":3}',
        b'{"problemMatcher":[{"owner":"a","pattern":[]}]}',
        b"\xff",
    ):
        assert matchers(CheckOutput("x", 1, None, 1.0, b"a", b"", (), (data,))) is None
