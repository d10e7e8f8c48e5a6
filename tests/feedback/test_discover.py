"""Which checks a repository has."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.feedback.discover import WANTED, discover
from cloister.feedback.flags import environment

PYTEST = "python3 -m pytest -q"


def test_what_the_repository_says_itself_is_the_whole_answer() -> None:
    contents = {".cloister.toml": 'checks = ["make lint", " ", "tox"]', "go.mod": "module x"}

    assert discover({".cloister.toml", "go.mod", "tests/test_a.py"}, contents) == ("make lint", "tox")


@pytest.mark.parametrize("text", ["checks = 3", "checks = [", "checks = []", "\x00", "[" * 5_000])
def test_a_broken_own_file_is_as_none(text: str) -> None:
    assert discover({".cloister.toml", "tests/test_a.py"}, {".cloister.toml": text}) == (PYTEST,)


@pytest.mark.parametrize(
    ("files", "contents"),
    [
        ({"tests/test_a.py"}, {}),
        ({"test_a.py"}, {}),
        ({"pkg/a_test.py"}, {}),
        ({"pytest.ini"}, {"pytest.ini": ""}),
        ({"pyproject.toml"}, {"pyproject.toml": "[tool.pytest.ini_options]"}),
        ({"setup.cfg"}, {"setup.cfg": "[tool:pytest]\n"}),
        ({"tox.ini"}, {"tox.ini": "[pytest]\n"}),
    ],
)
def test_python_tests_or_their_configuration_mean_pytest(files: set[str], contents: dict[str, str]) -> None:
    assert discover(files, contents) == (PYTEST,)


@pytest.mark.parametrize("files", [{"a.py"}, {"latest.py"}, {"tests/__init__.py"}, {"a/b/c/d/test_x.py"}])
def test_python_without_tests_has_no_check(files: set[str]) -> None:
    assert discover(files, {}) == ()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("vitest run", ("npm test",)),
        ('echo "Error: no test specified" && exit 1', ()),
        ("", ()),
        (3, ()),
    ],
)
def test_npm_test_needs_a_real_script(script: object, expected: tuple[str, ...]) -> None:
    contents = {"package.json": json.dumps({"scripts": {"test": script}})}

    assert discover({"package.json"}, contents) == expected


def test_every_ecosystem_present_adds_its_runner() -> None:
    files = {"Cargo.toml", "go.mod", "Makefile", "tests/test_a.py"}

    assert discover(files, {"Makefile": "test:\n\tgo test\n"}) == (PYTEST, "cargo test", "go test ./...")


@pytest.mark.parametrize(
    ("makefile", "expected"),
    [
        ("all:\n\techo\ntest: all\n\t./run\n", ("make test",)),
        ("test := 1\n", ()),
        ("tests:\n", ()),
        ("\ttest:\n", ()),
    ],
)
def test_make_test_serves_where_there_is_nothing_better(makefile: str, expected: tuple[str, ...]) -> None:
    assert discover({"Makefile"}, {"Makefile": makefile}) == expected


@given(st.sets(st.sampled_from(WANTED) | st.text()), st.dictionaries(st.sampled_from(WANTED), st.text()))
def test_discovering_never_raises(files: set[str], contents: dict[str, str]) -> None:
    discover(files, contents)


def test_pytest_is_told_to_leave_a_report_and_no_cache() -> None:
    assert environment("/tmp/a b.xml") == {
        "PYTEST_ADDOPTS": "'--junitxml=/tmp/a b.xml' -o junit_family=xunit1 -p no:cacheprovider",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
