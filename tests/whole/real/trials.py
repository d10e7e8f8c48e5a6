"""The trials of each real bug: a model that fixes it in the end, and models that cheat."""

from pathlib import Path
from typing import TypeVar

from tests.whole.real.bugs import CHEATS, Bug, Case, build
from tests.whole.real.conftest import TEMPLATE, RunIt

from cloister.core.attempts import AttemptWish
from cloister.core.diagnosis import Comparison
from cloister.core.events import (
    AttemptEnded,
    BaselineTaken,
    ChangeMade,
    ChecksRan,
    Event,
    FinishRefused,
    ProofTaken,
    RunFinished,
)
from cloister.core.requests import NewRun
from cloister.testing.samples import SampleRepo

Body = TypeVar("Body")
_PROMPT = "The tests fail. Find the cause and fix it."


async def a_fix_is_proven(case: Case, directory: Path, run_it: RunIt) -> None:
    bug = build(case, directory)
    script = bug.script_that_fixes(directory / "fix.script.toml")

    events = await run_it(_asked_for(bug, model=f"script:{script}"))

    (baseline,) = _of(events, BaselineTaken)
    assert not baseline.diagnoses[0].green
    if not case.crashes:
        assert sorted(_short(case, test.name) for test in baseline.diagnoses[0].failing) == sorted(case.red)
    wrong, right = _of(events, ChecksRan)
    assert not wrong.comparison.green
    assert wrong.comparison.asked or wrong.comparison.new
    if case.complaint:
        assert case.complaint in {one.code for one in wrong.diagnoses[0].diagnostics}
    (refused,) = _of(events, FinishRefused)
    assert "not green" in refused.text
    (proof,) = _of(events, ProofTaken)
    for evidence in (right.comparison, proof.comparison):
        assert evidence.green
        assert _proven(case, evidence)
    assert _of(events, ChangeMade)
    assert [end.outcome for end in _of(events, RunFinished)] == ["proven"]


async def a_search_is_proven(case: Case, directory: Path, run_it: RunIt) -> str:
    """Repair the bug without a model; return the diff of the change that was delivered."""
    bug = build(case, directory)
    events = await run_it(_asked_for(bug, harness="repair"))
    assert [end.outcome for end in _of(events, RunFinished)] == ["proven"]
    (change,) = _of(events, ChangeMade)
    return SampleRepo(bug.repo).git("diff", "-U0", "HEAD", change.branch)


async def no_cheat_is_green(case: Case, directory: Path, run_it: RunIt) -> None:
    bug = build(case, directory)
    scripts = [bug.script_that(cheat, directory / f"{cheat}.script.toml") for cheat in CHEATS]
    wishes = tuple(AttemptWish(model=f"script:{script}") for script in scripts)

    events = await run_it(_asked_for(bug, attempts=wishes))

    ends = {end.attempt: end for end in _of(events, AttemptEnded)}
    assert sorted(ends) == list(range(len(CHEATS)))
    for attempt, cheat in enumerate(CHEATS):
        seen = [body for body in _of(events, ChecksRan) if body.attempt == attempt]
        # Where the base takes long, the attempt finishes before its checks ran, and only its proof runs them.
        proofs = [body for body in _of(events, ProofTaken) if body.attempt == attempt]
        ran = [body.diagnoses[0].green for body in seen]
        assert ran == [True] or (not ran and proofs), f"{cheat}: the test passes in the sandbox"
        assert ends[attempt].outcome == "red", f"{cheat}: the attempt must end red"
        lost = ends[attempt].comparison
        assert not _proven(case, lost), cheat
        told = "\n".join((*lost.weakened, *lost.missing, *lost.skipped)).replace("()", "")
        # A C program that crashes names the check and no test.
        crashed = case.language == "c" and "(it fails with the tests of the base)" in told
        for name in case.red:
            assert crashed or name in told, (cheat, lost)
    assert [end.outcome for end in _of(events, RunFinished)] == ["red"]


def _short(case: Case, name: str) -> str:
    """The name of a test as its author gave it, out of the one that the tool tells."""
    if case.language == "typescript":  # mocha puts the titles of the suites before the test's own
        return next((red for red in case.red if name.endswith(f" {red}")), name)
    return name.removesuffix("()").rpartition("::")[2]


def _proven(case: Case, evidence: Comparison) -> bool:
    if case.crashes:
        return case.check in evidence.fixed
    return set(case.red) <= {_short(case, name) for name in evidence.fixed}


def _asked_for(
    bug: Bug,
    model: str | None = None,
    attempts: tuple[AttemptWish, ...] = (),
    harness: str | None = None,
) -> NewRun:
    return NewRun(
        _PROMPT,
        str(bug.repo),
        checks=(bug.case.check,),
        model=model,
        attempts=attempts,
        harness=harness,
        tier="container",
        template=TEMPLATE,
    )


def _of(events: tuple[Event, ...], kind: type[Body]) -> list[Body]:
    return [event.body for event in events if isinstance(event.body, kind)]
