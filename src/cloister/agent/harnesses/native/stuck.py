"""Stuck detection: a pure fold of the events of an attempt."""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from cloister.agent.harnesses.native.tool_calls import decoded
from cloister.agent.tools.toolset import ToolSet
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.events import (
    AttemptStarted,
    ChecksRan,
    Event,
    ModelReplied,
    ModelSwitched,
    PromptReceived,
    RunResumed,
    StuckKind,
    StuckNoticed,
    ToolReturned,
    TurnEnded,
)
from cloister.core.log import effective
from cloister.core.requests import Patience, ToolCall
from cloister.core.text import one_line

_FLEETING = re.compile(r"0x[0-9a-f]+|(?<!\d)\d{1,30}(?:\.\d{1,30})?\s?(?:ms|s|sec|seconds)\b", re.IGNORECASE)
"""Addresses and times, which do not make two results different."""
_WAITS = re.compile(r"(?:^|[;&|(\s])(?:sleep|wait)(?=[\s;&|)]|$)")
"""A command that waits for something else."""
_WAITING = 4
"""A turn that waits gets this many times the patience, so that a build can be polled."""


class StuckSign(msgspec.Struct, frozen=True):
    """A sign that the attempt is stuck."""

    kind: StuckKind
    evidence: str
    step: int
    earlier: int
    """Earlier notices without progress since."""


@dataclass(slots=True)
class _Turn:
    step: int
    calls: tuple[ToolCall, ...]
    results: list[tuple[bool, str]] = field(default_factory=list[tuple[bool, str]])
    diagnoses: tuple[Diagnosis, ...] = ()
    changed: bool = False
    waits: bool = False
    _plain: tuple[object, ...] | None = None

    def like(self, other: "_Turn") -> bool:
        """True if both turns had the same calls and the same results. Cheap comparisons come first."""
        if self.changed != other.changed or len(self.calls) != len(other.calls):
            return False
        for mine, theirs in zip(self.calls, other.calls, strict=True):
            if mine.name != theirs.name or mine.arguments != theirs.arguments:
                return False
        return self._seen() == other._seen()

    def _seen(self) -> tuple[object, ...]:
        if self._plain is None:
            # For a turn that waits, a different time is a different result.
            results = tuple(
                (ok, text if self.waits else _FLEETING.sub("#", text)) for ok, text in self.results
            )
            self._plain = (results, _found(self.diagnoses))
        return self._plain

    def said(self) -> str:
        """The turn in one line."""
        what = ", ".join(f"{call.name} {_target(call)}".strip() for call in self.calls[:3])
        result = self.results[-1][1] if self.results else ""
        return f"{what} → {one_line(result[-160:], 160)}"


def _target(call: ToolCall) -> str:
    value = next((call.arguments[key] for key in ("command", "path", "pattern") if key in call.arguments), "")
    return one_line(str(value), 80)


def _waits(call: ToolCall) -> bool:
    line = call.arguments.get("command")
    return isinstance(line, str) and _WAITS.search(line) is not None


def _found(diagnoses: Sequence[Diagnosis]) -> tuple[object, ...]:
    """A key that is equal for equal check results."""
    return tuple(
        (
            one.check,
            one.green,
            tuple((test.name, _FLEETING.sub("#", test.message or "")) for test in one.failing),
            tuple((each.file, each.line, each.message) for each in one.diagnostics),
            "" if one.failing or one.diagnostics or one.green else _FLEETING.sub("#", one.tail),
        )
        for one in diagnoses
    )


def _alike(one: ChecksRan, other: ChecksRan) -> bool:
    if one.comparison.red != other.comparison.red or _red(one.comparison) != _red(other.comparison):
        return False
    return _found(one.diagnoses) == _found(other.diagnoses)


def _red(found: Comparison) -> tuple[str, ...]:
    return (*found.new, *found.still, *found.missing)


