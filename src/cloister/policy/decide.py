"""Decides an action: a deny wins, then an ask, then an allow of a layer that may allow it; else deny."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from cloister.core.addresses import normal_host
from cloister.core.events import Effect
from cloister.policy.api import (
    HOLE,
    Action,
    Approver,
    ConnectAction,
    CredentialAction,
    Decision,
    HarnessAction,
    ModelAction,
    Pointed,
    Policy,
    PushAction,
    RawAction,
    RequestAction,
    Rule,
    Sets,
    TierAction,
    ToolAction,
)
from cloister.policy.pattern import (
    COMMAND_TOOLS,
    PATH_TOOLS,
    HostPattern,
    Named,
    NamedPattern,
    Pattern,
    RequestPattern,
    SetPattern,
    ToolPattern,
    could_match,
    folded,
    literal,
    normal_path,
    path_glob,
    path_matches,
    path_segments,
    read_host,
    read_pattern,
    request_paths,
    text_matches,
)

# An action as probes: every spelling that a rule could match, and what is unknown about it.

PATH_CHARS = 4_096
"""PATH_MAX: Linux opens no longer path."""

_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}")
_BRANCH = "refs/heads/"


class ToolProbe(msgspec.Struct, frozen=True):
    tool: str
    spellings: tuple[str, ...]
    """The target, or one command of it. A rule that widens must match all of them, one that narrows any."""
    around: tuple[str, ...] = ()
    """More text that a rule which narrows can match: the whole line around a command."""
    unclear: str | None = None
    """Why the target is not known. Then every rule that narrows matches, and none that widens."""


class NetProbe(msgspec.Struct, frozen=True):
    host: str
    port: int
    method: str | None = None
    """None means a connection whose requests are not known yet."""
    paths: tuple[str, ...] = ()


class NamedProbe(msgspec.Struct, frozen=True):
    kind: Named
    names: tuple[str, ...]
    """Spellings of one name: a rule can match any of them."""


Probe = ToolProbe | NetProbe | NamedProbe


def probes(action: Action) -> tuple[Probe, ...]:
    """Return the probes of an action; the strictest decision applies. Raises `ValueError` if no rule can match it."""
    match action:
        case ToolAction():
            return _tool(action)
        case ConnectAction(host, port):
            return (NetProbe(_host(host), port),)
        case RequestAction(host, port, method, path):
            if not _METHOD.fullmatch(method):
                raise ValueError("no rule can match the method: it is not a word in capitals")
            return (NetProbe(_host(host), port, method, request_paths(path)),)
        case CredentialAction(name=name):
            return (NamedProbe("credential", (name,)),)
        case PushAction(ref=ref):
            short = (ref.removeprefix(_BRANCH),) if ref.startswith(_BRANCH) else ()
            return (NamedProbe("push", (ref, *short)),)
        case RawAction(host):
            return (NamedProbe("raw", (_host(host),)),)
        case TierAction() | ModelAction() | HarnessAction():
            return (_of_a_run(action),)


def _of_a_run(action: TierAction | ModelAction | HarnessAction) -> NamedProbe:
    match action:
        case TierAction(tier):
            return NamedProbe("tier", (tier,))
        case ModelAction(model):
            return NamedProbe("model", (model,))
        case HarnessAction(harness):
            return NamedProbe("harness", (harness,))


def _tool(action: ToolAction) -> tuple[Probe, ...]:
    tool, target = action.tool, action.target
    if tool in PATH_TOOLS:
        paths = dict.fromkeys(map(normal_path, (target, action.real or target)))
        if any(len(path) > PATH_CHARS for path in paths):
            raise ValueError(f"a path has at most {PATH_CHARS} characters")
        return tuple(ToolProbe(tool, (path,)) for path in paths)
    if tool not in COMMAND_TOOLS:
        return (ToolProbe(tool, (target,)),)
    parsed = action.commands
    if parsed is None:
        return (ToolProbe(tool, (), (target,), "it was not parsed"),)
    # The strictest decision applies, so that the whole line is matched once and not for every command.
    found: list[Probe] = [
        ToolProbe(tool, spellings, () if number else (target,))
        for number, spellings in enumerate(parsed.simple)
    ]
    if parsed.unclear is not None:
        found.append(ToolProbe(tool, (), (target,), parsed.unclear))
    return tuple(found) or (ToolProbe(tool, (), (target,)),)


def _host(host: str) -> str:
    try:
        return normal_host(host)
    except ValueError as error:
        raise ValueError(f"no rule can match the host: {error}") from None


# Finds the patterns of a policy that match an action: groups them by kind of action, then scans the group.


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

    def has_globs(self, tool: str) -> bool:
        """True if a pattern is about the targets of `tool`."""
        groups = (self._tools.get(tool, ()), self._tools.get(_WILD, ()))
        return any(pattern.glob is not None for group in groups for _, pattern, _ in group)

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


NO_RULE = "no rule allows it"
_NO_SETS: Sets = {}
_STRENGTH: dict[Effect, int] = {"allow": 0, "ask": 1, "deny": 2}


class Decider:
    """A policy, prepared once to decide many actions."""

    def __init__(self, policy: Policy, sets: Sets = _NO_SETS) -> None:
        rules: list[LayerPattern] = []
        high: list[LayerPattern] = []
        for at, layer in enumerate(policy):
            for rule in layer.rules:
                rules.append(layer_pattern(len(rules), at, rule, widens=rule.effect == "allow"))
            high.extend(_entries(layer.high_impact, at, widens=False))
        self._policy = policy
        self._rules = PatternList(rules, sets)
        self._high = PatternList(high, sets)
        self._delegated = {
            at: PatternList(_entries(layer.delegate, at, widens=True), sets)
            for at, layer in enumerate(policy)
            if layer.delegate is not None
        }
        self._only = tuple(_Only(layer.only, sets) for layer in policy if layer.only)
        self._approve = tuple(
            PatternList(_entries(layer.approve, 0, widens=True), sets)
            for layer in policy
            if layer.approve is not None
        )
        only = (one.allowed for one in self._only)
        lists = (self._rules, self._high, *self._delegated.values(), *self._approve, *only)
        tools = COMMAND_TOOLS | PATH_TOOLS
        self._globs = {tool for tool in tools if any(patterns.has_globs(tool) for patterns in lists)}

    def parses(self, tool: str) -> bool:
        """True if a rule is about the commands of `tool`, so that the caller must parse them."""
        return tool in COMMAND_TOOLS and tool in self._globs

    def has_paths(self, tool: str) -> bool:
        """True if a rule is about the paths of `tool`, so that the caller must follow links."""
        return tool in PATH_TOOLS and tool in self._globs

    def decide(self, action: Action, *, untrusted: bool = False) -> Decision:
        """Decide `action`. The order of the rules only changes which rule the decision names.

        `untrusted`: the run has read text from outside before.
        """
        try:
            parts = probes(action)
        except ValueError as error:
            return Decision("deny", str(error))
        decisions = [self._decide(part, untrusted=untrusted) for part in parts]
        return decisions[0] if len(decisions) == 1 else max(decisions, key=_strictness)

    def _decide(self, probe: Probe, *, untrusted: bool) -> Decision:
        matches = self._rules.find(probe)
        for match in matches:
            if not match.partly and _effect(match) == "deny":
                return Decision("deny", _named(match.found, probe))
        opening = self._opening(matches, probe)
        if opening is None:
            return Decision("deny", NO_RULE)
        partly = opening.partly or any(match.partly and _effect(match) != "allow" for match in matches)
        high = self._high.find(probe)
        # Untrusted text may arrive on this connection, so its requests are inspected from the first one.
        partly = partly or any(match.partly for match in high)
        for only in self._only:
            limit = only.limit(probe)
            if limit is not None:
                if not limit:
                    return Decision("deny", only.named(probe))
                partly = partly or all(match.partly for match in limit)
        asking = [m.found for m in matches if not m.partly and _effect(m) == "ask"]
        if asking:
            return self._ask(asking, probe, _named(asking[0], probe))
        if untrusted and (grave := [m.found for m in high if not m.partly]):
            return self._ask(grave, probe, f"ask {_where(grave[0], probe)}: high impact after untrusted text")
        return Decision("allow", _named(opening.found, probe), opening.exact, partly)

    def _opening(self, matches: Sequence[Match], probe: Probe) -> Match | None:
        """Return the best match that opens the action: prefer a whole match, then an exact one, then the first."""
        best: Match | None = None
        for match in matches:
            if _effect(match) == "deny" or (opened := self._authorised(match, probe)) is None:
                continue
            if best is None or (not opened.partly, opened.exact) > (not best.partly, best.exact):
                best = opened
        return best

    def _authorised(self, match: Match, probe: Probe) -> Match | None:
        """Return `match`, limited to what the layers above delegated; None if they did not delegate it."""
        at = match.found.layer
        layer = self._policy[at]
        if not layer.may_widen:
            return None
        given = {above: patterns for above, patterns in self._delegated.items() if above < at}
        if layer.needs_delegation and not any(map(self._gives, given)):
            return None
        exact, partly = match.exact, match.partly
        for patterns in given.values():
            found = patterns.find(probe)
            if not found:
                return None
            exact = exact and any(one.exact for one in found)
            partly = partly or all(one.partly for one in found)
        return Match(match.found, partly, exact)

    def _gives(self, at: int) -> bool:
        """True if a layer has rights of its own to delegate: a repository's has not, so it cannot give another any."""
        return self._policy[at].may_widen and not self._policy[at].needs_delegation

    def _ask(self, asking: Sequence[LayerPattern], probe: Probe, rule: str) -> Decision:
        approver: Approver = "operator"
        if any(isinstance(e.written, Rule) and e.written.approver == "admin" for e in asking) or any(
            not patterns.find(probe) for patterns in self._approve
        ):
            approver = "admin"
        return Decision("ask", rule, approver=approver)


