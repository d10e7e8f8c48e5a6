"""What a list shows of a run beside its row: open questions, cost, phase and failing tests, as a fold of its log.

The fold continues where it stopped, so that a run with a million events is read once by a process.
"""

import sqlite3
import time
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import closing
from statistics import median

import msgspec

from cloister.core.events import BESIDE_WORK, Phase
from cloister.core.requests import Role
from cloister.log.api import OpenApproval, OpenQuestion

_KINDS = (
    "AskRaised",
    "AskAnswered",
    "QuestionAsked",
    "QuestionAnswered",
    "RunClaimed",
    "RunPaused",
    "RunContinued",
    "RunResumed",
    "PhaseStarted",
    "PhaseEnded",
    "BaselineTaken",
    "ChecksRan",
    "ModelReplied",
    "ModelSpent",
    "StuckNoticed",
)


def of_kind(kinds: Iterable[str]) -> str:
    """The condition that an event is of one of these kinds. They are constants of the caller."""
    return " OR ".join(
        f'substr(body, 1, {len(kind) + 10}) = CAST(\'{{"type":"{kind}"\' AS BLOB)' for kind in kinds
    )


_ROWS = (  # every part of it is a constant of this file
    "SELECT seq, at, body FROM events WHERE run = ? AND seq > ? AND seq <= ? AND ("  # noqa: S608
    + of_kind(_KINDS)
    + ") ORDER BY seq"
)
REDS = 40
"""Results of checks that a list shows, the newest."""
FOLDS = 2_000
"""Runs whose fold is kept."""


class _Compared(msgspec.Struct, frozen=True):
    new: tuple[str, ...] = ()
    still: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def red(self) -> int:
        return len(self.new) + len(self.still) + len(self.missing) + len(self.skipped)


class _Fields(msgspec.Struct, frozen=True):
    """The fields that count, of all these events."""

    type: str
    ask: str = ""
    attempt: int | None = None
    action: str = ""
    question: str = ""
    text: str = ""
    choices: tuple[str, ...] = ()
    default: str = ""
    rule: str = ""
    approver: Role = "operator"
    deadline: float = 0.0
    phase: Phase = "work"
    comparison: _Compared | None = None
    cost: float | None = None
    seconds: float = 0.0


_decode = msgspec.json.Decoder(_Fields).decode


class Told:
    """The fold of one run."""

    def __init__(self) -> None:
        self._seq = 0
        self._asks: dict[str, OpenApproval] = {}
        self._questions: dict[str, OpenQuestion] = {}
        self._phases: list[tuple[Phase, float]] = []
        self.reds: list[int] = []
        self.cost: float | None = None
        self.stuck: int | None = None
        """The last event that says so, in this round."""
        self.took: dict[Phase, float] = {}
        """The seconds of each phase that has ended, all times together."""

    def read(self, db: sqlite3.Connection, num: int, last: int) -> None:
        """Continue with the events up to `last`."""
        with closing(db.execute(_ROWS, (num, self._seq, last))) as found:
            for seq, at, data in found:
                try:
                    self._add(seq, at, _decode(data))
                except msgspec.MsgspecError:
                    continue  # written by a newer version
        self._seq = max(self._seq, last)

    def approvals(self) -> tuple[OpenApproval, ...]:
        """The questions of rules that wait for a person now."""
        now = time.time()
        return tuple(ask for ask in self._asks.values() if ask.deadline > now)

    def questions(self) -> tuple[OpenQuestion, ...]:
        """The questions of models that wait for a person now."""
        now = time.time()
        return tuple(each for each in self._questions.values() if each.deadline > now)

    def phase(self) -> tuple[Phase | None, float | None]:
        """The phase at work and when it began. While attempts work, the phases beside them do not count."""
        phases = self._phases
        if any(name == "work" for name, _ in phases):
            phases = [each for each in phases if each[0] not in BESIDE_WORK]
        return phases[-1] if phases else (None, None)

    def _question(self, seq: int, body: _Fields) -> None:
        self._questions.pop(body.question, None)
        if body.type == "QuestionAsked":
            self._questions[body.question] = OpenQuestion(
                body.question, seq, body.attempt or 0, body.text, body.choices, body.default, body.deadline
            )

    def _ask_again(self, body: _Fields) -> None:
        if body.type == "RunContinued":
            self._questions.clear()
            self.stuck = None
        # The calls of an unfinished turn are made again, and ask again.
        self._asks = {
            name: ask
            for name, ask in self._asks.items()
            if body.attempt is not None and ask.attempt != body.attempt
        }

    def _phase(self, at: float, body: _Fields) -> None:
        if body.type == "PhaseStarted":
            self._phases.append((body.phase, at))
        elif body.type == "PhaseEnded":
            self._phases = [each for each in self._phases if each[0] != body.phase]
            self.took[body.phase] = self.took.get(body.phase, 0.0) + body.seconds
        else:
            self._phases.clear()

    def _add(self, seq: int, at: float, body: _Fields) -> None:
        match body.type:
            case "AskRaised":
                self._asks[body.ask] = OpenApproval(
                    body.ask, seq, body.attempt or 0, body.action, body.rule, body.approver, body.deadline
                )
            case "AskAnswered":
                self._asks.pop(body.ask, None)
            case "QuestionAsked" | "QuestionAnswered":
                self._question(seq, body)
            case "RunContinued" | "RunResumed":
                self._ask_again(body)
            case "StuckNoticed":
                self.stuck = seq
            case "RunClaimed" | "RunPaused" | "PhaseStarted" | "PhaseEnded":
                self._phase(at, body)
            case "BaselineTaken" | "ChecksRan" if body.comparison is not None:
                self.reds = [*self.reds, body.comparison.red][-REDS:]
            case _:
                pass
        if body.cost is not None:
            self.cost = (self.cost or 0.0) + body.cost


def _medians(runs: list[dict[Phase, float]]) -> dict[Phase, float]:
    every: dict[Phase, list[float]] = {}
    for took in runs:
        for name, seconds in took.items():
            every.setdefault(name, []).append(seconds)
    found: dict[Phase, float] = {}
    for name, values in every.items():
        found[name] = median(values)
    return found


EARLIER, EARLIER_SECONDS, REPOS = 20, 60.0, 500
"""Finished runs of a repository that tell how long a phase usually takes, and how long the answer is kept, for how many."""


class Folds:
    """The folds that a reader has begun; those of the runs that were asked for last are kept."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, Told] = OrderedDict()
        self._usual: OrderedDict[str, tuple[float, dict[Phase, float]]] = OrderedDict()

    def usual(self, db: sqlite3.Connection, repo: str, phase: Phase) -> float | None:
        """The median seconds of a phase in the newest finished runs of a repository; None without any."""
        since, found = self._usual.get(repo, (-EARLIER_SECONDS, {}))
        if time.monotonic() - since >= EARLIER_SECONDS:
            query = "SELECT num, last_seq FROM runs WHERE repo = ? AND state = 'finished' ORDER BY num DESC LIMIT ?"
            runs = [
                self.of(db, num, last).took for num, last in db.execute(query, (repo, EARLIER)).fetchall()
            ]
            found = _medians(runs)
            self._usual[repo] = (time.monotonic(), found)
            if len(self._usual) > REPOS:
                self._usual.popitem(last=False)
        return found.get(phase)

    def of(self, db: sqlite3.Connection, num: int, last: int) -> Told:
        told = self._known.pop(num, None) or Told()
        told.read(db, num, last)
        self._known[num] = told
        if len(self._known) > FOLDS:
            self._known.popitem(last=False)
        return told
