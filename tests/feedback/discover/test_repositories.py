"""The main suite of repositories that look like well-known public ones, with and without their tools."""

import json
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from cloister.feedback.check_commands import directory_of, kind_of
from cloister.feedback.discover import discover, import_roots, wanted

PYTEST = "python3 -m pytest -q"
CMAKE = (
    "cmake -S . -B /tmp/.cloister-build && cmake --build /tmp/.cloister-build --parallel $(nproc) && "
    "ctest --test-dir /tmp/.cloister-build --output-on-failure"
)
BASE = frozenset({"python3", "pytest", "make", "node", "npm"})
"""A sandbox with Python and node only."""


def scripts(**lines: str) -> str:
    return json.dumps({"scripts": lines})


class Repository(NamedTuple):
    """A listing: the files that matter, with the contents that matter."""

    files: Mapping[str, str]
    full: tuple[str, ...]
    """The tests, if every tool is installed."""
    bare: tuple[str, ...]
    """The tests in a sandbox with Python and node only."""


def same(files: Mapping[str, str], *found: str) -> Repository:
    return Repository(files, found, found)


YARN_CI = """
name: Node CI
jobs:
  prepare-yarn-cache:
    steps:
      - run: yarn install
  test-coverage:
    steps:
      - run: make test-cov
  external-parser-tests:
    steps:
      - run: make test-test262
"""

