"""Finds the checks of a repository from its files, without running anything."""

import re
import shlex
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from cloister.core import limits
from cloister.core.diagnosis import Check, CheckKind
from cloister.core.text import one_line
from cloister.feedback.check_commands import kind_of, tool_of, words

# CI workflows: the `run:` lines that start a known tool and change nothing

_RUN = re.compile(r"^(\s*)(?:- )?run:\s*(.*)$")
_BLOCK = re.compile(r"^[|>][+-]?\d?$")
_CHANGES = re.compile(r"(?:^| )(?:--fix|--write|-w|install|publish|deploy|push|upload|release|ci)(?: |$)")
_LINES = 2_000
_HINTS = 4


def hinted(workflows: Mapping[str, str], contents: Mapping[str, str]) -> list[str]:
    """Commands of the workflows that check something, tests first. Skips lines with expressions of the CI."""
    makefile = contents.get("Makefile", "")
    found: dict[str, None] = {}
    for name in sorted(workflows):
        for line in _commands(workflows[name].split("\n")[:_LINES]):
            if _checks(line, makefile):
                found.setdefault(one_line(line, 300))
    ordered = sorted(found, key=lambda line: kind_of(line) != "test")
    return ordered[:_HINTS]


def _checks(line: str, makefile: str) -> bool:
    if not words(line) or _CHANGES.search(line) or "${{" in line:
        return False
    if line.startswith("make "):
        return kind_of(line) == "test" and f"{line[5:].strip()}:" in makefile
    return tool_of(line) is not None and kind_of(line) == "test"


def _commands(lines: list[str]) -> Iterator[str]:
    """The commands of each `run:`, on its line or in the block below it."""
    index = 0
    while index < len(lines):
        run = _RUN.match(lines[index][:2_000])
        index += 1
        if run is None:
            continue
        said = run[2].strip()
        if not _BLOCK.match(said):
            yield said.strip("'\"")
            continue
        depth = len(run[1]) + 1
        while index < len(lines) and (not lines[index].strip() or _indent(lines[index]) >= depth):
            yield lines[index].strip()
            index += 1


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


# The repository's own list of checks

FILES = (".cloister.toml", ".cloister/config.toml")


class OwnCheck(msgspec.Struct, frozen=True):
    """One entry of the list; a plain string is a command."""

    command: str
    kind: CheckKind | None = None
    timeout: float | None = None


class _Own(msgspec.Struct, frozen=True):
    checks: list[str | OwnCheck] = []


def own_checks(contents: Mapping[str, str]) -> tuple[OwnCheck, ...]:
    """The list in the first file that has one; ignores a file that cannot be parsed."""
    for name in FILES:
        try:
            own = msgspec.convert(tomllib.loads(contents.get(name, "")), _Own)
        except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError):
            continue
        found = [OwnCheck(one) if isinstance(one, str) else one for one in own.checks]
        stripped = (msgspec.structs.replace(one, command=one.command.strip()) for one in found)
        kept = [one for one in stripped if one.command]
        if kept:
            return tuple(kept[: limits.CHECKS])
    return ()


def adjusted(check: Check, own: tuple[OwnCheck, ...]) -> Check:
    """Apply the kind and the time limit of the repository's list; ours is the maximum."""
    for one in own:
        if one.command == check.command:
            seconds = check.seconds
            if one.timeout is not None:
                seconds = max(1.0, min(one.timeout, limits.CHECK_SECONDS))
            return msgspec.structs.replace(check, kind=one.kind or check.kind, seconds=seconds)
    return check


WANTED: tuple[str, ...] = (
    *FILES,
    *("pyproject.toml", "setup.cfg", "tox.ini", "noxfile.py", "pytest.ini", "mypy.ini", ".flake8"),
    *("pyrightconfig.json", "package.json", "Makefile", "go.mod", "Cargo.toml", "CMakeLists.txt"),
    *("pom.xml", "build.gradle", "build.gradle.kts", ".pre-commit-config.yaml"),
)
"""The files whose contents `discover` needs, besides those in `WORKFLOWS`."""

WORKFLOWS = ".github/workflows/"

