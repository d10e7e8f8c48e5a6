"""Budgets, summaries and circles on the screen."""

import pytest

from cloister.core.events import (
    BudgetExtended,
    BudgetSpent,
    BudgetWarned,
    ContextSummarised,
    ModelSpent,
    StuckNoticed,
)
from cloister.core.requests import Usage
from cloister.runs.event_text.facts import Upkeep, upkeep


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (ModelSpent(0, "judge", "p:m", Usage(90, 10), 0.1), "· [1] judge: 100 tokens of p:m"),
        (
            BudgetWarned("user", "ann", "dollars", 4.0, 5.0, 1),
            "! [1] $4.00 of user ann's $5.00 are spent",
        ),
        (BudgetSpent("run", "r-1", "steps", 9, 9, 1), "✗ [1] the run's budget of 9 steps is spent"),
        (
            BudgetExtended("organisation", "all", "tokens", 1_000, "ada", 1),
            "» [1] ada gave 1,000 tokens more to organisation all's budget",
        ),
        (
            ContextSummarised(1, 9, "notes", (), 90_000, 9_000),
            "· [1] earlier turns are summarised: 90,000 → 9,000 tokens",
        ),
        (
            StuckNoticed(1, "repeats", "ls\x1b[2J → a", 4),
            "! [1] stuck (repeats): ls → a; telling the model",
        ),
    ],
)
def test_each_is_one_harmless_line(body: Upkeep, told: str) -> None:
    assert [line.text for line in upkeep(body, "[1] ")] == [told]
