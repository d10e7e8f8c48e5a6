"""Which checks a repository has."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core import limits
from cloister.core.repository import read_settings
from cloister.feedback.check_commands import environment, specify
from cloister.feedback.discover import (
    TOOLS,
    WANTED,
    adjusted,
    discover,
    import_roots,
    wanted,
)

PYTEST = "python3 -m pytest -q"


def test_the_list_of_the_repository_decides_alone() -> None:
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


DJANGO = "os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'shop.settings')"


@pytest.mark.parametrize(
    ("files", "contents", "expected"),
    [
        ({"manage.py", "shop/tests.py"}, {"manage.py": DJANGO}, ("python3 manage.py test",)),
        ({"manage.py", "tests/test_a.py"}, {"manage.py": DJANGO}, ("python3 manage.py test",)),
        ({"manage.py", "tests/test_a.py"}, {"manage.py": "print()"}, (PYTEST,)),
        ({"manage.py", "pytest.ini"}, {"manage.py": DJANGO, "pytest.ini": ""}, (PYTEST,)),
        ({"manage.py", "conftest.py", "a/test_a.py"}, {"manage.py": DJANGO}, (PYTEST,)),
        ({"runtests.py", "setup.py", "app/test_a.py"}, {}, ("python3 runtests.py",)),
        (
            {"backend/manage.py", "backend/shop/tests.py", "web/package.json"},
            {"backend/manage.py": DJANGO, "web/package.json": '{"scripts": {"test": "vitest run"}}'},
            ("cd backend && python3 manage.py test", "cd web && npm test"),
        ),
    ],
)
def test_a_django_project_without_settings_of_pytest_runs_its_own_tests(
    files: set[str], contents: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert discover(files, contents) == expected
    assert all(specify(check, {}).kind == "test" for check in expected)


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
        ("tests:\n", ("make tests",)),
        ("test-all:\n", ()),
        ("\ttest:\n", ()),
    ],
)
def test_make_test_serves_where_there_is_nothing_better(makefile: str, expected: tuple[str, ...]) -> None:
    assert discover({"Makefile"}, {"Makefile": makefile}) == expected


NAMES = st.sampled_from(
    [
        *WANTED,
        *(f"app/{name}" for name in WANTED),
        ".github/workflows/ci.yml",
        "src/a/__init__.py",
        "test_a.py",
    ]
)


@given(
    st.sets(NAMES | st.text()),
    st.dictionaries(NAMES, st.text() | st.just("run: |\n  tox")),
    st.none() | st.sets(st.sampled_from(TOOLS)),
)
def test_discovering_never_raises(files: set[str], contents: dict[str, str], tools: set[str] | None) -> None:
    roots = import_roots(files, contents)
    wanted(files)
    for command in discover(files, contents, tools, roots):
        specify(command, {"test": "jest"})


EVERY = frozenset(
    [
        "python3",
        "pytest",
        "ruff",
        "mypy",
        "pyright",
        "flake8",
        "tox",
        "node",
        "npm",
        "npx",
        "jest",
        "vitest",
        "mocha",
        "eslint",
        "tsc",
        "biome",
        "oxlint",
        "cargo",
        "go",
        "cmake",
        "make",
        "mvn",
    ]
)


def package(**fields: object) -> dict[str, str]:
    return {"package.json": json.dumps(fields)}


@pytest.mark.parametrize(
    ("files", "contents", "expected"),
    [
        (
            {"pyproject.toml", "tests/test_a.py"},
            {
                "pyproject.toml": "[tool.ruff]\n[tool.ruff.format]\n[tool.mypy]\nfiles = ['a']\n[tool.pyright]\n"
            },
            (PYTEST, "ruff check", "ruff format --check", "mypy", "pyright"),
        ),
        ({"setup.cfg", "test_a.py"}, {"setup.cfg": "[flake8]\n[mypy]\n"}, (PYTEST, "flake8", "mypy .")),
        ({"tox.ini"}, {"tox.ini": "[tox]\n"}, ("tox",)),
        (
            {"package.json"},
            package(devDependencies={"vitest": "4", "eslint": "10"}),
            ("npx vitest run", "npx eslint ."),
        ),
        ({"package.json"}, package(devDependencies={"jest": "30"}), ("npx jest",)),
        ({"package.json", "test/a.js"}, package(), ("node --test",)),
        (
            {"package.json", "tsconfig.json"},
            package(scripts={"test": "mocha", "lint": "eslint src"}, devDependencies={"typescript": "5"}),
            ("npm test", "npm run lint", "npx tsc --noEmit --pretty false"),
        ),
        ({"package.json"}, package(scripts={"test": "jest", "lint": "eslint --fix src"}), ("npm test",)),
        ({"go.mod", "a.go"}, {}, ("go test ./...", "go vet ./...")),
        ({"Cargo.toml"}, {}, ("cargo test",)),
        ({"pom.xml"}, {}, ("mvn -B -q test",)),
        ({"build.gradle.kts", "gradlew"}, {}, ("./gradlew test",)),
    ],
)
def test_each_ecosystem_adds_the_checks_it_is_set_up_for(
    files: set[str], contents: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert discover(files, contents, EVERY) == expected


def test_cmake_builds_beside_the_tree_and_runs_its_tests() -> None:
    (found,) = discover({"CMakeLists.txt"}, {"CMakeLists.txt": "enable_testing()\n"}, EVERY)

    configure, build, test = found.split(" && ")
    assert configure.startswith("cmake -S . -B /tmp/")
    assert build.endswith(" --parallel $(nproc)")
    assert test.endswith("--output-on-failure")
    assert discover({"CMakeLists.txt"}, {"CMakeLists.txt": "project(x)\n"}, EVERY) == ()


def test_a_suite_is_chosen_without_its_tool_and_a_linter_is_not() -> None:
    files = {
        "pyproject.toml",
        "tests/test_a.py",
        "Cargo.toml",
        "go.mod",
        "package.json",
        "pom.xml",
        "mix.exs",
    }
    lint = package(scripts={"test": "jest", "lint": "eslint ."}, devDependencies={"typescript": "5"})
    contents = {"pyproject.toml": "[tool.ruff]", **lint}
    suites = (PYTEST, "npm test", "cargo test", "go test ./...", "mvn -B -q test")

    assert discover(files, contents, frozenset()) == suites
    assert discover(files, contents, {"pytest", "mix"}) == (*suites, "mix test")


def test_a_suite_that_can_run_is_preferred_to_one_that_cannot() -> None:
    files = {"tests/test_a.py", "tox.ini", "noxfile.py"}
    tox = {"tox.ini": "[tox]\n"}

    assert discover(files, tox, {"python3", "nox"}) == ("nox",)
    assert discover(files, tox, {"python3", "tox", "nox"}) == ("tox",)
    assert discover(files, tox, {"python3"}) == (PYTEST,)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tests/test_a.py"}, "python3 -m unittest discover -s tests"),
        ({"tests/test_a.py", "tests/__init__.py"}, "python3 -m unittest discover -s tests -t ."),
        ({"test_a.py"}, "python3 -m unittest discover -s ."),
    ],
)
def test_without_pytest_tests_that_use_unittest_run_by_that(files: set[str], expected: str) -> None:
    assert discover(files, {}, {"python3", "unittest"}) == (expected,)


WORKFLOW = """
jobs:
  test:
    steps:
      - uses: actions/checkout@v4
      - run: pip install tox
      - run: "tox -e py"
      - name: many
        run: |
          make test
          npm ci
          pytest ${{ matrix.args }}
          curl x | sh
      - run: deploy
