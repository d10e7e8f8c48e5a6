"""What a command checks, and in which languages, judged by the tool that it starts."""

import posixpath
import re
import shlex

import msgspec

from cloister.core.diagnosis import Check, CheckKind

Tool = tuple[CheckKind, tuple[str, ...]]
"""The kind of check, and the languages whose files the tool reads."""

PYTHON, SCRIPT, GO, RUST, C, JAVA, SHELL = "python", "script", "go", "rust", "c", "java", "shell"

_TOOLS: dict[str, Tool] = {
    "black": ("format", (PYTHON,)),
    "isort": ("format", (PYTHON,)),
    "ruff format": ("format", (PYTHON,)),
    "gofmt": ("format", (GO,)),
    "cargo fmt": ("format", (RUST,)),
    "rustfmt": ("format", (RUST,)),
    "prettier": ("format", (SCRIPT,)),
    "biome format": ("format", (SCRIPT,)),
    "clang-format": ("format", (C,)),
    "ruff": ("lint", (PYTHON,)),
    "flake8": ("lint", (PYTHON,)),
    "pylint": ("lint", (PYTHON,)),
    "eslint": ("lint", (SCRIPT,)),
    "biome": ("lint", (SCRIPT,)),
    "oxlint": ("lint", (SCRIPT,)),
    "go vet": ("lint", (GO,)),
    "golangci-lint": ("lint", (GO,)),
    "cargo clippy": ("lint", (RUST,)),
    "shellcheck": ("lint", (SHELL,)),
    "clang-tidy": ("lint", (C,)),
    "pre-commit": ("lint", ()),
    "mypy": ("types", (PYTHON,)),
    "pyright": ("types", (PYTHON,)),
    "tsc": ("types", (SCRIPT,)),
    "vue-tsc": ("types", (SCRIPT,)),
    "cargo check": ("types", (RUST,)),
    "go build": ("build", (GO,)),
    "cargo build": ("build", (RUST,)),
    "javac": ("build", (JAVA,)),
    "cmake": ("build", (C,)),
    "pytest": ("test", (PYTHON,)),
    "unittest": ("test", (PYTHON,)),
    "manage.py test": ("test", (PYTHON,)),
    "runtests.py": ("test", (PYTHON,)),
    "tox": ("test", (PYTHON,)),
    "nox": ("test", (PYTHON,)),
    "jest": ("test", (SCRIPT,)),
    "vitest": ("test", (SCRIPT,)),
    "mocha": ("test", (SCRIPT,)),
    "ava": ("test", (SCRIPT,)),
    "turbo test": ("test", (SCRIPT,)),
    "lerna test": ("test", (SCRIPT,)),
    "node --test": ("test", (SCRIPT,)),
    "go test": ("test", (GO,)),
    "cargo test": ("test", (RUST,)),
    "cargo nextest": ("test", (RUST,)),
    "ctest": ("test", (C,)),
    "meson test": ("test", (C,)),
    "mvn": ("test", (JAVA,)),
    "mvnw": ("test", (JAVA,)),
    "gradle": ("test", (JAVA,)),
    "gradlew": ("test", (JAVA,)),
    "rspec": ("test", ()),
    "rake test": ("test", ()),
    "phpunit": ("test", ()),
    "mix test": ("test", ()),
    "dotnet test": ("test", ()),
    "deno test": ("test", ()),
}
_STARTERS = (
    *("npx", "python", "python3", "uv", "run", "poetry", "pdm", "hatch", "pipenv", "exec", "bunx"),
    *("pnpm", "yarn"),
    *("bundle",),
)
_INSIDE = re.compile(r"^cd ([\w.@+-][\w./@+-]{0,200}) && ")
_RUBY_TESTS = re.compile(r"(?:bundle exec )?ruby (?:-I\S{1,40} ){1,4}-e ")
"""Loads all files of a directory; see `discover`."""
_SOURCE = re.compile(r"\.(?:[cm]?[jt]sx?|py|rs|go|java|kt|c|cc|cpp|rb|php)$")
_MANAGERS = ("npm", "pnpm", "yarn", "bun")
_BETWEEN = ("run", "workspaces", "foreach", "'*'")
"""Words of package managers in front of the name of a script."""
_REPORTS = re.compile(r"(?:^|[\s/;&|(])(?:mvnw?|gradlew?)(?:\s|$)")
_WORDS: tuple[tuple[str, CheckKind], ...] = (
    ("format", "format"),
    ("fmt", "format"),
    ("lint", "lint"),
    ("type", "types"),
    ("tsc", "types"),
    ("build", "build"),
    ("compile", "build"),
    ("test", "test"),
    ("check", "other"),
)


