"""An attempt of the repair harness: the same log, policy, evidence and end as any other, and no call to a model."""

from collections.abc import Mapping
from pathlib import Path

import anyio
import msgspec
import pytest
from tests.agent.loop_bench import LoopBench, MemoryJournal, open_bench

from cloister.agent.evidence.proof import Proof
from cloister.agent.evidence.run_checks import Earlier
from cloister.core.attempts import REPAIR
from cloister.core.errors import UserError
from cloister.core.events import (
    AnyBody,
    AttemptEnded,
    BaseFixed,
    CandidatesTried,
    FaultLocalised,
    FinishRefused,
    InterruptRequested,
    ModelFailed,
    ModelReplied,
    ModelSpent,
    PatchChosen,
    PatchFound,
    PauseRequested,
    Progress,
    PromptReceived,
    ProofTaken,
    ResumeRequested,
    RunClaimed,
    RunResumed,
    TurnEnded,
)
from cloister.core.events.repair import PLAUSIBLE
from cloister.core.requests import Budget, RunRule
from cloister.forge import change, workspace
from cloister.harnesses import choose_harness
from cloister.harnesses.repair.api import Candidate, Flag, Hunk, Trial
from cloister.harnesses.repair.choose import enough
from cloister.harnesses.repair.harness import so_far
from cloister.harnesses.repair.words import left, proven_late
from cloister.model.api import Models, NoModels
from cloister.policy.layers import BUILT_IN, layer
from cloister.testing.local import LocalComputer

pytestmark = pytest.mark.anyio

SUITE = "python3 -m unittest"
BANDS = """\
def band(grams):
    for number, limit in enumerate((500, 2000, 5000)):
        if grams < limit:
            return number
    return 3


def total(weights):
    return sum(weights)
"""
TESTS = """\
import unittest
from bands import band, total


class Bands(unittest.TestCase):
    def test_inside(self):
        self.assertEqual([band(1), band(501), band(4999), band(9000)], [0, 1, 2, 3])

    def test_limits(self):
        self.assertEqual([band(500), band(2000), band(5000), band(5001)], [0, 1, 2, 3])

    def test_total(self):
        self.assertEqual(total([1, 2]), 3)
"""
FIXED = {"bands.py": BANDS.replace("<", "<="), "test_bands.py": TESTS}
BROKEN = {"bands.py": BANDS, "test_bands.py": TESTS}
NO_SCRIPT = "[[reply]]\nsay = 'unused'\n"


def no_models(path: Path) -> Models:
    return NoModels("This run calls no model.")


async def opened(root: Path, files: Mapping[str, str] = BROKEN) -> LoopBench:
    bench = await open_bench(root, files)
    bench.harness, bench.models = choose_harness(REPAIR), no_models
    return bench


async def repaired(bench: LoopBench, *checks: str, seconds: float = 300.0, seed: int = 0) -> AttemptEnded:
    return await bench.work(NO_SCRIPT, checks=checks or (SUITE,), budget=Budget(seconds=seconds), seed=seed)


async def patch(bench: LoopBench, ended: AttemptEnded) -> str:
    return await change.diff(bench.bare, bench.base, ended.commit)


async def test_fault_is_localised_repaired_and_proven_without_a_model(tmp_path: Path) -> None:
    bench = await opened(tmp_path)
    ended = await repaired(bench)
    assert ended.outcome == "proven", ended.reason
    assert "+        if grams <= limit:" in await patch(bench, ended)
    assert PLAUSIBLE in ended.reason.lower()
    (localised,) = bench.of(FaultLocalised)
    assert isinstance(localised, FaultLocalised)
    assert ("bands.py", 3) in [(one.path, one.line) for one in localised.suspects]
    (chosen,) = bench.of(PatchChosen)
    assert isinstance(chosen, PatchChosen)
    found = {one.number: one for one in bench.of(PatchFound) if isinstance(one, PatchFound)}
    assert "test_limits" in found[chosen.number].fixed[0]
    assert f"({chosen.rule})" in ended.reason.split("\n")[0]
    assert isinstance(bench.of(ProofTaken)[-1], ProofTaken)
    assert not [body for kind in (ModelReplied, ModelSpent, ModelFailed) for body in bench.of(kind)]
    assert any(isinstance(delta, Progress) and "candidate" in delta.note for delta in bench.journal.deltas)


def _search(bench: LoopBench) -> list[object]:
    """What a search found and chose, without its times."""
    found = [(one.number, one.total, one.diff) for one in bench.journal.index.of(PatchFound)]
    chosen = [(one.number, one.why) for one in bench.journal.index.of(PatchChosen)]
    last = bench.journal.index.of(CandidatesTried)[-1]
    return [found, chosen, last.tried, last.plausible]


