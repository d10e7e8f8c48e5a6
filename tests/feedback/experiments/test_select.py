"""Command lines that run a part of a check."""

import pytest

from cloister.feedback.check_commands import specify
from cloister.feedback.experiments.select import only

PYTHON = ("tests/test_a.py", "tests/sub/test b.py")


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("pytest", "pytest --maxfail=0 tests/test_a.py 'tests/sub/test b.py'"),
        (
            "python3 -m pytest -q tests",
            "python3 -m pytest -q --maxfail=0 tests/test_a.py 'tests/sub/test b.py'",
        ),
        ("uv run pytest -x ./tests/", "uv run pytest -x --maxfail=0 tests/test_a.py 'tests/sub/test b.py'"),
        (
            "A=1 pytest -k tests -p tests --cov tests tests/test_a.py::test_x",
            "A=1 pytest -k tests -p tests --cov tests --maxfail=0 tests/test_a.py 'tests/sub/test b.py'",
        ),
        (
            "pytest -c cfg/pytest.ini -m 'not slow' other tests",
            "pytest -c cfg/pytest.ini -m 'not slow' other --maxfail=0 tests/test_a.py 'tests/sub/test b.py'",
        ),
        (
            "python3 -m unittest discover -s tests -t . -f -p 'test*.py'",
            "python3 -m unittest discover -s tests -t . -p 'test*.py'",
        ),
        ("python3 -m unittest -v", "python3 -m unittest discover -v -p 'test*.py'"),
    ],
)
def test_python_checks_run_only_the_files(command: str, line: str) -> None:
    assert only(specify(command), PYTHON) == line


def test_one_file_of_unittest() -> None:
    assert only(specify("python3 -m unittest discover -s tests"), ["tests/test_a.py"]) == (
        "python3 -m unittest discover -s tests -p test_a.py"
    )
    assert only(specify("python3 -m unittest -v tests.test_b"), ["tests/test_a.py"]) == (
        "python3 -m unittest -v tests.test_a"
    )


@pytest.mark.parametrize(
    "command", ["make test", "tox", "./run-tests", "pytest; true", "pytest $ARGS", "ruff check", "pytest 'a"]
)
def test_other_commands_cannot_be_restricted(command: str) -> None:
    assert only(specify(command), PYTHON) is None


@pytest.mark.parametrize("name", ["-x", "--pyargs", "/etc/passwd", "../x.py", "a/../../x.py", "a\nb.py", ""])
def test_name_that_a_tool_could_misread_is_refused(name: str) -> None:
    assert only(specify("pytest"), [name]) is None
    assert only(specify("pytest"), []) is None


def test_name_with_shell_characters_stays_one_word() -> None:
    assert only(specify("pytest"), ["tests/$(id);`id`'.py"]) == (
        "pytest --maxfail=0 'tests/$(id);`id`'\"'\"'.py'"
    )
