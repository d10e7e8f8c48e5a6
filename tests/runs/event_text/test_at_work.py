"""Several attempts at once, as a person who watches them sees it."""

from cloister.core import events as e
from cloister.core.diagnosis import Comparison
from cloister.core.ids import RunId
from cloister.core.requests import Isolation, NewRun, ToolCall, Usage
from cloister.runs.event_text.lines import IDLE, Line, Piece, Status
from cloister.runs.event_text.render import Renderer

RUN = RunId("r-0123456789ab")
CONTAINER = Isolation("container", "crun 1", shares_kernel=True, store="overlay")


def watched(*items: e.AnyBody | e.Delta) -> list[Piece]:
    """What is on the screen of one who watched a run with three attempts do all this."""
    screen = Renderer()
    shown: list[Piece] = []
    seq = 0
    for item in (e.RunAdmitted(NewRun("p", "/repo", n=3), "ann"), *items):
        if isinstance(item, e.ModelText | e.CommandOutput | e.Progress):
            shown += screen.feed(item)
        else:
            seq += 1
            shown += screen.feed(e.Event(RUN, seq, float(seq), item))
    return shown


def status(shown: list[Piece]) -> str:
    """The line at the bottom."""
    return next(piece.text for piece in reversed(shown) if isinstance(piece, Status))


def began(*attempts: int) -> tuple[e.AttemptStarted, ...]:
    return tuple(e.AttemptStarted(number, "m", temperature=0.5 if number else None) for number in attempts)


def replied(attempt: int) -> e.ModelReplied:
    calls = (ToolCall("c1", "bash", {"command": "make"}),)
    return e.ModelReplied(attempt, 1, "m", "", calls, Usage(1, 1), 0.1)


def test_the_line_at_the_bottom_says_what_every_attempt_does() -> None:
    items = [*began(0, 1, 2), replied(0), e.ActionDecided(0, "c1", "bash: make", "allow", "built-in")]
    assert status(watched(*items)) == "[0] bash  [1] starting  [2] starting"
    items += [e.ModelText(1, "Let me"), replied(2), e.TurnEnded(2, 1, "c", False)]
    assert status(watched(*items)) == "[0] bash  [1] writing  [2] thinking"
    items += [e.CommandOutput(2, "pytest", "out", "...")]
    assert status(watched(*items)) == "[0] bash  [1] writing  [2] checking"


def test_one_that_is_done_does_not_hide_that_others_work() -> None:
    items = [*began(0, 1), replied(0), replied(1), e.ToolReturned(0, "c1", "bash", True, "", 0.1)]
    assert status(watched(*items)) == "[0] acting  [1] acting"
    items += [e.AttemptEnded(0, "proven", "Done.", "c", Comparison(green=True))]
    assert status(watched(*items)) == "[1] acting"
    items += [e.AttemptEnded(1, "red", "No.", "c", Comparison())]
    items += [e.RunFinished("proven", "Done.", 0)]
    shown = watched(*items)
    assert status(shown) == IDLE.text
    assert shown[-1] == Line(f"            cloister tree {RUN}   shows all attempts")


def test_every_line_about_an_attempt_says_whose_it_is() -> None:
    refused = e.ActionDecided(1, "c1", "bash: rm -rf /", "deny", "host:3")
    shown = watched(*began(0, 1), e.SandboxOpened("s-1", CONTAINER, 1), replied(1), refused)
    lines = [piece.text for piece in shown if isinstance(piece, Line)]
    assert "· [1] model m at 0.5" in lines
    assert "· [1] sandbox s-1" in lines
    assert "[1]   ⊘ refused by the policy: bash: rm -rf / (host:3)" in lines