async def test_same_seed_repeats_the_same_search(tmp_path: Path) -> None:
    searches: list[object] = []
    for name in ("one", "two"):
        bench = await opened(tmp_path / name)
        await repaired(bench, seed=7)
        searches.append(_search(bench))
    assert searches[0] == searches[1]


async def test_search_that_was_cut_off_resumes_where_it_was(tmp_path: Path) -> None:
    bench = await opened(tmp_path)
    whole = await repaired(bench)
    bodies = bench.journal.bodies
    cuts = (FaultLocalised, CandidatesTried, PatchChosen, ProofTaken)
    for end in [next(at for at, body in enumerate(bodies) if isinstance(body, kind)) + 1 for kind in cuts]:
        again = await _resumed(bench, bodies[:end])
        before = so_far(again.journal, 0)
        ended = await repaired(again)
        cut = type(bodies[end - 1]).__name__
        assert (ended.outcome, ended.reason) == (whole.outcome, whole.reason), cut
        assert len(again.of(FaultLocalised)) == 1, cut
        later = again.journal.index.of(CandidatesTried)[len(_of(bodies[:end], CandidatesTried)) :]
        assert all(one.tried > before.tried for one in later), cut


async def test_search_after_a_rebase_begins_again(tmp_path: Path) -> None:
    bench = await opened(tmp_path)
    await repaired(bench)
    searched = [one for one in bench.journal.bodies if isinstance(one, CandidatesTried | PatchFound)]
    again = await _resumed(bench, [*searched, BaseFixed(bench.base, "main")])
    assert so_far(again.journal, 0).tried == 0
    assert (await repaired(again)).outcome == "proven"
    assert len(again.of(PatchFound)) == 2 * len(bench.of(PatchFound))  # each was found again


async def test_recorded_patch_that_is_no_longer_at_its_place_is_not_chosen(tmp_path: Path) -> None:
    """Another version may order the candidates otherwise: the same rule at the same number is another change."""
    bench = await opened(tmp_path)
    whole = await repaired(bench)
    moved = [
        msgspec.structs.replace(one, diff=one.diff.replace("<=", ">="))
        if isinstance(one, PatchFound)
        else one
        for one in bench.journal.bodies
    ]
    again = await _resumed(
        bench, moved[: next(at for at, one in enumerate(moved) if isinstance(one, PatchChosen))]
    )
    ended = await repaired(again)
    assert ended.reason == whole.reason
    assert len(again.of(PatchFound)) == 2 * len(bench.of(PatchFound))  # each was tried again


class Full(LoopBench):
    """A host that has no room for the sandbox of a proof."""

    async def prove(self, commit: str, known: Earlier = ()) -> Proof:
        raise UserError("no_room", "This host has no room for another sandbox.")


async def test_error_that_is_not_of_the_tests_keeps_its_own_sentence(tmp_path: Path) -> None:
    one = await opened(tmp_path)
    full = Full(
        one.root, one.bare, one.base, one.computer, one.journal, harness=one.harness, models=no_models
    )
    with pytest.raises(UserError, match="no room"):
        await repaired(full)


def _of(bodies: list[AnyBody], kind: type[AnyBody]) -> list[AnyBody]:
    return [body for body in bodies if isinstance(body, kind)]


async def _resumed(bench: LoopBench, kept: list[AnyBody]) -> LoopBench:
    commits = [body.commit for body in kept if isinstance(body, TurnEnded)]
    computer = LocalComputer(bench.root / f"resumed-{len(kept)}")
    await workspace.restore(computer, bench.bare, bench.base, commits[-1] if commits else bench.base)
    journal = MemoryJournal(*kept, RunClaimed("o-2", 2), RunResumed(len(kept)))
    return LoopBench(
        bench.root, bench.bare, bench.base, computer, journal, harness=bench.harness, models=no_models
    )


# The evidence and the policy have the last word.

LOOSE = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": (
        "import unittest\nfrom calc import add\n\n\nclass Add(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(2, 2), 4)\n"
    ),
    "lint.py": "import calc, sys\nprint('calc.py:2: error: wrong') if calc.add(1, 2) != 3 else None\nsys.exit(calc.add(1, 2) != 3)\n",
}


PERL = {
    "t/sum.t": 'print "1..1\\n", 1 - 1 == 2 ? "ok" : "not ok", " 1 - the sum\\n"; exit(1);\n',
    "calc.py": "def add(a, b):\n    return a + b\n",
}


