"""Actions, rules and decisions: the words in which a policy is written."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from cloister.core.events import Effect

Approver = Literal["operator", "admin"]
"""The least role that may say yes to an `ask`."""

Sets = Mapping[str, tuple[str, ...]]
"""Which hosts a named set stands for, each `HOST`, `*.SUFFIX` or `HOST:PORT`; policy is told, it does not look."""

SET_NAMES = frozenset({"pypi", "npm", "debian", "crates", "go"})


HOLE = "\0"
"""In a command: any text, because what stands there is known only when it runs."""


class Commands(msgspec.Struct, frozen=True):
    """What a command line would run, as a parser found it."""

    simple: tuple[tuple[str, ...], ...] = ()
    """Each simple command, in every spelling that means it: `/usr/bin/git -C x push`, `git push`, …

    Words are separated by one space, without quotes.
    """
    unclear: str | None = None
    """Why some of it cannot be known before it runs; None when all of it is in `simple`."""


class ToolAction(msgspec.Struct, frozen=True, tag="tool"):
    """The model wants to use a tool. `target` is the command line, the path or the pattern."""

    tool: str
    """Its name; of a tool of an MCP server `mcp:SERVER.TOOL`."""
    target: str
    commands: Commands | None = None
    """Of `bash`: the parsed line. None was not parsed, which rules about commands take for unclear."""


class ConnectAction(msgspec.Struct, frozen=True, tag="connect"):
    """Something inside wants to reach a host by name."""

    host: str
    port: int


class RequestAction(msgspec.Struct, frozen=True, tag="request"):
    """One HTTP request on a connection whose requests the door can read."""

    host: str
    port: int
    method: str
    path: str
    """As sent, with or without the query, which no rule looks at."""


class CredentialAction(msgspec.Struct, frozen=True, tag="credential"):
    """The door would add the credential `name` to one request."""

    name: str
    host: str
    port: int
    method: str
    path: str


class PushAction(msgspec.Struct, frozen=True, tag="push"):
    """Something wants to move `ref` (full, as in `refs/heads/main`) of the repository `repo`."""

    repo: str
    ref: str


class RawAction(msgspec.Struct, frozen=True, tag="raw"):
    """Something inside would speak on the TLS port of a host that it may reach, and nobody looks what."""

    host: str


class TierAction(msgspec.Struct, frozen=True, tag="tier"):
    """A run wants a sandbox of this tier."""

    tier: str


class ModelAction(msgspec.Struct, frozen=True, tag="model"):
    """A run wants to use this model, `provider:name`."""

    model: str


Action = (
    ToolAction
    | ConnectAction
    | RequestAction
    | CredentialAction
    | PushAction
    | RawAction
    | TierAction
    | ModelAction
)


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`effect` for the actions that `action` matches."""

    action: str
    """A pattern: see `pattern.read_pattern`."""
    effect: Effect
    source: str = ""
    """Where it is written: file and line. Filled in by the reader."""
    approver: Approver = "operator"
    """Who may say yes, when the effect is `ask`."""


class Pointed(msgspec.Struct, frozen=True):
    """A pattern in one of a layer's lists, and where it is written."""

    action: str
    source: str = ""


LimitName = Literal[
    "attempts",
    "steps",
    "tokens",
    "dollars",
    "seconds",
    "cpus",
    "memory_bytes",
    "processes",
    "open_files",
    "disk_bytes",
]


class Cap(msgspec.Struct, frozen=True):
    """No more than `most` of one thing."""

    name: LimitName
    most: float
    source: str = ""


class Layer(msgspec.Struct, frozen=True):
    """What one author says, e.g. `built-in`, `organisation`, `run`."""

    name: str
    rules: tuple[Rule, ...] = ()
    may_widen: bool = False
    """Whether its `allow` and `ask` rules can open anything; a layer that may not widen only narrows."""
    needs_delegation: bool = False
    """Whether it opens only what a layer above delegated by name."""
    delegate: tuple[Pointed, ...] | None = None
    """What the layers below may open; None passes on what this layer was given."""
    only: tuple[Pointed, ...] = ()
    """For each kind of action named here, nothing but these."""
    high_impact: tuple[Pointed, ...] = ()
    """What needs a person's yes after untrusted text was read."""
    approve: tuple[Pointed, ...] | None = None
    """The asks that an operator may approve; None is every one whose rule does not say `admin`."""
    caps: tuple[Cap, ...] = ()


class Decision(msgspec.Struct, frozen=True):
    """What to do with one action, and the rule that said so."""

    effect: Effect
    rule: str
    exact: bool = False
    """Allowed by a rule that names this very host and port: the only way to an address that is not public."""
    inspect: bool = False
    """Of an allowed connection: there are rules about its requests, so each must be read and decided as a
    `RequestAction`. A door that cannot read them must refuse the connection."""
    approver: Approver = "operator"
    """Who may say yes, when the effect is `ask`."""


Policy = tuple[Layer, ...]
"""From the strongest author to the weakest."""
