"""Actions, rules and decisions: the words in which a policy is written."""

import msgspec

from cloister.core.events import Effect


class ToolAction(msgspec.Struct, frozen=True, tag="tool"):
    """The model wants to use a tool. `target` is the command line, the path or the pattern."""

    tool: str
    target: str


class ConnectAction(msgspec.Struct, frozen=True, tag="connect"):
    """Something inside wants to reach a host by name."""

    host: str
    port: int


Action = ToolAction | ConnectAction


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`effect` for the actions that `action` matches."""

    action: str
    """`tool:NAME`, `tool:NAME:GLOB` or `connect:HOST[:PORT]`; HOST may be `*.suffix`, NAME may be `*`.

    In a GLOB `*` stands for any characters, in paths without `/`, and `**` for any directories. Without a PORT
    an `allow` is for 80 and 443, a `deny` or `ask` for every port.
    """
    effect: Effect
    source: str = ""
    """Where it is written: layer, file and line. Filled in by the reader."""


class Layer(msgspec.Struct, frozen=True):
    """The rules of one author, e.g. `built-in`, `host`, `run`."""

    name: str
    rules: tuple[Rule, ...]
    may_widen: bool = False
    """Whether its `allow` rules count; a layer that may not widen can only deny or ask."""


class Decision(msgspec.Struct, frozen=True):
    """What to do with one action, and the rule that said so."""

    effect: Effect
    rule: str
    exact: bool = False
    """Allowed by a rule that names this very host and port: the only way to an address that is not public."""


Policy = tuple[Layer, ...]
"""From the strongest author to the weakest."""