class _Only:
    """One layer's `only`: the kinds of action that it closes, and the patterns that stay open."""

    def __init__(self, listed: tuple[Pointed, ...], sets: Sets) -> None:
        entries = _entries(listed, 0, widens=True)
        self.allowed = PatternList(entries, sets)
        self._closes: dict[str, LayerPattern] = {}
        for entry in entries:
            self._closes.setdefault(_closed_by(entry), entry)

    def limit(self, probe: Probe) -> list[Match] | None:
        """Return the matches that stay open; None if it does not close this kind of action."""
        return self.allowed.find(probe) if self._closing(probe) else None

    def named(self, probe: Probe) -> str:
        closing = self._closing(probe)
        return f"only {_where(closing, probe)}" if closing else "only"

    def _closing(self, probe: Probe) -> LayerPattern | None:
        match probe:
            case ToolProbe(tool=tool):
                keys = (f"tool:{tool}", "tool:mcp" if tool.startswith("mcp:") else "", "tool", "")
            case NetProbe():
                keys = ("connect", "")
            case NamedProbe(kind=kind):
                keys = (kind, "")
        return next((self._closes[key] for key in keys if key in self._closes), None)


def _closed_by(entry: LayerPattern) -> str:
    """The kind of action that a pattern of `only` closes: one tool if it has a glob, else all tools."""
    match entry.pattern:
        case None:
            return ""
        case ToolPattern(tool, glob):
            if tool.startswith("mcp:"):
                return "tool:mcp"
            return "tool" if glob is None or tool == "*" else f"tool:{tool}"
        case NamedPattern(kind):
            return kind
        case _:
            return "connect"