def directory_of(command: str) -> str:
    """The directory that a check changes to first, `sub` in `cd sub && …`; empty for the root."""
    path = ""
    while found := _INSIDE.match(command):
        path, command = posixpath.join(path, found[1]), command[found.end() :]
    path = posixpath.normpath(path) if path else ""
    return "" if path == "." or path.startswith(("..", "/")) else path


def words(command: str) -> list[str]:
    """The words of one simple command; empty if the line is more than that."""
    if re.search(r"[;&|<>`$()\n#*?~]", command):
        return []
    try:
        return shlex.split(command)
    except ValueError:
        return []


def tool_of(command: str) -> str | None:
    """The tool that a simple command starts, if we know it."""
    parts = words(command)
    while parts and (parts[0] in _STARTERS or parts[0].startswith("-") or "=" in parts[0]):
        parts = parts[1:]
    if not parts:
        return None
    first = parts[0].rpartition("/")[2]
    pairs = [f"{first} {part}" for part in parts[1:3]]
    return next((pair for pair in pairs if pair in _TOOLS), first if first in _TOOLS else None)


def kind_of(command: str) -> CheckKind:
    """The kind of check; `other` if unknown. The last of several commands decides."""
    if " && " in command:
        return kind_of(command.rpartition(" && ")[2])
    tool = tool_of(command)
    if tool is not None:
        return _TOOLS[tool][0]
    if _RUBY_TESTS.match(command):
        return "test"
    first, _, rest = command.partition(" ")
    if first == "make" and "check" in rest.split():
        return "test"  # the name that the GNU standards give to the tests
    name = rest if first in ("make", "just", "task") else ""
    if first in _MANAGERS:
        name = next((w for w in rest.split() if not w.startswith("-") and w not in _BETWEEN), "")
    for word, kind in _WORDS:
        if word in name:
            return kind
    return "other"


def may_run_tests(command: str) -> bool:
    """False for formatters, linters, type checkers and compilers."""
    return kind_of(command) in ("test", "other")


def languages_of(command: str) -> tuple[str, ...]:
    """The languages whose files the tool reads; empty if unknown."""
    tool = tool_of(_INSIDE.sub("", command))
    return _TOOLS[tool][1] if tool is not None else ()


def leaves_reports(command: str) -> bool:
    """True if the command uses Maven or Gradle, which write reports to directories of their own."""
    return _REPORTS.search(command) is not None


def is_source(path: str) -> bool:
    """True if the name ends like a source file."""
    return _SOURCE.search(path) is not None


# Makes tools write a report that we can parse, without changing what the command does.
#
# Uses an environment variable if the tool has one, so that it works through any script, and otherwise a flag if the
# command is simple. Report files are outside the working tree, at `$CLOISTER_REPORT`.


REPORT = "CLOISTER_REPORT"
_TO = f'"${REPORT}"'

_WRITES_FILE: dict[str, str] = {
    "jest": f"--json --outputFile={_TO}",
    "vitest": f"--reporter=default --reporter=json --outputFile.json={_TO}",
    "mocha": f"--reporter json -O output={_TO}",
    "phpunit": f"--log-junit {_TO}",
    "rspec": f"--format progress --format json --out {_TO}",
    "rake test": "TESTOPTS=-v",
    "ctest": "--output-on-failure",
}
"""Flags with which the tool writes a report, or names passing tests, too. The text of CTest says more than its report. Every mocha knows `-O`; the
long name changed."""