REPOSITORIES: dict[str, Repository] = {
    "flask": same(
        {"pyproject.toml": "[tool.pytest.ini_options]", "src/flask/__init__.py": "", "tests/test_cli.py": ""},
        PYTEST,
    ),
    "django": Repository(
        {
            "tox.ini": "[tox]\n[testenv]\n",
            "tests/runtests.py": "",
            "pyproject.toml": "",
            "package.json": scripts(test="grunt test"),
        },
        ("tox", "npm test"),
        ("tox", "npm test"),
    ),
    "babel: a yarn monorepo whose CI has only side jobs for make": Repository(
        {
            "package.json": json.dumps(
                {
                    "private": True,
                    "packageManager": "yarn@4.1.0",
                    "workspaces": ["packages/*", "codemods/*"],
                    "scripts": {"test": "make test", "lint": "make lint"},
                }
            ),
            "yarn.lock": "",
            "Makefile": "test:\n\tyarn jest\ntest-cov:\n\tx\ntest-test262:\n\tx\n",
            ".github/workflows/ci.yml": YARN_CI,
            "packages/babel-core/package.json": scripts(),
        },
        ("yarn test",),
        ("yarn test",),
    ),
    "a yarn monorepo without a script in its root": Repository(
        {
            "package.json": json.dumps({"private": True, "workspaces": ["packages/*"]}),
            "yarn.lock": "",
            "Makefile": "test-cov:\n\tx\ntest-test262:\n\tx\n",
            ".github/workflows/ci.yml": YARN_CI,
            "packages/core/package.json": scripts(test="jest"),
        },
        ("yarn workspaces run test",),
        ("yarn workspaces run test",),
    ),
    "a newer yarn": Repository(
        {
            "package.json": json.dumps({"workspaces": {"packages": ["packages/*"]}}),
            "yarn.lock": "",
            ".yarnrc.yml": "",
            "packages/core/package.json": scripts(test="jest"),
        },
        ("yarn workspaces foreach --all run test",),
        ("yarn workspaces foreach --all run test",),
    ),
    "vite: pnpm, whose script starts pnpm": Repository(
        {
            "package.json": scripts(test="pnpm test-unit && pnpm test-serve"),
            "pnpm-lock.yaml": "",
            "pnpm-workspace.yaml": "packages:\n  - packages/*\n",
            "packages/vite/package.json": scripts(build="x"),
        },
        ("pnpm test",),
        ("pnpm test",),
    ),
    "a pnpm workspace": Repository(
        {
            "package.json": scripts(build="turbo build"),
            "pnpm-workspace.yaml": "packages:\n  - apps/*\n",
            "apps/web/package.json": scripts(test="vitest run"),
        },
        ("pnpm --recursive --workspace-concurrency=1 --no-bail test",),
        ("pnpm --recursive --workspace-concurrency=1 --no-bail test",),
    ),
    "a pnpm workspace with turbo": Repository(
        {
            "package.json": json.dumps({"devDependencies": {"turbo": "2"}}),
            "pnpm-workspace.yaml": "packages:\n  - apps/*\n",
            "apps/web/package.json": scripts(test="vitest run"),
        },
        ("npx turbo run test",),
        ("pnpm --recursive --workspace-concurrency=1 --no-bail test",),
    ),
    "an npm workspace": same(
        {
            "package.json": json.dumps(
                {"workspaces": ["a"], "scripts": {"test": 'echo "no test specified"'}}
            ),
            "a/package.json": scripts(test="node --test"),
        },
        "npm test --workspaces --if-present",
    ),
    "a bun workspace": Repository(
        {
            "package.json": json.dumps({"workspaces": ["packages/*"]}),
            "bun.lock": "",
            "packages/a/package.json": scripts(test="bun test"),
        },
        ("bun run --filter '*' test",),
        ("bun run --filter '*' test",),
    ),
    "vue: pnpm, whose script npm can run": Repository(
        {
            "package.json": json.dumps({"packageManager": "pnpm@9.0.0", "scripts": {"test": "vitest"}}),
            "pnpm-lock.yaml": "",
        },
        ("pnpm test",),
        ("pnpm test",),
    ),
    "express": same({"package.json": scripts(test="mocha --check-leaks test/")}, "npm test"),
    "two lock files": Repository(
        {"package.json": scripts(test="jest"), "yarn.lock": "", "package-lock.json": "{}"},
        ("yarn test",),
        ("npm test",),
    ),
    "ripgrep: a root package with a workspace": same(
        {"Cargo.toml": '[package]\nname = "ripgrep"\n[workspace]\nmembers = ["crates/cli"]\n'},
        "cargo test --workspace",
    ),
    "tokio: a workspace alone": same(
        {
            "Cargo.toml": '[workspace]\nmembers = ["tokio"]\n',
            "tokio/Cargo.toml": "[package]\n",
            ".github/workflows/ci.yml": "jobs:\n  miri:\n    steps:\n      - run: cargo miri test\n",
        },
        "cargo test",
    ),
    "cobra": same(
        {"go.mod": "module cobra", "command_test.go": "", "Makefile": "test:\n\tgo test\n"}, "go test ./..."
    ),
    "fmt": same({"CMakeLists.txt": "if (FMT_TEST)\n  enable_testing()\nendif ()\n"}, CMAKE),
    "a library that writes CTest in another way": same({"CMakeLists.txt": "INCLUDE( CTest )\n"}, CMAKE),
    "guava": same({"pom.xml": "<project/>", "guava/pom.xml": "<project/>"}, "mvn -B -q test"),
    "spring-petclinic": same(
        {"pom.xml": "<project/>", "mvnw": "", "build.gradle": "", "gradlew": ""},
        "./mvnw -B -q test",
        "./gradlew test",
    ),
    "junit5: settings only in the root": same({"settings.gradle.kts": "", "gradlew": ""}, "./gradlew test"),
    "redis": same({"Makefile": "all:\n\tcd src && $(MAKE)\ntest:\n\tx\n", "src/server.c": ""}, "make test"),
    "a library with make check": same({"Makefile": "all: lib\ncheck: all\n\t./run\n"}, "make check"),
    "a justfile": same({"justfile": "default:\n  x\ntest *args:\n  x\n"}, "just test"),
    "rspec-core": same({"Gemfile": "", ".rspec": "", "spec/core_spec.rb": ""}, "bundle exec rspec"),
    "rake": same({"Rakefile": "Rake::TestTask.new do |t|\nend\n", "test/a.rb": ""}, "rake test"),
    "laravel/framework": same({"composer.json": "{}", "phpunit.xml.dist": ""}, "vendor/bin/phpunit"),
    "phoenix": Repository(
        {"mix.exs": "", "package.json": scripts(test="jest")}, ("npm test", "mix test"), ("npm test",)
    ),
    "a .NET solution": same(
        {"App.sln": "", "src/App/App.csproj": "", "test/App.Tests/App.Tests.csproj": ""}, "dotnet test"
    ),
    "a solution of another language": same({"App.sln": "", "App.vcxproj": ""}),
    "langchain: one library of several": same(
        {
            "README.md": "",
            "libs/core/pyproject.toml": "[tool.pytest.ini_options]",
            "libs/core/tests/test_a.py": "",
            "libs/cli/pyproject.toml": "[tool.pytest.ini_options]",
            "docs/pyproject.toml": "[tool.pytest.ini_options]",
        },
        f"cd libs/cli && {PYTEST}",
        f"cd libs/core && {PYTEST}",
    ),
    "a backend and a frontend": Repository(
        {
            "docker-compose.yml": "",
            "backend/pyproject.toml": "",
            "backend/tests/test_api.py": "",
            "frontend/package.json": scripts(test="vitest"),
            "frontend/yarn.lock": "",
            "examples/x/package.json": scripts(test="vitest"),
        },
        (f"cd backend && {PYTEST}", "cd frontend && yarn test"),
        (f"cd backend && {PYTEST}", "cd frontend && yarn test"),
    ),
    "a package.json in the root for tools, and Python below": same(
        {
            "package.json": scripts(test="jest"),
            "server/setup.py": "",
            "server/tests/test_a.py": "",
        },
        "npm test",
        f"cd server && {PYTEST}",
    ),
    "one crate in a directory": same(
        {"rust/Cargo.toml": "[package]", "rust/fuzz/Cargo.toml": ""}, "cd rust && cargo test"
    ),
    "modules of Go in a work space": same(
        {"go.work": "", "api/go.mod": "", "cmd/agent/go.mod": "", "vendor/x/go.mod": ""},
        "cd api && go test ./...",
        "cd cmd/agent && go test ./...",
    ),
    "a Go work space that names its modules": same(
        {
            "go.work": "go 1.25\n\nuse (\n\t./api\n\t./cmd/agent // the agent\n\t../out\n)\n",
            "api/go.mod": "",
            "cmd/agent/go.mod": "",
        },
        "go test ./api/... ./cmd/agent/...",
    ),
    "a Go module with another one below": same(
        {
            "go.mod": "",
            "a_test.go": "",
            "tool/go.mod": "",
            "tool/b_test.go": "",
            "docs/go.mod": "",
            "plain/go.mod": "",
        },
        "go test ./...",
        "cd tool && go test ./...",
    ),
    "a page beside a service in Python": same(
        {
            "backend/requirements.txt": "",
            "backend/tests/test_api.py": "",
            "frontend/package.json": '{"devDependencies": {"vitest": "3"}}',
        },
        "cd backend && python3 -m pytest -q",
        "cd frontend && npx vitest run",
    ),
    "a service in Go below a package": same(
        {
            "package.json": '{"scripts": {"test": "vitest run"}}',
            "service/go.mod": "",
            "service/a_test.go": "",
            "empty/go.mod": "",
        },
        "npm test",
        "cd service && go test ./...",
    ),
    "Ruby without Bundler": same(
        {"lib/sum.rb": "", "test/test_sum.rb": ""},
        "ruby -Ilib -Itest -e 'Dir[\"./test/**/{test_*,*_test}.rb\"].sort.each { |file| require file }' -- -v",
    ),
    "PHP without Composer": same({"src/Sum.php": "", "tests/SumTest.php": ""}, "phpunit tests"),
}


