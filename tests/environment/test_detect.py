"""Detection of the environment: the plan of a repository from its file names and manifests."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from cloister.environment.api import Plan
from cloister.environment.detect import detect
from cloister.environment.installers import TRIALS
from cloister.environment.listing import collect


def plan_of(files: Mapping[str, str]) -> Plan:
    return detect(collect(files, files.get))


def commands(plan: Plan) -> list[str]:
    return [step.command for step in plan.steps if step.stage == "dependencies"]


def test_a_repository_without_manifests_needs_no_set_up() -> None:
    plan = plan_of({"README.md": "", "tests/test_a.py": ""})
    assert not plan.needs_setup
    assert [tool.name for tool in plan.toolchains] == ["python"]
    assert [check.command for check in plan.checks] == ["python3 -m pytest -q"]


def test_requirements_are_installed_into_an_environment_of_their_own() -> None:
    plan = plan_of({"requirements.txt": "flask\n", "tests/test_a.py": ""})
    assert commands(plan) == ["uv pip install -q -r requirements.txt pytest"]
    assert [registry.set for registry in plan.registries] == ["@pypi"]
    assert plan.files == ("requirements.txt",)


def test_node_is_explained_by_engines_and_npm_by_its_lock_file() -> None:
    plan = plan_of(
        {
            "package.json": '{"engines": {"node": ">=20"}, "scripts": {"test": "mocha"}, "devDependencies": {"mocha": "1"}}',
            "package-lock.json": "{}",
        }
    )
    [node] = plan.toolchains
    assert (node.name, node.version, node.why) == ("node", "22", ">=20 in engines of package.json")
    [npm] = plan.managers
    assert (npm.name, npm.why) == ("npm", "package-lock.json")
    assert commands(plan) == ["npm ci --no-audit --no-fund"]
    assert {registry.set for registry in plan.registries} == {"@pypi", "@npm"}
    assert [check.command for check in plan.checks] == ["npm test"]


def test_a_python_that_cannot_be_had_is_named() -> None:
    plan = plan_of({"pyproject.toml": '[project]\nname = "a"\nrequires-python = "<3.10"\n'})
    [python] = plan.toolchains
    assert python.problem is not None
    assert python.problem in plan.notes


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("pyproject.toml", '[project]\nname = "a"\nrequires-python = "==3.12.*"\n', "3.13"),
        ("pyproject.toml", '[project]\nname = "a"\nrequires-python = ">=3.12,<3.13"\n', "3.13"),
        (".python-version", "3.12\n", "3.13"),
        (".python-version", "3.12.4\n", "3.13"),
        (".python-version", "3.9\n", "3.11"),
        ("pyproject.toml", '[project]\nname = "a"\nrequires-python = ">=3.15,<4"\n', "3.14"),
    ],
)
def test_in_place_of_a_python_that_cannot_be_had_the_nearest_newer_one_is_used_and_named(
    name: str, text: str, version: str
) -> None:
    plan = plan_of({name: text, "test_a.py": ""})
    [python] = plan.toolchains
    assert python.version == version
    assert python.problem in plan.notes and f"cannot be had (Debian has 3.11, 3.13, 3.14): {version} is" in (
        python.problem or ""
    )


def test_a_project_that_does_not_admit_the_nearest_python_is_installed_into_it_all_the_same() -> None:
    manifest = """