async def test_patch_that_the_evidence_refuses_is_undone_and_the_next_one_is_tried(tmp_path: Path) -> None:
    """For the test alone, `a * b` is as good as `a + b`, and comes first."""
    bench = await opened(tmp_path, {**LOOSE, "calc.py": "def add(a, b):\n    return a / b\n"})
    ended = await repaired(bench, SUITE, "python3 lint.py")
    assert ended.outcome == "proven", ended.reason
    assert "+    return a + b" in await patch(bench, ended)
    chosen = [one.number for one in bench.journal.index.of(PatchChosen)]
    assert len(bench.of(FinishRefused)) == len(chosen) - 1 > 0
    assert so_far(bench.journal, 0).written == tuple(chosen[:-1])


async def test_candidate_that_breaks_another_test_is_recorded_and_not_chosen(tmp_path: Path) -> None:
    more = "    def test_nothing(self):\n        self.assertEqual(add(3, 0), 3)\n"
    bench = await opened(tmp_path, {**LOOSE, "test_calc.py": LOOSE["test_calc.py"] + more})
    ended = await repaired(bench)
    assert "+    return a + b" in await patch(bench, ended)
    near = [one for one in bench.journal.index.of(PatchFound) if one.broke]
    assert "+    return a * b\n" in [one.diff.splitlines(keepends=True)[-1] for one in near]
    assert all("test_add" in one.fixed[0] and "test_nothing" in one.broke[0] for one in near)


async def test_no_candidate_is_tried_in_a_file_that_the_rules_protect(tmp_path: Path) -> None:
    bench = await opened(tmp_path)
    rules = (BUILT_IN, layer("host", (RunRule("write:bands.py", "deny"),), "here", may_widen=True))
    ended = await bench.work(NO_SCRIPT, checks=(SUITE,), policy=rules, budget=Budget(seconds=60.0))
    assert (ended.outcome, ended.commit) == ("red", bench.base)
    assert "deny `write` for the suspect files (bands.py)" in ended.reason
    assert bench.of(CandidatesTried) == []


async def test_patch_for_one_of_two_independent_faults_is_offered_to_the_evidence(tmp_path: Path) -> None:
    other = "import unittest\n\n\nclass Service(unittest.TestCase):\n    def test_service(self):\n        open('/nowhere')\n"
    bench = await opened(tmp_path, {**BROKEN, "test_service.py": other})
    await repaired(bench)
    chosen = bench.journal.index.of(PatchChosen)[0]
    (found,) = [one for one in bench.journal.index.of(PatchFound) if one.number == chosen.number]
    assert (chosen.path, found.left) == ("bands.py", 1)
    assert "leaves 1 of the failing tests" in found.concern


async def test_two_faults_are_repaired_by_a_pair_of_patches_that_repair_a_test_each(tmp_path: Path) -> None:
    wrong = BANDS.replace("sum(weights)", "max(weights)")
    tests = TESTS.replace("total([1, 2]), 3", "[total([1, 2]), total([4, 5, 7])], [3, 16]")
    bench = await opened(tmp_path, {"bands.py": wrong, "test_bands.py": tests})
    whole = await repaired(bench)
    assert whole.outcome == "proven", whole.reason
    found = await patch(bench, whole)
    assert "+        if grams <= limit:" in found and "+    return sum(weights)" in found
    (chosen,) = bench.journal.index.of(PatchChosen)
    assert "; " in chosen.rule and "it combines two changes" in whole.reason
    # A search that is cut off knows the patches that help, and so the pairs of them.
    bodies = bench.journal.bodies
    places = [at for at, body in enumerate(bodies) if isinstance(body, PatchFound)]
    for cut in (places[1], places[-1]):
        again = await _resumed(
            bench, [body for body in bodies[: cut + 1] if not isinstance(body, PatchChosen)]
        )
        assert (await repaired(again)).reason == whole.reason


async def test_message_that_a_search_cannot_follow_does_not_keep_it_from_ending(tmp_path: Path) -> None:
    bench = await opened(tmp_path)
    await repaired(bench)
    bodies = bench.journal.bodies
    found = next(at for at, body in enumerate(bodies) if isinstance(body, PatchChosen))
    again = await _resumed(bench, [*bodies[:found], PromptReceived("Rename it.", "ada")])
    assert (await repaired(again)).outcome == "proven"


# An honest end for what a search cannot repair.


