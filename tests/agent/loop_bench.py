"""A repository with one bug, a computer that holds it, a journal, and the loop driven by scripts."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio

from cloister.agent.attempt import work
from cloister.agent.budget.metering import BudgetedModels
from cloister.agent.budget.purse import Ledger, NoLedger, Purse
from cloister.agent.evidence.evidence import Evidence
from cloister.agent.evidence.proof import Proof, Task, run_proof
from cloister.agent.evidence.run_checks import Earlier, run_checks
from cloister.agent.harnesses.api import Harness, Workplace
from cloister.agent.roles import Adviser, review
from cloister.agent.tools.toolset import ToolSet
from cloister.core.attempts import NATIVE, Escalate
from cloister.core.budget import BudgetTree
from cloister.core.computer import Stream
from cloister.core.diagnosis import Comparison, Diagnosis, TestResult
from cloister.core.events import (
    ActionDecided,
    AnyBody,
    AttemptEnded,
    AttemptStarted,
    BaseFixed,
    BaselineTaken,
    ChecksChosen,
    ChecksRan,
    Delta,
    Event,
    ModelReplied,
    RunAdmitted,
    ToolReturned,
    TurnEnded,
)
from cloister.core.ids import RunId
from cloister.core.log import Index
from cloister.core.requests import Budget, NewRun, Patience, ToolCall, Usage
from cloister.forge import change, workspace
from cloister.harnesses import choose_harness
from cloister.model.api import Models
from cloister.model.scripted import ScriptedModel, load_script
from cloister.policy.api import Policy
from cloister.policy.layers import BUILT_IN
from cloister.testing.local import LocalComputer
from cloister.testing.models import SoleModel
from cloister.testing.samples import SampleRepo

# A `Journal` in memory, for driving the loop without a database.


_RUN = RunId("r-memory")


class MemoryJournal:
    """Keeps events and deltas in memory."""

    def __init__(self, *bodies: AnyBody) -> None:
        self._events: list[Event] = []
        self._index = Index()
        self._news = anyio.Event()
        self.deltas: list[Delta] = []
        self.add(*bodies)

    @property
    def events(self) -> Sequence[Event]:
        return self._events

    @property
    def index(self) -> Index:
        return self._index

    @property
    def bodies(self) -> list[AnyBody]:
        return [event.body for event in self._events]

    def add(self, *bodies: AnyBody) -> None:
        """As `append`, for callers that cannot await."""
        for body in bodies:
            self._events.append(Event(_RUN, len(self._events) + 1, time.time(), body))
            self._index.feed(self._events[-1:])
        self._news.set()
        self._news = anyio.Event()

    async def append(self, *bodies: AnyBody) -> None:
        self.add(*bodies)

    async def append_at(self, last: int, *bodies: AnyBody) -> bool:
        if len(self._events) != last:
            return False
        self.add(*bodies)
        return True

    def show(self, delta: Delta) -> None:
        self.deltas.append(delta)

    async def changed(self, after: int) -> None:
        while len(self._events) <= after:
            await self._news.wait()


# Synthetic logs of long attempts


RUN = RunId("r-long")


def beginning(prompt: str = "Make every test pass.") -> list[AnyBody]:
    red = _diagnosis(3)
    return [
        RunAdmitted(NewRun(prompt, "/repo"), "ann"),
        BaseFixed("0123456789abcdef", "main"),
        ChecksChosen(("pytest -q",), True),
        BaselineTaken((red,)),
        AttemptStarted(0, "p:m"),
    ]


def turn(step: int, chars: int, *, changed: bool = False, text: str = "") -> Iterator[AnyBody]:
    """One turn with an observation of `chars` characters, and the checks if files changed."""
    call = ToolCall(
        f"call-{step}", "bash", {"command": f"sed -n {step},{step + 40}p src/file_{step % 17}.py"}
    )
    yield ModelReplied(0, step, "p:m", text, (call,), Usage(1_000, 50), 1.0)
    yield ActionDecided(0, call.id, "bash: sed", "allow", "built-in")
    line = f"step {step}: the quick brown fox\n"
    yield ToolReturned(0, call.id, "bash", True, (line * (chars // len(line) + 1))[:chars], 0.1, 0)
    if changed:
        found = _diagnosis(1 + step % 3, step)
        names = tuple(test.name for test in found.failing)
        yield ChecksRan(0, step, (found,), Comparison(still=names, passed=40))
    yield TurnEnded(0, step, f"commit-{step}", changed)


def _diagnosis(failing: int, step: int = 0) -> Diagnosis:
    tests = tuple(
        TestResult(
            f"tests/test_{n}.py::test_{n}",
            "failed",
            f"tests/test_{n}.py",
            n + 1,
            f"assert {step} == {n}\n" * 8,
        )
        for n in range(failing)
    )
    passed = tuple(TestResult(f"tests/ok.py::test_{n}", "passed") for n in range(40))
    return Diagnosis("pytest -q", 1, 1.0, tests=(*tests, *passed), tail="E assert")


def numbered(bodies: list[AnyBody], start: int = 1) -> list[Event]:
    return [Event(RUN, seq, 1_000.0 + seq, body) for seq, body in enumerate(bodies, start)]


def long_log(steps: int, chars: int = 3_000) -> list[Event]:
    """A log of `steps` turns of which every fourth changed files."""
    bodies = beginning()
    for step in range(1, steps + 1):
        bodies.extend(turn(step, chars, changed=step % 4 == 0, text=f"I look at part {step}."))
    return numbered(bodies)


BROKEN = "def add(a, b):\n    return a - b\n"
CHECK = "python3 check.py"
CHECKER = """\
import sys
import calc
tests = {"test_add": calc.add(1, 2) == 3, "test_zero": calc.add(0, 0) == 0}
for name, ok in tests.items():
    if not ok:
        print(f"check.py:3: error: {name} failed")