[build-system]
requires = ["setuptools"]
[project]
name = "a"
requires-python = "==3.12.*"
dependencies = ["inflection"]
[project.optional-dependencies]
test = ["pytest"]
"""
    [command] = commands(plan_of({"pyproject.toml": manifest}))
    first, _, last = command.partition(" && ")
    assert first == "uv pip install -q -r pyproject.toml --extra test pytest"
    assert last == "python3 -m pip install -q --no-deps --ignore-requires-python -e ."
    [admitted] = commands(plan_of({"pyproject.toml": manifest.replace("==3.12.*", ">=3.12")}))
    assert admitted == "uv pip install -q -e '.[test]' pytest"


@pytest.mark.parametrize(
    ("range_", "version", "release"),
    [(">=3.12", "3.13", "trixie"), ("==3.13.*", "3.13", "trixie"), (">=3.14", "3.14", "forky")],
)
def test_a_python_that_debian_12_lacks_comes_from_a_later_release(
    range_: str, version: str, release: str
) -> None:
    manifest = f'[project]\nname = "a"\nrequires-python = "{range_}"\n'
    plan = plan_of({"pyproject.toml": manifest, "test_a.py": ""})
    [python] = plan.toolchains
    assert (python.version, python.problem, plan.notes) == (version, None, ())
    assert {registry.set for registry in plan.registries} == {"@pypi", "@debian"}
    [unpacked] = [step for step in plan.steps if step.user == "root"]
    assert unpacked.stage == "tools" and f" {release} main" in unpacked.command
    made = next(step.command for step in plan.steps if "uv venv" in step.command)
    assert f"--python /opt/cloister/python{version}/usr/bin/python{version} " in made
    assert commands(plan) == ["uv pip install -q pytest"], "pytest of Debian is for its own Python"


def test_an_older_project_gets_the_node_that_its_ci_tries() -> None:
    def node(engines: str, tried: str) -> str:
        flow = f"jobs:\n  a:\n    strategy:\n      matrix:\n        nodejs: [{tried}]\n        node-version: ${{{{ matrix.nodejs }}}}\n"
        files = {"package.json": f'{{"engines": {{"node": "{engines}"}}}}', ".github/workflows/ci.yml": flow}
        [found] = plan_of(files).toolchains
        assert found.problem is None
        return found.version

    assert node(">=6", "8, 10, 12, 14, 16, 18") == "18"
    assert node(">=6", "4, 6, 8") == "18", "the oldest that can be had"
    assert node(">= 18", "18, 20, 22, 24, 26") == "22"
    assert node(">=22.12.0", "26, 27") == "22"
    assert node("^20", "18, 22") == "20", "the manifest decides"


def test_a_setup_py_with_pkg_resources_is_built_with_a_setuptools_that_has_it() -> None:
    plan = plan_of({"setup.py": "import pkg_resources\nfrom setuptools import setup\nsetup(name='x')\n"})
    [install] = commands(plan)
    assert "--build-constraint /tmp/old-setuptools 'setuptools<81'" in install


def told(plan: Plan) -> list[str]:
    return [f"{one.name} {one.version}".strip() for one in plan.toolchains]


KINDS: dict[str, tuple[dict[str, str], list[str], list[str]]] = {
    "pipenv with a lock": (
        {"Pipfile": "[requires]\npython_version = '3.11'\n", "Pipfile.lock": "{}", "test_a.py": ""},
        ["python 3.11"],
        ["pipenv requirements --dev | uv pip install -q -r - pytest"],
    ),
    "Pipfile alone": (
        {"Pipfile": '[packages]\nflask = "==2.0"\nrq = "*"\n[dev-packages]\npytest = {version = ">=7"}\n'},
        ["python 3.11"],
        ["uv pip install -q flask==2.0 rq 'pytest>=7'"],
    ),
    "pdm": (
        {
            "pyproject.toml": "[project]\nname = 'x'\n[dependency-groups]\ntest = []\n[build-system]\n",
            "pdm.lock": "",
        },
        ["python 3.11"],
        ["pdm export -f requirements --no-hashes -G test --editable-self | uv pip install -q -r -"],
    ),
    "tox alone": (
        {
            "setup.py": "from setuptools import setup\nsetup(name='x', python_requires='>=3.8')\n",
            "tox.ini": "[testenv]\ndeps =\n    pytest>=6\n    -r{toxinidir}/dev.txt\n    py27: mock\n    {[x]y}\n",
            "dev.txt": "",
        },
        ["python 3.11"],
        ["uv pip install -q -r dev.txt -e . 'pytest>=6' pytest"],
    ),
    "nox": (
        {
            "setup.cfg": "[metadata]\nname = x\n",
            "noxfile.py": "def tests(session):\n    session.install('-e', '.[test]', 'hypothesis')\n    session.run(x)\n",
        },
        ["python 3.11"],
        ["uv pip install -q -e '.[test]' hypothesis"],
    ),
    "extras in setup.cfg": (
        {
            "setup.cfg": "[metadata]\nname = x\n[options.extras_require]\ntesting =\n  pytest\ndocs =\n  sphinx\n"
        },
        ["python 3.11"],
        ["uv pip install -q -e '.[testing]' pytest"],
    ),
    "bun": (
        {"package.json": '{"scripts": {"test": "bun test"}, "dependencies": {"a": "1"}}', "bun.lock": ""},
        ["node 22"],
        ["bun install --frozen-lockfile"],
    ),
    "yarn classic without a lock file": (
        {"package.json": '{"packageManager": "yarn@1.22.22", "dependencies": {"a": "1"}}'},
        ["node 22"],
        ["yarn install --non-interactive --no-lockfile"],
    ),
    "an npm workspace": (
        {
            "package.json": '{"workspaces": ["packages/*"], "scripts": {"test": "npm test --workspaces"}}',
            "package-lock.json": "{}",
            "packages/a/package.json": '{"name": "a", "dependencies": {"b": "*"}}',
            "packages/b/package.json": '{"name": "b", "engines": {"node": ">=20"}}',
        },
        ["node 22"],
        ["npm ci --no-audit --no-fund"],
    ),
    "a pnpm workspace": (
        {
            "package.json": '{"private": true, "packageManager": "pnpm@9.15.0", "scripts": {"test": "pnpm -r test"}}',
            "pnpm-workspace.yaml": "packages:\n  - 'packages/*'\n",
            "pnpm-lock.yaml": "lockfileVersion: '9.0'\n",
            "packages/a/package.json": '{"name": "a", "devDependencies": {"vitest": "1"}}',
            "packages/b/package.json": '{"name": "b"}',
        },
        ["node 22"],
        ["pnpm install --frozen-lockfile"],
    ),
    "a src layout with tox": (
        {
            "pyproject.toml": "[project]\nname = 'x'\nrequires-python = '>=3.9'\n[build-system]\n",
            "tox.ini": "[testenv]\ndeps =\n    pytest-mock\ncommands = pytest\n",
            "src/x/__init__.py": "",
            "tests/test_x.py": "",
        },
        ["python 3.11"],
        ["uv pip install -q -e . pytest-mock pytest"],
    ),
    "a pnpm workspace whose root needs nothing itself": (
        {
            "package.json": '{"private": true}',
            "pnpm-workspace.yaml": "packages: ['packages/*']",
            "packages/a/package.json": '{"name": "a", "scripts": {"test": "node --test"}}',
        },
        ["node 22"],
        ["pnpm install --no-lockfile"],
    ),
    "a root that only says how Python's tests run": (
        {
            "pyproject.toml": "[tool.pytest.ini_options]\n",
            "core/pyproject.toml": "[project]\nname = 'core'\n[build-system]\n",
            "core/tests/test_a.py": "",
        },
        ["python 3.11"],
        ["uv pip install -q -e . pytest"],
    ),
    "a uv workspace with a lock": (
        {
            "pyproject.toml": "[project]\nname = 'x'\n[tool.uv.workspace]\nmembers = ['core']\n",
            "uv.lock": "",
            "core/pyproject.toml": "[project]\nname = 'core'\n[build-system]\n",
            "core/tests/test_a.py": "",
        },
        ["python 3.11"],
        ["uv export -q --frozen --no-hashes --all-packages | uv pip install -q -r - pytest"],
    ),
    "a service beside a package that is no workspace": (
        {
            "package.json": '{"scripts": {"test": "npm --prefix web test"}}',
            "web/package.json": '{"scripts": {"test": "vitest run"}, "devDependencies": {"vitest": "3"}}',
            "web/package-lock.json": "{}",
        },
        ["node 22"],
        ["npm ci --no-audit --no-fund"],
    ),
    "crates that only need each other": (
        {
            "Cargo.toml": "[workspace]\nmembers = ['a', 'b']\n",
            "a/Cargo.toml": "[package]\nname = 'a'\n[dependencies]\nb = { path = '../b' }\n",
            "b/Cargo.toml": "[package]\nname = 'b'\n",
        },
        ["rust 1.96"],
        [],
    ),
    "Ruby without Bundler": ({"Rakefile": "Rake::TestTask.new", "test/test_a.rb": ""}, ["ruby 3.1"], []),
    "PHP without Composer": ({"phpunit.xml": "", "tests/ATest.php": ""}, ["php 8.2"], []),
    "a Go workspace": (
        {
            "go.work": "go 1.24\nuse (\n./a\n./b\n)\n",
            "a/go.mod": "module a\ngo 1.26.1\nrequire x v1\n",
            "b/go.mod": "module b\n",
        },
        ["go 1.26"],
        ["go mod download"],
    ),
    "vendored Go": (
        {"go.mod": "module a\ngo 1.22\nrequire x v1\n", "vendor/modules.txt": ""},
        ["go 1.22"],
        [],
    ),
    "Kotlin with a wrapper": (
        {"build.gradle.kts": "kotlin { jvmToolchain(17) }", "settings.gradle.kts": "", "gradlew": ""},
        ["java 17"],
        ["./gradlew --no-daemon -q testClasses"],
    ),
    "a newer CMake than Debian's": (
        {"CMakeLists.txt": "cmake_minimum_required(VERSION 3.29)\nenable_testing()\n"},
        ["cmake 3.29"],
        [],
    ),
    "deno": ({"deno.json": "{}", "a_test.ts": ""}, ["deno 2"], []),
    "mise": (
        {"mise.toml": '[tools]\nnode = "20"\n', "package.json": "{}"},
        ["node 20"],
        [],
    ),
    "a Dockerfile names the version": (
        {"Dockerfile": "FROM node:18-alpine\n", "package.json": '{"dependencies": {"a": "1"}}'},
        ["node 18"],
        ["npm install --no-package-lock --no-audit --no-fund"],
    ),
    "a monorepo of two languages": (
        {
            "backend/pyproject.toml": "[project]\nname = 'x'\ndependencies = ['a']\n[build-system]\n",
            "backend/tests/test_a.py": "",
            "frontend/package.json": '{"scripts": {"test": "vitest"}, "devDependencies": {"vitest": "1"}}',
            "frontend/pnpm-lock.yaml": "lockfileVersion: '6.0'\n",
        },
        ["python 3.11", "node 22"],
        ["uv pip install -q -e . pytest", "pnpm install --frozen-lockfile"],
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_repository_gets_its_toolchain_and_install_commands(name: str) -> None:
    files, toolchains, expected = KINDS[name]
    plan = plan_of(files)
    assert (told(plan), commands(plan)) == (toolchains, expected)


def test_what_cannot_be_had_is_a_note() -> None:
    for files, note in (
        ({"a.sln": "", "a/a.csproj": ""}, "no .NET SDK"),
        (
            {"Cargo.toml": "[package]\n", "rust-toolchain": "nightly-2024-01-01"},
            "Rust nightly-2024-01-01 cannot be had",
        ),
        ({"pom.xml": "<java.version>21</java.version>"}, "Java 21 cannot be had"),
        ({"package.json": "{}", ".nvmrc": "v16"}, "Node v16 cannot be had"),
        ({"Gemfile": "ruby '3.3'\n"}, "Ruby 3.3 cannot be had"),
        ({"composer.json": '{"require": {"php": "^8.4"}}'}, "PHP ^8.4 cannot be had"),
    ):
        assert any(note in one for one in plan_of(files).notes), note


def test_ci_gives_versions_packages_and_services_where_manifests_do_not() -> None:
    workflow = """