class PathRules:
    """The rules that deny paths of `write` and `edit`, for a change that any program may have made."""

    def __init__(self, policy: Policy) -> None:
        self._denied: list[tuple[list[str], str]] = []
        self._only: list[tuple[list[list[str]], str]] = []
        for layer in policy:
            rules = [rule for rule in layer.rules if rule.effect == "deny" and rule.source != "built-in"]
            self._denied += [
                (glob, f"deny {_written(rule)}") for rule in rules for glob in _globs(rule.action)
            ]
            for tool in _CHANGING:
                listed = [(item, _globs(item.action, tool)) for item in layer.only]
                open_to = [glob for _, globs in listed for glob in globs]
                if open_to and not any(_is_tool(item.action, tool) for item in layer.only):
                    first = next(item for item, globs in listed if globs)
                    self._only.append((open_to, f"only {_written(first)}"))

    def __bool__(self) -> bool:
        return bool(self._denied or self._only)

    def denies(self, path: str, *, holder: bool = False) -> str | None:
        """The rule that denies a change of `path`, below the work directory; None if none does.

        Names that some file system takes for the same are the same. `holder`: names below `path` change as well.
        """
        segments = folded(normal_path(path).split("/"))
        for glob, rule in self._denied:
            if path_matches(glob, segments) or (holder and _leads_below(segments, glob)):
                return rule
        for globs, rule in self._only:
            if not any(path_matches(glob, segments) for glob in globs):
                return rule
        return None