def test_of_many_nested_projects_those_with_the_most_files_are_tested() -> None:
    files = {f"libs/{letter}/go.mod": "" for letter in "abcdefgh"}
    files |= {f"libs/{letter}/{number}.go": "" for letter in "adefgh" for number in range(3)}

    assert discover(files, {}) == tuple(f"cd libs/{letter} && go test ./..." for letter in "adefgh")


def test_each_nested_project_is_built_in_a_directory_of_its_own() -> None:
    files = {"a/CMakeLists.txt": "enable_testing()", "b/c/CMakeLists.txt": "enable_testing()"}

    one, other = discover(files, files)

    assert one.startswith(
        "cd a && cmake -S . -B /tmp/.cloister-build-a && cmake --build /tmp/.cloister-build-a "
    )
    assert other.startswith("cd b/c && cmake -S . -B /tmp/.cloister-build-b-c && ")


@pytest.mark.parametrize("name", REPOSITORIES)
def test_the_main_suite_is_found_and_a_missing_tool_does_not_hide_it(name: str) -> None:
    files, full, bare = REPOSITORIES[name]
    read = {path: files[path] for path in wanted(files)}

    every, some = discover(files, read), discover(files, read, BASE)

    assert tuple(line for line in every if kind_of(line) == "test" or line == "make check") == full
    assert tuple(line for line in some if kind_of(line) == "test" or line == "make check") == bare


def test_npm_runs_a_script_whose_package_manager_is_missing_if_its_runner_is_installed() -> None:
    def found(script: str, *tools: str, **more: str) -> tuple[str, ...]:
        files = {"package.json": scripts(test=script, **more), "pnpm-lock.yaml": ""}
        return discover(files, files, {*BASE, *tools})

    assert found("vitest run", "vitest") == ("npm test",)
    assert found("node --test") == ("npm test",)
    assert found("vitest run", "vitest", "pnpm") == ("pnpm test",)
    assert found("vitest run") == ("pnpm test",), "its dependencies are not installed either"
    assert found("pnpm exec vitest", "vitest") == ("pnpm test",)
    assert found("vitest run", "vitest", pretest="yarn build") == ("pnpm test",)


def test_one_nested_project_brings_its_linters_too() -> None:
    files = {"app/pyproject.toml": "[tool.ruff]\n[tool.pytest.ini_options]\n", "README.md": ""}

    assert discover(files, files, {*BASE, "ruff"}) == (f"cd app && {PYTEST}", "cd app && ruff check")


