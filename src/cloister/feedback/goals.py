"""What a run must fix, judged by the request and by what failed on the base.

| the caller gave | must pass in the end |
|---|---|
| `--must-pass NAME` | exactly these names, including tests that do not exist yet |
| `--check CMD` | these checks, completely |
| neither | every red test; the proof excuses those that do not depend on the change |
| a prompt that names red tests or a linter | these as well, and no experiment excuses them |

`--exclude-test PATTERN` takes red tests out. No word of the prompt does: a test that it says to ignore counts like one that it
does not mention. In every case, nothing that passed may fail, and no test may get lost. A check that could not run is no
goal unless the caller or the prompt names it.
"""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cached_property

import msgspec

from cloister.core.diagnosis import CheckKind, Diagnosis
from cloister.feedback.check_commands import kind_of, tool_of

_WORD = re.compile(r"[\w./:\[\]@-]+")
_KINDS: dict[CheckKind, re.Pattern[str]] = {
    "format": re.compile(
        r"\breformat\w*|\bcode (?:style|format(?:ting)?)\b|\bstyle (?:errors?|checks?|guide)\b|"
        r"\bformat(?:ter|(?:ting)? (?:errors?|checks?|issues?|problems?))\b|"
        r"(?:^|\b(?:the|fix|source|all) )formatting(?=\s*(?:[.,;:!)]|$))",
        re.IGNORECASE,
    ),
    "lint": re.compile(r"\blint(?:s|ers?|ing)?\b", re.IGNORECASE),
    "types": re.compile(
        r"\btype[- ]?check(?:s|ers?|ing)?\b|"
        r"\b(?:the|fix|static|all|are|any|no|many|has|have|remaining) typ(?:e|ing) (?:errors?|problems?)\b",
        re.IGNORECASE,
    ),
    "build": re.compile(
        r"\b(?:build|compil(?:er|ation|e)) (?:errors?|failures?|problems?|warnings?)\b|"
        r"\b(?:(?:broken|failing|fix the) build|(?:fails to|make it) (?:build|compile)|"
        r"(?:(?:does|did|will|can) ?(?:not|n['’]t)|(?:ca|wo)n['’]t) (?:build|compile)|"
        r"(?:do not|don['’]t) (?:build|compile)(?=[.,;:!?)\n]|$| (?:any|with|on|since|after|because)\b)|"
        r"(?:is not|isn['’]t|stopped) (?:build|compil)ing|no longer (?:build|compile)s?)\b|"
        r"(?<!\ba )\b(?:build|compilation) (?:fails|failed|breaks|broke|is (?:broken|failing|red))\b",
        re.IGNORECASE,
    ),
}
"""Words that name a kind of check. One that can also be about the product names none: a date has a format, too."""
_EVERYDAY = ("black", "prettier", "biome", "cargo", "go")
"""Names of tools that are ordinary words, or start several tools: alone they name no check."""
_OTHERS = re.compile(
    r"(?:(?<!not )(?<!n['’]t )(?<!never )(?<!just )\b(?:except|excluding|ignor(?:e|ing)|skip(?:ping)?|leav(?:e|ing)(?! no\b)|besides|"
    r"(?:apart|aside) from|other than|regardless of)|(?:\b(?:not|never)|n['’]t) (?:run|touch|fix|change|care|worry|bother|mind))"
    r"(?: (?!(?:but|just|then|and (?:make|fix|run|get|let))\b)[\w`'’-]{1,40}){0,4}|"
    r"\b(?:[\w`'’-]{1,40} ){0,4}(?:(?:can|may|should|to) be (?:ignored|excluded|skipped|left)|(?:is|are) (?:unrelated|irrelevant|out of scope)|"
    r"(?:may|can) (?:stay|remain|fail)|(?:not|n['’]t) (?:matter|part|need|important|relevant|related|our|your|my))\b",
    re.IGNORECASE,
)
"""What names a check that is not asked for, with a few words. An error is mostly told with a negation, too."""
_SENTENCE = re.compile(r"(?<=[.;!?])\s+|\n\s*\n")
_NOT = re.compile(
    r"\b(?:not|never|without|except|excluding|ignor\w+|skip\w*|leav\w+|besides|(?:apart|aside) from|(?:other|rather) than|"
    r"instead of|regardless of|unrelated|irrelevant|(?:known|old|flaky) failures?|already (?:red|fail\w*|broken))\b|n['’]t\b",
    re.IGNORECASE,
)
"""What follows in the sentence is not asked for."""
_ASIDE = re.compile(
    r"\b(?:ignored?|exclud\w+|skipped|left|alone|unrelated|irrelevant|out of scope|known (?:to|failures?)|old failures?|"
    r"expected to fail|need\w* (?:the|a) network|(?:may|can|will|should) (?:stay|remain|fail)|"
    r"(?:not|n['’]t) (?:matter|part|need|important|relevant|related|our|your|my))\b",
    re.IGNORECASE,
)
"""What is before it in the clause is not asked for."""
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
    """Every test that fails on the base is a goal, because the caller named none."""
    told: tuple[str, ...] = ()
    """The goals that the prompt names: no experiment excuses them."""
    excluded: tuple[str, ...] = ()
    """Patterns of the caller: a red test that matches is no goal."""

    @cached_property
    def names_set(self) -> frozenset[str]:
        return frozenset(self.names)

    @cached_property
    def loose(self) -> frozenset[str]:
        """Names that can match several tests: those of the caller, and those of files and suites."""
        return frozenset(name for name in self.names if self.exactly or "::" not in name)