_CHANGING = ("write", "edit")


def _globs(action: str, *tools: str) -> list[list[str]]:
    """The glob of a pattern about the paths of a tool that changes files, as segments."""
    pattern = layer_pattern(0, 0, Pointed(action), widens=False).pattern
    if not isinstance(pattern, ToolPattern) or pattern.glob is None:
        return []
    return [folded(path_segments(pattern.glob))] if pattern.tool in (*(tools or _CHANGING), "*") else []


def _is_tool(action: str, tool: str) -> bool:
    """True if a pattern leaves a tool open for every path."""
    pattern = layer_pattern(0, 0, Pointed(action), widens=False).pattern
    return isinstance(pattern, ToolPattern) and pattern.glob is None and pattern.tool in (tool, "*")


def _leads_below(segments: list[str], glob: list[str]) -> bool:
    """True if the glob, up to its first `**`, names paths below `segments`."""
    above = glob[: len(segments)]
    return len(glob) > len(segments) and all(
        part != "**" and text_matches(part, segment) for part, segment in zip(above, segments, strict=True)
    )


def _written(item: Rule | Pointed) -> str:
    return f"{item.action} ({item.source})" if item.source else item.action


def decide(policy: Policy, action: Action, *, untrusted: bool = False) -> Decision:
    """Decide one action. To decide several, keep a `Decider`."""
    return Decider(policy).decide(action, untrusted=untrusted)


def _entries(listed: Iterable[Pointed] | None, layer: int, *, widens: bool) -> list[LayerPattern]:
    return [layer_pattern(number, layer, item, widens=widens) for number, item in enumerate(listed or ())]


def _effect(match: Match) -> Effect | None:
    written = match.found.written
    return written.effect if isinstance(written, Rule) else None


def _strictness(decision: Decision) -> tuple[int, bool]:
    return _STRENGTH[decision.effect], decision.approver == "admin"


def _named(entry: LayerPattern, probe: Probe) -> str:
    effect = f"{entry.written.effect} " if isinstance(entry.written, Rule) else ""
    return f"{effect}{_where(entry, probe)}"


def _where(entry: LayerPattern, probe: Probe) -> str:
    """The pattern, its file and line, and why it matches a command that cannot be checked."""
    where = [entry.written.source] if entry.written.source else []
    if isinstance(probe, ToolProbe) and probe.unclear is not None:
        pattern = entry.pattern
        if isinstance(pattern, ToolPattern) and pattern.glob is not None:
            where.append(f"the command cannot be checked: {probe.unclear}")
    return f"{entry.written.action} ({'; '.join(where)})" if where else entry.written.action
