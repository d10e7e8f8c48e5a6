"""Parse a Dockerfile: stages, instructions, variables. Pure: nothing is read, fetched or run."""

import json
import posixpath
import re
from collections.abc import Mapping
from typing import cast

import msgspec

from cloister.core.errors import UserError
from cloister.core.text import one_line, whole

TEXT_BYTES = 1_048_576
_INSTRUCTIONS_MOST, _MOUNTS_MOST = 500, 64
_VALUE_CHARS = 65_536
"""Limit of one expanded text: each variable may hold the one before it twice."""
_VALUES_CHARS = 262_144
"""Limit of all variables together."""
_DEPTH = 16

_STEPS = frozenset(("RUN", "COPY", "ADD", "WORKDIR", "ENV", "ARG", "USER", "SHELL"))
_WITHOUT_EFFECT = frozenset(
    ("CMD", "ENTRYPOINT", "LABEL", "EXPOSE", "VOLUME", "HEALTHCHECK", "STOPSIGNAL", "MAINTAINER")
)
"""Accepted: they describe how an image is started, and a template is not."""

_FLAGS = {
    "FROM": frozenset(("platform",)),
    "RUN": frozenset(("mount", "network", "security")),
    "COPY": frozenset(("from", "chown", "chmod", "link")),
    "ADD": frozenset(("chown", "chmod", "link")),
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STAGE = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_DIRECTIVE = re.compile(r"#[ \t]*([A-Za-z]+)[ \t]*=[ \t]*+(\S*)[ \t]*")
_HEREDOC = re.compile(r"\d*<<(-?)([\"']?)([^<\"'\s]+)\2")
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?(?:\s+|$)")
_MODE = re.compile(r"0?[0-7]{3,4}")


class Heredoc(msgspec.Struct, frozen=True):
    """Text inside the Dockerfile."""

    name: str
    text: str
    expands: bool
    """False when the delimiter is quoted."""


class Mount(msgspec.Struct, frozen=True):
    """A `RUN --mount`: `bind` copies files in for one step, `cache` and `tmpfs` are plain directories."""

    kind: str
    target: str
    source: str = ""
    origin: str = ""
    """The stage or image of `from`; empty for the context."""


class Instruction(msgspec.Struct, frozen=True):
    """One instruction, its lines joined."""

    name: str
    rest: str
    line: int
    flags: tuple[tuple[str, str], ...] = ()
    heredocs: tuple[Heredoc, ...] = ()
    escape: str = "\\"

    def flag(self, name: str) -> str:
        return next((value for flag, value in self.flags if flag == name), "")

    @property
    def shown(self) -> str:
        flags = [f"--{name}={value}" if value else f"--{name}" for name, value in self.flags]
        return one_line(" ".join([self.name, *flags, self.rest]), 200)

    def bad(self, why: str) -> UserError:
        return _bad(self.line, f"{self.name}: {why}")

    def mounts(self) -> tuple[Mount, ...]:
        """The mounts of a RUN. Raises `UserError` (`bad_dockerfile`)."""
        return tuple(_mount(self, value) for name, value in self.flags if name == "mount")


class Stage(msgspec.Struct, frozen=True):
    """A FROM and the instructions after it."""

    number: int
    name: str
    """Empty without `AS`."""
    base: str
    """An earlier stage, `scratch`, or an image; variables are replaced."""
    start: Instruction
    instructions: tuple[Instruction, ...]


class Parsed(msgspec.Struct, frozen=True):
    """A whole Dockerfile."""

    stages: tuple[Stage, ...]
    args: dict[str, str]
    """ARG before the first FROM: the values for ARG without one."""

    def stage(self, reference: str, before: int) -> Stage | None:
        """The stage of this name or number among those before `before`."""
        found = [
            stage
            for stage in self.stages[:before]
            if reference == str(stage.number) or (stage.name and stage.name == reference.lower())
        ]
        return found[-1] if found else None

    def needed(self, target: str | None) -> tuple[Stage, ...]:
        """The stages that `target` (None: the last) is made from, in order. Raises `UserError` (`bad_dockerfile`)."""
        last = self.stage(target, len(self.stages)) if target else self.stages[-1]
        if last is None:
            raise UserError(
                "bad_dockerfile", f"The Dockerfile has no stage {one_line(target or '', 60)!r}: fix `target`."
            )
        left, found = [last], {last.number: last}
        while left:
            stage = left.pop()
            for reference in _references(stage):
                other = self.stage(reference, stage.number)
                if other is not None and other.number not in found:
                    found[other.number] = other
                    left.append(other)
        return tuple(found[number] for number in sorted(found))


def _references(stage: Stage) -> list[str]:
    copied = [each.flag("from") for each in stage.instructions if each.name == "COPY"]
    mounted = [m.origin for each in stage.instructions if each.name == "RUN" for m in each.mounts()]
    return [stage.base, *(name for name in (*copied, *mounted) if name)]


def parse(text: str, args: Mapping[str, str], platform: Mapping[str, str]) -> Parsed:
    """Raises `UserError` (`bad_dockerfile`). `args` are build arguments, `platform` those that every build has."""
    if len(text) > TEXT_BYTES:
        raise UserError("bad_dockerfile", f"The Dockerfile has more than {TEXT_BYTES:,} bytes.")
    if "\0" in text:
        raise UserError("bad_dockerfile", "The Dockerfile holds a NUL character: it is not a text.")
    known: dict[str, str] = dict(platform)
    stages: list[Stage] = []
    steps: list[Instruction] = []
    for each in _instructions(text):
        if each.name == "FROM":
            _close(stages, steps)
            steps = []
            stages.append(_stage(each, len(stages), known, stages))
        elif stages:
            _check(each)
            steps.append(each)
        elif each.name == "ARG":
            known = declare(each, known, known, args)
        else:
            raise each.bad("it must come after a FROM.")
    _close(stages, steps)
    if not stages:
        raise UserError("bad_dockerfile", "The Dockerfile has no FROM.")
    return Parsed(tuple(stages), known)


def _close(stages: list[Stage], steps: list[Instruction]) -> None:
    if stages:
        stages[-1] = msgspec.structs.replace(stages[-1], instructions=tuple(steps))


def _stage(start: Instruction, number: int, known: Mapping[str, str], before: list[Stage]) -> Stage:
    words = split(start.rest, known, start)
    match words:
        case [base]:
            name = ""
        case [base, word, name] if word.lower() == "as":
            name = name.lower()
            if not _STAGE.fullmatch(name) or name.isdigit() or name in {stage.name for stage in before}:
                raise start.bad(f"{one_line(name, 60)!r} cannot name another stage.")
        case _:
            raise start.bad("write FROM IMAGE or FROM IMAGE AS NAME.")
    platform = start.flag("platform")
    if platform and join(platform, known, start) != known.get("TARGETPLATFORM"):
        raise start.bad(f"only the platform {known.get('TARGETPLATFORM')} can be built here.")
    if not base:
        raise start.bad("the name of the image is empty.")
    return Stage(number, name, base, start, ())


def _check(each: Instruction) -> None:
    if each.name not in _STEPS | _WITHOUT_EFFECT:
        known = "is not supported" if each.name == "ONBUILD" else "is not an instruction"
        raise each.bad(f"it {known}; leave it out.")
    for name, value in each.flags:
        if name not in _FLAGS.get(each.name, frozenset()) and each.name not in _WITHOUT_EFFECT:
            raise each.bad(f"the option --{name} is not supported.")
        if (name, value) in (("security", "insecure"), ("network", "host")):
            raise each.bad(f"--{name}={value} is refused: every step runs in a sandbox.")
        if name == "chmod" and not _MODE.fullmatch(value):
            raise each.bad("--chmod is an octal number such as 755.")
    if len(each.mounts()) > _MOUNTS_MOST:
        raise each.bad(f"it has more than {_MOUNTS_MOST} mounts.")


_MOUNT_WORDS = {"dst": "target", "destination": "target", "src": "source"}


def _mount(each: Instruction, value: str) -> Mount:
    fields = {"type": "bind"}
    for part in value.split(","):
        key, _, text = part.partition("=")
        fields[_MOUNT_WORDS.get(key, key)] = text
    kind = fields["type"]
    if kind in ("secret", "ssh"):
        raise each.bad(
            f"--mount=type={kind} is refused: a build gets no secrets. The egress proxy adds credentials to requests."
        )
    if kind not in ("bind", "cache", "tmpfs"):
        raise each.bad(f"--mount=type={one_line(kind, 40)} is not supported.")
    if not fields.get("target"):
        raise each.bad("--mount needs a target.")
    return Mount(kind, fields["target"], fields.get("source", ""), fields.get("from", ""))


# Lines to instructions.


def _instructions(text: str) -> list[Instruction]:
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    escape, at = _directives(lines)
    found: list[Instruction] = []
    while at < len(lines):
        line = lines[at]
        if not line.strip() or line.lstrip().startswith("#"):
            at += 1
            continue
        start = at
        joined, at = _joined(lines, at, escape)
        made = _instruction(joined, start + 1, escape)
        if made.name in ("RUN", "COPY", "ADD"):
            heredocs, at = _heredocs(made, lines, at)
            made = msgspec.structs.replace(made, heredocs=heredocs)
        found.append(made)
        if len(found) > _INSTRUCTIONS_MOST:
            raise UserError("bad_dockerfile", f"The Dockerfile has over {_INSTRUCTIONS_MOST:,} instructions.")
    return found


def _directives(lines: list[str]) -> tuple[str, int]:
    """The escape character, and the first line after the directives. `# syntax` is ignored."""
    escape, at = "\\", 0
    while at < len(lines) and (found := _DIRECTIVE.fullmatch(lines[at].strip())):
        if found[1].lower() == "escape":
            if found[2] not in ("\\", "`"):
                raise _bad(at + 1, "escape is \\ or `.")
            escape = found[2]
        at += 1
    return escape, at


def _joined(lines: list[str], at: int, escape: str) -> tuple[str, int]:
    """The text of the instruction that begins in line `at`, and the line after it."""
    parts: list[str] = []
    while at < len(lines):
        line = lines[at]
        at += 1
        if parts and (not line.strip() or line.lstrip().startswith("#")):
            continue
        if not line.rstrip(" \t").endswith(escape):
            parts.append(line)
            break
        parts.append(line.rstrip(" \t")[:-1])
    return "".join(parts).strip(), at


def _instruction(text: str, line: int, escape: str) -> Instruction:
    word, _, rest = text.replace("\t", " ", 1).partition(" ")
    name, rest = word.upper(), rest.strip()
    flags: list[tuple[str, str]] = []
    while name not in _WITHOUT_EFFECT and (found := _FLAG.match(rest)):
        flags.append((found[1], found[2] or ""))
        rest = rest[found.end() :]
    if not rest:
        raise _bad(line, f"{one_line(name, 40)}: it has no arguments.")
    return Instruction(name, rest, line, tuple(flags), escape=escape)


def _heredocs(each: Instruction, lines: list[str], at: int) -> tuple[tuple[Heredoc, ...], int]:
    found: list[Heredoc] = []
    for word in () if "<<" not in each.rest or exec_form(each.rest) else _raw_words(each.rest):
        opened = _HEREDOC.fullmatch(word)
        if opened is None:
            continue
        body: list[str] = []
        while True:
            if at == len(lines):
                raise each.bad(f"the text after <<{one_line(opened[3], 40)} has no end.")
            line = lines[at].lstrip("\t") if opened[1] else lines[at]
            at += 1
            if line == opened[3]:
                break
            body.append(f"{line}\n")
        found.append(Heredoc(opened[3], "".join(body), expands=not opened[2]))
    return tuple(found), at


def _raw_words(text: str) -> list[str]:
    """Words outside quotes, with their quotes."""
    words: list[str] = []
    quote, start = "", 0
    for at, char in enumerate(f"{text} "):
        if char in "\"'" and quote in ("", char):
            quote = "" if quote else char
        if char.isspace() and not quote:
            words.append(text[start:at])
            start = at + 1
    return [word for word in words if word]


def exec_form(rest: str) -> tuple[str, ...] | None:
    """The words of a JSON list, or None for any other text."""
    if not rest.startswith("["):
        return None
    try:
        words: object = json.loads(rest)
    except (ValueError, RecursionError):
        return None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in cast("list[object]", words)):
        return None
    found = tuple(cast("list[str]", words))
    # JSON writes characters that no argument of a program can hold.
    return None if any("\0" in word or word != whole(word) for word in found) else found


