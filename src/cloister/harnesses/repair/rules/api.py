"""What a rule is, and the facts about the failing tests that a rule may use."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec
from tree_sitter import Node

from cloister.harnesses.repair.api import Failure, Flag
from cloister.harnesses.repair.syntax import Cut, File


class Facts(msgspec.Struct, frozen=True):
    """What the failing tests say."""

    values: tuple[str, ...] = ()
    """Literals in their messages."""
    errors: tuple[str, ...] = ()
    """Names of exceptions that were raised or expected."""
    names: tuple[str, ...] = ()
    """Names in their messages."""
    asks: frozenset[str] = frozenset()
    """What the failures ask for: a check for `nothing`, `empty` or a `missing` key, or an error to `raise`."""


Make = Callable[[Node, File, Facts], Iterable[str | Cut]]


class Rule(msgspec.Struct, frozen=True):
    """One way to change one place."""

    name: str
    prior: float
    """How likely the first text of this rule is right, if the place is wrong."""
    place: Literal["expression", "statement"]
    make: Make
    flags: tuple[Flag, ...] = ()
    decay: float = 0.06
    """How fast later texts of the rule at the same place lose likelihood."""
    asked: tuple[float, str] = (0.0, "")
    """The prior if the failing tests ask for one of these (`Facts.asks`)."""

    def likely(self, facts: Facts) -> float:
        """The prior for these failures."""
        prior, kinds = self.asked
        return prior if facts.asks.intersection(kinds.split()) else self.prior

    def changes(self, node: Node, file: File, facts: Facts) -> Iterator[tuple[float, Cut]]:
        """The changes of one place with their priors, each different from the source."""
        for index, made in enumerate(self.make(node, file, facts)):
            if index >= _MOST:
                return
            cut = (node.start_byte, node.end_byte, made) if isinstance(made, str) else made
            if file.data[cut[0] : cut[1]] != cut[2].encode(errors="surrogatepass"):
                yield self.likely(facts) / (1 + self.decay * index), cut


_MOST = 150
_ERROR_NAME = re.compile(r"\b[A-Z]\w{0,60}(?:Error|Exception)\b")
_ASKS = {
    "nothing": re.compile(
        r"NoneType|nil pointer|nil map|propert(?:y|ies) .{0,80}of (?:null|undefined)|(?:null|undefined) is not|"
        r"convert undefined|as it is (?:null|undefined)"
    ),
    "empty": re.compile(
        r"IndexError|out of range|ZeroDivision|divi(?:de|sion) by zero|argument is empty|empty (?:sequence|array|list)"
    ),
    "missing": re.compile(r"KeyError"),
    "raise": re.compile(
        r"DID NOT RAISE|not raised|[Mm]issing expected (?:exception|rejection)|did not throw"
    ),
}


def facts_of(failures: Iterable[Failure]) -> Facts:
    """Read the messages of failing tests."""
    values: dict[str, None] = {}
    errors: dict[str, None] = {}
    names: dict[str, None] = {}
    asks: set[str] = set()
    for failure in failures:
        said = f"{failure.error}: {failure.message[:2_000]}"
        asks |= {kind for kind, pattern in _ASKS.items() if pattern.search(said)}
        errors |= dict.fromkeys(_ERROR_NAME.findall(failure.message[:2_000]))
        for word in failure.message[:2_000].replace(",", " ").replace("(", " ").replace(")", " ").split():
            plain = word.strip("[]{}.:;")
            if plain.lstrip("-").replace(".", "", 1).isdigit() or (
                len(plain) > 2 and plain[0] == plain[-1] and plain[0] in "'\""
            ):
                values[plain] = None
            elif plain.isidentifier() and plain not in errors:
                names[plain] = None
        if failure.error and failure.error != "AssertionError":
            errors[failure.error] = None
    return Facts(tuple(values)[:20], tuple(errors)[:6], tuple(names)[:40], frozenset(asks))