jobs:
  test:
    services:
      db: {image: "postgres:15", ports: ["5433:5432"], env: {POSTGRES_PASSWORD: x}}
    steps:
      - uses: setup
        with:
          node-version: 20
      - run: |
          sudo apt-get update && sudo apt-get install -y --no-install-recommends libfoo-dev \\
            graphviz gcc-13 ${{ matrix.more }}
"""
    plan = plan_of({"package.json": '{"dependencies": {"a": "1"}}', ".github/workflows/test.yml": workflow})
    assert told(plan) == ["node 20"]
    assert [(one.name, one.optional) for one in plan.apt] == [("libfoo-dev", True), ("graphviz", True)]
    [service] = plan.services
    assert (service.name, service.version, service.port) == ("postgresql", "15", 5_433)
    assert ".github/workflows/test.yml" in plan.files


def test_a_compose_service_counts_if_a_manifest_names_a_client() -> None:
    compose = "services:\n  a: {image: redis}\n  b: {image: 'mysql:8'}\n  c: {build: .}\n"
    plan = plan_of({"compose.yaml": compose, "requirements.txt": "redis\n"})
    assert [one.name for one in plan.services] == ["redis"]
    [note] = plan.notes
    assert 'services = ["mysql"] starts it' in note


def test_a_service_that_nothing_here_starts_is_named_with_what_starts_it() -> None:
    compose = """services:
  queue: {image: 'nats:2'}
  documents: {image: 'registry.example/library/mongo'}
  cache: {image: memcached}
  broker: {image: 'rabbitmq:3-management'}
  odd: {image: '${ODD}'}
  web: {build: .}