TOOLS: tuple[str, ...] = (
    *("python3", "tox", "nox", "ruff", "flake8", "mypy", "pyright", "pre-commit"),
    *("node", "npm", "pnpm", "yarn", "bun", "cargo", "go", "cmake", "ctest", "make", "mvn", "gradle"),
)
"""Programs that `discover` looks for in the sandbox. It also considers `pytest` if Python has it, `unittest` if the
repository's tests use it, and the programs in `node_modules`."""

_DEPTH = 3
_TEST_FILE = re.compile(r"(?:^|/)(?:test_[^/]+|[^/]+_test)\.py$")
_NODE_TEST = re.compile(
    r"(?:^|/)(?:test|tests|__tests__)/[^/]+\.[cm]?[jt]s$|[.-](?:test|spec)\.[cm]?[jt]sx?$"
)
_TEST_TARGET = re.compile(r"^test[ \t]*::?(?!=)", re.MULTILINE)
_PLACEHOLDER = "no test specified"
_LOCKS = (("pnpm-lock.yaml", "pnpm"), ("yarn.lock", "yarn"), ("bun.lock", "bun"), ("bun.lockb", "bun"))


class Package(msgspec.Struct, frozen=True):
    """The relevant part of `package.json`."""

    scripts: dict[str, object] = {}
    dependencies: dict[str, object] = {}
    dev: dict[str, object] = msgspec.field(name="devDependencies", default_factory=dict[str, object])

    def has(self, name: str) -> bool:
        return name in self.dependencies or name in self.dev


def package_of(text: str) -> Package:
    """Parse `package.json`; empty if it is broken."""
    try:
        return msgspec.json.decode(text, type=Package)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return Package()


def scripts_of(text: str) -> dict[str, str]:
    return {name: line for name, line in package_of(text).scripts.items() if isinstance(line, str)}


def discover(
    files: Collection[str], contents: Mapping[str, str], tools: Collection[str] | None = None
) -> tuple[str, ...]:
    """The commands that must pass, best first; empty if the repository has no checks.

    The repository's own list decides. Without one, each ecosystem adds its test runner and the configured linters and
    type checkers that are in `tools`. If none of them runs tests, use the CI workflows, then `make test`. With `tools`
    None, every tool counts as installed.
    """
    if own := own_checks(contents):
        return tuple(one.command for one in own)
    found = [
        *_python(files, contents, tools),
        *_node(files, contents, tools),
        *_compiled(files, contents, tools),
    ]
    if not any(kind_of(check) == "test" for check in found):
        workflows = {name: text for name, text in contents.items() if name.startswith(WORKFLOWS)}
        found += [line for line in hinted(workflows, contents) if _has(tools, line.split()[0])]
    if not any(kind_of(check) == "test" for check in found) and _TEST_TARGET.search(
        contents.get("Makefile", "")
    ):
        found.append("make test")
    return tuple(dict.fromkeys(found))[: limits.CHECKS]


def _has(tools: Collection[str] | None, name: str) -> bool:
    return tools is None or name in tools


def _python(
    files: Collection[str], contents: Mapping[str, str], tools: Collection[str] | None
) -> Iterable[str]:
    project, setup = contents.get("pyproject.toml", ""), contents.get("setup.cfg", "")
    tox = contents.get("tox.ini", "")
    configured = (
        "pytest.ini" in files or "[tool.pytest" in project or "[tool:pytest]" in setup or "[pytest]" in tox
    )
    tests = [name for name in files if name.count("/") < _DEPTH and _TEST_FILE.search(name)]
    if (configured or tests) and _has(tools, "pytest"):
        yield "python3 -m pytest -q"
    elif tests and tools is not None and "unittest" in tools:
        top = min(tests, key=lambda name: (name.count("/"), name)).rpartition("/")[0]
        is_package = f"{top}/__init__.py" in files
        yield f"python3 -m unittest discover -s {shlex.quote(top or '.')}{' -t .' if is_package else ''}"
    elif ("tox.ini" in files or "[tool.tox" in project) and tools is not None and "tox" in tools:
        yield "tox"
    elif "noxfile.py" in files and tools is not None and "nox" in tools:
        yield "nox"
    if tools is None:
        return
    # Linters and type checkers only if they are configured and installed.
    if "[tool.ruff" in project or "ruff.toml" in files or ".ruff.toml" in files:
        yield from (line for line in ("ruff check",) if "ruff" in tools)
        formats = "[tool.ruff.format]" in project
        yield from (line for line in ("ruff format --check",) if formats and "ruff" in tools)
    if (".flake8" in files or "[flake8]" in setup or "[flake8]" in tox) and "flake8" in tools:
        yield "flake8"
    if ("[tool.mypy" in project or "mypy.ini" in files or "[mypy]" in setup) and "mypy" in tools:
        yield "mypy" if "files" in project + contents.get("mypy.ini", "") + setup else "mypy ."
    if ("[tool.pyright" in project or "pyrightconfig.json" in files) and "pyright" in tools:
        yield "pyright"


