"""Compares command lines and Makefiles: do they still run the same tests, and do failures still count?"""

import re
from collections.abc import Iterable, Iterator, Sequence

from cloister.core.diagnosis import Weakening
from cloister.feedback.integrity.versions import Version

# Arguments of test runners

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
"""Flags by which a runner runs fewer or other tests: they must not be new on a command line."""

_CARGO_TAKES = re.compile(
    r"^(?:-j|-Z|--(?:jobs|target-dir|color|message-format|test-threads|format|logfile|shuffle-seed))$"
)
_ALONE = re.compile(
    r"^--(?:test|ci|coverage|verbose|silent|runInBand|forceExit|detectOpenHandles|recursive|exit|parallel|bail|colors?|run|"
    r"no-\S{1,40}|experimental-\S{1,60})$"
)
"""Flags without a value, so that the next word is a filter."""
_BEGINS = {"go": ("test",), "cargo": ("test", "t", "nextest")}
_ASSIGNS = re.compile(r"^(?:GOFLAGS|RUSTFLAGS|RUSTDOCFLAGS|CARGO_\w{1,40})=(.*)$")
_TUNES = re.compile(
    r"\s-{1,2}(?:run|skip|short|tags|exec|overlay|modfile|list|c|n)\b|--cfg\b|(?:RUNNER|WRAPPER|RUSTC)\b"
)
"""The same flags in a variable."""


