"""Actions, rules and decisions: the words in which a policy is written."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from cloister.core.events import Effect

Approver = Literal["operator", "admin"]
"""The lowest role that may approve an `ask`."""

Sets = Mapping[str, tuple[str, ...]]
"""The hosts of each named set, as `HOST`, `*.SUFFIX` or `HOST:PORT`. The caller resolves them."""

SET_NAMES = frozenset({"pypi", "npm", "debian", "crates", "go", "maven", "gems", "composer", "hex"})


HOLE = "\0"
"""In a command: text that is known only when the command runs."""


class Commands(msgspec.Struct, frozen=True):
    """The commands that a command line would run."""

    simple: tuple[tuple[str, ...], ...] = ()
    """Each simple command, in every spelling that means it: `/usr/bin/git -C x push`, `git push`, …

    Words are separated by one space, without quotes.
    """
    unclear: str | None = None
    """Why some commands are not known before the line runs; None if `simple` lists them all."""


class ToolAction(msgspec.Struct, frozen=True, tag="tool"):
    """The model calls a tool. `target` is the command line, the path or the search pattern."""

    tool: str
    """The name of the tool; `mcp:SERVER.TOOL` for a tool of an MCP server."""
    target: str
    commands: Commands | None = None
    """For `bash`: the parsed line. None means not parsed; rules about commands treat that as unclear."""
    real: str | None = None
    """For a path: where links lead. The rules apply to both paths."""


class ConnectAction(msgspec.Struct, frozen=True, tag="connect"):
    """A process in the sandbox connects to a host by name."""

    host: str
    port: int


class RequestAction(msgspec.Struct, frozen=True, tag="request"):
    """One HTTP request on a connection that the proxy inspects."""

    host: str
    port: int
    method: str
    path: str
    """As sent, with or without the query. Rules ignore the query."""


class CredentialAction(msgspec.Struct, frozen=True, tag="credential"):
    """The proxy would add the credential `name` to one request."""

    name: str
    host: str
    port: int
    method: str
    path: str


class PushAction(msgspec.Struct, frozen=True, tag="push"):
    """A push moves `ref` (in full, as in `refs/heads/main`) of the repository `repo`."""

    repo: str
    ref: str


class RawAction(msgspec.Struct, frozen=True, tag="raw"):
    """A process in the sandbox uses the TLS port of an allowed host without inspection."""

    host: str


class TierAction(msgspec.Struct, frozen=True, tag="tier"):
    """A run requests a sandbox of this tier."""

    tier: str


class ModelAction(msgspec.Struct, frozen=True, tag="model"):
    """A run requests this model, `provider:name`."""

    model: str


class HarnessAction(msgspec.Struct, frozen=True, tag="harness"):
    """A run requests this harness."""

    harness: str


Action = (
    ToolAction
    | ConnectAction
    | RequestAction
    | CredentialAction
    | PushAction
    | RawAction
    | TierAction
    | ModelAction
    | HarnessAction
)


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Applies `effect` to the actions that `action` matches."""

    action: str
    """A pattern: see `pattern.read_pattern`."""
    effect: Effect
    source: str = ""
    """File and line; the reader sets it."""
    approver: Approver = "operator"
    """Who may approve, if the effect is `ask`."""


class Pointed(msgspec.Struct, frozen=True):
    """A pattern in one of a layer's lists, with its file and line."""

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
    """An upper limit on one resource."""

    name: LimitName
    most: float
    source: str = ""


class Layer(msgspec.Struct, frozen=True):
    """The rules of one author, e.g. `built-in`, `organisation`, `run`."""

    name: str
    rules: tuple[Rule, ...] = ()
    may_widen: bool = False
    """True if its `allow` and `ask` rules can open something. Otherwise the layer can only narrow."""
    needs_delegation: bool = False
    """True if it can open only what a layer above delegated."""
    delegate: tuple[Pointed, ...] | None = None
    """What the layers below may open. None passes on what this layer received."""
    only: tuple[Pointed, ...] = ()
    """For each kind of action listed here, only these are possible."""
    high_impact: tuple[Pointed, ...] = ()
    """Actions that need approval after the run has read untrusted text."""
    approve: tuple[Pointed, ...] | None = None
    """The actions that an operator may approve; None means all whose rule does not require `admin`."""
    caps: tuple[Cap, ...] = ()


class Decision(msgspec.Struct, frozen=True):
    """The effect for one action, and the rule that decided it."""

    effect: Effect
    rule: str
    exact: bool = False
    """Allowed by a rule that names this host and port: the only way to a non-public address."""
    inspect: bool = False
    """For an allowed connection: rules about its requests exist, so the proxy must decide each as a `RequestAction`.
    A proxy that cannot read the requests must refuse the connection."""
    approver: Approver = "operator"
    """Who may approve, if the effect is `ask`."""


Policy = tuple[Layer, ...]
"""The layers, strongest author first."""