MANY_JOBS = """
on: push
jobs:
  lint:
    steps:
      - run: tox -e lint
  docs:
    steps:
      - run: tox -e docs
  test:
    strategy:
      matrix:
        python: ["3.12"]
    steps:
      - run: pip install tox
      - run: |
          tox -e py
  coverage:
    steps:
      - run: tox -e coverage
"""


@pytest.mark.parametrize(
    ("workflows", "expected"),
    [
        ({"ci.yml": MANY_JOBS}, ("tox -e py",)),
        (
            {"a-nightly.yml": "jobs:\n  test:\n    steps:\n      - run: tox -e slow\n", "ci.yml": MANY_JOBS},
            ("tox -e py",),
        ),
        ({"benchmarks.yml": "jobs:\n  go:\n    steps:\n      - run: tox -e bench\n"}, ("tox -e bench",)),
        (
            {
                "ci.yml": "jobs:\n    e2e:\n        steps:\n            - run: tox -e a\n    unit:\n        steps:\n            - run: tox -e b\n"
            },
            ("tox -e b",),
        ),
        (
            {"ci.yml": "jobs:\n  test:\n    steps:\n      - run: tox -e a\n      - run: tox -e b\n"},
            ("tox -e a", "tox -e b"),
        ),
    ],
)
def test_the_main_job_of_the_workflows_is_taken_and_not_a_side_job(
    workflows: dict[str, str], expected: tuple[str, ...]
) -> None:
    contents = {f".github/workflows/{name}": text for name, text in workflows.items()}

    assert discover({"a.x", *contents}, contents, {"tox"}) == expected
    assert discover({"a.x", *contents}, contents, frozenset()) == expected[:1]


@pytest.mark.parametrize(
    ("files", "roots"),
    [
        ({"src/shop/__init__.py": "", "pyproject.toml": ""}, {"src": ("shop",)}),
        ({"src/shop/__init__.py": "", "src/cart/__init__.py": ""}, {"src": ("cart", "shop")}),
        ({"src/shop.py": "", "setup.py": ""}, {"src": ("shop",)}),
        ({"src/shop.py": ""}, {}),
        ({"lib/shop/__init__.py": "", "setup.cfg": "package_dir =\n    =lib\n"}, {"lib": ("shop",)}),
        (
            {"python/shop/__init__.py": "", "pyproject.toml": 'python-source = "python"'},
            {"python": ("shop",)},
        ),
        ({"lib/shop/__init__.py": "", "pyproject.toml": ""}, {}),
        ({"src/__init__.py": "", "src/shop/__init__.py": ""}, {}),
        ({"src/logging/__init__.py": "", "src/shop/__init__.py": "", "setup.py": ""}, {}),
        ({"src/shop/__init__.py": "", "pytest.ini": "[pytest]\npythonpath = . src\n"}, {}),
        ({"src/shop/__init__.py": "", "pyproject.toml": 'pythonpath = [\n  ".",\n  "src",\n]'}, {}),
        ({"src/main.c": "", "src/shop/a.c": ""}, {}),
        ({"app/pyproject.toml": "", "app/src/shop/__init__.py": ""}, {"app/src": ("shop",)}),
    ],
)
def test_import_roots_are_directories_whose_packages_need_an_installation(
    files: dict[str, str], roots: dict[str, tuple[str, ...]]
) -> None:
    assert import_roots(files, files) == roots


def test_hidden_import_roots_are_given_to_python() -> None:
    files = {"tests/test_a.py", "src/shop/__init__.py", "pyproject.toml"}

    assert discover(files, {}, BASE, ["src"]) == ("PYTHONPATH=/work/src python3 -m pytest -q",)
    assert discover(files, {}, {*BASE, "PYTHONPATH=/opt/lib"}, ["src"]) == (
        "PYTHONPATH=/work/src:/opt/lib python3 -m pytest -q",
    )
    assert discover(files, {}, {"python3", "unittest"}, ["src"]) == (
        "PYTHONPATH=/work/src python3 -m unittest discover -s tests",
    )
    nested = {f"app/{name}" for name in files}
    assert discover(nested, {}, BASE, ["app/src"]) == (
        "cd app && PYTHONPATH=/work/app/src python3 -m pytest -q",
    )


@pytest.mark.parametrize(
    ("command", "directory"),
    [
        ("cd app && pytest", "app"),
        ("cd a/b/ && cd c && pytest", "a/b/c"),
        ("cd . && pytest", ""),
        ("cd .. && pytest", ""),
        ("cd /tmp && pytest", ""),
        ("cd $HOME && pytest", ""),
        ("pytest app", ""),
    ],
)
def test_the_directory_of_a_check_is_inside_the_repository(command: str, directory: str) -> None:
    assert directory_of(command) == directory