@pytest.mark.parametrize(
    ("files", "checks", "outcome", "says"),
    [
        (FIXED, (SUITE,), "unbroken", "No test fails on the base"),
        (LOOSE, ("python3 lint.py",), "red", "`python3 lint.py` fails, and the repair harness has no rules"),
        (PERL, ("perl t/sum.t",), "red", "`perl t/sum.t` fails, and the repair harness has no rules"),
        (
            {
                "calc.py": "def add(a, b):\n    return a + b\n",
                "test_calc.py": (
                    "import unittest\n\n\nclass Elsewhere(unittest.TestCase):\n"
                    "    def test_service(self):\n        open('/nowhere/at/all')\n"
                ),
            },
            (SUITE,),
            "red",
            "the cause is outside the repository",
        ),
        (
            {
                "calc.py": "def add(a, b):\n    return a + b\n",
                "test_calc.py": (
                    "import unittest\nfrom calc import add\n\n\nclass Add(unittest.TestCase):\n"
                    "    def test_add(self):\n        self.assertEqual(add(2, 2), 'the sum of two and two')\n"
                    "    def test_other(self):\n        self.assertEqual(add(2, 3), 5)\n"
                ),
            },
            (SUITE,),
            "red",
            "candidates tried: none makes the failing tests pass without breaking others",
        ),
    ],
    ids=["nothing fails", "no rules", "a language without rules", "outside", "no candidate works"],
)
async def test_what_cannot_be_repaired_ends_with_the_reason(
    tmp_path: Path, files: Mapping[str, str], checks: tuple[str, ...], outcome: str, says: str
) -> None:
    bench = await opened(tmp_path, files)
    ended = await repaired(bench, *checks)
    assert ended.outcome == outcome, ended.reason
    assert says in ended.reason
    assert ended.commit == bench.base


async def test_slow_tests_end_with_the_budget_and_the_number_of_candidates(tmp_path: Path) -> None:
    slow = "import time, unittest\n\n\nclass Slow(unittest.TestCase):\n    def test_slow(self):\n        time.sleep(6)\n"
    bench = await opened(tmp_path, {**BROKEN, "test_slow.py": slow})
    ended = await repaired(bench, seconds=2.0)
    assert (ended.outcome, ended.commit) == ("budget", bench.base)
    assert "The search had not tried a candidate yet" in ended.reason


async def test_search_that_runs_out_of_time_offers_the_best_patch_that_it_has(tmp_path: Path) -> None:
    """To look further after the first plausible patch would take longer than the run has."""
    limits = "    def test_limits(self):\n"
    slow = TESTS.replace(limits, f"{limits}        import time; time.sleep(1.2)\n")
    bench = await opened(tmp_path, {**BROKEN, "test_bands.py": slow})
    ended = await repaired(bench, seconds=36.0)
    assert ended.outcome == "proven", ended.reason
    assert "the time was nearly over" in ended.reason
    assert not enough(bench.journal.index.of(CandidatesTried)[-1].tried, [_plausible(1)])


GUESSED = "def count(items):\n    size = {}\n    if items:\n        return 0\n    return 0\n"
COUNTS = (
    "import unittest\nfrom calc import count\n\n\nclass Count(unittest.TestCase):\n"
    "    def test_six(self):\n        self.assertEqual(count('abcdef'), 6)\n\n"
    "    def test_none(self):\n        self.assertEqual(count(''), 0)\n"
)
DOUBTFUL = {"calc.py": GUESSED.format("bool(items)"), "test_calc.py": COUNTS}


@pytest.mark.parametrize("files", [BROKEN, DOUBTFUL], ids=["plain", "doubtful"])
async def test_patch_whose_proof_the_time_cut_off_is_named_and_proven_with_more_time(
    tmp_path: Path, files: Mapping[str, str]
) -> None:
    bench = await opened(tmp_path, files)
    whole = await repaired(bench)
    bodies = bench.journal.bodies
    chosen = next(at for at, body in enumerate(bodies) if isinstance(body, PatchChosen))
    cut = await _resumed(bench, [*bodies[: chosen + 1], TurnEnded(0, 1, whole.commit, True)])
    assert "its proof did not end in time" in left(
        cut.journal.index.last(CandidatesTried), so_far(cut.journal, 0).unjudged
    )
    ended = await repaired(cut)
    assert (ended.outcome, ended.commit, ended.reason) == ("proven", whole.commit, whole.reason)
    assert ("Read it with care" in ended.reason) == (files is DOUBTFUL)
    assert len(cut.of(FaultLocalised)) == 1


def test_words_of_a_late_patch_list_no_empty_reason() -> None:
    said = proven_late(PatchChosen(0, 1, "swap", "calc.py", ""), 2, None)

    assert said.endswith("\n- found by the rule “swap” in calc.py, line 2")


