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
            "A=1 pytest -p tests --cov tests --maxfail=0 tests/test_a.py 'tests/sub/test b.py'",
        ),
        (
            "pytest -c cfg/pytest.ini -m 'not slow' -k 'not net' other tests",
            "pytest -c cfg/pytest.ini -m 'not slow' -k 'not net' other --maxfail=0 tests/test_a.py 'tests/sub/test b.py'",
        ),
        (
            "python3 -m unittest discover -s tests -t . -f -p 'test*.py'",
            "python3 -m unittest discover -s tests -t . -p 'test*.py'",
        ),
        ("python3 -m unittest -v -k half", "python3 -m unittest discover -v -p 'test*.py'"),
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


TO = '"$CLOISTER_REPORT"'


@pytest.mark.parametrize(
    ("command", "files", "line"),
    [
        (
            "npx jest src",
            ["src/a.test.js"],
            f"npx jest --bail=0 --runTestsByPath src/a.test.js --json --outputFile={TO}",
        ),
        (
            "jest --bail 3 -c jest.config.js -t adds",
            ["src/(a).test.js"],
            f"jest -c jest.config.js --bail=0 --runTestsByPath 'src/(a).test.js' --json --outputFile={TO}",
        ),
        (
            "npx vitest run",
            ["a.test.ts"],
            f"npx vitest run --bail=0 a.test.ts --reporter=default --reporter=json --outputFile.json={TO}",
        ),
        (
            "mocha -b 'test/**/*.js' --grep='a b' -r ts-node/register",
            ["test/a/b.js"],
            f"mocha -r ts-node/register --no-bail test/a/b.js --reporter json -O output={TO}",
        ),
        (
            "node --test test/",
            ["test/a.js"],
            f"node --test --test-reporter=spec --test-reporter-destination=stdout --test-reporter=junit --test-reporter-destination={TO} test/a.js",
        ),
        ("npx ava", ["test/a.js"], "npx ava test/a.js"),
        ("go test ./...", ["a_test.go", "b/c/d_test.go"], "go test -json . ./b/c"),
        (
            "CGO_ENABLED=0 go test -race -tags x -timeout 5m -failfast -skip TestY -run TestX ./...",
            ["b/c_test.go"],
            "CGO_ENABLED=0 go test -json -race -tags x -timeout 5m -skip TestY ./b",
        ),
        ("cargo test", ["tests/a.rs"], "cargo test --no-fail-fast --test a"),
        (
            "cargo test --workspace --features=x -- --test-threads=1",
            ["tests/a.rs", "tests/b/main.rs"],
            "cargo test --no-fail-fast --workspace --features=x --test a --test b -- --test-threads=1",
        ),
        ("cargo test", ["src/lib.rs"], "cargo test --no-fail-fast --lib"),
        (
            "mvn -B -q test",
            ["src/test/java/a/FooTest.java", "m/src/test/java/BarIT.java"],
            "mvn -B -q test -Dtest=FooTest,BarIT -DfailIfNoTests=false -Dsurefire.failIfNoSpecifiedTests=false",
        ),
        ("./gradlew test", ["src/test/java/a/FooTest.java"], "./gradlew :test --tests '*FooTest'"),
        (
            "gradle --info test",
            ["m/n/src/test/kotlin/FooTest.kt"],
            "gradle --info :m:n:test --tests '*FooTest'",
        ),
        ("npm run build && npx ava", ["test/a.js"], "npm run build && npx ava test/a.js"),
    ],
)
def test_other_languages_run_only_the_files(command: str, files: list[str], line: str) -> None:
    assert only(specify(command), files) == line


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("jest", f"npm test -- --json --outputFile={TO} --bail=0 'src/\\(a\\).test.js'"),
        (
            "vitest run",
            f"npm test -- --reporter=default --reporter=json --outputFile.json={TO} --bail=0 'src/(a).test.js'",
        ),
        ("mocha", None),
        ("tape test/*.js", None),
    ],
)
def test_script_of_a_package_gets_the_files_if_its_runner_is_known(script: str, line: str | None) -> None:
    assert only(specify("npm test", {"test": script}), ["src/(a).test.js"]) == line


@pytest.mark.parametrize(
    ("command", "file", "names", "line"),
    [
        (
            "pytest -q",
            "tests/test_a.py",
            ["tests/test_a.py::TestA::test_b[1/2.5]", "ab12"],
            "pytest -q --maxfail=0 -k 'ab12 or test_b' tests/test_a.py",
        ),
        ("pytest", "tests/test_a.py", ["tests/test_a.py"], "pytest --maxfail=0 tests/test_a.py"),
        (
            "python3 -m unittest",
            "test_a.py",
            ["test_a.A.test_b", "ab12"],
            "python3 -m unittest discover -k ab12 -k test_b -p test_a.py",
        ),
        (
            "mocha",
            "test/a.js",
            ["list > is 1.5 (or more)", "ab12"],
            "mocha --no-bail -g 'ab12|is 1\\.5 \\(or more\\)' test/a.js --reporter json -O output=\"$CLOISTER_REPORT\"",
        ),
    ],
)
def test_runners_that_can_run_only_the_named_tests(
    command: str, file: str, names: list[str], line: str
) -> None:
    assert only(specify(command), [file], names) == line


def test_go_runs_only_the_named_tests() -> None:
    names = ["example.com/a::TestA/part", "example.com/a::TestB"]
    assert only(specify("go test ./..."), ["a_test.go"], names) == "go test -json -run 'TestA|TestB' ."


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("cargo test", "src/a.rs"),
        ("cargo test --test b", "tests/a.rs"),
        ("gradle build test", "src/test/java/ATest.java"),
        ("cd sub && npx ava", "test/a.js"),
        ("go test ./... -args -x", "a_test.go"),
        ("cmake -S . -B b && ctest --test-dir b", "tests/a.c"),
    ],
)
def test_check_that_cannot_be_restricted_safely_runs_as_a_whole(command: str, file: str) -> None:
    assert only(specify(command), [file]) is None


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
