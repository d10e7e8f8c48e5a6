"""Attempts of a run: requests, scores, forks, and what happens to a stuck attempt."""

import math
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from cloister.core import limits
from cloister.core.errors import UserError, describe
from cloister.core.ids import RunId

if TYPE_CHECKING:
    from cloister.core.requests import Budget, NewRun


NATIVE, REPAIR = "native", "repair"
"""Our own harnesses: the loop with a model, and the search by rules and tests without one."""
OPENCODE, CLAUDE, CODEX = "opencode", "claude", "codex"
"""Programs inside the sandbox that Cloister installs and sets up."""
ACP_PREFIX = "acp:"
"""Before the command line of any program that speaks the Agent Client Protocol in the sandbox."""

_BEAM = re.compile(r"beam:([1-9][0-9]?)")


class AttemptWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one attempt of a run differs from the others."""

    model: str | None = None
    """None: the run's model."""
    temperature: float | None = None
    """None: the provider's default."""
    share: float = 1.0
    """Its part of the run's steps and tokens, relative to the other shares."""
    hint: str | None = None
    """Added to the task."""
    harness: str | None = None
    """None: the run's harness."""


class ForkedFrom(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The save point of another run that a run continues from."""

    run: RunId
    seq: int
    """The number of the save point's `TurnEnded` event there."""
    say: str | None = None
    """A message to the new run."""


class Search(msgspec.Struct, frozen=True):
    """How stuck attempts are continued."""

    kind: Literal["greedy", "beam"]
    width: int
    """Attempts that a beam runs at a time."""


class Score(msgspec.Struct, frozen=True):
    """The evidence for one attempt. Lower is better; the first field that differs decides."""

    attempt: int
    outcome: str
    red: int
    """Requested tests and checks that are not green."""
    new: int
    """New failures."""
    weakened: int
    """Tests that were deleted, skipped or made weaker."""
    lines: int
    """Added and removed together."""
    tokens: int
    why: str = ""
    """The difference to the attempt ranked before it, in words."""
    dollars: float | None = None
    """Its cost; None if the price of one of its models is unknown."""
    doubts: int = 0
    """1 if a search chose a patch although it deletes code, special-cases a test or leaves a failing test."""


def parse_search(text: str) -> Search | None:
    """Parse `greedy` or `beam:K`; None for anything else."""
    if text == "greedy":
        return Search("greedy", 1)
    found = _BEAM.fullmatch(text)
    return Search("beam", int(found[1])) if found and int(found[1]) <= limits.ATTEMPTS else None


class _Attempts(msgspec.Struct, frozen=True):
    """The attempts of a request, under the request's field name."""

    attempts: tuple[AttemptWish, ...]


def read_attempts(found: object) -> tuple[AttemptWish, ...]:
    """Convert the `attempts` of a request from plain data. Raises `UserError` (`bad_attempt`)."""
    try:
        return msgspec.convert({"attempts": found}, _Attempts).attempts
    except msgspec.ValidationError as error:
        raise UserError("bad_attempt", describe(error, _Attempts)) from None


def wishes(new: "NewRun") -> tuple[AttemptWish, ...]:
    """Return one wish for each attempt that a run starts with."""
    return new.attempts or (AttemptWish(),) * new.n


def harness_of(new: "NewRun", wish: AttemptWish, *, model: bool) -> str:
    """Return the harness of one attempt; without a name, `repair` unless a `model` can be had."""
    named = wish.harness or new.harness
    return named or (NATIVE if model or wish.model or new.model else REPAIR)


def shared(budget: "Budget", wanted: tuple[AttemptWish, ...]) -> tuple["Budget", ...]:
    """Return the budget of each attempt: steps, tokens and money are divided, time is not."""
    whole = sum(wish.share for wish in wanted)
    return tuple(part_of(budget, wish.share / whole) for wish in wanted)


def part_of(budget: "Budget", part: float) -> "Budget":
    """Return `part` of the steps, tokens and money."""
    return msgspec.structs.replace(
        budget,
        steps=math.floor(budget.steps * part + 1e-9),
        tokens=math.floor(budget.tokens * part + 1e-9),
        dollars=None if budget.dollars is None else budget.dollars * part,
    )


def check_attempts(new: "NewRun") -> str | None:
    """Return why the requested attempts are invalid, as one sentence; None if they are valid."""
    if new.attempts and new.n not in (1, len(new.attempts)):
        return f"{len(new.attempts)} attempts are described and {new.n} asked for: leave n out."
    if len(new.attempts) > limits.ATTEMPTS:
        return f"Attempts must be between 1 and {limits.ATTEMPTS}, not {len(new.attempts)}."
    if new.harness == REPAIR and new.model is not None:
        return "The repair harness calls no model: leave the model out, or the harness."
    for wish in new.attempts:
        if problem := _check_wish(wish, wish.harness or new.harness):
            return problem
    if new.search is not None and parse_search(new.search) is None:
        return f"A search is `greedy` or `beam:K` with K from 1 to {limits.ATTEMPTS}."
    if any(part.steps < 1 or part.tokens < 1 for part in shared(new.budget, wishes(new))):
        return "The budget leaves an attempt without a step or a token: give more steps or fewer attempts."
    return None


def _check_wish(wish: AttemptWish, harness: str | None) -> str | None:
    if harness == REPAIR and any(one is not None for one in (wish.model, wish.temperature, wish.hint)):
        return "The repair harness calls no model: its attempt takes no model, temperature or hint."
    if wish.model is not None and not wish.model.strip():
        return "The model of an attempt is empty: leave it out to have the run's."
    if not (math.isfinite(wish.share) and 0 < wish.share <= 1_000_000):
        return "The share of an attempt is a number greater than 0."
    if wish.temperature is not None and not 0 <= wish.temperature <= 2:
        return "The temperature of an attempt is a number from 0 to 2."
    if wish.hint is not None and len(wish.hint) > limits.HINT_CHARS:
        return f"The hint of an attempt has at most {limits.HINT_CHARS:,} characters."
    return None


# Escalation of a stuck attempt.


class Stuck(msgspec.Struct, frozen=True):
    """An attempt makes no progress, and a nudge did not help."""

    attempt: int
    step: int
    evidence: str
    """What it keeps doing, in words for people and for the next model."""


class Branch(msgspec.Struct, frozen=True, tag="branch"):
    """Other attempts continue from save points; this attempt ends."""

    attempts: tuple[int, ...]


class Switch(msgspec.Struct, frozen=True, tag="switch"):
    """Continue with another model."""

    model: str


class GiveUp(msgspec.Struct, frozen=True, tag="give_up"):
    """End the attempt."""

    reason: str


Answer = Branch | Switch | GiveUp

Escalate = Callable[[Stuck], Awaitable[Answer]]
"""The loop calls it when a nudge did not help. It records what it starts before it answers."""
