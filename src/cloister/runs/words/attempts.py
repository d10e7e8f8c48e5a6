"""Forks, rankings, budgets and stuck attempts as lines. Pure; all text comes out harmless."""

from collections.abc import Iterator
from typing import assert_never

from cloister.core import events as e
from cloister.core.budget import amount
from cloister.core.events.budget import Level
from cloister.core.text import one_line
from cloister.runs.words.lines import Line, Piece, Status


def lines(
    body: e.AttemptForked | e.AttemptsRanked | e.JudgeSpoke | e.RewindRequested | e.Inherited, inherited: int
) -> Iterator[Line | Status]:
    """`inherited` counts the events of another run's conversation so far."""
    match body:
        case e.AttemptForked():
            where = f"event {body.at_seq}" if body.at_seq else "the base"
            why = one_line(body.reason, 200)
            yield Line(
                f"⑂ attempt {body.attempt} continues from {where} of attempt {body.parent}: {why}", "head"
            )
        case e.AttemptsRanked():
            for place, score in enumerate(body.scores, start=1):
                text = f"attempt {score.attempt} {score.outcome}  {one_line(score.why, 200)}"
                yield Line(f"{place}. {text}", "good" if place == 1 and score.outcome == "green" else "dim")
        case e.JudgeSpoke():
            chose = "chose none" if body.choice is None else f"chose attempt {body.choice}"
            yield Line(f"⚖ {one_line(body.model, 80)} {chose}: {one_line(body.text, 300)}", "head")
        case e.RewindRequested():
            yield Line(f"↶ {one_line(body.who, 40)} rewinds the run to event {body.to}", "head")
        case e.Inherited():
            if inherited == 1:
                yield Line("⑂ continues the conversation of another run", "dim")
            yield Status(f"inherits event {body.seq}")
        case _:
            assert_never(body)


# The status line when several attempts work at once.

_NAME = 12
"""Characters shown of a tool's name, which the model chose."""


class AtWork:
    """What each attempt does now: a fold of one run's items, in order."""

    def __init__(self) -> None:
        self._doing: dict[int, str] = {}
        self._tools: dict[tuple[int, str], str] = {}
        """Attempt and call → its tool."""

    def over(self, pieces: tuple[Piece, ...], item: e.Event | e.Delta) -> tuple[Piece, ...]:
        """`pieces` of `item`, with one status for all working attempts in place of their own."""
        self._take(item)
        if not self._doing:
            return pieces
        told = "  ".join(f"[{number}] {what}" for number, what in sorted(self._doing.items()))
        return (*(piece for piece in pieces if not isinstance(piece, Status)), Status(told))

    def _take(self, item: e.Event | e.Delta) -> None:
        match item:
            case e.Event():
                self._event(item.body)
            case e.ModelText():
                self._now(item.attempt, "writing")
            case e.CommandOutput() if (item.attempt, item.source) not in self._tools:
                self._now(item.attempt, "checking")
            case _:
                pass

    def _event(self, body: e.AnyBody) -> None:
        match body:
            case e.AttemptStarted():
                self._doing[body.attempt] = "starting"
            case e.ModelReplied():
                for call in body.calls:
                    self._tools[body.attempt, call.id] = one_line(call.name, _NAME)
                self._now(body.attempt, "acting")
            case e.ActionDecided():
                self._now(body.attempt, self._tools.get((body.attempt, body.call), "acting"))
            case e.AskRaised():
                self._now(body.attempt, "waiting for you")
            case e.TurnEnded():
                self._now(body.attempt, "thinking")
            case e.AttemptEnded():
                self._doing.pop(body.attempt, None)
            case e.RunClaimed() | e.RunFinished():
                self._doing.clear()
            case _:
                pass

    def _now(self, attempt: int, what: str) -> None:
        if attempt in self._doing:
            self._doing[attempt] = what


# Budgets, summaries, advice and stuck attempts.

Upkeep = (
    e.ModelSpent
    | e.BudgetWarned
    | e.BudgetSpent
    | e.BudgetExtended
    | e.ContextSummarised
    | e.StuckNoticed
    | e.Advised
)

_DONE = {"nudge": "telling the model", "escalate": "switching model", "stop": "ending the attempt"}


def whose(level: Level, name: str) -> str:
    return "the run's" if level == "run" else f"{level} {one_line(name, 60)}'s"


def upkeep(body: Upkeep, mark: str) -> Iterator[Line]:
    """`mark` names the attempt where there are several."""
    match body:
        case e.ModelSpent():
            took = f"{body.usage.total:,} tokens"
            yield Line(f"· {mark}{one_line(body.purpose, 40)}: {took} of {one_line(body.model, 100)}", "dim")
        case e.BudgetWarned():
            spent, limit = amount(body.what, body.spent), amount(body.what, body.limit)
            yield Line(f"! {mark}{spent} of {whose(body.level, body.name)} {limit} are spent", "warn")
        case e.BudgetSpent():
            limit = amount(body.what, body.limit)
            yield Line(f"✗ {mark}{whose(body.level, body.name)} budget of {limit} is spent", "bad")
        case e.BudgetExtended():
            more = amount(body.what, body.amount)
            who = one_line(body.who, 40)
            yield Line(f"» {mark}{who} gave {more} more to {whose(body.level, body.name)} budget", "head")
        case e.ContextSummarised():
            sizes = f"{body.before_tokens:,} → {body.after_tokens:,} tokens"
            yield Line(f"· {mark}earlier turns are summarised: {sizes}", "dim")
        case e.StuckNoticed():
            why = one_line(body.evidence, 200)
            yield Line(f"! {mark}stuck ({body.kind}): {why}; {_DONE[body.stage]}", "warn")
        case e.Advised():
            none = "no known kind" if body.role == "classify" else "no objections"
            said = f"by {one_line(body.model, 100)}: {one_line(body.text, 300) or none}"
            yield Line(f"· {mark}{body.role} {said}", "head" if body.text else "dim")
        case _:
            assert_never(body)
