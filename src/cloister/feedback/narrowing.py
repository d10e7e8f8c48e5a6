"""Words on a command line by which a runner of tests does less than it did, or does it to something else."""

import re
from collections.abc import Iterable, Sequence

_FLAGS: dict[str, re.Pattern[str]] = {
    "go": re.compile(r"--?(?:run|skip|short|tags|exec|overlay|list|modfile|c|n|count=0|vet=off)(?:=|$)"),
    "cargo": re.compile(
        r"--(?:lib|bins?|tests?|all-targets|doc|examples?|benches|no-run|exclude|package|features|no-default-features|config|skip|"
        r"ignored|manifest-path|exact|list|filter-expr|profile|target)(?:=|$)|-[pFE]$"
    ),
    "jest": re.compile(
        r"--(?:test\w{0,30}Patterns?|testMatch|testRegex|testRunner|only\w{0,20}|findRelatedTests|changed\w{0,20}|passWithNoTests|"
        r"config|listTests|update\w{0,20}|setupFiles\w{0,20}|runner|env|globals|moduleNameMapper|transform|resolver|selectProjects|"
        r"ignoreProjects|projects|shard|roots|rootDir|\w{0,20}Ignore\w{0,20})(?:=|$)|-[tofcu]$"
    ),
    "vitest": re.compile(
        r"--(?:testNamePattern|exclude|dir|changed|related|passWithNoTests|config|root|update|shard|project|mode|environment|"
        r"alias\S{0,80}|setupFiles|dangerouslyIgnoreUnhandledErrors|standalone|retry)(?:=|$)|-[tcru]$"
    ),
    "mocha": re.compile(
        r"--(?:f?grep|invert|exclude|ignore|require|file|spec|config|package|ui|dry-run|pass-on-failing-test-suite|import|"
        r"loader|retries|no-\w{1,20})(?:=|$)|-[gfir]$"
    ),
    "node": re.compile(
        r"--(?:test-name-pattern|test-skip-pattern|test-only|test-shard|require|import|loader|experimental-loader|conditions|"
        r"env-file|check|eval|print)(?:=|$)|-[rCcep]$"
    ),
}
"""What must not be new on the command line of each."""

_CARGO_TAKES = re.compile(
    r"^(?:-j|-Z|--(?:jobs|target-dir|color|message-format|test-threads|format|logfile|shuffle-seed))$"
)
_ALONE = re.compile(
    r"^--(?:test|ci|coverage|verbose|silent|runInBand|forceExit|detectOpenHandles|recursive|exit|parallel|bail|colors?|run|"
    r"no-\S{1,40}|experimental-\S{1,60})$"
)
"""Flags that take no word of their own, so that the one behind them is a filter."""
_BEGINS = {"go": ("test",), "cargo": ("test", "t", "nextest")}
_ASSIGNS = re.compile(r"^(?:GOFLAGS|RUSTFLAGS|RUSTDOCFLAGS|CARGO_\w{1,40})=(.*)$")
_TUNES = re.compile(
    r"\s-{1,2}(?:run|skip|short|tags|exec|overlay|modfile|list|c|n)\b|--cfg\b|(?:RUNNER|WRAPPER|RUSTC)\b"
)
"""The same in a variable."""


def narrows(old: Sequence[Sequence[str]], new: Sequence[Sequence[str]]) -> str | None:
    """The word that is new in these commands and by which fewer tests run; None when there is none.

    Of a runner's own arguments only: what other programs take nobody knows. A filter that stood there before stays one.
    """
    known = {word for words in old for word in words}
    for words in new:
        found = _runner(words)
        if found is None:
            continue
        tool, at = found
        before = [one for one in map(_runner_words, old) if one is not None and one[0] == tool]
        for place in range(at, len(words)):
            word = words[place].strip("'\"")
            if word in known or words[place] in known:
                continue
            if _FLAGS[tool].match(word):
                return word
            if _is_filter(tool, words, place, at) and not any(_names_some(tool, one) for _, one in before):
                return word
    return None


def tunes(name: str, value: str) -> bool:
    """Whether a variable of this name and value makes Go or cargo run other tests, or other code."""
    found = _ASSIGNS.match(f"{name}={value}")
    return found is not None and (_TUNES.search(f" {found[1]}") or _TUNES.search(name)) is not None


def _runner(words: Sequence[str]) -> tuple[str, int] | None:
    """The runner that a command starts, and where its arguments begin."""
    for at, word in enumerate(words):
        tool = word.rpartition("/")[2]
        if tool not in _FLAGS:
            continue
        if tool == "node" and not any(one.startswith("--test") for one in words):
            continue
        if tool in _BEGINS:
            verb = next((n for n in range(at + 1, len(words)) if words[n] in _BEGINS[tool]), None)
            if verb is None:
                continue
            return tool, at + 1
        return tool, at + 1
    return None


def _runner_words(words: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    found = _runner(words)
    return None if found is None else (found[0], words[found[1] :])


def _is_filter(tool: str, words: Sequence[str], place: int, start: int) -> bool:
    """Whether it names what to run. A word behind a flag may be the flag's own."""
    word = words[place]
    if word.startswith("-") or "$" in word or word in (*_BEGINS.get(tool, ()), "run", "watch"):
        return False
    if tool == "go":
        return False  # packages more than before: those there were are still named
    above = words[place - 1] if place > start else ""
    if tool == "cargo":
        return not _CARGO_TAKES.match(above)
    return not above.startswith("-") or above == "--" or _ALONE.match(above) is not None


def _names_some(tool: str, words: Sequence[str]) -> bool:
    """Whether it was told before what to run, so that one more is more."""
    return tool != "cargo" and any(_is_filter(tool, words, at, 0) for at in range(len(words)))


def assigned(words: Iterable[str]) -> bool:
    """Whether one of the words before a command sets such a variable."""
    return any(tunes(*word.partition("=")[::2]) for word in words if "=" in word)