# Variables.


def split(text: str, values: Mapping[str, str], each: Instruction) -> list[str]:
    """The words of `text`, variables replaced and quotes removed. Raises `UserError` (`bad_dockerfile`)."""
    return _Scanner(text, values, each).words(splits=True)


def join(text: str, values: Mapping[str, str], each: Instruction) -> str:
    """As `split`, as one word."""
    return "".join(_Scanner(text, values, each).words(splits=False))


class _Scanner:
    """Reads shell-like words."""

    def __init__(self, text: str, values: Mapping[str, str], each: Instruction, depth: int = 0) -> None:
        self._text = text
        self._values = values
        self._each = each
        self._depth = depth
        self._at = 0
        self._made = 0
        self._words: list[str] = []
        self._word: list[str] | None = None

    def words(self, *, splits: bool) -> list[str]:
        quote = ""
        while self._at < len(self._text):
            char = self._text[self._at]
            if quote == "'":
                quote = "" if char == "'" else quote
                self._put("" if char == "'" else char, 1)
            elif char == self._each.escape and self._at + 1 < len(self._text):
                follows = self._text[self._at + 1]
                self._put(follows if not quote or follows in f'"${char}' else char + follows, 2)
            elif char in "\"'" and quote in ("", char):
                quote = "" if quote else char
                self._put("", 1)
            elif char == "$":
                self._variable()
            elif splits and not quote and char.isspace():
                self._end()
                self._at += 1
            else:
                self._put(char, 1)
        if quote:
            raise self._each.bad("a quote is not closed.")
        self._end()
        return self._words

    def _put(self, text: str, read: int) -> None:
        self._made += len(text)
        if self._made > _VALUE_CHARS:
            raise self._each.bad(f"its variables expand to more than {_VALUE_CHARS:,} characters.")
        self._word = self._word if self._word is not None else []
        self._word.append(text)
        self._at += read

    def _end(self) -> None:
        if self._word is not None:
            self._words.append("".join(self._word))
        self._word = None

    def _variable(self) -> None:
        text, at = self._text, self._at
        if text.startswith("${", at):
            end = self._closing(at + 2)
            self._put(self._braced(text[at + 2 : end]), end + 1 - at)
        elif found := _NAME.match(text, at + 1):
            self._put(self._values.get(found[0], ""), found.end() - at)
        else:
            self._put("$", 1)

    def _closing(self, at: int) -> int:
        depth = 1
        for position in range(at, len(self._text)):
            depth += {"{": 1, "}": -1}.get(self._text[position], 0)
            if depth == 0:
                return position
        raise self._each.bad("a ${ is not closed.")

    def _braced(self, inside: str) -> str:
        found = _NAME.match(inside)
        if found is None or self._depth > _DEPTH:
            raise self._each.bad(f"${{{one_line(inside, 60)}}} is not a variable.")
        value, how = self._values.get(found[0]), inside[found.end() :]
        if not how:
            return value or ""
        colon, how, rest = (":", how[1:2], how[2:]) if how.startswith(":") else ("", how[:1], how[1:])
        there = bool(value) if colon else value is not None
        if how not in ("-", "+", "?"):
            raise self._each.bad(f"${{{one_line(inside, 60)}}} is not supported: use ${{NAME:-DEFAULT}}.")
        if how == "?" and not there:
            raise self._each.bad(f"{found[0]} has no value: {one_line(rest, 100)}")
        if (how == "+") is there:
            return "".join(_Scanner(rest, self._values, self._each, self._depth + 1).words(splits=False))
        return "" if how == "+" else value or ""


