"""What a run must fix, judged by the request and by what failed on the base.

| the caller gave | failing on the base | must pass in the end |
|---|---|---|
| `--must-pass NAME` | anything | exactly these names, including tests that do not exist yet |
| `--check CMD` | anything | these checks, completely |
| a prompt that names failing tests, files or kinds of checks | those and others | those |
| a prompt that names none | tests | all failing tests; the proof excuses those that do not depend on the change |

In every case, nothing that passed may fail, and no test may get lost. A check that could not run is no goal unless the
caller or the prompt names it.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

import msgspec

from cloister.core.diagnosis import CheckKind, Diagnosis
from cloister.feedback.check_commands import kind_of

_WORD = re.compile(r"[\w./:\[\]@-]+")
_KINDS: dict[CheckKind, re.Pattern[str]] = {
    "format": re.compile(r"\b(?:format(?:ting|ter)?|style)\b", re.IGNORECASE),
    "lint": re.compile(r"\b(?:lint(?:s|er|ing)?|warnings?)\b", re.IGNORECASE),
    "types": re.compile(
        r"\b(?:type (?:errors?|checks?|checker)|typing|typecheck(?:s|er|ing)?)\b", re.IGNORECASE
    ),
    "build": re.compile(r"\b(?:build|compil(?:e|es|er|ation|ing))\b", re.IGNORECASE),
}
_MARKS = 24
"""Separators in one name that count; a name of a real test has fewer."""
_TOLD = 20_000
"""The beginning of a long prompt states the task; the rest is material."""


class Goals(msgspec.Struct, frozen=True, dict=True):
    """What must pass in the end."""

    checks: tuple[str, ...] = ()
    """Command lines of checks that must pass completely."""
    names: tuple[str, ...] = ()
    """Names of tests, of test files or suites, or parts of names."""
    exactly: bool = False
    """The caller gave the names: each must match a passing test."""
    everything: bool = False
    """Every test that fails on the base is a goal, because neither the caller nor the prompt named any."""

    @cached_property
    def names_set(self) -> frozenset[str]:
        return frozenset(self.names)

    @cached_property
    def loose(self) -> frozenset[str]:
        """Names that can match several tests: those of the caller, and those of files and suites."""
        return frozenset(name for name in self.names if self.exactly or "::" not in name)


def asked(
    prompt: str, baseline: Sequence[Diagnosis], named: Sequence[str] = (), must_pass: Sequence[str] = ()
) -> Goals:
    """Derive the goals of a run, as in the table above."""
    if must_pass:
        return Goals(names=tuple(must_pass), exactly=True)
    if named:
        return Goals(checks=tuple(named))
    red = [(diagnosis, name) for diagnosis in baseline for name in _red(diagnosis)]
    told = prompt[:_TOLD]
    words = {word.strip(".:,;") for word in _WORD.findall(told)}
    by_name = tuple(name for diagnosis, name in red if name != diagnosis.check and _means(told, words, name))
    by_check = tuple(
        diagnosis.check
        for diagnosis in baseline
        if not diagnosis.green and _means_check(told, words, diagnosis)
    )
    if by_name or by_check:
        return Goals(by_check, by_name)
    # Flaky tests are a goal only if the prompt names them.
    tests = [
        (diagnosis, name)
        for diagnosis, name in red
        if _of_tests(diagnosis) and not diagnosis.not_run and name not in diagnosis.flaky
    ]
    return Goals(
        tuple(dict.fromkeys(name for diagnosis, name in tests if name == diagnosis.check)),
        tuple(name for diagnosis, name in tests if name != diagnosis.check),
        everything=True,
    )


def mentioned(prompt: str, names: Iterable[str], must_pass: Sequence[str] = ()) -> tuple[str, ...]:
    """The names that the prompt mentions or the caller gave, and the words of the prompt, which may be files."""
    told = prompt[:_TOLD]
    words = {word.strip(".:,;") for word in _WORD.findall(told)}
    wishes = {*must_pass}
    meant = (name for name in names if _means(told, words, name) or not wishes.isdisjoint(parts(name)))
    return tuple(dict.fromkeys((*meant, *sorted(words))))


def wanted(asked: Goals | None, check: str, name: str) -> bool:
    """True if `name` of `check`, which failed before and fails now, is a goal. Without goals everything is."""
    if asked is None or check in asked.checks:
        return True
    return named(asked, name) or not asked.loose.isdisjoint(parts(check))


def wanted_check(asked: Goals | None, check: str) -> bool:
    """True if the caller or the prompt names the check."""
    return asked is not None and (check in asked.checks or not asked.loose.isdisjoint(parts(check)))


def named(asked: Goals | None, name: str) -> bool:
    """True if a goal names the test itself, not only its check."""
    return asked is not None and (name in asked.names_set or not asked.loose.isdisjoint(parts(name)))


def covers(wish: str, name: str) -> bool:
    """True if the name of a test, file or suite in a goal matches `name`."""
    return wish in parts(name)


def parts(name: str) -> set[str]:
    """Every name of a test, file or suite in a goal that matches `name`: all of it, its beginnings, ends and middles."""
    starts = {mark: _places(name, mark) for mark in ("::", "[", " > ", "/")}
    found = {name}
    found.update(name[:at] for places in starts.values() for at in places)
    found.update(name[at + len(mark) :] for mark in ("::", " > ", "/") for at in starts[mark])
    for begins, ends in (("::", "["), ("/", "::")):
        found.update(name[a + len(begins) : b] for a in starts[begins] for b in starts[ends] if b > a)
    return found


def _places(text: str, mark: str) -> list[int]:
    """Where `mark` is, at most `_MARKS` times."""
    found: list[int] = []
    at = text.find(mark)
    while at >= 0 and len(found) < _MARKS:
        found.append(at)
        at = text.find(mark, at + 1)
    return found


def _red(diagnosis: Diagnosis) -> Iterable[str]:
    failing = [test.name for test in diagnosis.failing]
    if diagnosis.green:
        return []
    return failing if failing and diagnosis.killed is None else [*failing, diagnosis.check]


def _of_tests(diagnosis: Diagnosis) -> bool:
    return bool(diagnosis.tests or diagnosis.unlisted) or kind_of(diagnosis.check) in ("test", "other")


def _means(told: str, words: set[str], name: str) -> bool:
    """True if the prompt mentions the test by its full name, its file, or its short name."""
    if name in words:
        return True
    file, _, inner = name.partition("::")
    short = re.split(r"::| > |/", inner or name)[-1].partition("[")[0].strip()
    if " " in short:
        return len(short) >= 8 and short in told
    if file in words or (("." in file) and file.rpartition("/")[2] in words):
        return True
    is_plain_word = short.isalpha() and short.islower()
    return bool(short) and (f"`{short}`" in told or (short in words and not is_plain_word))


def _means_check(told: str, words: set[str], diagnosis: Diagnosis) -> bool:
    if diagnosis.check in told:
        return True
    kind = kind_of(diagnosis.check)
    if kind in _KINDS and _KINDS[kind].search(told):
        return True
    tools = {
        word.rpartition("/")[2] for word in diagnosis.check.split() if word[:1].isalpha() and len(word) > 3
    }
    return kind not in ("test", "other") and bool(tools & {word.lower() for word in words})
