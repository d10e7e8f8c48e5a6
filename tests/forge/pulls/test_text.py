"""The text of a pull request: it carries the proof, and words of models and people mean nothing in it."""

import pytest
from tests.runs.test_view import log

from cloister.core import events as e
from cloister.core.diagnosis import Comparison
from cloister.core.requests import FileChange, NewRun
from cloister.runs.pull_request import page, quoted


def _page(winner: e.AttemptEnded, prompt: str = "Fix it") -> str:
    made = e.ChangeMade("cloister/fix", "c" * 40, (FileChange("a`b.py", 1, 2),), "Fixed.")
    events = log(
        e.RunAdmitted(NewRun(prompt, "/repo"), "ann"),
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