# The state that instructions change.


class State(msgspec.Struct, frozen=True):
    """What the next instruction of a stage finds, besides files."""

    env: dict[str, str] = {}
    args: dict[str, str] = {}
    cwd: str = "/"
    user: str = ""
    shell: tuple[str, ...] = ("/bin/sh", "-c")

    @property
    def values(self) -> dict[str, str]:
        """ENV wins over ARG."""
        return {**self.args, **self.env}


def declare(
    each: Instruction, declared: Mapping[str, str], known: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """The arguments after an ARG; `known` are those of the whole file, `given` those of the build."""
    made = dict(declared)
    for word in split(each.rest, {**known, **declared}, each):
        name, has_default, default = word.partition("=")
        if not _NAME.fullmatch(name):
            raise each.bad(f"{one_line(name, 40)!r} cannot be the name of an argument.")
        if name in given:
            made[name] = given[name]
        elif has_default:
            made[name] = default
        elif name in known:
            made[name] = known[name]
    return _bounded(each, made)


def after(state: State, each: Instruction, known: Mapping[str, str], given: Mapping[str, str]) -> State:
    """The state after an instruction. Raises `UserError` (`bad_dockerfile`)."""
    match each.name:
        case "ENV":
            return msgspec.structs.replace(state, env=_env(each, state))
        case "ARG":
            values = declare(each, state.args, known, given)
            return msgspec.structs.replace(state, args=values)
        case "USER":
            return msgspec.structs.replace(state, user=join(each.rest, state.values, each))
        case "WORKDIR":
            path = posixpath.normpath(posixpath.join(state.cwd, join(each.rest, state.values, each)))
            return msgspec.structs.replace(state, cwd=path)
        case "SHELL":
            words = exec_form(each.rest)
            if not words:
                raise each.bad('write SHELL ["program", "argument"].')
            return msgspec.structs.replace(state, shell=words)
        case _:
            return state


def _env(each: Instruction, state: State) -> dict[str, str]:
    first, _, rest = each.rest.partition(" ")
    if "=" not in first:
        pairs = [(first, join(rest.strip(), state.values, each))]
    else:
        words = (word.partition("=") for word in split(each.rest, state.values, each))
        pairs = [(name, value) for name, _, value in words]
    for name, value in pairs:
        if not _NAME.fullmatch(name) or "\0" in value:
            raise each.bad(f"{one_line(name, 40)!r} cannot be the name of a variable.")
    return _bounded(each, {**state.env, **dict(pairs)})


def _bounded(each: Instruction, values: dict[str, str]) -> dict[str, str]:
    if sum(map(len, values.values())) > _VALUES_CHARS:
        raise each.bad(f"the variables hold more than {_VALUES_CHARS:,} characters together.")
    return values


def _bad(line: int, why: str) -> UserError:
    return UserError("bad_dockerfile", f"Line {line} of the Dockerfile: {why}")
