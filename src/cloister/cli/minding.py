"""Budgets, summaries and circles as lines of the screen. Pure; everything comes out harmless."""

from collections.abc import Iterator
from typing import assert_never

from cloister.cli.pieces import Line
from cloister.core import events as e
from cloister.core.budget import amount
from cloister.core.spending import Level
from cloister.core.text import one_line

Minding = (
    e.ModelSpent
    | e.BudgetWarned
    | e.BudgetSpent
    | e.BudgetExtended
    | e.ContextSummarised
    | e.StuckNoticed
    | e.Advised
)

_DONE = {"nudge": "it is told so", "escalate": "somebody else goes on", "stop": "it ends here"}


def whose(level: Level, name: str) -> str:
    return "the run's" if level == "run" else f"{level} {one_line(name, 60)}'s"


def minding(body: Minding, mark: str) -> Iterator[Line]:
    """`mark` says which attempt it is about, where there are several."""
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
            yield Line(f"! {mark}going round in circles ({body.kind}): {why}; {_DONE[body.stage]}", "warn")
        case e.Advised():
            none = "no kind that is known" if body.role == "classify" else "nothing to object to"
            said = f"by {one_line(body.model, 100)}: {one_line(body.text, 300) or none}"
            yield Line(f"· {mark}{body.role} {said}", "head" if body.text else "dim")
        case _:
            assert_never(body)
