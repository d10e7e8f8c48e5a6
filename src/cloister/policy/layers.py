"""Rules as people write them, checked when they are read and not when they would have been needed."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from cloister.core.errors import UserError
from cloister.core.events import Effect
from cloister.core.text import one_line
from cloister.policy.api import Cap, Layer, LimitName, Policy, Rule
from cloister.policy.pattern import TOOL_NAMES, opens_everything, read_pattern, spell


class Entry(Protocol):
    """One rule, not yet checked."""

    @property
    def action(self) -> str: ...

    @property
    def effect(self) -> str: ...


def layer(
    name: str, entries: Sequence[Entry], source: str, *, may_widen: bool, at: Sequence[int] = ()
) -> Layer:
    """The rules of one author; `at` are their lines in `source`, where it has lines.

    Raises `UserError` (`bad_policy`) that names the entry by its line, or counted from 1.
    """
    places = [
        f"{source}:{at[number]}" if number < len(at) else f"{source}, rule {number + 1}"
        for number in range(len(entries))
    ]
    rules = [_rule(entry, where) for entry, where in zip(entries, places, strict=True)]
    return Layer(name, tuple(rules), may_widen)


def _rule(entry: Entry, where: str) -> Rule:
    effect = _effect(entry.effect)
    if effect is None:
        raise UserError(
            "bad_policy", f"{where}: the effect is allow, deny or ask, not {one_line(entry.effect, 40)!r}."
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
    """The action in its normal spelling. Raises `ValueError`."""
    pattern = read_pattern(action)
    if widens and opens_everything(pattern):
        raise ValueError("an allow names its hosts: * may only be the first label, as in *.example.com")
    return spell(pattern)


# The rules that hold without any configuration: work inside the sandbox, and no way out of it.


BUILT_IN = Layer(
    name="built-in",
    rules=(
        *(Rule(f"tool:{tool}", "allow", "built-in") for tool in TOOL_NAMES),
        # The repository's own bookkeeping: git inside keeps it, files written by hand would corrupt it.
        Rule("tool:write:.git/**", "deny", "built-in"),
        Rule("tool:edit:.git/**", "deny", "built-in"),
        # The run's own branch; whose it is, the door knows.
        Rule("push:cloister/*", "allow", "built-in"),
        Rule("tier:*", "allow", "built-in"),
        Rule("model:*", "allow", "built-in"),
    ),
    may_widen=True,
)


# Limits: of all layers the smallest holds, and what it took away is said with its place.


def least(policy: Policy) -> dict[LimitName, Cap]:
    """The cap that holds for each limit that has one; of equals the strongest author's."""
    found: dict[LimitName, Cap] = {}
    for layer in policy:
        for cap in layer.caps:
            if cap.name not in found or cap.most < found[cap.name].most:
                found[cap.name] = cap
    return found


def capped(
    policy: Policy, wanted: Mapping[LimitName, float | None]
) -> tuple[dict[LimitName, float | None], tuple[str, ...]]:
    """What of `wanted` is given, and a sentence for everything that is less. None is without a limit."""
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
