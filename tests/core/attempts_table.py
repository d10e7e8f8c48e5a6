"""How attempts may be asked for, and how not: the command, a run file and a request take and refuse the same."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from cloister.core import limits
from cloister.core.attempts import AttemptWish


class Row(NamedTuple):
    """One way to ask for attempts."""

    typed: tuple[str, ...]
    """After `--attempt`, each."""
    attempts: Any
    """The same in a run file or a request."""
    more: Mapping[str, Any] = MappingProxyType({})
    """Fields of the run beside them."""


GOOD: tuple[tuple[Row, tuple[AttemptWish, ...]], ...] = (
    (Row((), []), ()),
    (Row((), [], {"n": 3}), ()),
    (Row(("", ""), [{}, {}]), (AttemptWish(), AttemptWish())),
    (Row(("share=2", "share=1"), [{"share": 2}, {"share": 1.0}]), (AttemptWish(share=2), AttemptWish())),
    (
        Row(
            ("model=openai:gpt-5,temperature=0.2,share=0.5", "hint=Begin, share=9, with the parser."),
            [
                {"model": "openai:gpt-5", "temperature": 0.2, "share": 0.5},
                {"hint": "Begin, share=9, with the parser."},
            ],
        ),
        (
            AttemptWish("openai:gpt-5", 0.2, 0.5),
            AttemptWish(hint="Begin, share=9, with the parser."),
        ),
    ),
    (
        Row(("temperature=0", "temperature=2"), [{"temperature": 0}, {"temperature": 2}], {"n": 2}),
        (AttemptWish(temperature=0), AttemptWish(temperature=2)),
    ),
    (
        Row(("hint=,share=1000000",), [{"hint": ",share=1000000"}], {"search": "beam:3"}),
        (AttemptWish(hint=",share=1000000"),),
    ),
    (
        Row(("share=1000000,hint=",), [{"share": 1_000_000, "hint": ""}], {"search": "greedy"}),
        (AttemptWish(share=1_000_000, hint=""),),
    ),
)

_SEARCH = f"A search is `greedy` or `beam:K` with K from 1 to {limits.ATTEMPTS}."
_LONG = "x" * (limits.HINT_CHARS + 1)
_MANY = limits.ATTEMPTS + 1

BAD: tuple[tuple[Row, str], ...] = (
    (
        Row(("temperature=warm",), [{"temperature": "warm"}]),
        "At $.attempts[0].temperature: Expected `float | null`, got `str`.",
    ),
    (
        Row(("share=1", "share=much"), [{"share": 1}, {"share": "much"}]),
        "At $.attempts[1].share: Expected `float`, got `str`.",
    ),
    (Row(("share=",), [{"share": ""}]), "At $.attempts[0].share: Expected `float`, got `str`."),
    (
        Row(("modell=x",), [{"modell": "x"}]),
        "At $.attempts[0]: unknown field 'modell'; did you mean 'model'?",
    ),
    (
        Row(("share=1", "steps=3"), [{"share": 1}, {"steps": "3"}]),
        "At $.attempts[1]: unknown field 'steps'; known are model, temperature, share, hint, harness.",
    ),
    (
        Row(("model=",), [{"model": ""}]),
        "The model of an attempt is empty: leave it out to have the run's.",
    ),
    (Row(("share=0",), [{"share": 0}]), "The share of an attempt is a number greater than 0."),
    (Row(("share=-1",), [{"share": -1}]), "The share of an attempt is a number greater than 0."),
    (Row(("share=1e9",), [{"share": 1e9}]), "The share of an attempt is a number greater than 0."),
    (
        Row(("temperature=2.1",), [{"temperature": 2.1}]),
        "The temperature of an attempt is a number from 0 to 2.",
    ),
    (
        Row(("temperature=-1",), [{"temperature": -1}]),
        "The temperature of an attempt is a number from 0 to 2.",
    ),
    (
        Row((f"hint={_LONG}",), [{"hint": _LONG}]),
        f"The hint of an attempt has at most {limits.HINT_CHARS:,} characters.",
    ),
    (
        Row(("",) * _MANY, [{}] * _MANY),
        f"Attempts must be between 1 and {limits.ATTEMPTS}, not {_MANY}.",
    ),
    (
        Row(("", ""), [{}, {}], {"n": 3}),
        "2 attempts are described and 3 asked for: leave n out.",
    ),
    (Row((), [], {"n": _MANY}), f"Attempts must be between 1 and {limits.ATTEMPTS}, not {_MANY}."),
    (Row((), [], {"search": "deep"}), _SEARCH),
    (Row((), [], {"search": "beam:0"}), _SEARCH),
    (Row((), [], {"search": f"beam:{_MANY}"}), _SEARCH),
    (
        Row(("share=1", "share=99"), [{"share": 1}, {"share": 99}], {"budget": {"steps": 50}}),
        "The budget leaves an attempt without a step or a token: give more steps or fewer attempts.",
    ),
)
