"""What a command checks, and in which languages, judged by the tool that it starts."""

import re
import shlex

from cloister.core.diagnosis import CheckKind

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
    "tox": ("test", (PYTHON,)),
    "nox": ("test", (PYTHON,)),
    "jest": ("test", (SCRIPT,)),
    "vitest": ("test", (SCRIPT,)),
    "mocha": ("test", (SCRIPT,)),
    "ava": ("test", (SCRIPT,)),
    "node --test": ("test", (SCRIPT,)),
    "go test": ("test", (GO,)),
    "cargo test": ("test", (RUST,)),
    "cargo nextest": ("test", (RUST,)),
    "ctest": ("test", (C,)),
    "mvn": ("test", (JAVA,)),
    "mvnw": ("test", (JAVA,)),
    "gradle": ("test", (JAVA,)),
    "gradlew": ("test", (JAVA,)),
}
_STARTERS = [
    "npx",
    "python",
    "python3",
    "uv",
    "run",
    "poetry",
    "pdm",
    "hatch",
    "pipenv",
    "exec",
    "bunx",
    "pnpm",
    "yarn",
]
_SOURCE = re.compile(r"\.(?:[cm]?[jt]sx?|py|rs|go|java|kt|c|cc|cpp|rb|php)$")
_SCRIPTS = re.compile(r"^(?:npm|pnpm|yarn|bun) (?:run )?([\w:-]+)")
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
    script = _SCRIPTS.match(command)
    target = command.partition(" ")[2] if command.startswith(("make ", "just ", "task ")) else ""
    name = script[1] if script else target
    for word, kind in _WORDS:
        if word in name:
            return kind
    return "other"


def may_run_tests(command: str) -> bool:
    """False for formatters, linters, type checkers and compilers."""
    return kind_of(command) in ("test", "other")


def languages_of(command: str) -> tuple[str, ...]:
    """The languages whose files the tool reads; empty if unknown."""
    tool = tool_of(command)
    return _TOOLS[tool][1] if tool is not None else ()


def leaves_reports(command: str) -> bool:
    """True if the command uses Maven or Gradle, which write reports to directories of their own."""
    return _REPORTS.search(command) is not None


def is_source(path: str) -> bool:
    """True if the name ends like a source file."""
    return _SOURCE.search(path) is not None