async def test_test_that_passes_when_repeated_is_called_flaky(tmp_path: Path) -> None:
    flaky = (
        "import unittest\nfrom pathlib import Path\nfrom calc import add\n\n\nclass Flaky(unittest.TestCase):\n"
        f"    def test_flaky(self):\n        runs = Path({str(tmp_path / 'runs')!r})\n"
        "        seen = runs.read_text() if runs.exists() else ''\n        runs.write_text(seen + 'x')\n"
        "        self.assertEqual(add(1, 1), 2 if len(seen) > 1 else 3)\n"
    )
    bench = await opened(tmp_path, {"calc.py": "def add(a, b):\n    return a + b\n", "test_calc.py": flaky})
    ended = await repaired(bench)
    assert ended.outcome == "red"
    assert "flaky" in ended.reason
    assert bench.of(PatchChosen) == []


async def test_person_stops_a_search_and_the_files_stay_as_they_were(tmp_path: Path) -> None:
    bench = await opened(tmp_path)
    async with anyio.create_task_group() as tasks:

        async def stop() -> None:
            while not bench.of(FaultLocalised):
                await bench.journal.changed(len(bench.journal.events))
            await bench.journal.append(InterruptRequested("ada"))

        tasks.start_soon(stop)
        ended = await repaired(bench)
        assert (ended.outcome, ended.commit) == ("red", bench.base)
        assert "stopped the search" in ended.reason
    assert bench.of(PatchChosen) == []


async def test_paused_search_tries_nothing_until_it_goes_on(tmp_path: Path) -> None:
    bench = await opened(tmp_path)
    bench.journal.add(PauseRequested("ada"))
    ended: list[AttemptEnded] = []
    async with anyio.create_task_group() as tasks:

        async def work() -> None:
            ended.append(await repaired(bench))

        tasks.start_soon(work)
        with anyio.move_on_after(3.0):
            while not bench.of(FaultLocalised):
                await bench.journal.changed(len(bench.journal.events))
        assert bench.of(FaultLocalised) == []
        bench.journal.add(ResumeRequested("ada"))
        while not bench.of(FaultLocalised):
            await bench.journal.changed(len(bench.journal.events))
        bench.journal.add(PauseRequested("ada"))
        with anyio.move_on_after(3.0):
            while not bench.of(PatchChosen):
                await bench.journal.changed(len(bench.journal.events))
        assert bench.of(PatchChosen) == [] and ended == []
        bench.journal.add(ResumeRequested("ada"))
    assert [one.outcome for one in ended] == ["proven"]


@pytest.mark.parametrize(
    ("size", "right"), [("bool(items)", False), ("len(items)", True)], ids=["alone", "beside another"]
)
async def test_value_of_the_test_as_result_loses_to_any_other_patch_and_is_named(
    tmp_path: Path, size: str, right: bool
) -> None:
    bench = await opened(tmp_path, {"calc.py": GUESSED.format(size), "test_calc.py": COUNTS})
    ended = await repaired(bench)
    assert ended.outcome == "proven", ended.reason
    found = await patch(bench, ended)
    chosen = bench.journal.index.of(PatchChosen)[-1]
    (recorded,) = [one for one in bench.journal.index.of(PatchFound) if one.number == chosen.number]
    assert ("return 6" in found) != right
    assert ("special-cases a value of the tests" in recorded.concern) != right
    assert ("Read it with care" in ended.reason) != right


def test_search_looks_further_after_the_first_plausible_patch_but_not_for_ever() -> None:
    assert not enough(10_000, [])
    assert not enough(30, [_plausible(10)])
    assert enough(40, [_plausible(10)])
    assert not enough(1_300, [_plausible(1_200)])
    assert enough(1_350, [_plausible(1_200)])
    assert enough(20, [_plausible(number) for number in (1, 2, 3, 4, 5)])
    assert not enough(600, [_plausible(10, "test_b")])  # it leaves a failing test
    assert enough(620, [_plausible(10, "test_b")])
    assert not enough(600, [_plausible(10, flag="special_case")])  # it is the last choice
    assert enough(620, [_plausible(10, flag="special_case")])
    assert enough(750, [_plausible(10, flag="special_case"), _plausible(600)])


def _plausible(number: int, *red: str, flag: Flag | None = None) -> Trial:
    one = Candidate(number - 1, "number", "a.py", (Hunk(1, "1\n", "2\n"),), 0.5, 0.5, (flag,) if flag else ())
    return Trial(one, "all", ("test_a",), red, plausible=True)
