"""A repository with one bug, a computer that holds it, a journal, and the loop driven by scripts."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio

from cloister.agent.attempt import NATIVE, choose_harness, work
from cloister.agent.budget.metering import BudgetedModels
from cloister.agent.budget.purse import Ledger, NoLedger, Purse
from cloister.agent.evidence.evidence import Evidence
from cloister.agent.evidence.run_checks import run_checks
from cloister.agent.harness import Harness, Workplace
from cloister.agent.roles import Adviser, review
from cloister.core.attempts import Escalate
from cloister.core.budget import BudgetTree
from cloister.core.computer import Stream
from cloister.core.diagnosis import Diagnosis
from cloister.core.events import (
    AnyBody,
    AttemptEnded,
    AttemptStarted,
    BaselineTaken,
    ChecksChosen,
    RunAdmitted,
)
from cloister.core.requests import Budget, NewRun, Patience
from cloister.forge import change, workspace
from cloister.model.api import Models
from cloister.model.scripted import ScriptedModel, load_script
from cloister.policy.api import Policy
from cloister.policy.layers import BUILT_IN
from cloister.testing.journals import MemoryJournal
from cloister.testing.local import LocalComputer
from cloister.testing.models import SoleModel
from cloister.testing.sample_repo import SampleRepo

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

    async def work(
        self,
        script: str,
        *,
        checks: tuple[str, ...] = (CHECK,),
        budget: Budget | None = None,
        policy: Policy = (BUILT_IN,),
        ask_seconds: float = 5.0,
    ) -> AttemptEnded:
        """Work through `script` to the attempt's end."""
        path = self.root / "model.script.toml"
        path.write_text(script)
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
            policy=policy,
            budget=own,
            ask_seconds=ask_seconds,
            patience=self.patience,
            escalate=self.escalate,
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
            return await work(place, evidence, self.harness)

    async def prove(self, commit: str, known: tuple[Diagnosis, ...] = ()) -> tuple[Diagnosis, ...]:
        fresh = LocalComputer(self.root / f"proof-{len(self.journal.events)}")
        await workspace.restore(fresh, self.bare, self.base, commit)
        return await run_checks(fresh, (CHECK,), "proof", _quiet, baseline=known)

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


def _quiet(check: str, stream: Stream, data: bytes) -> None:
    pass


async def open_bench(root: Path) -> LoopBench:
    """A new one, with its files under `root`."""
    repo = SampleRepo(root / "repo")
    repo.write("calc.py", BROKEN)
    repo.write("check.py", CHECKER)
    repo.write(".gitignore", "__pycache__/\n")
    repo.git("add", "--all")
    repo.git("commit", "--quiet", "-m", "base")
    bare = root / "bare.git"
    shutil.copytree(repo.path / ".git", bare)
    computer = LocalComputer(root / "computer")
    base = repo.git("rev-parse", "HEAD")
    await workspace.put(computer, bare, base)
    return LoopBench(root, bare, base, computer, MemoryJournal())
