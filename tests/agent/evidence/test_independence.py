"""What a trace says about old failures: whether they execute a changed line, or that it cannot be known."""

import json
import shutil
import subprocess
from pathlib import Path

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
        (b'{"loaded": ["t.js"], "odd": [], "ranges": [], "unknown": true}', None),
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
    [
        (jest(0, 0), False),
        (jest(1, 0), True),
        (jest(0, 1), True),
        (b"jest{}", None),
        (b"jest", None),
        (
            jest(0, 0).replace(b': 1}, "fnMap', b': 0}, "fnMap').replace(b'"s": {"0": 1', b'"s": {"0": 0'),
            None,
        ),
    ],
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


def traced(root: Path, command: str, tests: tuple[str, ...], changed: Version) -> bool | None:
    """What the programs of this machine tell about a run of the tests in `root`."""
    place = root.parent / "place"
    place.mkdir()
    how = tracer(str(root), str(place), (changed,))
    assert how is not None
    if how.write:
        (place / how.write[0]).write_text(how.write[1])
    subprocess.run(("bash", "-c", how.line(command)), cwd=root, capture_output=True, check=False)
    read = subprocess.run(("bash", "-c", how.read, "bash", str(place)), capture_output=True, check=False)
    return how.executed(read.stdout, tests)


def repository(tmp_path: Path, files: dict[str, str]) -> Path:
    root = tmp_path / "work"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(("git", "init", "-q", str(root)), check=True)
    return root


RETURN = "if (x >= 3) return 'a';"
ITSELF = "require('./a').kind(2);\n"
CHILD = "require('child_process').spawnSync(process.execPath, ['%s'%s]);\n"


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize(
    ("line", "test", "expected"),
    [
        (RETURN, ITSELF, True),
        ("let y = x >= 3 ? 'a' : 'b';", ITSELF, True),
        ("x >= 3 && side();", ITSELF, True),
        (RETURN, "require('./a');\n", False),
        (RETURN, "1;\n", False),
        (RETURN, CHILD % ("b.js", ""), True),
        (RETURN, "const { port } = require('./dist/a');\nport;\n", None),
        (RETURN, "require('./mapped');\n", None),
        (RETURN, CHILD % ("b.js", ", 'end'"), None),
    ],
)
def test_line_of_a_script_counts_if_any_part_of_it_was_entered(
    tmp_path: Path, line: str, test: str, expected: bool | None
) -> None:
    text = "function kind(x) {\n  HERE\n  return 'c';\n}\nmodule.exports = { kind };\n"
    new = text.replace("HERE", line)
    end = "if (process.argv[2]) require('child_process').execSync(`kill -9 ${process.pid}`);\n"
    files = {
        "a.js": new,
        "t.js": test,
        "b.js": ITSELF + end,
        "dist/a.js": new,
        ".gitignore": "dist\n",
        "mapped.js": new + "//# sourceMappingURL=mapped.js.map\n",
    }
    root = repository(tmp_path, files)

    found = traced(root, "node t.js", ("t.js",), Version("a.js", text.replace("HERE", "side();"), new))

    assert found is expected


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize(
    ("body", "expected"), [("throw new Error()", False), ("require('./a').add(1, 2)", True)]
)
def test_runner_of_node_itself_needs_no_coverage(tmp_path: Path, body: str, expected: bool) -> None:
    test = f"require('node:test')('a', () => {{ {body}; }});\n"
    root = repository(tmp_path, {"a.js": SCRIPT.after or "", "a.test.js": test})

    assert traced(root, "node --test", ("a.test.js",), SCRIPT) is expected


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_program_that_tests_of_jest_start_is_not_counted_so_nothing_is_known(tmp_path: Path) -> None:
    """The stand-in for Jest writes its coverage, and starts a program as a worker does."""
    report = json.dumps(json.loads(jest(0, 0)[4:])).replace("/work/", f"{tmp_path}/work/")
    start = "process.env.JEST_WORKER_ID = '1';\n" + CHILD % ("b.js", "")
    write = f"require('fs').mkdirSync('{tmp_path}/place/jest');\n"
    write += f"require('fs').writeFileSync('{tmp_path}/place/jest/coverage-final.json', `{report}`);\n"
    command = "node t.js --json --outputFile=/dev/null"
    found: list[bool | None] = []
    for name, text in (("with", start + write), ("without", write)):
        root = repository(tmp_path, {"a.js": SCRIPT.after or "", "b.js": "", "t.js": text})
        found.append(traced(root, command, ("t.js",), SCRIPT))
        (tmp_path / "place").rename(tmp_path / name)

    assert found == [None, False]


@pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")
@pytest.mark.parametrize(
    ("end", "command", "expected"),
    [
        ("t.Fail()", "go test ./...", True),
        ('panic("x")', "go test ./...", None),
        ("os.Exit(1)", "go test ./...", None),
        ("t.Fail()", "go test ./a; go test ./b", True),
        ("t.Fail()", "go test ./b", False),
    ],
)
def test_test_binary_of_go_that_writes_no_profile_may_have_executed_the_change(
    tmp_path: Path, end: str, command: str, expected: bool | None
) -> None:
    new = "package c\n\nfunc C() int {\n\treturn 2\n}\n"
    files = {
        "go.mod": "module example.org/m\n\ngo 1.18\n",
        "c/c.go": new,
        "a/a_test.go": (
            'package a\n\nimport (\n\t"os"\n\t"testing"\n\n\t"example.org/m/c"\n)\n\nvar _ = os.Args\n\n'
            f"func TestA(t *testing.T) {{\n\tc.C()\n\t{end}\n}}\n"
        ),
        "b/b_test.go": (
            'package b\n\nimport (\n\t"testing"\n\n\t_ "example.org/m/c"\n)\n\n'
            "func TestB(t *testing.T) {\n\tt.Fail()\n}\n"
        ),
    }

    found = traced(repository(tmp_path, files), command, (), Version("c/c.go", new.replace("2", "1"), new))

    assert found is expected
