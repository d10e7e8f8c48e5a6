"""The checks run on the base beside the first steps: what waits for them, what does not, and what a resume finds."""

import sys
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace
from tests.agent.evidence.court import committed
from tests.agent.loop_bench import MemoryJournal

from cloister.agent.context.messages import request
from cloister.agent.evidence.baseline import BaselineLog, take_baseline
from cloister.agent.evidence.evidence import Claim, Evidence, Refused
from cloister.agent.evidence.proof import Proof, Task, run_proof
from cloister.agent.evidence.run_checks import Earlier, run_on_base
from cloister.core.computer import Stream
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.diagnosis import TestResult as Result
from cloister.core.events import (
    AttemptEnded,
    AttemptStarted,
    BaselineTaken,
    ChecksChosen,
    ChecksRan,
    ModelReplied,
    ProofTaken,
    RunAdmitted,
    ToolReturned,
    TurnEnded,
)
from cloister.core.requests import Budget, NewRun, ToolCall, Usage
from cloister.feedback.compare import compare
from cloister.feedback.goals import Goals, asked
from cloister.forge import workspace
from cloister.forge.workspace import TreeWatch
from cloister.model.api import UserMessage
from cloister.testing.local import LocalComputer

pytestmark = pytest.mark.anyio

CHECK = "python3 -m unittest -v test_sum"
FILES = {
    "sum.py": "def add(a, b):\n    return a - b\n",
    "test_sum.py": "import unittest, sum\n\nclass T(unittest.TestCase):\n    def test_add(self):\n"
    "        self.assertEqual(sum.add(1, 2), 3)\n",
}
GOOD = b"def add(a, b):\n    return a + b\n"
WORSE = b"def add(a, b):\n    return None\n"


def _quiet(check: str, stream: Stream, data: bytes) -> None:
    pass


