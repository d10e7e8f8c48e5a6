"""The words for a search: what is suspicious, which candidate, what it changed, and what speaks against it."""

from cloister.core import events as e
from cloister.core.diagnosis import Comparison
from cloister.core.events.repair import PLAUSIBLE
from cloister.core.ids import RunId
from cloister.core.requests import NewRun
from cloister.runs.event_text.lines import Line
from cloister.runs.event_text.render import Renderer, words
from cloister.runs.pull_request import page

RUN = RunId("r-0000")
DIFF = "--- a/rates.py\n+++ b/rates.py\n@@ -20,1 +20,1 @@\n-        if grams < limit:\n+        if grams <= limit:\n"


def lines(*bodies: e.AnyBody, harness: str | None = None) -> list[str]:
    admitted = e.RunAdmitted(NewRun("fix it", "/repo", harness=harness), "ann")
    events = [e.Event(RUN, seq, float(seq), body) for seq, body in enumerate((admitted, *bodies), 1)]
    return [line.text for said in words(events, after=1) for line in said.lines]


def test_search_by_default_says_that_there_is_no_model() -> None:
    started = e.AttemptStarted(0, "", harness="repair")
    assert lines(started)[0].startswith("· no model is configured: the repair harness")
    assert lines(started, harness="repair")[0].startswith("· the repair harness searches")


def test_default_is_said_once_before_set_up_begins() -> None:
    fixed = e.PolicyFixed(("built-in",), harness="repair")
    phase, started = e.PhaseStarted("template"), e.AttemptStarted(0, "", harness="repair")
    said = [at for at, line in enumerate(lines(fixed, phase, started)) if "no model is configured" in line]
    assert said == [0]


def test_localised_lines_are_shown_with_what_was_measured() -> None:
    suspects = tuple(e.Suspect("rates.py", line, 1 / line, "in the traceback") for line in (1, 2, 3, 4))
    said = lines(e.FaultLocalised(("a", "b"), suspects, "coverage", 40, 1.5))
    assert said[0] == "◎ localised: 40 suspect lines for 2 failing tests, by coverage  1.5 s"
    assert said[1:] == [f"  {1 / n:4.2f}  rates.py:{n} in the traceback" for n in (1, 2, 3)]


def test_plausible_patch_shows_its_rule_its_change_and_what_it_made_green() -> None:
    patch = e.PatchFound(0, 16, 174, "boundary", "rates.py", 20, DIFF, ("test_a", "test_b"))
    assert lines(patch) == [
        "✓ candidate 16 of 174, boundary at rates.py:20",
        "  │ -        if grams < limit:",
        "  │ +        if grams <= limit:",
        "  made green: test_a, test_b",
    ]


def test_patch_that_breaks_tests_or_is_doubtful_says_so() -> None:
    near = e.PatchFound(0, 3, 9, "slice", "a.py", 1, "-a\n+b\n", ("t",), ("x", "y", "z", "w"))
    assert lines(near)[-1] == "  broke: x, y, z and 1 more"
    odd = e.PatchFound(0, 3, 9, "value", "a.py", 1, "-a\n+b\n", ("t",), (), "it special-cases a value")
    assert lines(odd)[-1] == "  but: it special-cases a value"


def test_rejected_candidates_are_counted_in_batches() -> None:
    assert lines(e.CandidatesTried(0, 1_200, 3_000, 0, 4.0)) == [
        "· 1,200 of 3,000 candidates tried: none plausible yet  4.0 s"
    ]
    assert lines(e.CandidatesTried(0, 16, 174, 1, 0.1)) == []


def test_hostile_names_cannot_write_to_the_terminal() -> None:
    evil = "\x1b[2Ja\nb"
    patch = e.PatchFound(0, 1, 1, evil, evil, 1, f"-{evil}\n+x\x1b[0m\n", (evil,), (), evil)
    chosen = e.PatchChosen(0, 1, evil, evil, evil)
    shown = lines(patch, chosen, e.FaultLocalised((evil,), (e.Suspect(evil, 1, 1.0, evil),), evil, 1, 0.1))
    assert all("\x1b" not in line and "\n" not in line for line in shown)


def test_several_attempts_mark_the_lines_of_a_search() -> None:
    renderer = Renderer()
    admitted = e.RunAdmitted(NewRun("fix it", "/repo", n=2), "ann")
    renderer.feed(e.Event(RUN, 1, 1.0, admitted))
    pieces = renderer.feed(e.Event(RUN, 2, 2.0, e.PatchChosen(1, 4, "slice", "a.py", "")))
    assert any(isinstance(piece, Line) and "[1] writing candidate 4" in piece.text for piece in pieces)


def test_pull_request_of_a_search_says_what_its_patch_is() -> None:
    made = e.ChangeMade("cloister/fix", "c1", (), "Repair rates.py:20 (boundary)")
    ended = e.AttemptEnded(0, "proven", "Repair rates.py:20 (boundary)", "c1", Comparison(green=True))
    chosen = e.PatchChosen(0, 16, "boundary", "rates.py", "")
    admitted = e.RunAdmitted(NewRun("fix it", "/repo", harness="repair"), "ann")

    def written(*more: e.AnyBody) -> str:
        events = [e.Event(RUN, seq, float(seq), body) for seq, body in enumerate((admitted, *more, ended), 1)]
        return page(events, ended, made, None)

    assert f"The change was {PLAUSIBLE}." in written(chosen)
    assert PLAUSIBLE not in written()
