"""Reads a policy file: one TOML format for every layer. Errors name file and line."""

import re
import tomllib
from bisect import bisect_right
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from cloister.core.errors import UserError
from cloister.core.events import Effect
from cloister.core.text import harmless, one_line
from cloister.policy.api import (
    Action,
    Approver,
    Cap,
    ConnectAction,
    CredentialAction,
    HarnessAction,
    Layer,
    LimitName,
    ModelAction,
    Pointed,
    PushAction,
    RawAction,
    RequestAction,
    Rule,
    TierAction,
    ToolAction,
)
from cloister.policy.layers import spelled
from cloister.policy.pattern import TOOL_NAMES, HostPattern, read_host

# Line numbers of the values in a TOML text; `tomllib` does not report them.


Path = tuple[str | int, ...]
"""Keys, and within arrays indexes from 0."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"[ \t]*")
_GAP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_PLAIN = re.compile(r"[^,\]}#\r\n]*")
_STRINGS = {
    '"""': re.compile(r'"""(?:\\.|[^\\])*?"{3,5}', re.DOTALL),
    "'''": re.compile(r"'''.*?'{3,5}", re.DOTALL),
    '"': re.compile(r'"(?:\\.|[^"\\])*"'),
    "'": re.compile(r"'[^']*'"),
}


def lines(text: str) -> dict[Path, int]:
    """Return the line, from 1, of every key, table and item of `text`, which must be valid TOML."""
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._found: dict[Path, int] = {}
        self._counts: dict[Path, int] = {}
        """The number of tables found so far in each array of tables."""
        self._starts = [match.end() for match in re.finditer("\n", text)]

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip(_GAP) < len(self._text):
            table = self._header() if self._text[self._at] == "[" else self._pair(table) or table
        return self._found

    def _skip(self, what: re.Pattern[str]) -> int:
        match = what.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._at

    def _line(self) -> int:
        return bisect_right(self._starts, self._at) + 1

    def _note(self, path: Path, line: int) -> None:
        self._found.setdefault(path, line)

    def _header(self) -> Path:
        line = self._line()
        several = self._text.startswith("[[", self._at)
        self._at += 2 if several else 1
        keys = self._keys()
        self._skip(_SPACE)
        self._at += 2 if several else 1
        path: Path = ()
        for number, key in enumerate(keys):
            path = (*path, key)
            self._note(path, line)
            last = number == len(keys) - 1
            if last and several:
                self._counts[path] = self._counts.get(path, 0) + 1
            if path in self._counts:
                path = (*path, self._counts[path] - 1)
                self._note(path, line)
        return path

    def _keys(self) -> list[str]:
        keys: list[str] = []
        while True:
            self._skip(_SPACE)
            start = self._at
            if self._text[start] in "\"'":
                self._skip(_STRINGS[self._text[start]])
                keys.append(str(tomllib.loads(f"k = {self._text[start : self._at]}")["k"]))
            else:
                keys.append(self._text[start : self._skip(_BARE)])
            self._skip(_SPACE)
            if not self._text.startswith(".", self._at):
                return keys
            self._at += 1

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = table
        for key in self._keys():
            path = (*path, key)
            self._note(path, line)
        self._at += 1  # the equals sign
        self._value(path)

    def _value(self, path: Path) -> None:
        self._skip(_SPACE)
        opening = self._text[self._at]
        if opening == "[":
            self._items(path)
        elif opening == "{":
            self._inline(path)
        else:
            quote = next((q for q in _STRINGS if self._text.startswith(q, self._at)), None)
            self._skip(_STRINGS[quote] if quote else _PLAIN)

    def _items(self, path: Path) -> None:
        self._at += 1
        number = 0
        while self._text[self._skip(_GAP)] != "]":
            if self._text[self._at] == ",":
                self._at += 1
                continue
            self._note((*path, number), self._line())
            self._value((*path, number))
            number += 1
        self._at += 1

    def _inline(self, path: Path) -> None:
        self._at += 1
        while self._text[self._skip(_GAP)] != "}":
            if self._text[self._at] == ",":
                self._at += 1
                continue
            self._pair(path)
        self._at += 1


# One action as text, as `cloister policy explain` and `[[test]]` take it.

_SPELLINGS = (
    "an action is bash:COMMAND, write:PATH (or another tool), connect:HOST[:PORT], request:METHOD HOST[:PORT]/PATH, "
    "credential:NAME, push:REF, raw:HOST, tier:NAME, model:NAME, harness:NAME or mcp:SERVER.TOOL"
)
_TLS = 443


def read_action(text: str) -> Action:
    """Parse one action. Raises `ValueError` with the reason."""
    kind, colon, rest = text.partition(":")
    if kind in TOOL_NAMES:
        return ToolAction(kind, rest)
    if not colon or not rest:
        raise ValueError(_SPELLINGS)
    match kind:
        case "tool" | "mcp":
            tool, _, target = rest.partition(":")
            return ToolAction(tool if kind == "tool" else f"mcp:{tool}", target)
        case "connect":
            host = _one_host(rest)
            return ConnectAction(host.host, host.port or _TLS)
        case "request":
            return _request(rest)
        case _:
            return _named(kind, rest)


def _named(kind: str, name: str) -> Action:
    match kind:
        case "credential":
            return CredentialAction(name, "", _TLS, "GET", "/")
        case "push":
            return PushAction("", name if name.startswith("refs/") else f"refs/heads/{name}")
        case "raw":
            return RawAction(_one_host(name).host)
        case "tier":
            return TierAction(name)
        case "model":
            return ModelAction(name)
        case "harness":
            return HarnessAction(name)
        case _:
            raise ValueError(_SPELLINGS)


def _request(rest: str) -> RequestAction:
    method, _, where = rest.partition(" ")
    name, slash, path = where.partition("/")
    if not slash:
        raise ValueError("write request:METHOD HOST[:PORT]/PATH")
    host = _one_host(name)
    return RequestAction(host.host, host.port or _TLS, method, f"/{path}")


def _one_host(text: str) -> HostPattern:
    host = read_host(text)
    if host.any_below or not host.host:
        raise ValueError("name one host, without *")
    return host


FILE_BYTES = 262_144
RULES = 5_000
Author = Literal["organisation", "project", "repository"]

Pattern = Annotated[
    str, Meta(min_length=1, max_length=1_000, description="Which actions: see docs/guide/policy.md.")
]
Count = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(gt=0)]
_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<where>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_STEP = re.compile(r"\.([A-Za-z0-9_]+)|\[(\d+|\.\.\.)\]")


class RuleTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[rule]]`: the effect for the actions that a pattern matches."""

    action: Pattern
    effect: Annotated[Effect, Meta(description="Deny wins over ask, and ask wins over allow.")]
    approver: Annotated[Approver, Meta(description="The role that may approve an ask.")] = "operator"


class LimitsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[limits]`: the most that a run can use. The smallest limit of all layers applies."""

    attempts: Count | None = None
    steps: Count | None = None
    tokens: Count | None = None
    dollars: Amount | None = None
    seconds: Amount | None = None
    cpus: Amount | None = None
    memory_bytes: Count | None = None
    processes: Count | None = None
    open_files: Count | None = None
    disk_bytes: Count | None = None


class ApproveTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[approve]`: the actions that an operator may approve; an admin may approve everything."""

    operator: tuple[Pattern, ...]


class TestTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[test]]`: an action and the effect that this file must give it."""

    action: Annotated[
        str, Meta(min_length=1, description="One action, as `cloister policy explain` takes it.")
    ]
    expect: Effect
    untrusted: Annotated[bool, Meta(description="Decide as if the run had read untrusted text before.")] = (
        False
    )


class PolicyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Cloister policy file."""

    rule: Annotated[tuple[RuleTable, ...], Meta(max_length=RULES)] = ()
    delegate: Annotated[
        tuple[Pattern, ...] | None, Meta(description="What the layers below may allow. Default: nothing.")
    ] = None
    only: Annotated[
        tuple[Pattern, ...], Meta(description="For the kinds of action listed here, only these are possible.")
    ] = ()
    high_impact: Annotated[
        tuple[Pattern, ...],
        Meta(description="Actions that need approval after the run has read untrusted text."),
    ] = ()
    limits: LimitsTable | None = None
    approve: ApproveTable | None = None
    test: tuple[TestTable, ...] = ()


class Expectation(msgspec.Struct, frozen=True):
    """One `[[test]]` of a policy file, parsed."""

    text: str
    action: Action
    expect: Effect
    untrusted: bool
    source: str


class PolicyRead(msgspec.Struct, frozen=True):
    """A policy file, parsed."""

    layer: Layer
    tests: tuple[Expectation, ...]


def read_policy(author: Author, data: bytes, name: str) -> PolicyRead:
    """Parse `data`; `name` is the file name for errors. Raises `UserError` (`bad_policy`)."""
    return _Reader(author, data, name).read()


def policy_schema() -> dict[str, Any]:
    """Return the JSON schema of policy files."""
    schema = msgspec.json.schema(PolicyFile)
    named = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Cloister policy", **schema}
    # Through JSON, so that tuples become lists, as in the file.
    return msgspec.json.decode(msgspec.json.encode(named), type=dict[str, Any])


class _Reader:
    def __init__(self, author: Author, data: bytes, name: str) -> None:
        self._author = author
        self._data = data
        self._name = one_line(name, 300)
        self._lines: dict[Path, int] = {}

    def read(self) -> PolicyRead:
        file = self._file()
        limits = file.limits or LimitsTable()
        delegate = self._listed(file.delegate, ("delegate",))
        if file.delegate is None and self._author == "repository":
            delegate = None
        layer = Layer(
            name=self._author,
            rules=tuple(self._rule(number, rule) for number, rule in enumerate(file.rule)),
            may_widen=True,
            needs_delegation=self._author == "repository",
            delegate=delegate,
            only=self._listed(file.only, ("only",)),
            high_impact=self._listed(file.high_impact, ("high_impact",)),
            approve=self._listed(file.approve.operator, ("approve", "operator")) if file.approve else None,
            caps=tuple(
                Cap(name, most, self._source(("limits", name)))
                for name in _LIMITS
                if (most := getattr(limits, name)) is not None
            ),
        )
        return PolicyRead(layer, tuple(self._test(number, test) for number, test in enumerate(file.test)))

    def _file(self) -> PolicyFile:
        if len(self._data) > FILE_BYTES:
            raise self._bad((), f"a policy file has at most {FILE_BYTES:,} bytes")
        try:
            # As in TOML: a bare carriage return does not end a line.
            text = self._data.decode("utf-8").replace("\r\n", "\n")
            found = tomllib.loads(text)
        except UnicodeDecodeError:
            raise self._bad((), "it is not UTF-8") from None
        except tomllib.TOMLDecodeError as error:
            raise self._toml_error(error) from None
        except RecursionError:
            raise self._bad((), "it is nested too deeply") from None
        self._lines = lines(text)
        try:
            return msgspec.convert(found, PolicyFile)
        except msgspec.ValidationError as error:
            raise self._wrong(str(error)) from None

    def _toml_error(self, error: tomllib.TOMLDecodeError) -> UserError:
        place = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        what = str(error)[: place.start()] if place else str(error)
        line = int(place[1]) if place and place[1] else self._data.count(b"\n") + 1
        where = f"{self._name}:{line}"
        return UserError("bad_policy", f"{where}: it is not valid TOML: {one_line(harmless(what), 200)}.")

    def _wrong(self, message: str) -> UserError:
        parts = _AT.match(message)
        what, where = (parts["what"], parts["where"] or "") if parts else (message, "")
        path = tuple(step[0] or int(step[1]) for step in _STEP.findall(where) if step[1] != "...")
        if unknown := _UNKNOWN.match(what):
            path = (*path, unknown[1])
            what = f"there is no key {one_line(unknown[1], 60)!r} here"
        named = ".".join(str(step) for step in path if isinstance(step, str))
        about = f"{one_line(named, 80)}: " if named and not unknown else ""
        return self._bad(path, f"{about}{one_line(what, 200)}")

    def _bad(self, path: Path, why: str) -> UserError:
        return UserError("bad_policy", f"{self._source(path)}: {why}.")

    def _source(self, path: Path) -> str:
        """File and line of `path`, or of the nearest table around it."""
        while path and path not in self._lines:
            path = path[:-1]
        return f"{self._name}:{self._lines.get(path, 1)}"

    def _rule(self, number: int, rule: RuleTable) -> Rule:
        path: Path = ("rule", number, "action")
        action = self._spelled(rule.action, path, widens=rule.effect == "allow")
        if rule.approver != "operator" and rule.effect != "ask":
            raise self._bad(("rule", number, "approver"), "approver is only valid with the effect ask")
        return Rule(action, rule.effect, self._source(path), rule.approver)

    def _listed(self, patterns: tuple[str, ...] | None, path: Path) -> tuple[Pointed, ...]:
        return tuple(
            Pointed(self._spelled(text, (*path, at), widens=False), self._source((*path, at)))
            for at, text in enumerate(patterns or ())
        )

    def _spelled(self, text: str, path: Path, *, widens: bool) -> str:
        try:
            return spelled(text, widens=widens)
        except ValueError as error:
            raise self._bad(path, f"{one_line(text, 80)!r}: {error}") from None

    def _test(self, number: int, test: TestTable) -> Expectation:
        path: Path = ("test", number, "action")
        try:
            action = read_action(test.action)
        except ValueError as error:
            raise self._bad(path, f"{one_line(test.action, 80)!r}: {error}") from None
        return Expectation(test.action, action, test.expect, test.untrusted, self._source(path))


_LIMITS: tuple[LimitName, ...] = get_args(LimitName)