class StuckDetector:
    """Watches the growing log of one attempt."""

    def __init__(self, attempt: int, patience: Patience, tools: ToolSet | None = None) -> None:
        self._attempt = attempt
        self._tools = tools or ToolSet()
        self._patience = patience
        self._taken = 0
        self._begin()

    def _begin(self) -> None:
        self._turn: _Turn | None = None
        self._noticed = 0
        self._fewest: int | None = None
        self._forget()

    def _forget(self) -> None:
        """Ignore all turns so far."""
        longest = max(self._patience.repeats, 2 * self._patience.alternations, 2)
        self._last: deque[_Turn] = deque(maxlen=_WAITING * longest)
        self._look_before: ChecksRan | None = None
        self._looks = 0
        """Consecutive check runs with the same results."""
        self._idle = 0
        self._malformed = 0
        self._step = 0

    def update(self, events: Sequence[Event]) -> None:
        """Add the new events. `events` is the whole log."""
        fresh: Sequence[Event] = events[self._taken :]
        if not self._taken or any(isinstance(event.body, RunResumed) for event in fresh):
            self._begin()
            fresh = effective(events)
        self._taken = len(events)
        for event in fresh:
            self._take(event)

    def _take(self, event: Event) -> None:
        body = event.body
        match body:
            case AttemptStarted() if body.attempt == self._attempt:
                self._noticed = 0
                self._forget()  # a fork has got a hint, and gets a nudge before it counts as stuck
            case PromptReceived():
                self._noticed = 0
                self._forget()  # a person helps: start over
            case StuckNoticed() if body.attempt == self._attempt:
                self._noticed += 1
                self._forget()
            case ModelReplied() if body.attempt == self._attempt:
                self._turn = _Turn(body.step, body.calls)
            case ToolReturned() if body.attempt == self._attempt and self._turn is not None:
                self._turn.results.append((body.ok, body.text))
            case ChecksRan() if body.attempt == self._attempt:
                self._look(body)
            case TurnEnded() if body.attempt == self._attempt and self._turn is not None:
                self._end(self._turn, body.changed)
            case _:
                pass

    def _look(self, body: ChecksRan) -> None:
        if self._turn is not None:
            self._turn.diagnoses = body.diagnoses
        red = body.comparison.red
        if self._fewest is not None and red < self._fewest:
            self._noticed = 0  # fewer failures than ever: real progress
        self._fewest = red if self._fewest is None else min(red, self._fewest)
        before, self._look_before = self._look_before, None if body.comparison.green else body
        if body.comparison.green:
            self._looks = 0
        else:
            self._looks = self._looks + 1 if before is not None and _alike(before, body) else 1

    def _end(self, turn: _Turn, changed: bool) -> None:
        self._turn = None
        self._step = turn.step
        if not turn.calls:
            return  # the loop counts replies without calls
        turn.changed = changed
        turn.waits = any(map(_waits, turn.calls))
        self._last.append(turn)
        self._idle = 0 if changed else self._idle + 1
        valid = any(isinstance(decoded(call, self._tools), tuple) for call in turn.calls)
        self._malformed = 0 if valid else self._malformed + 1

    def found(self) -> StuckSign | None:
        """The first sign that the attempt is stuck now, if any."""
        found: tuple[tuple[StuckKind, str | None], ...] = (
            ("malformed", self._in_a_row(self._malformed, self._patience.malformed)),
            ("repeats", self._repeats()),
            ("alternations", self._alternations()),
            ("unchanged", self._unchanged()),
            ("idle", self._in_a_row(self._idle, self._patience.idle)),
        )
        for kind, evidence in found:
            if evidence is not None:
                return StuckSign(kind, one_line(evidence, 500), self._step, self._noticed)
        return None

    def _in_a_row(self, turns: int, wanted: int) -> str | None:
        if not wanted or turns < wanted:
            return None
        return f"{turns} turns in a row, the last: {self._last[-1].said()}"

    def _times(self) -> int:
        """The patience factor for the last turns."""
        return _WAITING if any(turn.waits for turn in list(self._last)[-2:]) else 1

    def _repeats(self) -> str | None:
        wanted = self._patience.repeats * self._times()
        last = list(self._last)[-wanted:]
        # Turns that change files are counted by `unchanged`.
        if not wanted or len(last) < wanted or not all(one.like(last[0]) and not one.changed for one in last):
            return None
        return f"{wanted} turns in a row: {last[-1].said()}"

    def _alternations(self) -> str | None:
        pairs = self._patience.alternations * self._times()
        wanted = 2 * pairs
        last = list(self._last)[-wanted:]
        if not wanted or len(last) < wanted or last[0].like(last[1]):
            return None
        if not all(one.like(last[at % 2]) for at, one in enumerate(last)):
            return None
        return f"{pairs} times: {last[0].said()}; then {last[1].said()}"

    def _unchanged(self) -> str | None:
        wanted = self._patience.unchanged
        if not wanted or self._looks < wanted or self._look_before is None:
            return None
        red = _red(self._look_before.comparison)
        names = ", ".join(one_line(name, 80) for name in red[:4]) or "the same checks"
        return f"{self._looks} changes in a row left exactly these failures: {names}"


def unanswered(events: Sequence[Event], attempt: int) -> StuckNoticed | None:
    """The last notice that asks for an escalation or a stop, if a crash came before it was obeyed."""
    for event in reversed(events):
        match event.body:
            case StuckNoticed() as body if body.attempt == attempt:
                return None if body.stage == "nudge" else body
            case (ModelReplied() | ModelSwitched()) as body if body.attempt == attempt:
                return None
            case PromptReceived():
                return None
            case _:
                pass
    return None
