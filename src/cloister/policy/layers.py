"""Layers of rules: read and checked, the built-in layer, and the limits of all layers together."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from cloister.core.errors import UserError
from cloister.core.events import Effect
from cloister.core.text import one_line
from cloister.policy.api import Cap, Layer, LimitName, Policy, Rule
from cloister.policy.pattern import TOOL_NAMES, opens_everything, read_pattern, spell


class UncheckedRule(Protocol):
    """One rule as a user wrote it."""

    @property
    def action(self) -> str: ...

    @property
    def effect(self) -> str: ...


def layer(
    name: str, entries: Sequence[UncheckedRule], source: str, *, may_widen: bool, at: Sequence[int] = ()
) -> Layer:
    """Return the rules of one author; `at` are their line numbers in `source`, if known.

    Raises `UserError` (`bad_policy`), which names the rule by its line, or by its number from 1.
    """
    places = [
        f"{source}:{at[number]}" if number < len(at) else f"{source}, rule {number + 1}"
        for number in range(len(entries))
    ]
    rules = [_rule(entry, where) for entry, where in zip(entries, places, strict=True)]
    return Layer(name, tuple(rules), may_widen)


def _rule(entry: UncheckedRule, where: str) -> Rule:
    effect = _effect(entry.effect)
    if effect is None:
        raise UserError(
            "bad_policy",
            f"{where}: the effect must be allow, deny or ask, not {one_line(entry.effect, 40)!r}.",
        )
    try:
        return Rule(spelled(entry.action, widens=effect == "allow"), effect, where)
    except ValueError as error:
        raise UserError("bad_policy", f"{where}: {one_line(entry.action, 80)!r}: {error}.") from None


def _effect(text: str) -> Effect | None:
    match text:
        case "allow" | "deny" | "ask":
            return text
        case _:
            return None


def spelled(action: str, *, widens: bool) -> str:
    """Return the action in its normal spelling. Raises `ValueError`."""
    pattern = read_pattern(action)
    if widens and opens_everything(pattern):
        raise ValueError(
            "an allow rule must name its hosts: * may only be the first label, as in *.example.com"
        )
    return spell(pattern)


# The built-in layer: allow work inside the sandbox and no way out of it.

BUILT_IN = Layer(
    name="built-in",
    rules=(
        *(Rule(f"tool:{tool}", "allow", "built-in") for tool in TOOL_NAMES),
        # Git maintains these files; writing them by hand would corrupt the repository.
        Rule("tool:write:.git/**", "deny", "built-in"),
        Rule("tool:edit:.git/**", "deny", "built-in"),
        # The run's own branch; the proxy knows which run it belongs to.
        Rule("push:cloister/*", "allow", "built-in"),
        Rule("tier:*", "allow", "built-in"),
        Rule("model:*", "allow", "built-in"),
        Rule("harness:*", "allow", "built-in"),
    ),
    may_widen=True,
)


# Limits: the smallest of all layers applies.


def least(policy: Policy) -> dict[LimitName, Cap]:
    """Return the smallest cap of each limit; of equal caps that of the strongest author."""
    found: dict[LimitName, Cap] = {}
    for layer in policy:
        for cap in layer.caps:
            if cap.name not in found or cap.most < found[cap.name].most:
                found[cap.name] = cap
    return found


def capped(
    policy: Policy, wanted: Mapping[LimitName, float | None]
) -> tuple[dict[LimitName, float | None], tuple[str, ...]]:
    """Apply the caps to `wanted`, where None means no limit. Also return a note for each value that was lowered."""
    given = dict(wanted)
    notes: list[str] = []
    for name, cap in least(policy).items():
        if name not in wanted:
            continue
        asked = wanted[name]
        if asked is None or asked > cap.most:
            given[name] = cap.most
            instead = "no limit" if asked is None else f"{asked:g}"
            notes.append(f"{name}: {cap.most:g} instead of {instead} (limits.{name}, {cap.source})")
    return given, tuple(notes)


def actions(policy: Policy) -> Iterator[str]:
    """Every action pattern of a policy."""
    for one in policy:
        for rule in (*one.rules, *(one.delegate or ()), *one.only, *one.high_impact):
            yield rule.action


def set_names(policy: Policy) -> frozenset[str]:
    """The host sets that the policy names."""
    found = (action.partition("@") for action in actions(policy))
    return frozenset(name for kind, at, name in found if kind == "connect:" and at)
