"""GitHub's problem matchers: regular expressions by which a repository describes the output of its tools.

The expressions are untrusted: RE2 runs them in linear time, and their number and that of the lines are bounded.
"""

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Protocol, cast

import msgspec

from cloister.core.diagnosis import Diagnostic
from cloister.feedback.api import CheckOutput, Found, marked
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.json import decoded

_FILES = 16
_MATCHERS = 16
_PATTERNS = 10
_TRIES = 200_000
"""Lines times matchers that are tried on one output."""
_REGEX_BYTES = 1_048_576
_REGEX_CHARS = 2_000


class _Pattern(msgspec.Struct, frozen=True):
    regexp: str
    file: int | None = None
    line: int | None = None
    column: int | None = None
    severity: int | None = None
    code: int | None = None
    message: int | None = None
    loop: bool = False


class _Matcher(msgspec.Struct, frozen=True):
    owner: str
    pattern: list[_Pattern]
    severity: str = "error"


class _File(msgspec.Struct, frozen=True):
    matchers: list[_Matcher] = msgspec.field(name="problemMatcher")


class _Groups(Protocol):
    def groups(self) -> Sequence[str | None]: ...


class _Regex(Protocol):
    def search(self, text: str) -> _Groups | None: ...


_Step = tuple[_Pattern, _Regex]


def _compiled(expression: str) -> _Regex | None:
    """None if RE2 rejects it, as it does look-around and back-references."""
    if len(expression) > _REGEX_CHARS:
        return None
    engine = cast(Any, import_module("re2"))  # imported only for repositories with problem matchers
    options = engine.Options()
    options.max_mem = _REGEX_BYTES
    options.log_errors = False
    try:
        return cast(_Regex, engine.compile(expression, options))
    except (engine.error, UnicodeError):
        return None


@marked(b"problemMatcher", where="matchers")
def matchers(output: CheckOutput) -> Found | None:
    """Apply the matchers of the repository, except those that RE2 rejects."""
    ready = [(matcher, steps) for matcher in _all(output.matchers) if (steps := _steps(matcher))]
    if not ready:
        return None
    found: list[Diagnostic] = []
    lines = _TRIES // len(ready)
    for text in (output.out_lines[-lines:], output.err_lines[-lines:]):
        for matcher, steps in ready:
            found.extend(_matched(matcher, steps, text))
    return Found.of(diagnostics=found)


def _all(files: Sequence[bytes]) -> list[_Matcher]:
    found: list[_Matcher] = []
    for data in files[:_FILES]:
        file = decoded(data, _File)
        found.extend(file.matchers if file else ())
    return found[:_MATCHERS]


def _steps(matcher: _Matcher) -> list[_Step]:
    """The expressions in order; none if RE2 rejects one of them."""
    steps: list[_Step] = []
    for pattern in matcher.pattern[:_PATTERNS]:
        compiled = _compiled(pattern.regexp)
        if compiled is None:
            return []
        steps.append((pattern, compiled))
    return steps if steps and steps[-1][0].message is not None else []


def _matched(matcher: _Matcher, steps: Sequence[_Step], text: Sequence[str]) -> Iterator[Diagnostic]:
    """Match consecutive lines, one expression each; a last expression that loops can match repeatedly."""
    at = 0
    seen: dict[str, str] = {}
    for line in text:
        pattern, compiled = steps[at]
        match = compiled.search(line)
        if match is None and at:
            at, seen = 0, {}
            pattern, compiled = steps[0]
            match = compiled.search(line)
        if match is None:
            continue
        seen = {**seen, **_captured(pattern, match.groups())}
        if at + 1 < len(steps):
            at += 1
            continue
        yield _diagnostic(matcher, seen)
        if not (pattern.loop and len(steps) > 1):
            at, seen = 0, {}


def _captured(pattern: _Pattern, groups: Sequence[str | None]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key in ("file", "line", "column", "severity", "code", "message"):
        number: int | None = getattr(pattern, key)
        if number is not None and 0 < number <= len(groups) and (value := groups[number - 1]) is not None:
            found[key] = value
    return found


def _diagnostic(matcher: _Matcher, seen: dict[str, str]) -> Diagnostic:
    at = (plain.number(seen.get("line")), plain.number(seen.get("column")))
    severity = plain.severity(seen.get("severity") or matcher.severity)
    tool = plain.name(matcher.owner)
    return plain.complaint(tool, seen.get("message", ""), seen.get("file"), at, severity, seen.get("code"))