"""
    flow = "jobs:\n  test:\n    services:\n      search: {image: 'elasticsearch:8'}\n"
    files = {
        "compose.yaml": compose,
        ".github/workflows/test.yml": flow,
        "requirements.txt": "pika\npylibmc\n",
    }
    plan = plan_of(files)
    assert [one.name for one in plan.services] == ["memcached", "rabbitmq"]
    assert len(plan.notes) == 4 and all(len(note) <= 200 for note in plan.notes)
    for text in (
        'nats in compose.yaml is not started: if checks need it, add services = [{ name = "nats", command = "…", port = 4222 }]',
        "mongo in compose.yaml is not started",
        'odd in compose.yaml is not started: if checks need it, add services = [{ name = "odd", command = "…", port = … }]',
        "elasticsearch in .github/workflows/test.yml is not started",
    ):
        assert any(note.startswith(text) for note in plan.notes), text
    settings = 'services = ["mongodb", "mariadb", { name = "nats", command = "nats-server", port = 4222 }]\n'
    own = plan_of({**files, ".cloister/config.toml": settings})
    assert [one.name for one in own.services] == ["mysql", "nats"]
    [note] = own.notes
    assert "there is no service mongodb here (services in .cloister/config.toml)" in note


def test_a_project_that_is_too_deep_is_named() -> None:
    deep = "services/eu/shop/api"
    manifest = '{"scripts": {"test": "x"}}'
    for more in ({}, {"pyproject.toml": "[project]\n", f"{deep}/package-lock.json": "{}"}):
        plan = plan_of({f"{deep}/package.json": manifest, f"{deep}/lib/a/package.json": manifest, **more})
        assert plan.notes == (f"{deep} is too deep to be set up: name `setup` and `checks` in the settings",)
    near = {"services/eu/package.json": manifest, f"{deep}/package.json": manifest}
    assert plan_of(near).notes == (), "it belongs to the project above it"
    below = {"package.json": manifest, f"{deep}/package.json": manifest}
    assert plan_of(below).notes == (), "it accompanies the root"


def test_a_lock_file_of_yarn_1_is_installed_from_the_registry_of_this_machine(tmp_path: Path) -> None:
    """Its hosts are those of the author; the digests stay, and so does the file."""
    lock = '"a@1":\n  resolved "https://author.example/@x/a/-/a-1.tgz#d1"\n  integrity sha512-x\n'
    (command,) = commands(plan_of({"package.json": '{"dependencies": {"a": "1"}}', "yarn.lock": lock}))
    (tmp_path / "yarn.lock").write_text(lock)
    for name, script in (("npm", "echo http://mirror.example/npm/"), ("yarn", "cp yarn.lock seen; exit 3")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env={"PATH": path}, capture_output=True)
    assert done.returncode == 3, "the result of yarn counts"
    seen = (tmp_path / "seen").read_text()
    assert '"http://mirror.example/npm/@x/a/-/a-1.tgz#d1"' in seen and "author.example" not in seen
    assert (tmp_path / "yarn.lock").read_text() == lock


def test_a_release_of_a_manager_that_the_registry_lacks_is_replaced_by_its_newest() -> None:
    package = '{"packageManager": "yarn@4.10.0+sha512.8d", "dependencies": {"a": "1"}}'
    plan = plan_of({"package.json": package, "yarn.lock": "", ".yarnrc.yml": ""})
    (step,) = [one.command for one in plan.steps if "cli-dist" in one.command]
    assert step.endswith("@yarnpkg/cli-dist@4") and "@yarnpkg/cli-dist@4.10.0 ||" in step


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"pom.xml": "<project/>"}, "@maven"),
        ({"build.gradle": "", "gradlew": ""}, "@maven"),
        ({"Gemfile": "gem 'rake'"}, "@gems"),
        ({"composer.json": '{"require": {"psr/log": "*"}}'}, "@composer"),
        ({"mix.exs": "", "mix.lock": ""}, "@hex"),
    ],
)
def test_registries_are_opened_without_a_flag(files: dict[str, str], name: str) -> None:
    plan = plan_of(files)
    assert name in [one.set for one in plan.registries]
    assert name.removeprefix("@") in TRIALS, "its hosts can be found with the client in the sandbox"
    assert not any("--allow-host" in note for note in plan.notes)


def test_a_host_that_the_repository_chooses_is_not_opened_but_named() -> None:
    wrapper = "distributionUrl=https\\://downloads.example/gradle-8.5-bin.zip\n"
    files = {"build.gradle": "", "gradlew": "", "gradle/wrapper/gradle-wrapper.properties": wrapper}
    (note,) = [one for one in plan_of(files).notes if "downloads Gradle" in one]
    assert "--allow-host downloads.example" in note


@pytest.mark.parametrize(
    ("files", "language"),
    [
        (["ShellCheck.cabal"], "Haskell"),
        (["Package.swift", "Sources/a.swift"], "Swift"),
        (["Makefile.PL", "lib/A.pm"], "Perl"),
        (["build.zig", "CMakeLists.txt"], ""),
        (["deep/build.sbt"], ""),
    ],
)
def test_a_language_without_a_plan_is_named(files: list[str], language: str) -> None:
    notes = [note for note in plan_of(dict.fromkeys(files, "")).notes if "is not detected" in note]
    assert [note.split(": ")[1].split()[0] for note in notes] == ([language] if language else [])


def test_a_version_of_elixir_that_debian_lacks_is_said() -> None:
    def problem(needs: str) -> str | None:
        text = f'def project, do: [app: :x, elixir: "{needs}"]'
        return plan_of({"mix.exs": text}).toolchains[0].problem

    assert problem("~> 1.18") == (
        "Elixir ~> 1.18 cannot be had (Debian 12 has 1.14, no registry has others): 1.14 is used"
    )
    assert problem("~> 1.12") is None
