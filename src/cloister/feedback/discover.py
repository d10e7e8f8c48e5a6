"""Which checks a repository has, judged by its files alone; nothing is run to find out."""

import re
import tomllib
from collections.abc import Collection, Mapping
from typing import Literal

import msgspec

from cloister.core import limits

WANTED: tuple[str, ...] = (
    ".cloister.toml",
    "pyproject.toml",
    "setup.cfg",
    "tox.ini",
    "pytest.ini",
    "package.json",
    "Makefile",
    "go.mod",
    "Cargo.toml",
)
"""The files whose contents are looked at."""

_DEPTH = 3
_TEST_FILE = re.compile(r"(?:^|/)(?:test_[^/]+|[^/]+_test)\.py$")
_TEST_TARGET = re.compile(r"^test[ \t]*::?(?!=)", re.MULTILINE)
_PLACEHOLDER = "no test specified"


class _Own(msgspec.Struct):
    """`.cloister.toml`."""

    checks: list[str] = []


class _Package(msgspec.Struct):
    """The part of `package.json` that matters here."""

    scripts: dict[str, object] = {}


def discover(files: Collection[str], contents: Mapping[str, str]) -> tuple[str, ...]:
    """The commands that must be green, best first; empty when there is nothing to prove a change with.

    What `.cloister.toml` says is the whole answer. Otherwise each ecosystem that is present adds its own
    runner, and `make test` serves where there is none.
    """
    if own := _own(contents.get(".cloister.toml", "")):
        return own
    found: list[str] = []
    if python := _python(files, contents):
        found.append(python)
    if _npm(contents.get("package.json", "")):
        found.append("npm test")
    if "Cargo.toml" in files:
        found.append("cargo test")
    if "go.mod" in files:
        found.append("go test ./...")
    if not found and _TEST_TARGET.search(contents.get("Makefile", "")):
        found.append("make test")
    return tuple(found)


def _own(text: str) -> tuple[str, ...]:
    try:
        own = msgspec.convert(tomllib.loads(text), _Own)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError):
        return ()
    return tuple(check.strip() for check in own.checks if check.strip())[: limits.CHECKS]


def _python(files: Collection[str], contents: Mapping[str, str]) -> Literal["python3 -m pytest -q"] | None:
    configured = (
        "pytest.ini" in files
        or "[tool.pytest" in contents.get("pyproject.toml", "")
        or "[tool:pytest]" in contents.get("setup.cfg", "")
        or "[pytest]" in contents.get("tox.ini", "")
    )
    has_tests = any(name.count("/") < _DEPTH and _TEST_FILE.search(name) for name in files)
    return "python3 -m pytest -q" if configured or has_tests else None


def _npm(text: str) -> bool:
    """Whether there is a test script that is not the one `npm init` writes."""
    try:
        package = msgspec.json.decode(text, type=_Package)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    script = package.scripts.get("test")
    return isinstance(script, str) and bool(script.strip()) and _PLACEHOLDER not in script