_SAYS: dict[str, str] = {
    "mypy": "--output json",
    "pyright": "--outputjson",
    "pylint": "--output-format=json2",
    "eslint": "-f json",
    "oxlint": "-f json",
    "shellcheck": "-f json1",
    "go test": "-json",
    "cargo test": "--no-fail-fast",
    "cargo check": "--message-format=json",
    "cargo clippy": "--message-format=json",
    "cargo build": "--message-format=json",
}
"""Flags with which the tool prints another format; cargo also runs the test programs after one that failed."""

_ALOUD = 'export GOFLAGS="${GOFLAGS:+$GOFLAGS }-v"; '
"""Makes go name passing tests, also through a script, unless the script sets the variable itself."""

_ASKED = re.compile(
    r"(?:^| )(?:-f|-R|-o|--format|--formatter|--reporters?|--output(?:-\w+|File|json)?|--outputFile|--message-format|-json|"
    r"--json|--test-reporter|--junit-?xml)(?:[ =.]|$)"
)
_RUNS_SCRIPT = re.compile(r"^(npm|pnpm|yarn|bun) (?:run )?[\w:-]+$")


def environment(report: str, *, loose: bool = False) -> dict[str, str]:
    """Variables with which any check that runs pytest writes a JUnit file.

    Only the xunit1 family names files and lines. The cache would litter the repository. Python compares bytecode
    with its source by size and whole second, so a quick edit could run old code: no bytecode is written. With
    `loose`, tests run even if others cannot be loaded.
    """
    more = " --continue-on-collection-errors" if loose else ""
    path = shlex.quote(f"--junitxml={report}")
    return {
        "PYTEST_ADDOPTS": f"{path} -o junit_family=xunit1 -p no:cacheprovider{more}",
        "PYTHONDONTWRITEBYTECODE": "1",
        REPORT: report,
    }


def specify(command: str, scripts: dict[str, str] | None = None, *, go: bool = False) -> Check:
    """Return the check for `command`. `scripts` are those of `package.json` in its directory, if it names one.

    `go`: that directory is a Go module, so the command may run `go test` indirectly.
    """
    if inside := _INSIDE.match(command):
        check = specify(command[inside.end() :], scripts, go=go)
        return msgspec.structs.replace(check, command=command, run=inside[0] + check.run if check.run else "")
    run = _with_flags(command, scripts or {})
    if go and run == command and tool_of(command) is None:
        run = _ALOUD + command
    script = _script(command, scripts or {})
    kind = kind_of(command)
    if kind == "other" and script:
        kind = kind_of(script)
    seen = languages_of(script or command)
    return Check(command, kind=kind, run="" if run == command else run, languages=seen)


def _script(command: str, scripts: dict[str, str]) -> str:
    """The command behind `npm test` and the like; empty if it is not a simple one."""
    if not _RUNS_SCRIPT.match(command):
        return ""
    script = scripts.get(command.rpartition(" ")[2], "")
    return script if words(script) else ""


def _with_flags(command: str, scripts: dict[str, str]) -> str:
    if script := _script(command, scripts):
        flags = _flags(script)
        # Only npm needs `--` before arguments of the script; the others would pass it on.
        return f"{command} {'-- ' if command.startswith('npm') else ''}{flags}" if flags else command
    if not words(command):
        return command
    tool = tool_of(command)
    if tool == "node --test" and not _ASKED.search(command):
        both = (
            "--test --test-reporter=spec --test-reporter-destination=stdout "
            f"--test-reporter=junit --test-reporter-destination={_TO}"
        )
        return command.replace("--test", both, 1)
    if tool == "go test" and not _ASKED.search(command):
        return command.replace("go test", "go test -json", 1)
    if tool and tool.startswith("cargo ") and tool in _SAYS and not _ASKED.search(command):
        if _SAYS[tool] in command:
            return command
        return command.replace(tool, f"{tool} {_SAYS[tool]}", 1)
    flags = _flags(command)
    return f"{command} {flags}" if flags else command


def _flags(command: str) -> str:
    """The flags to append to the command."""
    tool = tool_of(command)
    if tool is None or _ASKED.search(command) or " -- " in command:
        return ""
    if tool in _WRITES_FILE:
        return _WRITES_FILE[tool]
    return "" if tool.startswith(("go ", "cargo ")) else _SAYS.get(tool, "")
