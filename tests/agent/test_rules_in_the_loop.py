"""Policy in the loop: asks, rules about commands, and taint."""

from pathlib import Path

import pytest
from tests.agent.loop_bench import CHECK, FIX, LoopBench, open_bench

from cloister.agent.evidence.run_checks import run_checks
from cloister.agent.taint import Provenance
from cloister.core.computer import Stream
from cloister.core.events import (
    ActionDecided,
    AnyBody,
    AskRaised,
    AttemptStarted,
    BaselineTaken,
    ChecksChosen,
    ConnectionDecided,
    Inherited,
    PromptReceived,
    RunAdmitted,
    ToolReturned,
)
from cloister.core.requests import NewRun
from cloister.policy.api import Layer, Pointed, Rule
from cloister.policy.layers import BUILT_IN

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(tmp_path: Path) -> LoopBench:
    return await open_bench(tmp_path)


def _quiet(check: str, stream: Stream, data: bytes) -> None:
    pass


async def test_ask_shows_the_whole_action_its_rule_and_the_approver(bench: LoopBench) -> None:
    host = Layer("host", (Rule("tool:bash:touch *", "ask", "policy:3", "admin"),))
    script = '[[reply]]\ncalls = [{ tool = "bash", command = "cd . && touch asked" }]\n' + FIX
    await bench.work(script, policy=(BUILT_IN, host), ask_seconds=0.01)
    ask = next(b for b in bench.journal.bodies if isinstance(b, AskRaised))
    assert (ask.detail, ask.rule, ask.approver, ask.default) == (
        "cd . && touch asked",
        "ask tool:bash:touch * (policy:3)",
        "admin",
        "deny",
    )


async def test_action_that_is_too_long_to_show_is_denied_without_asking(bench: LoopBench) -> None:
    host = Layer("host", (Rule("tool:bash:touch *", "ask", "policy:3"),))
    long = f"touch a {'x' * 20_000}; touch b"
    script = f'[[reply]]\ncalls = [{{ tool = "bash", command = "{long}" }}, {{ tool = "bash", command = "{long[-19_000:]}" }}]\n'
    await bench.work(script + FIX, policy=(BUILT_IN, host), ask_seconds=0.01)
    first, second = [b for b in bench.journal.bodies if isinstance(b, ActionDecided)][:2]
    assert (first.effect, second.effect) == ("deny", "ask")
    assert "20,000 can be shown to a person" in first.rule
    assert [len(ask.detail) for ask in bench.journal.bodies if isinstance(ask, AskRaised)] == [19_000]


async def test_rules_match_the_commands_of_a_line_not_its_text(bench: LoopBench) -> None:
    host = Layer("host", (Rule("tool:bash:touch *", "deny", "policy:3"),))
    script = """
[[reply]]
calls = [
    { tool = "bash", command = "'to'uch a" },
    { tool = "bash", command = "env -- sh -c 'touch b'" },
    { tool = "bash", command = "eval $(echo dG91Y2ggYwo= | base64 -d)" },
    { tool = "bash", command = "echo touch d" },
]
"""
    await bench.work(script + FIX, policy=(BUILT_IN, host))
    decided = [b.effect for b in bench.journal.bodies if isinstance(b, ActionDecided)][:4]
    assert decided == ["deny", "deny", "deny", "allow"]
    assert not {"a", "b", "c"} & {path.name for path in bench.computer.work.iterdir()}


HIGH = Layer("host", high_impact=(Pointed("tool:bash:git push*", "policy:1"),))
PUSH = '[[reply]]\ncalls = [{ tool = "bash", command = "git push nowhere" }]\n'


async def test_high_impact_actions_follow_the_rules_before_untrusted_text(bench: LoopBench) -> None:
    await bench.work(PUSH + FIX, policy=(BUILT_IN, HIGH))
    assert bench.of(AskRaised) == []
    returned = [b for b in bench.journal.bodies if isinstance(b, ToolReturned)]
    assert {b.tool: b.origin for b in returned}["bash"] == "tool"


OUTSIDE: dict[str, AnyBody] = {
    "the text of an issue": PromptReceived("please push", "someone", "issue"),
    "something that came over the network": ConnectionDecided("s", "example.org", 443, "allow", "r"),
    "an answer of a tool server": ToolReturned(0, "c", "mcp:x.y", True, "push!", 0.1, origin="server"),
}


@pytest.mark.parametrize("body", OUTSIDE.values(), ids=OUTSIDE.keys())
async def test_high_impact_actions_need_approval_after_untrusted_text(
    bench: LoopBench, body: AnyBody
) -> None:
    bench.journal.add(
        RunAdmitted(NewRun("Make add work.", "repo"), "me"),
        ChecksChosen((CHECK,), found=False),
        BaselineTaken(await run_checks(bench.computer, (CHECK,), "baseline", _quiet)),
        AttemptStarted(0, "script"),
        body,
    )
    await bench.work(PUSH + FIX, policy=(BUILT_IN, HIGH), ask_seconds=0.01)
    ask = next(b for b in bench.journal.bodies if isinstance(b, AskRaised))
    assert ask.rule == "ask tool:bash:git push* (policy:1): high impact after untrusted text"
    decided = next(b for b in bench.journal.bodies if isinstance(b, ActionDecided))
    assert (decided.effect, decided.rule) == ("ask", ask.rule)


async def test_refused_connection_and_reading_of_another_attempt_do_not_taint(bench: LoopBench) -> None:
    bench.journal.add(
        RunAdmitted(NewRun("Make add work.", "repo"), "me"),
        ChecksChosen((CHECK,), found=False),
        BaselineTaken(await run_checks(bench.computer, (CHECK,), "baseline", _quiet)),
        AttemptStarted(0, "script"),
        ConnectionDecided("s", "example.org", 443, "deny", "r"),
        ToolReturned(1, "c", "mcp:x.y", True, "push!", 0.1, origin="server"),
    )
    await bench.work(PUSH + FIX, policy=(BUILT_IN, HIGH), ask_seconds=0.01)
    assert bench.of(AskRaised) == []


async def test_every_result_after_a_connection_is_tainted(bench: LoopBench) -> None:
    script = '[[reply]]\ncalls = [{ tool = "read", path = "calc.py" }]\n'
    await bench.work(script + FIX)
    assert next(b for b in bench.journal.bodies if isinstance(b, ToolReturned)).origin == "repository"
    bench.journal.add(ConnectionDecided("s", "example.org", 443, "allow", "r"))
    assert Provenance(0, bench.journal).origin("repository") == "web"


async def test_forked_run_inherits_the_taint(bench: LoopBench) -> None:
    read = ToolReturned(3, "c", "mcp:x.y", True, "push!", 0.1, origin="server")
    bench.journal.add(Inherited(9, 0.0, read))
    assert Provenance(0, bench.journal).untrusted

    other = (await open_bench(bench.computer.work.parent / "other")).journal
    other.add(Inherited(9, 0.0, ConnectionDecided("s", "example.org", 443, "allow", "r")))
    assert Provenance(0, other).origin("tool") == "web"


async def test_taint_of_any_attempt_counts_for_a_shared_proxy(bench: LoopBench) -> None:
    bench.journal.add(ToolReturned(1, "c", "mcp:x.y", True, "push!", 0.1, origin="server"))
    assert not Provenance(0, bench.journal).untrusted
    assert Provenance(None, bench.journal).untrusted
