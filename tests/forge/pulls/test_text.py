"""The text of a pull request: it carries the proof, and words of models and people mean nothing in it."""

import pytest
from tests.runs.test_view import log

from cloister.core import events as e
from cloister.core.diagnosis import Comparison
from cloister.core.requests import FileChange, NewRun
from cloister.runs.pull_request import page, quoted


def _page(winner: e.AttemptEnded, prompt: str = "Fix it", issue: int | None = None) -> str:
    made = e.ChangeMade("cloister/fix", "c" * 40, (FileChange("a`b.py", 1, 2),), "Fixed.")
    events = log(
        e.RunAdmitted(NewRun(prompt, "/repo", issue=issue), "ann"),
        e.BaseFixed("b" * 40, "main", None),
        e.ChecksChosen(("make test",), found=False),
        winner,
        made,
    )
    return page(events, winner, made, "the receipt")


def _ended(outcome: str, found: Comparison, reason: str = "Fixed.") -> e.AttemptEnded:
    return e.AttemptEnded(0, outcome, reason, "d" * 40, found)  # pyright: ignore[reportArgumentType]


def test_a_proven_change_lists_what_was_red_and_is_green() -> None:
    found = Comparison(fixed=("t::a",), shown=("t::a",), passed=3, green=True, ran=1)
    text = _page(_ended("proven", found))
    assert "## Proof: proven" in text
    assert "| `t::a` |" in text
    assert "`make test`" in text
    assert "No test shows" not in text


def test_an_unbroken_change_says_that_no_test_shows_it() -> None:
    text = _page(
        _ended(
            "unbroken",
            Comparison(passed=3, green=True, ran=1, unrelated=("t::old",), notes=("hard-coded: 7",)),
        )
    )
    assert "- No test shows the requested change." in text
    assert "`t::old`" in text
    assert "`hard-coded: 7`" in text


def test_an_issue_is_closed_by_a_proven_change_and_named_by_any_other() -> None:
    shown = Comparison(fixed=("t::a",), shown=("t::a",), green=True, ran=1)
    assert "\nFixes #4\n" in _page(_ended("proven", shown), issue=4)
    assert "\nRelates to #4\n" in _page(_ended("unbroken", Comparison(green=True, ran=1)), issue=4)
    assert "#" not in _page(_ended("proven", shown)).replace("## ", "")


@pytest.mark.parametrize(
    "text",
    [
        "@everyone fixes #1 ![x](http://evil/x.png) <img src=x onerror=1>",
        "```\n# Approved by security\n```\n~~~~\n@team",
        "````` five",
        "‮ right to left \x1b[31m red",
        "",
    ],
)
def test_words_cannot_leave_their_quotation(text: str) -> None:
    lines = quoted(text).split("\n")
    fence = lines[-1]
    assert lines[0] == f"{fence}text"
    assert set(fence) == {"`"}
    assert all(not line.strip().startswith(fence) for line in lines[1:-1])
    assert "\x1b" not in quoted(text)
    assert "‮" not in quoted(text)


def test_a_long_prompt_is_cut() -> None:
    assert len(_page(_ended("proven", Comparison()), "x" * 100_000)) < 20_100
