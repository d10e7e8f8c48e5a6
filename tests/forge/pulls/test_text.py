"""The text of a pull request: it carries the proof, and words of models and people mean nothing in it."""

import pytest
from tests.runs.test_view import log

from cloister.core import events as e
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.diagnosis import TestResult as Result
from cloister.core.limits import PAGES
from cloister.core.requests import Attachment, FileChange, NewRun
from cloister.runs.pull_request import page, quoted


def _page(
    winner: e.AttemptEnded, prompt: str = "Fix it", issue: int | None = None, more: tuple[e.AnyBody, ...] = ()
) -> str:
    made = e.ChangeMade("cloister/fix", "c" * 40, (FileChange("a`b.py", 1, 2),), "Fixed.")
    events = log(
        e.RunAdmitted(NewRun(prompt, "/repo", issue=issue), "ann"),
        e.BaseFixed("b" * 40, "main", None),
        e.ChecksChosen(("make test",), found=False),
        e.BaselineTaken((Diagnosis("make test", 1, 0.1, tests=(Result("t::a", "failed"),)),)),
        winner,
        *more,
        made,
    )
    return page(events, winner, made, "the receipt")


def _ended(outcome: str, found: Comparison, reason: str = "Fixed.") -> e.AttemptEnded:
    return e.AttemptEnded(0, outcome, reason, "d" * 40, found)  # pyright: ignore[reportArgumentType]


def test_a_proven_change_lists_what_was_red_and_is_green() -> None:
    found = Comparison(fixed=("t::a",), shown=("t::a",), passed=3, green=True, ran=1)
    text = _page(_ended("proven", found))
    assert "## Proof: proven" in text
    assert "| `t::a` | `make test` |" in text
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


def test_pages_that_look_different_are_named() -> None:
    def picture(name: str, sha256: str) -> Attachment:
        return Attachment(name, "image/png", sha256 * 64, 9)

    winner = _ended("proven", Comparison(shown=("t::a",), green=True, ran=1))
    before = (picture("a.png", "1"), picture("b.png", "1"))
    after = (picture("a.png", "1"), picture("b.png", "2"), picture("c.png", "3"))
    pages = e.PagesPictured(0, winner.commit, before, after, ("no picture of `d`",))
    text = _page(winner, more=(pages,))
    assert (
        "- `a.png`: looks the same\n- `b.png`: looks different\n- `c.png`: shown on one side only\n" in text
    )
    assert "no picture of" in text
    assert "cloister diff r-0000 --pictures FOLDER" in text
    assert "## Pages" not in _page(winner, more=(e.PagesPictured(0, "e" * 40, before, after),))


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


def test_the_text_fits_on_one_screen_and_is_bounded_whatever_a_run_did() -> None:
    shown = Comparison(shown=("t::a",), passed=3, green=True, ran=1)
    usual = _page(_ended("proven", shown, "Add adds.\nIt subtracted."), "Fix the sum.\nThe total is wrong.")
    assert usual.count("\n") <= 50
    names = tuple(f"t::{'x' * 400}{number}" for number in range(500))
    much = Comparison(
        shown=names,
        passed=3,
        green=True,
        ran=1,
        unrelated=names,
        still=names,
        not_run=names,
        flaky=names,
        notes=names,
    )
    winner = _ended("proven", much, "why\n" * 5_000)
    pictures = tuple(Attachment(f"{number}.png", "image/png", "1" * 64, 9) for number in range(PAGES))
    pages = e.PagesPictured(0, winner.commit, pictures, (), names[:20])
    whole = _page(winner, "do this\n" * 5_000, 7, (pages,))
    assert whole.count("\n") <= 100
    assert "## Run" in whole
