"""The decision: any deny wins, then any ask, then an allow by someone who may allow; else no."""

from collections.abc import Iterable, Sequence

from cloister.core.events import Effect
from cloister.policy.api import Action, Approver, Decision, Pointed, Policy, Rule, Sets
from cloister.policy.index import Entry, Index, Match, entry_of
from cloister.policy.pattern import NamedPattern, ToolPattern
from cloister.policy.probe import NamedProbe, NetProbe, Probe, ToolProbe, probes

NO_RULE = "no rule allows it"
_NO_SETS: Sets = {}
_STRENGTH: dict[Effect, int] = {"allow": 0, "ask": 1, "deny": 2}


class Decider:
    """A policy, arranged once to decide many actions."""

    def __init__(self, policy: Policy, sets: Sets = _NO_SETS) -> None:
        rules: list[Entry] = []
        high: list[Entry] = []
        for at, layer in enumerate(policy):
            for rule in layer.rules:
                rules.append(entry_of(len(rules), at, rule, widens=rule.effect == "allow"))
            high.extend(_entries(layer.high_impact, at, widens=False))
        self._policy = policy
        self._rules = Index(rules, sets)
        self._high = Index(high, sets)
        self._delegated = {
            at: Index(_entries(layer.delegate, at, widens=True), sets)
            for at, layer in enumerate(policy)
            if layer.delegate is not None
        }
        self._only = tuple(_Only(layer.only, sets) for layer in policy if layer.only)
        self._approve = tuple(
            Index(_entries(layer.approve, 0, widens=True), sets)
            for layer in policy
            if layer.approve is not None
        )
        indexes = (self._rules, self._high, *self._delegated.values(), *self._approve)
        self._parses = any(index.about_commands("bash") for index in indexes) or any(
            only.index.about_commands("bash") for only in self._only
        )

    def parses(self, tool: str) -> bool:
        """Whether the commands of `tool` matter, so that its caller must parse them."""
        return tool == "bash" and self._parses

    def decide(self, action: Action, *, untrusted: bool = False) -> Decision:
        """What to do with `action`. The order of layers' rules changes nothing but which rule is named.

        `untrusted`: text from outside was read before it.
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
                return Decision("deny", _named(match.entry, probe))
        opening = self._opening(matches, probe)
        if opening is None:
            return Decision("deny", NO_RULE)
        partly = opening.partly or any(match.partly and _effect(match) != "allow" for match in matches)
        high = self._high.find(probe)
        # Untrusted text may come over this very connection: its requests must be seen from the first on.
        partly = partly or any(match.partly for match in high)
        for only in self._only:
            limit = only.limit(probe)
            if limit is not None:
                if not limit:
                    return Decision("deny", only.named(probe))
                partly = partly or all(match.partly for match in limit)
        asking = [m.entry for m in matches if not m.partly and _effect(m) == "ask"]
        if asking:
            return self._ask(asking, probe, f"{_named(asking[0], probe)}")
        if untrusted and (grave := [m.entry for m in high if not m.partly]):
            return self._ask(grave, probe, f"ask {_where(grave[0], probe)}: high impact after untrusted text")
        return Decision("allow", _named(opening.entry, probe), opening.exact, partly)

    def _opening(self, matches: Sequence[Match], probe: Probe) -> Match | None:
        """The best match that opens the action: one for all of it, one that names it exactly, the first."""
        best: Match | None = None
        for match in matches:
            if _effect(match) == "deny" or (opened := self._authorised(match, probe)) is None:
                continue
            if best is None or (not opened.partly, opened.exact) > (not best.partly, best.exact):
                best = opened
        return best

    def _authorised(self, match: Match, probe: Probe) -> Match | None:
        """`match` as far as its layer was given what it opens; None when it was not."""
        at = match.entry.layer
        layer = self._policy[at]
        if not layer.may_widen:
            return None
        given = [index for above, index in self._delegated.items() if above < at]
        if layer.needs_delegation and not given:
            return None
        exact, partly = match.exact, match.partly
        for index in given:
            found = index.find(probe)
            if not found:
                return None
            exact = exact and any(one.exact for one in found)
            partly = partly or all(one.partly for one in found)
        return Match(match.entry, partly, exact)

    def _ask(self, asking: Sequence[Entry], probe: Probe, rule: str) -> Decision:
        approver: Approver = "operator"
        if any(isinstance(e.written, Rule) and e.written.approver == "admin" for e in asking) or any(
            not index.find(probe) for index in self._approve
        ):
            approver = "admin"
        return Decision("ask", rule, approver=approver)


class _Only:
    """One layer's `only`: which kinds of action it closes, and what it leaves open."""

    def __init__(self, listed: tuple[Pointed, ...], sets: Sets) -> None:
        entries = _entries(listed, 0, widens=True)
        self.index = Index(entries, sets)
        self._closes: dict[str, Entry] = {}
        for entry in entries:
            self._closes.setdefault(_closed_by(entry), entry)

    def limit(self, probe: Probe) -> list[Match] | None:
        """What it leaves open of `probe`; None when it does not speak of such actions."""
        return self.index.find(probe) if self._speaker(probe) else None

    def named(self, probe: Probe) -> str:
        speaker = self._speaker(probe)
        return f"only {_where(speaker, probe)}" if speaker else "only"

    def _speaker(self, probe: Probe) -> Entry | None:
        match probe:
            case ToolProbe(tool=tool):
                keys = (f"tool:{tool}", "tool:mcp" if tool.startswith("mcp:") else "", "tool", "")
            case NetProbe():
                keys = ("connect", "")
            case NamedProbe(kind=kind):
                keys = (kind, "")
        return next((self._closes[key] for key in keys if key in self._closes), None)


def _closed_by(entry: Entry) -> str:
    """The kind of action that an entry of `only` closes: with a glob one tool, without all tools."""
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


def decide(policy: Policy, action: Action, *, untrusted: bool = False) -> Decision:
    """What `policy` says to one action; who has many to decide keeps a `Decider`."""
    return Decider(policy).decide(action, untrusted=untrusted)


def _entries(listed: Iterable[Pointed] | None, layer: int, *, widens: bool) -> list[Entry]:
    return [entry_of(number, layer, item, widens=widens) for number, item in enumerate(listed or ())]


def _effect(match: Match) -> Effect | None:
    written = match.entry.written
    return written.effect if isinstance(written, Rule) else None


def _strictness(decision: Decision) -> tuple[int, bool]:
    return _STRENGTH[decision.effect], decision.approver == "admin"


def _named(entry: Entry, probe: Probe) -> str:
    effect = f"{entry.written.effect} " if isinstance(entry.written, Rule) else ""
    return f"{effect}{_where(entry, probe)}"


def _where(entry: Entry, probe: Probe) -> str:
    """The pattern and where it is written, and why it was taken to match when that is not plain."""
    where = [entry.written.source] if entry.written.source else []
    if isinstance(probe, ToolProbe) and probe.unclear is not None:
        pattern = entry.pattern
        if isinstance(pattern, ToolPattern) and pattern.glob is not None:
            where.append(f"the command cannot be judged: {probe.unclear}")
    return f"{entry.written.action} ({'; '.join(where)})" if where else entry.written.action