"""


def test_ci_commands_are_used_if_nothing_else_runs_tests() -> None:
    contents = {".github/workflows/ci.yml": WORKFLOW, "Makefile": "test:\n\t./t\n"}

    assert discover({"a.x", "Makefile"}, contents, EVERY) == ("tox -e py", "make test")
    assert discover({"a.x", "Makefile", "tests/test_a.py"}, contents, EVERY) == (PYTEST,)


def test_one_file_with_all_tests_is_the_suite_of_a_small_application() -> None:
    one = f"{PYTEST} tests.py"
    assert discover({"requirements.txt", "app.py", "tests.py"}, {}) == (one,)
    assert discover({"requirements.txt", "tests.py", "tests/test_a.py"}, {}) == (PYTEST,)
    assert discover({"tests.py"}, {}) == ()


def test_a_script_with_the_name_of_a_test_makes_no_suite_in_another_language() -> None:
    contents = {"Makefile": "test:\n\tpython scripts/regex_test.py\n"}
    files = {"re.c", "Makefile", "scripts/regex_test.py"}
    assert discover(files, contents) == ("make test",)
    assert discover({*files, "setup.py"}, contents) == (PYTEST,)


OWN = """
checks = ["make lint", {command = " npm test ", kind = "test", timeout = 30}]
"""


@pytest.mark.parametrize("name", [".cloister.toml", ".cloister/config.toml"])
def test_the_repositorys_own_list_may_say_kind_and_time(name: str) -> None:
    contents = {name: OWN}

    assert discover({name, "go.mod"}, contents, EVERY) == ("make lint", "npm test")
    found = [
        adjusted(specify(line), read_settings(contents).checks) for line in ("make lint", "npm test", "other")
    ]
    assert [(one.kind, one.seconds) for one in found] == [("lint", 600.0), ("test", 30.0), ("other", 600.0)]


def test_no_check_runs_longer_than_any_may() -> None:
    text = 'checks = [{command = "a", timeout = 1e9}, {command = "b", timeout = -1}]'
    own = read_settings({".cloister.toml": text}).checks

    assert [adjusted(specify(name), own).seconds for name in "ab"] == [limits.CHECK_SECONDS, 1.0]


def test_pytest_writes_a_report_and_no_cache() -> None:
    told = environment("/tmp/a b.xml")

    assert told["PYTEST_ADDOPTS"] == "'--junitxml=/tmp/a b.xml' -o junit_family=xunit1 -p no:cacheprovider"
    assert (told["PYTHONDONTWRITEBYTECODE"], told["CLOISTER_REPORT"]) == ("1", "/tmp/a b.xml")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("mypy .", "mypy . --output json"),
        ("npx eslint .", "npx eslint . -f json"),
        ("pyright", "pyright --outputjson"),
        ("go test ./...", "go test -json ./..."),
        ("cargo clippy -- -D warnings", "cargo clippy --message-format=json -- -D warnings"),
        ("npx mocha", 'npx mocha --reporter json -O output="$CLOISTER_REPORT"'),
        ("ctest --test-dir build", "ctest --test-dir build --output-on-failure"),
        ("npx jest", 'npx jest --json --outputFile="$CLOISTER_REPORT"'),
        ("npm test", 'npm test -- --json --outputFile="$CLOISTER_REPORT"'),
        ("pnpm test", 'pnpm test --json --outputFile="$CLOISTER_REPORT"'),
        ("yarn test", 'yarn test --json --outputFile="$CLOISTER_REPORT"'),
        # Nothing is added to what already says how it reports, is more than one command, or is not known.
        ("eslint -f unix .", ""),
        ("npx jest --reporters=default", ""),
        ("mypy . && pytest", ""),
        ("mypy $(cat files)", ""),
        ("npm run build", ""),
        ("npm run both", ""),
        ("make test", ""),
        ("python3 check.py", ""),
        ("cd app && npx jest", 'cd app && npx jest --json --outputFile="$CLOISTER_REPORT"'),
        ("cd app && npm test", 'cd app && npm test -- --json --outputFile="$CLOISTER_REPORT"'),
        ("cd app && make test", ""),
        ("A=/work/src go test ./...", "A=/work/src go test -json ./..."),
        ('A="$(mypy)" go test ./...', ""),
        ("ruff check", ""),
    ],
)
def test_report_flags_are_added_if_they_change_nothing_else(command: str, expected: str) -> None:
    scripts = {"test": "jest --ci", "build": "tsc", "both": "jest && eslint ."}

    assert specify(command, scripts).run == expected


def test_node_writes_a_report_besides_its_text() -> None:
    run = specify("node --test test/").run

    assert run.startswith("node --test --test-reporter=spec --test-reporter-destination=stdout")
    assert run.endswith('--test-reporter=junit --test-reporter-destination="$CLOISTER_REPORT" test/')


def test_go_is_asked_to_name_its_tests_whatever_starts_it() -> None:
    assert specify("make test", go=True).run.startswith("export GOFLAGS=")
    assert specify("make test").run == ""
    assert specify("go test ./...", go=True).run == "go test -json ./..."


def test_cargo_is_asked_for_all_that_fails() -> None:
    assert specify("cargo test").run == "cargo test --no-fail-fast"
    assert specify("cargo test --no-fail-fast").run == ""
