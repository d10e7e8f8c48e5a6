"""Command lines and Makefiles, before and after: whether what ran tests still runs them and heeds their verdict."""

import re
from collections.abc import Iterator

from cloister.core.diagnosis import Weakening
from cloister.feedback.narrowing import assigned, narrows, tunes
from cloister.feedback.versions import Version

_SHRUGS = re.compile(r"\|\|?|;|(?<![&>])&(?![&>1])|^\s*@?-|\bexit 0\b|(?<!\S)#", re.MULTILINE)
"""What comes between a command and the status that it ends with."""

_DISARMS = re.compile(
    r"(?:^|\s)(?:python3?(?:\.\d+)? -OO?\b|PYTHONOPTIMIZE|PYTHONPATH|PYTEST_ADDOPTS|NODE_OPTIONS|--require\b|--import\b|--loader\b|"
    r"--experimental-loader\b|NODE_PATH|LD_PRELOAD|JEST_\w+|VITEST\w*|MOCHA_\w+)|-DNDEBUG\b|"
    r"(?:^|[\s@;&])(?:sed (?:-\w+ )*-\w*i|perl -\w*i|patch|git (?:checkout|stash|apply|restore|reset)|"
    r"(?:cp|mv|ln)\b[^\n;&|]{0,400}\.(?:go|rs|[cm]?[jt]sx?|py|c|cc|cpp|java))\b"
)
"""Assertions that are switched off, modules that are slipped in, code that is another while tests run."""

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
# A Makefile may be written to hurt: its values multiply where they name each other.
_VALUE_CHARS, _LINE_CHARS = 200, 2_000
_COMMANDS, _WORDS = 200, 40


def is_less(old: str, new: str) -> bool:
    """Whether a command no longer does what it did: a program or an argument is gone, or its verdict is thrown away."""
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
    """Program and arguments, without what is set for it and the marks of make."""
    words = part.strip(" \t@-+").split()
    while words and re.match(r"^\w+=", words[0]):
        words = words[1:]
    return words[:_WORDS]


def _holds(now: list[str], old: list[str]) -> bool:
    if not now or now[0] != old[0]:
        return False
    if len(old) == 1 and any(not word.startswith("-") for word in now[1:]) and "/" in old[0]:
        return False  # a script that ran all of it is told to do something in particular
    return all(any(word.startswith(wanted) for word in now[1:]) for wanted in old[1:])


def recipes(version: Version) -> Iterator[Weakening]:
    """Targets of a Makefile by which tests run, with all that they need."""
    before, after = version.before, version.after or ""
    if before is None:
        yield Weakening(version.path, "deceived", detail="it takes the place of the Makefile")
        return
    known = {line.strip() for line in before.split("\n")}
    added = "\n".join(line for line in after.split("\n") if line.strip() not in known)
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
            yield Weakening(version.path, "configuration", detail=f"the target {name} is gone")
        elif now != was and is_less(was, now):
            yield Weakening(version.path, "configuration", detail=f"the target {name} was changed")


class _Makefile:
    """Targets with what they need and do, as far as can be told without running make."""

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
                        self._does[name] = []  # the last recipe of a target is the one that counts
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
        """Everything that making `target` does, one command per line; None when there is no such target."""
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