sys.exit(not all(tests.values()))
"""
FIX = """
[[reply]]
say = "The sign is wrong."
calls = [{ tool = "edit", path = "calc.py", old = "a - b", new = "a + b" }]

[[reply]]
expect = "green|passed|fixed"
calls = [{ tool = "finish", summary = "Add adds." }]
"""


@dataclass
class LoopBench:
    """Everything one attempt works with, on this machine and without a sandbox."""

    root: Path
    bare: Path
    base: str
    computer: LocalComputer
    journal: MemoryJournal
    prompt: str = "Make add work."
    tree: BudgetTree = field(default_factory=BudgetTree)
    ledger: Ledger = field(default_factory=NoLedger)
    patience: Patience = field(default_factory=Patience)
    escalate: Escalate | None = None
    window_tokens: int | None = None
    run_budget: Budget | None = None
    """None is the attempt's."""
    harness: Harness = field(default_factory=partial(choose_harness, NATIVE))
    models: Callable[[Path], Models] | None = None
    """Makes, of the script's path, other models than one for all."""
    checks: tuple[str, ...] = (CHECK,)
    tools: ToolSet = field(default_factory=ToolSet)

    async def work(
        self,
        script: str,
        *,
        checks: tuple[str, ...] = (CHECK,),
        budget: Budget | None = None,
        policy: Policy = (BUILT_IN,),
        ask_seconds: float = 5.0,
        seed: int = 0,
    ) -> AttemptEnded:
        """Work through `script` to the attempt's end."""
        path = self.root / "model.script.toml"
        path.write_text(script)
        self.checks = checks
        known = [body.diagnoses for body in self.journal.bodies if isinstance(body, BaselineTaken)]
        baseline = known[0] if known else await run_checks(self.computer, checks, "baseline", _quiet)
        if not known:
            self.journal.add(
                RunAdmitted(NewRun(self.prompt, "repo"), "me"),
                ChecksChosen(checks, found=False),
                BaselineTaken(baseline),
                AttemptStarted(0, "script"),
            )
        own = budget or Budget()
        purse = Purse(self.journal, self.run_budget or own, self.tree, self.ledger, ask_seconds)
        made = (
            self.models(path)
            if self.models
            else SoleModel(ScriptedModel(load_script(path)), self.window_tokens)
        )
        models = BudgetedModels(made, purse).of(0, own)
        place = Workplace(
            attempt=0,
            journal=self.journal,
            computer=self.computer,
            models=models,
            policy=self.tools.granted(policy),
            budget=own,
            ask_seconds=ask_seconds,
            patience=self.patience,
            escalate=self.escalate,
            seed=seed,
            tools=self.tools,
        )
        evidence = Evidence(
            attempt=0,
            journal=self.journal,
            computer=self.computer,
            files=_Files(self),
            prove=self.prove,
            base=self.base,
            checks=checks,
            baseline=baseline,
            review=partial(self.review, Adviser(models, self.journal, 0)),
        )
        with anyio.fail_after(60):
            await evidence.begin()
            return await work(place, evidence, self.harness)

    async def prove(self, commit: str, known: Earlier = ()) -> Proof:
        fresh = LocalComputer(self.root / f"proof-{len(self.journal.events)}")
        await workspace.restore(fresh, self.bare, self.base, commit)
        baseline = next(body.diagnoses for body in self.journal.bodies if isinstance(body, BaselineTaken))
        return await run_proof(fresh, Task(self.checks, baseline, known), _quiet)

    async def review(self, adviser: Adviser, commit: str, summary: str) -> str:
        return await review(adviser, self.prompt, await change.diff(self.bare, self.base, commit), summary)

    def of(self, kind: type[AnyBody]) -> list[AnyBody]:
        return [body for body in self.journal.bodies if isinstance(body, kind)]


@dataclass
class _Files:
    bench: LoopBench

    async def tree(self) -> str:
        return await workspace.tree(self.bench.computer, self.bench.bare, self.bench.base)

    async def save(self) -> str:
        return await workspace.save(
            self.bench.computer,
            self.bench.bare,
            self.bench.base,
            "refs/cloister/attempt/0",
            limit_bytes=2_000_000,
        )

    async def kept(self) -> str:
        return ""

    async def judge(self, commit: str) -> None:
        pass


def _quiet(check: str, stream: Stream, data: bytes) -> None:
    pass


async def open_bench(root: Path, files: Mapping[str, str] | None = None) -> LoopBench:
    """A new one, with its files under `root`; without `files`, the repository has one bug and its check."""
    repo = SampleRepo(root / "repo")
    for name, text in ({"calc.py": BROKEN, "check.py": CHECKER} if files is None else files).items():
        repo.write(name, text)
    repo.write(".gitignore", "__pycache__/\n")
    repo.git("add", "--all")
    repo.git("commit", "--quiet", "-m", "base")
    bare = root / "bare.git"
    shutil.copytree(repo.path / ".git", bare)
    computer = LocalComputer(root / "computer")
    base = repo.git("rev-parse", "HEAD")
    await workspace.put(computer, bare, base)
    return LoopBench(root, bare, base, computer, MemoryJournal())
