"""Every harness keeps the promises of the seam: our loop, the smallest one possible, and programs on each of their wires."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.agent.loop_bench import FIX, LoopBench, open_bench
from tests.whole.conformance.suites.harness import (
    Case,
    LineHarness,
    check_accepted_change,
    check_refused_claims,
    check_resume,
    check_step_budget,
    check_stop,
    check_time_budget,
    check_unread_message,
)

from cloister.agent.harnesses.api import Harness
from cloister.core.errors import UserError
from cloister.core.events import Advised, AttemptEnded
from cloister.core.requests import Budget
from cloister.harnesses import HARNESSES, choose_harness
from cloister.testing.programs import WIRES, installed

pytestmark = pytest.mark.anyio

NATIVE_SCRIPTS = {
    "fixes": FIX,
    "claims": """
[[reply]]
name = "again"
calls = [{ tool = "finish", summary = "Done." }]
goto = "again"
""",
    "endless": """
[[reply]]
name = "again"
calls = [{ tool = "bash", command = "echo line >> kept.txt" }]
goto = "again"
""",
    "waits": """
[[reply]]
calls = [{ tool = "bash", command = "echo line >> kept.txt; sleep 1000" }]
""",
}
LINE_SCRIPTS = {
    "fixes": """
[[reply]]
say = "sed -i 's/a - b/a + b/' calc.py"

[[reply]]
say = "DONE Add adds."
""",
    "claims": """
[[reply]]
name = "again"
say = "DONE Nothing."
goto = "again"
""",
    "endless": """
[[reply]]
name = "again"
say = "echo line >> kept.txt"
goto = "again"
""",
    "waits": """
[[reply]]
say = "echo line >> kept.txt; sleep 1000"
""",
}


@pytest.fixture(params=["native", "line"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    native = request.param == "native"
    harness: Harness = choose_harness("native") if native else LineHarness()

    async def opened() -> LoopBench:
        bench = await open_bench(tmp_path)
        bench.harness = harness
        return bench

    return Case(opened, **(NATIVE_SCRIPTS if native else LINE_SCRIPTS))


async def test_proven_change_ends_green_with_one_end(case: Case) -> None:
    await check_accepted_change(case)


async def test_claims_without_evidence_never_end_green(case: Case) -> None:
    await check_refused_claims(case)


async def test_unread_message_keeps_the_attempt_from_ending(case: Case) -> None:
    await check_unread_message(case)


async def test_step_budget_is_kept_and_the_work_saved(case: Case) -> None:
    await check_step_budget(case)


async def test_time_budget_interrupts_and_the_work_is_saved(case: Case) -> None:
    await check_time_budget(case)


async def test_stop_interrupts_without_an_end_of_its_own(case: Case) -> None:
    await check_stop(case)


async def test_resume_after_any_event_leads_to_the_same_end(case: Case) -> None:
    await check_resume(case)


# Programs. They ask no model here, so what counts its replies is shown with a model (tests/whole/e2e/models): budgets of steps,
# and that a reply in the log is not asked for again.

PROGRAMS = {
    "fixes": """
wire.open()
wire.prompt()
wire.plan("Fix add.")
wire.edit("1", "calc.py", "a - b", "a + b")
wire.say("Add adds.")
wire.end()
wire.read()
""",
    "claims": """
wire.open()
while wire.prompt():
    wire.say("Done.")
    wire.end()
""",
    "endless": "",
    "waits": """
wire.open()
wire.prompt()
wire.edit("1", "kept.txt", "", "line")
wire.asks("2", command="sleep 1000")
while True:
    wire.read()
""",
}


@dataclass
class ProgramBench(LoopBench):
    """Its scripts are what a program does that is installed as the harness of a wire."""

    wire: str = ""

    async def work(self, script: str, *, budget: Budget | None = None, **more: object) -> AttemptEnded:
        program = installed(self.root / "bin", self.wire, script)
        self.harness = choose_harness(f"acp:{program}" if self.wire == "acp" else self.wire)
        return await super().work('[[reply]]\nsay = "Never asked."\n', budget=budget)


@pytest.fixture(params=WIRES)
def program(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr("cloister.testing.local._PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    async def opened() -> LoopBench:
        bench = await open_bench(tmp_path)
        return ProgramBench(
            bench.root, bench.bare, bench.base, bench.computer, bench.journal, wire=request.param
        )

    return Case(opened, **PROGRAMS)


async def test_proven_change_of_a_program_ends_green_with_one_end(program: Case) -> None:
    await check_accepted_change(program)


async def test_claims_of_a_program_without_evidence_never_end_green(program: Case) -> None:
    await check_refused_claims(program)


async def test_time_budget_interrupts_a_program_and_its_work_is_saved(program: Case) -> None:
    await check_time_budget(program)


async def test_stop_interrupts_a_program_without_an_end_of_its_own(program: Case) -> None:
    await check_stop(program)


async def test_a_plan_of_a_program_is_an_event_on_each_wire(program: Case) -> None:
    bench = await program.open()
    await bench.work(program.fixes)
    plans = [(body.role, body.text) for body in bench.of(Advised) if isinstance(body, Advised)]
    assert plans == [("plan", "- Fix add.")]


SAYS_ITS_WINDOW = {
    "opencode": "json.loads(os.environ['OPENCODE_CONFIG_CONTENT'])['provider']['cloister']['models']['default']['limit']['context']",
    "claude": "os.environ['CLAUDE_CODE_AUTO_COMPACT_WINDOW']",
    "codex": "next(word.partition('=')[2] for word in sys.argv if word.startswith('model_context_window='))",
}


@pytest.mark.parametrize("name", SAYS_ITS_WINDOW)
async def test_the_window_of_the_runs_model_is_the_programs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"import json, os, sys\nsys.exit('window ' + str({SAYS_ITS_WINDOW[name]}))"
    says = installed(tmp_path / "bin", "acp", program)
    says.rename(says.with_name(name))
    monkeypatch.setattr("cloister.testing.local._PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for window in (54_321, 200_000):
        bench = await open_bench(tmp_path / str(window))
        bench.harness, bench.window_tokens = choose_harness(name), window
        ended = await bench.work('[[reply]]\nsay = "Never asked."\n')
        assert f"It printed: window {window}" in ended.reason


def test_only_known_harnesses_can_be_chosen() -> None:
    assert sorted(HARNESSES) == ["claude", "codex", "native", "opencode", "repair"]
    with pytest.raises(UserError, match="no harness 'other'"):
        choose_harness("other")