def _node(
    files: Collection[str], contents: Mapping[str, str], tools: Collection[str] | None
) -> Iterable[str]:
    if "package.json" not in contents:
        return
    package, scripts = package_of(contents["package.json"]), scripts_of(contents["package.json"])
    manager = next((tool for lock, tool in _LOCKS if lock in files), "npm")
    test = scripts.get("test", "")
    if not _has(tools, manager):
        return
    if test.strip() and _PLACEHOLDER not in test:
        yield "bun run test" if manager == "bun" else f"{manager} test"  # `bun test` is a different runner
    else:
        runners = {"vitest": "npx vitest run", "jest": "npx jest", "mocha": "npx mocha", "ava": "npx ava"}
        runner = next(
            (line for name, line in runners.items() if package.has(name) and _has(tools, name)), None
        )
        if runner is None and any(_NODE_TEST.search(name) for name in files):
            runner = "node --test"
        yield from (line for line in (runner,) if line is not None)
    for name in ("lint", "typecheck", "type-check", "check-types"):
        if scripts.get(name, "").strip() and "--fix" not in scripts[name] and "--write" not in scripts[name]:
            yield f"{manager} run {name}"
    if "lint" not in scripts:
        linters = {"eslint": "npx eslint .", "@biomejs/biome": "npx biome lint", "oxlint": "npx oxlint"}
        there = [
            line for name, line in linters.items() if package.dev.get(name) and _has(tools, line.split()[1])
        ]
        yield from there[:1]
    if (
        "tsconfig.json" in files
        and package.has("typescript")
        and _has(tools, "tsc")
        and not {"typecheck", "type-check"} & set(scripts)
    ):
        yield "npx tsc --noEmit --pretty false"


def _compiled(
    files: Collection[str], contents: Mapping[str, str], tools: Collection[str] | None
) -> Iterable[str]:
    if "Cargo.toml" in files and _has(tools, "cargo"):
        yield "cargo test"
    if "go.mod" in files and _has(tools, "go"):
        yield "go test ./..."
        yield from (line for line in ("go vet ./...",) if tools is not None)
    cmake = contents.get("CMakeLists.txt", "")
    if ("enable_testing" in cmake or "include(CTest)" in cmake) and _has(tools, "cmake"):
        build = "/tmp/.cloister-build"  # noqa: S108  (inside the sandbox, so that the tree stays clean)
        steps = (
            f"cmake -S . -B {build}",
            f"cmake --build {build} --parallel $(nproc)",  # without a number, make starts everything at once
            f"ctest --test-dir {build} --output-on-failure",  # tests may share files and ports
        )
        yield " && ".join(steps)
    if "pom.xml" in files and (_has(tools, "mvn") or "mvnw" in files):
        yield "./mvnw -B -q test" if "mvnw" in files else "mvn -B -q test"
    if "build.gradle" in files or "build.gradle.kts" in files:
        if "gradlew" in files:
            yield "./gradlew test"
        elif _has(tools, "gradle"):
            yield "gradle test"
    if ".pre-commit-config.yaml" in files and tools is not None and "pre-commit" in tools:
        yield "pre-commit run --all-files"