class Bench:
    """An attempt on a repository with one bug, whose baseline is taken when a test says so."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bare, self.base = committed(root, FILES)
        self.journal = MemoryJournal(
            RunAdmitted(NewRun("Fix add.", "repo"), "me"), AttemptStarted(0, "script")
        )
        self.computer = LocalComputer(root / "computer")
        self.proofs = 0
        self._look = TreeWatch(self.computer, self.bare, self.base)

    async def tree(self) -> str:
        return await self._look.tree()

    async def save(self) -> str:
        return await workspace.save(self.computer, self.bare, self.base, "refs/cloister/attempt/0")

    async def kept(self) -> str:
        return ""

    async def judge(self, commit: str) -> None:
        pass

    async def prove(self, commit: str, known: Earlier) -> Proof:
        self.proofs += 1
        fresh = LocalComputer(self.root / f"proof-{self.proofs}")
        await workspace.restore(fresh, self.bare, self.base, commit)
        log = self.log()
        later = None if log.known else log.ready
        checks, found, goals = log.so_far
        return await run_proof(fresh, Task(checks, found, known, goals, later=later), _quiet)

    def log(self) -> BaselineLog:
        return BaselineLog(self.journal, NewRun("Fix add.", "repo", checks=(CHECK,)))

    async def evidence(self) -> Evidence:
        known = self.log().known
        made = Evidence(
            0,
            self.journal,
            self.computer,
            self,
            self.prove,
            self.base,
            *(known or ((), (), None)),
            later=None if known else self.log(),
        )
        await made.begin()
        return made

    async def baseline(self) -> None:
        untouched = LocalComputer(self.root / "untouched")
        await workspace.put(untouched, self.bare, self.base)
        await take_baseline(self.log(), untouched, _quiet, cpus=1.0, keep=None)

    async def write(self, evidence: Evidence, text: bytes) -> None:
        await self.computer.write("sum.py", text)
        evidence.add_result(ToolReturned(0, "c", "write", True, "", 0.0))

    def kinds(self) -> list[type]:
        kinds = (ChecksChosen, BaselineTaken, ChecksRan, ProofTaken, TurnEnded, AttemptEnded)
        return [type(body) for body in self.journal.bodies if isinstance(body, kinds)]


def test_a_resumed_run_keeps_the_goals_that_an_older_version_recorded() -> None:
    found = (
        Diagnosis(
            "pytest", 1, 1.0, tests=(Result("a.py::test_a", "failed"), Result("a.py::test_b", "failed"))
        ),
    )
    new, older = NewRun("Fix test_a. Ignore test_b.", "repo"), Goals(names=("a.py::test_a",))

    def goals(comparison: Comparison | None) -> Goals | None:
        known = BaselineLog(MemoryJournal(BaselineTaken(found, comparison=comparison)), new).known
        return known.goals if known else None

    derived = asked(new.prompt, found)
    assert derived.names == ("a.py::test_a", "a.py::test_b")
    assert goals(None) == goals(compare(found, found, derived)) == derived
    assert goals(compare(found, found, older)) == replace(derived, names=older.names)


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    await workspace.put(made.computer, made.bare, made.base)
    return made


async def test_change_is_proven_beside_the_base_and_finish_needs_no_second_proof(bench: Bench) -> None:
    evidence = await bench.evidence()
    await bench.write(evidence, GOOD)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(evidence.checkpoint, 1)
        tasks.start_soon(bench.baseline)
    await evidence.end_turn(1)

    ended = await evidence.try_finish(Claim(2, "Fixed.", len(bench.journal.events)))

    assert isinstance(ended, AttemptEnded)
    assert (ended.outcome, bench.proofs) == ("proven", 1)
    order = [ChecksChosen, BaselineTaken, ChecksRan, TurnEnded, ProofTaken, TurnEnded, AttemptEnded]
    assert bench.kinds() == order


async def test_finish_waits_for_the_baseline_and_refuses_a_change_that_is_red(bench: Bench) -> None:
    evidence = await bench.evidence()
    results: list[AttemptEnded | Refused] = []

    async def finish() -> None:
        results.append(await evidence.try_finish(Claim(1, "Fixed.", len(bench.journal.events))))

    await bench.write(evidence, WORSE)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finish)
        await anyio.wait_all_tasks_blocked()
        assert results == []
        tasks.start_soon(bench.baseline)

    (refused,) = results
    assert isinstance(refused, Refused)
    assert "test_add" in refused.why
    assert AttemptEnded not in bench.kinds()


async def test_nothing_changed_is_judged_by_the_baseline(bench: Bench) -> None:
    evidence = await bench.evidence()
    result: AttemptEnded | Refused | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.baseline)
        result = await evidence.try_finish(Claim(1, "Nothing to do.", len(bench.journal.events)))

    assert isinstance(result, Refused)
    assert "not green" in result.why


async def test_turn_goes_on_when_the_base_takes_long_and_is_checked_later(
    bench: Bench,
) -> None:
    evidence = await bench.evidence()
    evidence._patience = 0.0  # pyright: ignore[reportPrivateUsage]
    await bench.write(evidence, GOOD)
    await evidence.checkpoint(1)
    await evidence.end_turn(1)
    assert (bench.kinds(), evidence.due) == ([TurnEnded], False)

    await bench.baseline()

    assert evidence.due
    await evidence.checkpoint(2)
    assert bench.kinds()[-1] is ChecksRan
    assert (evidence.comparison.green, evidence.due) == (True, False)


@pytest.mark.parametrize("known", [False, True], ids=["still running", "taken meanwhile"])
async def test_resumed_attempt_checks_a_save_point_that_no_check_has_seen(bench: Bench, known: bool) -> None:
    """As after kill -9: turns are in the log, the baseline is half done or just taken, and nothing has checked them."""
    before = await bench.evidence()
    before._patience = 0.0  # pyright: ignore[reportPrivateUsage]
    await bench.write(before, GOOD)
    await before.checkpoint(1)
    await before.end_turn(1)
    if known:
        await bench.baseline()

    resumed = await bench.evidence()
    results: list[AttemptEnded | Refused] = []
    async with anyio.create_task_group() as tasks:
        if not known:
            tasks.start_soon(bench.baseline)
        results.append(await resumed.try_finish(Claim(2, "Fixed.", len(bench.journal.events))))

    (ended,) = results
    assert isinstance(ended, AttemptEnded)
    assert ended.outcome == "proven"


async def test_check_that_never_ends_is_not_run_and_says_why(bench: Bench) -> None:
    log = BaselineLog(
        bench.journal, NewRun("p", "repo", checks=("true", "sleep 1000"), budget=Budget(seconds=1.0))
    )
    await take_baseline(log, bench.computer, _quiet, cpus=1.0, keep=None)

    known = log.known
    assert known is not None
    quick, endless = known.diagnoses
    assert (quick.green, endless.green) == (True, False)
    assert endless.not_run == "the checks on the base did not end within 0 s"


async def test_failing_test_runs_again_alone_and_its_suite_only_if_it_passes_then(tmp_path: Path) -> None:
    """A test that fails because of another one is red: it passes alone, and fails again with the others."""
    test = "import os\n\ndef test_{0}():\n    open('{0}.count', 'a').write('x')\n    assert {1}\n"
    check = f"export PATH={Path(sys.executable).parent}:$PATH && pytest -q -p no:cacheprovider"
    counted: list[tuple[int, int]] = []
    for name, what in (("spoilt", "'SPOILT' not in os.environ"), ("wrong", "False")):
        first = test.format("first", "not os.environ.update(SPOILT='1')")
        bare, base = committed(tmp_path / name, {"test_a.py": first, "test_b.py": test.format(name, what)})
        computer = LocalComputer(tmp_path / name / "computer")
        await workspace.put(computer, bare, base)
        (found,) = await run_on_base(computer, (check,), "baseline", _quiet)
        assert (found.flaky, [test.name for test in found.failing]) == ((), [f"test_b.py::test_{name}"])
        counted.append((len(await computer.read("first.count")), len(await computer.read(f"{name}.count"))))
    assert counted == [(2, 3), (1, 2)]


async def test_model_hears_of_the_base_where_it_is_in_the_conversation(bench: Bench) -> None:
    """Known at the start it is part of the task; found out later it is a message, and the beginning stays as it was."""
    calls = (ToolCall("c", "read", {"path": "sum.py"}),)
    journal = bench.journal
    first = request(journal.events, 0, ())
    journal.add(ModelReplied(0, 1, "m", "Look.", calls, Usage(), 0.0, seen=len(journal.events)))
    await bench.baseline()
    journal.add(ToolReturned(0, "c", "read", True, "text", 0.0), TurnEnded(0, 1, bench.base, False))
    late = request(journal.events, 0, ())
    early = request([*journal.events[:1], *journal.events[3:5], journal.events[1]], 0, ())

    assert "The checks run on the untouched base now" in first.messages[0].text
    assert late.messages[: len(first.messages)] == first.messages
    said = [one.text for one in late.messages if isinstance(one, UserMessage)]
    assert any(text.startswith("These checks must be green") for text in said[1:])
    assert any(text.startswith("On the untouched base") and "test_add" in text for text in said[1:])
    assert "On the untouched base" in early.messages[0].text
    assert "The checks run" not in early.messages[0].text