def asked(
    prompt: str,
    baseline: Sequence[Diagnosis],
    named: Sequence[str] = (),
    must_pass: Sequence[str] = (),
    excluded: Sequence[str] = (),
) -> Goals:
    """Derive the goals of a run, as in the table above."""
    if must_pass:
        return Goals(names=tuple(must_pass), exactly=True, excluded=tuple(excluded))
    if named:
        return Goals(checks=tuple(named), excluded=tuple(excluded))
    told, of_checks = _wanted_part(prompt[:_TOLD]), _OTHERS.sub("", prompt[:_TOLD])
    words = {word.strip(".:,;") for word in _WORD.findall(told)}
    by_check = [
        one for one in baseline if not one.green and (one.check in told or _means_check(of_checks, one))
    ]
    checks = [one.check for one in by_check]
    names: list[str] = []
    pinned = [one.check for one in by_check if one.not_run or not _of_tests(one)]
    for diagnosis in baseline:
        for name in _red(diagnosis):
            if excluding(excluded, name):
                continue
            if name == diagnosis.check:
                checks += [name] if _of_tests(diagnosis) and not diagnosis.not_run else []
            elif _means(told, words, name):
                names.append(name)
                pinned.append(name)
            # Flaky tests are a goal only if the prompt names them.
            elif _of_tests(diagnosis) and not diagnosis.not_run and name not in diagnosis.flaky:
                names.append(name)
    return Goals(
        tuple(dict.fromkeys(checks)),
        tuple(names),
        everything=True,
        told=tuple(pinned),
        excluded=tuple(excluded),
    )


def excluding(patterns: Sequence[str], name: str) -> str:
    """The pattern that takes a red test or check out; empty if none does."""
    if not patterns:
        return ""
    every = parts(name)
    return next(
        (one for one in patterns if one in every or any(fnmatchcase(part, one) for part in every)), ""
    )


def reason(asked: Goals, name: str) -> str:
    """Why an old failure is no goal."""
    if pattern := excluding(asked.excluded, name):
        return f"excluded by --exclude-test {pattern}"
    return "the request names no such check" if asked.everything else "the caller named others"


def _wanted_part(prompt: str) -> str:
    """The prompt without what it says to leave alone. A test that is cut by mistake still counts if it is red."""
    kept: list[str] = []
    for sentence in _SENTENCE.split(prompt):
        end = found.start() if (found := _NOT.search(sentence)) else len(sentence)
        if aside := _ASIDE.search(sentence):
            before = sentence[: aside.start()]
            end = min(end, max(before.rfind(mark) for mark in (",", "(", ":", " but ")) + 1)
        kept.append(sentence[:end])
    return "\n".join(kept)


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


def _means_check(told: str, diagnosis: Diagnosis) -> bool:
    """True if the prompt names a check by its command, its tool, or words that no product has."""
    command = diagnosis.check.rpartition(" && ")[2]
    kind, tool = kind_of(command), tool_of(command) or ""
    if kind in ("test", "other"):
        return False
    if command in told or _KINDS[kind].search(told):
        return True
    first = re.escape(tool.partition(" ")[0])
    if tool and first not in _EVERYDAY:
        return re.search(rf"\b{first}\b(?! (?:check|format)\b)", told, re.IGNORECASE) is not None
    if tool and (f"`{tool}`" in told or (" " in tool and tool in told)):
        return True
    spoken = rf"\b(?:run|apply|satisfy) {first}(?![\w-])|\b{first} (?:errors?|fails|complains|happy|pass)\b"
    return tool in _EVERYDAY and re.search(spoken, told, re.IGNORECASE) is not None
