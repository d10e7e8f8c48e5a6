"""Every harness keeps the promises of the seam: our loop, and the smallest one possible."""

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
from cloister.harnesses import HARNESSES, choose_harness

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


def test_only_known_harnesses_can_be_chosen() -> None:
    assert sorted(HARNESSES) == ["claude", "codex", "native", "opencode", "repair"]
    with pytest.raises(UserError, match="no harness 'other'"):
        choose_harness("other")