def narrows(old: Sequence[Sequence[str]], new: Sequence[Sequence[str]]) -> str | None:
    """The new word in these commands that makes fewer tests run; None if there is none.

    Looks only at the arguments of known runners. A filter that was there before is not new.
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
    """True if this variable makes Go or cargo run other tests, or other code."""
    found = _ASSIGNS.match(f"{name}={value}")
    return found is not None and (_TUNES.search(f" {found[1]}") or _TUNES.search(name)) is not None


def _runner(words: Sequence[str]) -> tuple[str, int] | None:
    """The runner that a command starts, and the index of its first argument."""
    for at, word in enumerate(words):
        tool = word.rpartition("/")[2]
        if tool not in _FLAGS:
            continue
        if tool == "node" and not any(one.startswith("--test") for one in words):
            continue
        if tool in _BEGINS and not any(word in _BEGINS[tool] for word in words[at + 1 :]):
            continue
        return tool, at + 1
    return None


def _runner_words(words: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    found = _runner(words)
    return None if found is None else (found[0], words[found[1] :])


def _is_filter(tool: str, words: Sequence[str], place: int, start: int) -> bool:
    """True if the word selects tests. A word after a flag may be the value of the flag."""
    word = words[place]
    if word.startswith("-") or "$" in word or word in (*_BEGINS.get(tool, ()), "run", "watch"):
        return False
    if tool == "go":
        return False  # an additional package: the old ones are still named
    above = words[place - 1] if place > start else ""
    if tool == "cargo":
        return not _CARGO_TAKES.match(above)
    return not above.startswith("-") or above == "--" or _ALONE.match(above) is not None


def _names_some(tool: str, words: Sequence[str]) -> bool:
    """True if the command already selected tests, so that another filter runs more."""
    return tool != "cargo" and any(_is_filter(tool, words, at, 0) for at in range(len(words)))


def assigned(words: Iterable[str]) -> bool:
    """True if one of the words sets such a variable."""
    return any(tunes(*word.partition("=")[::2]) for word in words if "=" in word)


_SHRUGS = re.compile(r"\|\|?|;|(?<![&>])&(?![&>1])|^[^\S\n]*@?-|\bexit 0\b|(?<!\S)#", re.MULTILINE)
"""Shell syntax that can hide the exit status of a command."""

_DISARMS = re.compile(
    r"(?:^|\s)(?:python3?(?:\.\d+)? -OO?\b|PYTHONOPTIMIZE|PYTHONPATH|PYTEST_ADDOPTS|NODE_OPTIONS|--require\b|--import\b|--loader\b|"
    r"--experimental-loader\b|NODE_PATH|LD_PRELOAD|JEST_\w+|VITEST\w*|MOCHA_\w+)|-DNDEBUG\b|"
    r"(?:^|[\s@;&])(?:sed (?:-\w+ )*-\w*i|perl -\w*i|patch|git (?:checkout|stash|apply|restore|reset)|"
    r"(?:cp|mv|ln)\b[^\n;&|]{0,400}\.(?:go|rs|[cm]?[jt]sx?|py|c|cc|cpp|java))\b"
)
"""Disabled assertions, injected modules, code that is replaced while tests run."""

_TEST_TARGETS = ("test", "tests", "check", "verify")
_RULE = re.compile(r"^([\w./%-]{1,200}(?:[ \t]+[\w./%-]{1,200}){0,20})[ \t]*::?(?!=)(.*)$")
_VARIABLE = re.compile(r"^(?:export[ \t]+|override[ \t]+)?([\w.]{1,80})[ \t]*[:?+!]{0,3}=(.*)$")
_USED = re.compile(r"\$[({]([\w.]{1,80})[)}]")
_WHOLE_FILE = re.compile(
    r"^\.(?:IGNORE|SHELLFLAGS)\b|^(?:export +|override +)?(?:MAKEFLAGS|GNUMAKEFLAGS|SHELL|\.SHELLFLAGS)\b|"
    r"^[-s]?include\b(?!.*\.d\b)|NDEBUG\b",
    re.MULTILINE,
)
_LINES = 20_000
# Bounds against a hostile Makefile, whose variables can expand exponentially.
_VALUE_CHARS, _LINE_CHARS = 200, 2_000
_COMMANDS, _WORDS = 200, 40


def is_less(old: str, new: str) -> bool:
    """True if a command does less than before: a program or argument is missing, or its exit status is ignored."""
    kept = [_words(part) for part in _parts(new)]
    lost = any(not any(_holds(now, words) for now in kept) for words in map(_words, _parts(old)) if words)
    shrugs = len(_SHRUGS.findall(new)) > len(_SHRUGS.findall(old))
    disarmed = bool(_DISARMS.search(new) and not _DISARMS.search(old))
    set_before = {word for part in _parts(old) for word in part.split()}
    tuned = assigned(word for part in _parts(new) for word in part.split() if word not in set_before)
    return lost or shrugs or disarmed or tuned or narrows([*map(_words, _parts(old))], kept) is not None


def _parts(command: str) -> list[str]:
    return [part for part in re.split(r"&&|\|\||;|\n", command) if part.strip()][:_COMMANDS]


def _words(part: str) -> list[str]:
    """Program and arguments, without assignments in front and the prefixes of make."""
    words = part.strip(" \t@-+").split()
    while words and re.match(r"^\w+=", words[0]):
        words = words[1:]
    return words[:_WORDS]


def _holds(now: list[str], old: list[str]) -> bool:
    if not now or now[0] != old[0]:
        return False
    if len(old) == 1 and any(not word.startswith("-") for word in now[1:]) and "/" in old[0]:
        return False  # a script that ran everything now gets an argument
    return all(any(word.startswith(wanted) for word in now[1:]) for wanted in old[1:])


def recipes(version: Version) -> Iterator[Weakening]:
    """Compare the test targets of a Makefile, with their prerequisites."""
    before, after = version.before, version.after or ""
    if before is None:
        yield Weakening(version.path, "deceived", detail="it replaces the Makefile")
        return
    added = "\n".join(version.new_lines())
    if found := _WHOLE_FILE.search(added):
        yield Weakening(version.path, "configuration", detail=found.group().strip())
    old, new = _Makefile(before), _Makefile(after)
    for name, value in new.values.items():
        if value != old.values.get(name) and tunes(name, value):
            yield Weakening(version.path, "configuration", detail=f"{name} was changed")
    for name in _TEST_TARGETS:
        was, now = old.all_of(name), new.all_of(name)
        if was is None:
            continue
        if now is None:
            yield Weakening(version.path, "configuration", detail=f"the target {name} was removed")
        elif now != was and is_less(was, now):
            yield Weakening(version.path, "configuration", detail=f"the target {name} was changed")


class _Makefile:
    """The targets of a Makefile with prerequisites and recipes, parsed without running make."""

    def __init__(self, text: str) -> None:
        self._needs: dict[str, list[str]] = {}
        self._does: dict[str, list[str]] = {}
        self.values: dict[str, str] = {}
        current: tuple[str, ...] = ()
        fresh = False
        for line in text.replace("\\\n", " ").split("\n")[:_LINES]:
            line = line[:_LINE_CHARS]
            if line.startswith("\t"):
                for name in current:
                    if fresh:
                        self._does[name] = []  # the last recipe of a target wins
                    self._does[name].append(line.strip())
                fresh = False
            elif rule := _RULE.match(line):
                current, fresh = tuple(rule[1].split()), True
                needs, _, does = rule[2].partition(";")
                for name in current:
                    self._needs.setdefault(name, []).extend(needs.split())
                    self._does.setdefault(name, []).extend([does.strip()] if does.strip() else [])
            elif value := _VARIABLE.match(line):
                self.values[value[1]] = value[2].strip()[:_VALUE_CHARS]
            elif line.strip():
                current = ()

    def all_of(self, target: str) -> str | None:
        """All commands of `target` and its prerequisites, one per line; None if there is no such target."""
        if target not in self._needs:
            return None
        lines: list[str] = []
        seen: set[str] = set()
        waiting = [target]
        while waiting and len(seen) < _COMMANDS and len(lines) < _COMMANDS:
            name = waiting.pop(0)
            if name in seen:
                continue
            seen.add(name)
            needs = self._expanded(" ".join(self._needs.get(name, ()))).split()
            lines += [*needs, *map(self._expanded, self._does.get(name, ())[:_COMMANDS])]
            waiting += [need for need in needs if need in self._needs]
        return "\n".join(lines)

    def _expanded(self, line: str) -> str:
        for _ in range(4):
            line = _USED.sub(lambda used: self.values.get(used[1], used[0]), line)[:_LINE_CHARS]
        return line
