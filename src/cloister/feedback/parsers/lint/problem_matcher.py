"""GitHub's problem matchers: a repository's own description of what its tools print.

The expressions are a stranger's: they run in linear time, and only so many of them on so many lines.
"""

from collections.abc import Iterator, Sequence

import msgspec

from cloister.core.diagnosis import Diagnostic
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.parsers import plain, safe_regex
from cloister.feedback.parsers.json import decoded

_FILES = 16
_MATCHERS = 16
_PATTERNS = 10
_TRIES = 200_000
"""Lines times matchers that are tried on one output."""


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


_Step = tuple[_Pattern, safe_regex.Pattern]


def matchers(output: CheckOutput) -> Found | None:
    """A `Parser`: what the matchers of the repository find. One that cannot be run is left out."""
    ready = [(matcher, steps) for matcher in _all(output.matchers) if (steps := _steps(matcher))]
    if not ready:
        return None
    found: list[Diagnostic] = []
    lines = _TRIES // len(ready)
    for text in (output.out_lines[-lines:], output.err_lines[-lines:]):
        for matcher, steps in ready:
            found.extend(_matched(matcher, steps, text))
    return Found(diagnostics=tuple(found)) if found else None


def _all(files: Sequence[bytes]) -> list[_Matcher]:
    found: list[_Matcher] = []
    for data in files[:_FILES]:
        file = decoded(data, _File)
        found.extend(file.matchers if file else ())
    return found[:_MATCHERS]


def _steps(matcher: _Matcher) -> list[_Step]:
    """The expressions in order; none at all unless every one of them can be run."""
    steps: list[_Step] = []
    for pattern in matcher.pattern[:_PATTERNS]:
        compiled = safe_regex.compiled(pattern.regexp)
        if compiled is None:
            return []
        steps.append((pattern, compiled))
    return steps if steps and steps[-1][0].message is not None else []


def _matched(matcher: _Matcher, steps: Sequence[_Step], text: Sequence[str]) -> Iterator[Diagnostic]:
    """Lines in a row, one expression each; where the last one loops it may match again and again."""
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
    wanted = {
        "file": pattern.file,
        "line": pattern.line,
        "column": pattern.column,
        "severity": pattern.severity,
        "code": pattern.code,
        "message": pattern.message,
    }
    found: dict[str, str] = {}
    for key, number in wanted.items():
        if number is not None and 0 < number <= len(groups) and (value := groups[number - 1]) is not None:
            found[key] = value
    return found


def _diagnostic(matcher: _Matcher, seen: dict[str, str]) -> Diagnostic:
    at = (plain.number(seen.get("line")), plain.number(seen.get("column")))
    severity = plain.severity(seen.get("severity") or matcher.severity)
    tool = plain.name(matcher.owner)
    return plain.complaint(tool, seen.get("message", ""), seen.get("file"), at, severity, seen.get("code"))
