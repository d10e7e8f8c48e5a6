"""Programs that start another command: where that command begins. Pure.

Only options that are known are passed over: one that is not may take the next word as its value, and then the
command would begin elsewhere.
"""

import re
from dataclasses import dataclass, field

from cloister.agent.shell.walk import Argv, steers
from cloister.policy.api import HOLE

Wrapped = tuple[tuple[Argv, ...], str | None]
"""The commands that are started, and why they are not known."""

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Options:
    """What may stand between a wrapper and its command."""

    values: frozenset[str] = frozenset()
    """Options with a value."""
    flags: frozenset[str] = frozenset()
    operands: int = 0
    """Words before the command that are no options."""
    assigns: bool = False
    """Whether `NAME=value` may stand there."""


def _options(values: str = "", flags: str = "", operands: int = 0, *, assigns: bool = False) -> _Options:
    return _Options(frozenset(values.split()), frozenset(flags.split()), operands, assigns)


_ENV = _options("-u -C --unset --chdir", "-i - -0 --null --ignore-environment -v --debug", assigns=True)
_XARGS = _options(
    "-I -n -P -L -d -E -s -a --max-args --max-procs --max-lines --delimiter --arg-file --max-chars --replace",
    "-0 -r -t -p -x -o --null --no-run-if-empty --verbose --interactive --exit --open-tty",
)
_WRAPPERS = {
    "nohup": _options(),
    "setsid": _options(flags="-c -f -w --ctty --fork --wait"),
    "command": _options(flags="-p"),
    "builtin": _options(),
    "exec": _options("-a", "-c -l"),
    "doas": _options("-u -C", "-n"),
    "time": _options("-f -o --format --output", "-p -v -a --append --portability --verbose"),
    "busybox": _options(),
    "toybox": _options(),
    "sudo": _options(
        "-u -g -h -p -C -D -R -T -U -r -t --user --group --host --prompt --close-from --chdir --chroot"
        " --command-timeout --other-user --role --type",
        "-A -b -B -E -H -k -n -P -S --askpass --background --bell --preserve-env --set-home --non-interactive"
        " --preserve-groups --stdin --reset-timestamp",
        assigns=True,
    ),
    "timeout": _options("-s -k --signal --kill-after", "-v --verbose --foreground --preserve-status", 1),
    "nice": _options("-n --adjustment", " ".join(f"-{n}" for n in range(20))),
    "ionice": _options("-c -n --class --classdata", "-t --ignore"),
    "chrt": _options(flags="-f -r -o -b -i -R", operands=1),
    "taskset": _options(flags="-c -a", operands=1),
    "flock": _options(
        "-w -E --timeout --wait --conflict-exit-code",
        "-n -x -s -e -o -u -F --nonblock --exclusive --shared --close --unlock --no-fork --verbose",
        1,
    ),
    "stdbuf": _options("-i -o -e --input --output --error"),
    "strace": _options("-e -o -s -a -O -S -P -I -b", "-f -c -C -q -t -T -v -x -y -r -i -d -k -n -z -Z -w"),
}
_RUNNERS = frozenset({"uv", "poetry", "pdm", "hatch", "pipenv", "rye", "conda", "mamba", "pixi"})
"""`NAME run COMMAND`."""


@dataclass(slots=True)
class _Reading:
    """How far the options of a wrapper are read."""

    rest: Argv
    known: _Options
    at: int = 0
    unclear: str | None = None
    replaced: list[str] = field(default_factory=list[str])
    """Values of `-I`."""

    def read(self) -> None:
        while self.at < len(self.rest) and self.unclear is None:
            word = self.rest[self.at]
            if word == "--":
                self.at += 1
                break
            if self.known.assigns and (assigned := _ASSIGNMENT.match(word)):
                self.unclear = f"it sets {assigned[1]}" if steers(assigned[1]) else None
                self.at += 1
            elif HOLE in word and word.startswith((HOLE, "-")):
                self.unclear = "an option is not written out"
            elif not word.startswith("-"):
                break
            else:
                self._option(word)

    def _option(self, word: str) -> None:
        name, equals, value = word.partition("=")
        if word in self.known.values:
            self._value(word, self.rest[self.at + 1] if self.at + 1 < len(self.rest) else "")
            self.at += 2
        elif word in self.known.flags or (equals and name.startswith("--") and self._knows(name)):
            self._value(name, value)
            self.at += 1
        elif word.startswith("--") or len(word) < 2:
            self.unclear = f"the option {word[:40]} is not known"
        else:
            self._letters(word)

    def _knows(self, name: str) -> bool:
        return name in self.known.values or name in self.known.flags

    def _letters(self, word: str) -> None:
        """Several options in one word, the last perhaps with its value."""
        for number, letter in enumerate(word[1:], start=1):
            option = f"-{letter}"
            if option in self.known.values:
                attached = word[number + 1 :]
                following = self.rest[self.at + 1] if self.at + 1 < len(self.rest) else ""
                self._value(option, attached or following)
                self.at += 1 if attached else 2
                return
            if option not in self.known.flags:
                self.unclear = f"the option {option} is not known"
                return
        self.at += 1

    def _value(self, name: str, value: str) -> None:
        if name in ("-I", "--replace"):
            self.replaced.append(value or "{}")


def wrapped(program: str, rest: Argv) -> Wrapped | None:
    """The commands that `program` starts; None when it is no wrapper."""
    match program:
        case "env":
            return _after(rest, _ENV)
        case "xargs":
            return _xargs(rest)
        case "find":
            return _find(rest)
        case "command" if rest[:1] in (("-v",), ("-V",)):
            return (), None
        case _ if program in _WRAPPERS:
            return _after(rest, _WRAPPERS[program])
        case _ if program in _RUNNERS and "run" in rest:
            return _after(rest[1:], _options()) if rest[0] == "run" else ((), "an option is not known")
        case _:
            return None


def _after(rest: Argv, known: _Options) -> Wrapped:
    reading = _Reading(rest, known)
    reading.read()
    if reading.unclear is not None:
        return (), reading.unclear
    inner = rest[reading.at + known.operands :]
    return ((inner,) if inner else ()), None


def _xargs(rest: Argv) -> Wrapped:
    reading = _Reading(rest, _XARGS)
    reading.read()
    inner = rest[reading.at :]
    if reading.unclear is not None or not inner:
        return (), reading.unclear
    for mark in reading.replaced:
        inner = tuple(word.replace(mark, HOLE) for word in inner)
    return ((*inner, HOLE),), None


def _find(rest: Argv) -> Wrapped | None:
    if any(HOLE in word and word.startswith((HOLE, "-")) for word in rest):
        return (), "an expression of find is not written out"
    commands: list[Argv] = []
    at = 0
    while at < len(rest):
        if rest[at] in ("-exec", "-execdir", "-ok", "-okdir"):
            end = next((n for n in range(at + 1, len(rest)) if rest[n] in (";", "+")), len(rest))
            inner = tuple(word.replace("{}", HOLE) for word in rest[at + 1 : end])
            if inner:
                commands.append(inner)
            at = end
        at += 1
    return (tuple(commands), None) if commands else None
