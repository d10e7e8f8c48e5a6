"""Rules as people write them, checked when they are read and not when they would have been needed."""

from collections.abc import Sequence
from typing import Protocol

from cloister.core.errors import UserError
from cloister.core.events import Effect
from cloister.core.text import one_line
from cloister.policy.api import Layer, Rule
from cloister.policy.pattern import opens_everything, read_pattern, spell


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
