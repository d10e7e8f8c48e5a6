"""What a trace says about old failures: whether they execute a changed line, or that it cannot be known."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.feedback.experiments.coverage import Tracer, tracer
from cloister.feedback.integrity.versions import Version

GO = Version(
    "sub/parse.go",
    "package sub\n\nfunc A() int {\n\treturn 1\n}\n",
    'package sub\n\nimport (\n\t"fmt"\n)\n\n// A is more.\nfunc A() int {\n\treturn 2\n}\n',
)
MODE, FILE = "mode: set\n", "example.org/m/sub/parse.go"
SCRIPT = Version(
    "a.js",
    "const half = (x) => x / 3;\nfunction add(a, b) {\n  return a - b;\n}\nmodule.exports = { add };\n",
    "const half = (x) => x / 2;\nfunction add(a, b) {\n  return a + b;\n}\nmodule.exports = { add, half };\n",
)
ADD, ALL = (SCRIPT.after or "").index("function add"), len(SCRIPT.after or "")


def reader(*changed: Version) -> Tracer:
    found = tracer("/work", "/tmp/place", changed)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (f"{MODE}{FILE}:8.14,10.2 1 0\n", False),
        (f"{MODE}{FILE}:8.14,10.2 1 3\n", True),
        (f"{MODE}{FILE}:8.14,10.2 1 0\n{FILE}:8.14,10.2 1 1\n", True),
        (f"{MODE}example.org/m/other/sub/parse.go:8.14,10.2 1 3\n{FILE}:8.14,10.2 1 0\n", False),
        (MODE, None),
        ("", None),
    ],
)
def test_profile_of_go_tells_which_changed_lines_were_entered(profile: str, expected: bool | None) -> None:
    assert reader(GO).executed(profile.encode(), ()) is expected


def test_constant_of_a_go_package_is_in_no_block_so_nothing_is_known() -> None:
    constant = Version(GO.path, "package sub\n\nconst a = 1\n", "package sub\n\nconst a = 2\n")

    assert reader(constant).executed(f"{MODE}{FILE}:8.14,10.2 1 0\n".encode(), ()) is None


def v8(*counts: int, loaded: tuple[str, ...] = ("a.js", "t.js"), odd: tuple[str, ...] = ()) -> bytes:
    half, add = counts
    ranges = [[0, ALL, 1], [13, 25, half], [ADD, ALL - 33, add]]
    return json.dumps({"loaded": loaded, "odd": odd, "ranges": [["a.js", ranges]]}).encode()


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (v8(0, 0), False),
        (v8(1, 0), True),
        (v8(0, 1), True),
        (v8(0, 0, loaded=("a.js",)), None),
        (v8(0, 0, loaded=("t.js",), odd=("a.js",)), None),
        (b'{"loaded": ["t.js"], "odd": [], "ranges": []}', False),
        (b"", None),
    ],
)
def test_coverage_of_v8_counts_if_the_files_of_the_tests_are_in_it(
    report: bytes, expected: bool | None
) -> None:
    assert reader(SCRIPT).executed(report, ("t.js",)) is expected


def jest(half: int, add: int) -> bytes:
    def span(first: int, last: int) -> dict[str, dict[str, int]]:
        return {"start": {"line": first, "column": 0}, "end": {"line": last, "column": 9}}

    file = {
        "statementMap": {"0": span(1, 1), "1": span(1, 1), "2": span(3, 3), "3": span(5, 5)},
        "s": {"0": 1, "1": half, "2": add, "3": 1},
        "fnMap": {"0": {"decl": span(1, 1), "loc": span(1, 1)}, "1": {"decl": span(2, 2), "loc": span(2, 4)}},
        "f": {"0": half, "1": add},
    }
    return b"jest" + json.dumps({"/work/a.js": file}).encode()


@pytest.mark.parametrize(
    ("report", "expected"),
    [(jest(0, 0), False), (jest(1, 0), True), (jest(0, 1), True), (b"jest{}", None), (b"jest", None)],
)
def test_coverage_of_jest_counts_the_innermost_statement(report: bytes, expected: bool | None) -> None:
    assert reader(SCRIPT).executed(report, ("t.js",)) is expected


def test_change_in_two_languages_or_in_one_without_a_tracer_cannot_be_traced() -> None:
    assert tracer("/work", "/tmp/place", (GO, SCRIPT)) is None
    assert tracer("/work", "/tmp/place", (Version("src/lib.rs", "", "fn a() {}\n"),)) is None


@given(st.binary(max_size=200), st.sampled_from([GO, SCRIPT, Version("a.py", "x = 1\n", "x = 2\n")]))
def test_any_trace_can_be_read(report: bytes, changed: Version) -> None:
    for head in (b"", b"jest", MODE.encode()):
        reader(changed).executed(head + report, ("t.js",))
