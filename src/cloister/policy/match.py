"""Finds the patterns of a policy that match an action: groups them by kind of action, then scans the group."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cloister.policy.api import HOLE, Pointed, Rule, Sets
from cloister.policy.pattern import (
    COMMAND_TOOLS,
    PATH_TOOLS,
    HostPattern,
    NamedPattern,
    Pattern,
    RequestPattern,
    SetPattern,
    ToolPattern,
    could_match,
    literal,
    path_glob,
    read_host,
    read_pattern,
    text_matches,
)
from cloister.policy.probe import NamedProbe, NetProbe, Probe, ToolProbe

_WILD = "*"
"""The group of tool patterns whose tool name has a wildcard."""


@dataclass(frozen=True, slots=True)
class LayerPattern:
    """One pattern of one layer."""

    number: int
    """Its position in the list: a decision names the first of several equal matches."""
    layer: int
    written: Rule | Pointed
    widens: bool
    """True if a match opens something. In doubt such a pattern does not match; any other pattern does."""
    pattern: Pattern | None
    """None if it cannot be parsed."""


def layer_pattern(number: int, layer: int, written: Rule | Pointed, *, widens: bool) -> LayerPattern:
    try:
        pattern = read_pattern(written.action)
    except ValueError:
        pattern = None
    return LayerPattern(number, layer, written, widens, pattern)


@dataclass(frozen=True, slots=True)
class Match:
    found: LayerPattern
    partly: bool = False
    """The pattern covers some requests of the connection, and the action is the connection."""
    exact: bool = False
    """The pattern names this host and port."""


class PatternList:
    """One list of patterns: the rules of all layers, one layer's `only`, …"""

    def __init__(self, patterns: Iterable[LayerPattern], sets: Sets) -> None:
        self._tools: dict[str, list[tuple[LayerPattern, ToolPattern, str]]] = {}
        """By tool name, with a text that every target contains; in the group `*`, that every tool name contains."""
        self._named: dict[str, list[tuple[LayerPattern, NamedPattern, str]]] = {}
        self._hosts: dict[str, list[tuple[LayerPattern, HostPattern, RequestPattern | None]]] = {}
        """By host name; `*.NAME` is listed under NAME, any host under the empty name."""
        self._unreadable: list[Match] = []
        for one in patterns:
            match one.pattern:
                case None:
                    # A reader of policy files lets no such pattern through. If one gets here, it may only narrow.
                    if not one.widens:
                        self._unreadable.append(Match(one))
                case ToolPattern(tool, glob) as pattern:
                    group = _WILD if "*" in tool else tool
                    text = tool if group == _WILD else glob or ""
                    needle = literal(path_glob(text) if tool in PATH_TOOLS and text else text)
                    self._tools.setdefault(group, []).append((one, pattern, needle))
                case NamedPattern(kind, glob) as pattern:
                    self._named.setdefault(kind, []).append((one, pattern, literal(glob)))
                case HostPattern(host) as pattern:
                    self._hosts.setdefault(host, []).append((one, pattern, None))
                case RequestPattern() as pattern:
                    self._hosts.setdefault(pattern.host.host, []).append((one, pattern.host, pattern))
                case SetPattern(name):
                    for host in map(read_host, sets.get(name, ())):
                        self._hosts.setdefault(host.host, []).append((one, host, None))

    def needs_parsing(self, tool: str) -> bool:
        """True if a pattern is about the commands that `tool` would run."""
        groups = (self._tools.get(tool, ()), self._tools.get(_WILD, ()))
        return tool in COMMAND_TOOLS and any(
            pattern.glob is not None for group in groups for _, pattern, _ in group
        )

    def find(self, probe: Probe) -> list[Match]:
        """Return every match, in the order of the list."""
        match probe:
            case ToolProbe():
                found = [Match(one) for one in self._find_tool(probe)]
            case NetProbe():
                found = list(self._find_host(probe))
            case NamedProbe(kind, names):
                every = "\n".join(names)
                found = [
                    Match(one)
                    for one, pattern, needle in self._named.get(kind, ())
                    if needle in every and any(text_matches(pattern.glob, name) for name in names)
                ]
        found += self._unreadable
        if len(found) > 1:
            found.sort(key=lambda match: match.found.number)
        return found

    def _find_tool(self, probe: ToolProbe) -> Iterator[LayerPattern]:
        texts = "\n".join((*probe.spellings, *probe.around))
        # A glob can match text that is not known yet, so its literal part need not be there.
        unknown = probe.unclear is not None or HOLE in texts
        for one, pattern, needle in self._tools.get(probe.tool, ()):
            if (unknown or needle in texts) and _matches(one, pattern, probe):
                yield one
        for one, pattern, needle in self._tools.get(_WILD, ()):
            if (
                needle in probe.tool
                and text_matches(pattern.tool, probe.tool)
                and _matches(one, pattern, probe)
            ):
                yield one

    def _find_host(self, probe: NetProbe) -> Iterator[Match]:
        name = probe.host
        groups = [self._hosts.get("", ()), self._hosts.get(name, ())]
        while "." in name:
            name = name.partition(".")[2]
            groups.append(self._hosts.get(name, ()))
        for one, host, request in (row for group in groups for row in group):
            if not host.matches(probe.host, probe.port, widens=one.widens):
                continue
            if request is None or probe.method is None:
                yield Match(one, partly=request is not None, exact=host.exact)
            else:
                meant = [request.matches_request(probe.method, path) for path in probe.paths]
                if all(meant) if one.widens else any(meant):
                    yield Match(one, exact=host.exact)


def _matches(one: LayerPattern, pattern: ToolPattern, probe: ToolProbe) -> bool:
    if pattern.glob is None:
        return True
    if probe.unclear is not None:
        return not one.widens
    if one.widens:
        return all(pattern.matches_target(probe.tool, text) for text in probe.spellings or probe.around)
    if probe.tool in COMMAND_TOOLS and any(could_match(pattern.glob, text) for text in probe.spellings):
        return True
    return any(pattern.matches_target(probe.tool, text) for text in (*probe.spellings, *probe.around))
