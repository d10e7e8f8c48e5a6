"""Programs that are no good harness: each ends its attempt with one sentence, within the budget, and nothing of ours breaks."""

import sys
import tracemalloc
from pathlib import Path

import pytest
from tests.agent.loop_bench import LoopBench, numbered, open_bench

from cloister.core.errors import UserError
from cloister.core.events import (
    ActionDecided,
    AttemptEnded,
    ConnectionDecided,
    ModelFailed,
    ModelReplied,
    SandboxOpened,
    ServiceFailed,
)
from cloister.core.requests import Budget, Isolation, RunRule, ToolCall, Usage
from cloister.harnesses import choose_harness
from cloister.harnesses.acp import words
from cloister.policy.layers import BUILT_IN, layer
from cloister.testing.programs import installed

pytestmark = pytest.mark.anyio

ISOLATION = Isolation("container", "crun", shares_kernel=True, store="btrfs")
HEAD = """
import json, sys
def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def update(**fields):
    send(method="session/update", params={"sessionId": "s", "update": fields})
def read():
    return json.loads(sys.stdin.readline())
def opened():
    send(id=read()["id"], result={"protocolVersion": 1})
    send(id=read()["id"], result={"sessionId": "s"})
    return read()["id"]
"""


async def ended(tmp_path: Path, program: str, steps: int = 60) -> tuple[AttemptEnded, LoopBench]:
    bench = await open_bench(tmp_path)
    path = tmp_path / "program.py"
    path.write_text(HEAD + program)
    bench.harness = choose_harness(f"acp:{sys.executable} {path}")
    return await bench.work('[[reply]]\nsay = "Never asked."\n', budget=Budget(steps=steps)), bench


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("sys.exit('no licence')", "ended (exit code 1). It printed: no licence Is it installed"),
        ("print('x' * 5_000_000); read(); read()", "sent a message of more than 4,194,304 bytes"),
        ("send(id=read()['id'], result={'protocolVersion': 9}); read()", "speaks version 9 of ACP"),
        ("send(id=read()['id'], result=[]); read()", "answered initialize with something else"),
        (
            "send(id=read()['id'], error={'code': 1, 'message': 'log in first'}); read()",
            "cannot begin: log in first",
        ),
        ("opened()", "ended (exit code 0)"),
        (
            "n = opened()\nwhile True:\n    send(id=n, error={'code': -1, 'message': 'no model'})\n    n = read()['id']",
            "failed: no model",
        ),
    ],
)
async def test_a_program_that_does_not_work_fails_with_its_reason(
    tmp_path: Path, program: str, reason: str
) -> None:
    end, _ = await ended(tmp_path, program)
    assert end.outcome == "failed"
    assert reason in end.reason


def test_a_program_reads_which_connection_was_refused_and_which_service_did_not_start() -> None:
    call = ToolCall("1", "bash", {"command": "cd app && pip install attrs"})
    events = numbered(
        [
            SandboxOpened("s-2", ISOLATION, 1),
            ModelReplied(0, 1, "m", "", (call,), Usage(), 0.1),
            ConnectionDecided("s-1", "index.example", 443, "deny", "default"),
            ConnectionDecided("s-2", "other.example", 443, "deny", "default"),
            ServiceFailed("s-1", "error: Redis did not answer"),
        ]
    )
    opened = [event.body for event in events if isinstance(event.body, SandboxOpened)]
    told = words.refused(events, opened, 0)
    assert "pip could not reach index.example:443: the proxy denies it (default)" in told
    assert "add the package there" in told and "other.example" not in told
    assert "Redis did not answer" in "".join(words.since(events, 0, lambda _: b""))
    assert words.refused(events[:2], opened, 0) == ""


async def test_a_program_that_is_not_there_says_so(tmp_path: Path) -> None:
    bench = await open_bench(tmp_path)
    bench.harness = choose_harness("acp:no-such-program")
    end = await bench.work('[[reply]]\nsay = "Never asked."\n')
    assert end.outcome == "failed"
    assert "Is it installed in the template of the run?" in end.reason


async def test_a_program_that_tells_of_endless_calls_is_out_of_budget(tmp_path: Path) -> None:
    floods = """
opened()
for n in range(1_000_000):
    update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": "\\ud800" * 9})
    update(sessionUpdate="tool_call", toolCallId=f"c{n}", title=7)
    update(sessionUpdate="tool_call", toolCallId=f"c{n}", title="look", kind="read", status="completed")
    update(sessionUpdate="plan", entries=[{"content": str(n)}] * 1000)
    send(method="session/update", params={"sessionId": "other", "update": {"sessionUpdate": "tool_call"}})
    print("no JSON")
"""
    end, bench = await ended(tmp_path, floods, steps=5)
    assert end.outcome == "budget"
    assert len(bench.of(ModelReplied)) == 25


async def test_calls_that_never_say_what_they_do_take_little_memory(tmp_path: Path) -> None:
    announces = """
n = opened()
text = {"type": "content", "content": {"type": "text", "text": "x" * 100_000}}
for number in range(400):
    update(sessionUpdate="tool_call", toolCallId=f"c{number}", title="look", content=[text])
send(id=n, error={"code": 1, "message": "enough"})
send(id=read()["id"], error={"code": 1, "message": "enough"})
send(id=read()["id"], error={"code": 1, "message": "enough"})
"""
    tracemalloc.start()
    try:
        end, _ = await ended(tmp_path, announces)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "enough" in end.reason
    assert peak < 24_000_000, "of 40 MB that were sent"


async def test_files_and_commands_of_the_host_are_not_for_the_program(tmp_path: Path) -> None:
    secret, made = tmp_path / "secret", tmp_path / "made"
    secret.write_text("not for programs inside")
    asks = f"""
n = opened()
told = []
for method, params in (
    ("fs/read_text_file", {{"path": {str(secret)!r}}}),
    ("fs/write_text_file", {{"path": {str(made)!r}, "content": "x"}}),
    ("terminal/create", {{"command": "touch", "args": [{str(made)!r}]}}),
    ("terminal/output", {{"terminalId": "1"}}),
    ("no/such", {{}}),
):
    send(id=method, method=method, params={{"sessionId": "s", **params}})
    told.append(read())
codes = sorted({{str(one.get("error", {{}}).get("code")) + str(one.get("result")) for one in told}})
while True:
    send(id=n, error={{"code": 1, "message": f"{{len(told)}} answers: {{codes}}"}})
    n = read()["id"]
"""
    end, _ = await ended(tmp_path, asks)
    assert "5 answers: ['-32601None']" in end.reason
    assert not made.exists()


async def test_a_call_that_runs_without_asking_is_judged_by_the_rules_afterwards(tmp_path: Path) -> None:
    strays = """
n = opened()
update(sessionUpdate="tool_call", toolCallId="c", title="Edit", kind="edit", status="completed",
       locations=[{"path": "/work/.git/config"}])
assert read()["method"] == "session/cancel"
send(id=n, result={"stopReason": "cancelled"})
print(read()["params"]["prompt"][0]["text"], file=sys.stderr)
"""
    end, _ = await ended(tmp_path, strays)
    assert "Not allowed here, so find another way: - edit: .git/config: deny tool:edit:.git/**" in end.reason
    assert "the harness did not ask" in end.reason


async def test_a_program_that_works_on_after_a_forbidden_call_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloister.harnesses.acp.session._CANCEL_SECONDS", 0.2)
    ignores = """
opened()
update(sessionUpdate="tool_call", toolCallId="c", title="Edit", kind="edit", status="completed",
       locations=[{"path": "/work/.git/config"}])
while read():
    pass
"""
    end, bench = await ended(tmp_path, ignores)
    assert end.outcome == "failed" and "did not end its turn when Cloister cancelled it" in end.reason
    assert len(bench.of(ModelFailed)) == 3, "it was started again"


async def test_a_command_is_one_for_the_rules_whatever_kind_the_program_calls_it(tmp_path: Path) -> None:
    named = """
n = opened()
for number, given in enumerate(({"command": "git push"}, {"cmd": ["git", "push"]}, {"id": 1})):
    update(sessionUpdate="tool_call", toolCallId=f"c{number}", title="A look", kind="other", rawInput=given, status="completed")
send(id=n, error={"code": 1, "message": "enough"})
send(id=read()["id"], error={"code": 1, "message": "enough"})
send(id=read()["id"], error={"code": 1, "message": "enough"})
"""
    _, bench = await ended(tmp_path, named)
    decided = [body.action for body in bench.of(ActionDecided) if isinstance(body, ActionDecided)]
    assert decided == ["bash: git push", "bash: git push", "harness: A look"]


async def test_a_call_that_is_asked_about_twice_is_decided_once_while_it_stays_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = """
wire.open()
wire.prompt()
for command in ("touch a", "touch a", "touch b", "git push x", "git push x"):
    wire.asks("c", command=command)
while True:
    wire.end()
    wire.prompt()
"""
    bench = await open_bench(tmp_path)
    bench.harness = choose_harness(f"acp:{installed(tmp_path, 'acp', asks)}")
    rules = layer("run", (RunRule("bash:git push *", "deny"),), "here", may_widen=True)
    await bench.work('[[reply]]\nsay = "Never asked."\n', policy=(BUILT_IN, rules))
    decided = [body for body in bench.of(ActionDecided) if isinstance(body, ActionDecided)]
    told = [(body.effect, body.action) for body in decided]
    pushed = [("deny", "bash: git push x")] * 2
    assert told == [("allow", "bash: touch a"), ("allow", "bash: touch b"), *pushed]


async def test_a_command_that_comes_in_parts_is_in_the_log(tmp_path: Path) -> None:
    parts = """
n = opened()
for given in ({}, {"description": "Make it"}, {"description": "Make it", "command": "make all"}):
    update(sessionUpdate="tool_call_update", toolCallId="c", title="bash", kind="execute", rawInput=given)
update(sessionUpdate="tool_call_update", toolCallId="c", status="completed")
while True:
    send(id=n, result={"stopReason": "end_turn"})
    n = read()["id"]
"""
    _, bench = await ended(tmp_path, parts)
    replies = [body for body in bench.of(ModelReplied) if isinstance(body, ModelReplied)]
    (call,) = (call for body in replies for call in body.calls)
    assert call.arguments == {"command": "make all", "title": "bash"}


@pytest.mark.parametrize("name", ["acp:", "acp: ", "acp:'", "acp:a\0b", "open", f"acp:{'x' * 3_000}"])
def test_a_harness_that_cannot_be_is_refused_before_the_run(name: str) -> None:
    with pytest.raises(UserError, match="harness"):
        choose_harness(name)


CLAUDE = """#!{python}
import json, os, sys
def send(**message):
    print(json.dumps(message), flush=True)
def read():
    return json.loads(sys.stdin.readline())
def said(role, *blocks):
    send(type=role, message={{"role": role, "content": list(blocks)}}, parent_tool_use_id=None)
def used(number, name, **given):
    said("assistant", {{"type": "tool_use", "id": number, "name": name, "input": given}})
def done(number, text, **more):
    said("user", {{"type": "tool_result", "tool_use_id": number, "content": [{{"type": "text", "text": text}}], **more}})
def asked(number, name, **given):
    used(number, name, **given)
    request = {{"subtype": "can_use_tool", "tool_name": name, "input": given, "tool_use_id": number}}
    send(type="control_request", request_id="q" + number, request=request)
    answer = read()["response"]
    assert (answer["subtype"], answer["request_id"]) == ("success", "q" + number)
    return answer["response"]
def opened():
    first = read()
    assert first["request"]["subtype"] == "initialize", first
    send(type="control_response", response={{"subtype": "success", "request_id": first["request_id"], "response": {{"pid": 1}}}})
{program}
"""


async def claude(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str
) -> tuple[AttemptEnded, LoopBench]:
    """An attempt with the harness `claude` where its adapter is not installed."""
    bench = await open_bench(tmp_path)
    at = tmp_path / "bin" / "claude"
    at.parent.mkdir()
    at.write_text(CLAUDE.format(python=sys.executable, program=program))
    at.chmod(0o755)
    monkeypatch.setattr("cloister.testing.local._PATH", f"{at.parent}:/usr/bin:/bin")
    bench.harness = choose_harness("claude")
    rules = layer("run", (RunRule("bash:git push *", "deny"),), "here", may_widen=True)
    script, budget = '[[reply]]\nsay = "Never asked."\n', Budget(steps=60)
    return await bench.work(script, budget=budget, policy=(BUILT_IN, rules)), bench


async def test_claude_code_without_its_adapter_is_asked_judged_and_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = """
opened()
task = read()["message"]["content"]
assert "Make add work." in task
send(type="system", subtype="init", session_id="s")
used("0", "TodoWrite", todos=[{"content": "Fix add.", "status": "pending"}])
said("assistant", {"type": "text", "text": "I push first."})
told = asked("1", "Bash", command="git push origin main")
assert told["behavior"] == "deny" and "does not allow it: bash: git push origin main" in told["message"], told
done("1", told["message"], is_error=True)
told = asked("2", "Edit", file_path="/work/calc.py", old_string="a - b", new_string="a + b")
assert told["behavior"] == "allow" and told["updatedInput"]["new_string"] == "a + b", told
text = open("calc.py").read().replace("a - b", "a + b")
open("calc.py", "w").write(text)
done("2", "Edited.")
said("assistant", {"type": "text", "text": "Add adds."})
send(type="result", subtype="success", is_error=False, result="Add adds.")
read()
"""
    end, bench = await claude(monkeypatch, tmp_path, works)
    assert end.outcome in ("proven", "green"), end
    replies = [body for body in bench.of(ModelReplied) if isinstance(body, ModelReplied)]
    assert [(body.text, [call.name for call in body.calls]) for body in replies] == [
        ("I push first.", ["bash"]),
        ("", ["edit"]),
        ("Add adds.", []),
    ]


async def test_claude_code_that_breaks_its_stream_fails_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (program, reason) in enumerate(
        (
            ("sys.exit('no licence')", "It printed: no licence"),
            (
                "opened()\nwhile read():\n    send(type='result', subtype='error_during_execution')",
                "failed: error_during",
            ),
            ("opened()\nread()\nprint('x' * 5_000_000)\nread()", "more than 4,194,304 bytes"),
            (
                (
                    "opened()\nwhile read():\n    send(type=7)\n    said('assistant', 7)\n    send(type='control_request')\n"
                    "    read()\n    send(type='result', subtype='success', is_error=True, result='no model')"
                ),
                "failed: no model",
            ),
        )
    ):
        (tmp_path / str(number)).mkdir()
        end, _ = await claude(monkeypatch, tmp_path / str(number), program)
        assert end.outcome == "failed" and reason in end.reason, (program, end.reason)


async def of_wire(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wire: str, program: str
) -> tuple[AttemptEnded, LoopBench]:
    """An attempt with a harness that is installed as this program."""
    bench = await open_bench(tmp_path)
    at = installed(tmp_path / "bin", wire, program)
    monkeypatch.setattr("cloister.testing.local._PATH", f"{at.parent}:/usr/bin:/bin")
    bench.harness = choose_harness(wire)
    rules = layer("run", (RunRule("bash:git push *", "deny"),), "here", may_widen=True)
    script, budget = '[[reply]]\nsay = "Never asked."\n', Budget(steps=60)
    return await bench.work(script, budget=budget, policy=(BUILT_IN, rules)), bench


CODEX = {
    "the response and the end of a turn in one piece": (
        """
wire.open()
for n in range(3):
    asked, turn = wire.read(), f"turn-{n}"
    begun = {"id": asked["id"], "result": {"turn": {"id": turn, "status": "inProgress"}}}
    wire.send(begun, wire.ended(turn, "failed", "no model"))
""",
        "failed",
        "failed: no model",
    ),
    "the end of another turn before and after the response": (
        """
wire.open()
asked = wire.read()
begun = {"id": asked["id"], "result": {"turn": {"id": "mine", "status": "inProgress"}}}
wire.turn = "mine"
wire.send(wire.ended("old", "failed", "too late"), begun, wire.ended("old", "failed", "too late"))
wire.edit("1", "calc.py", "a - b", "a + b")
wire.say("Add adds.")
wire.end()
wire.read()
""",
        "proven",
        "",
    ),
    "a turn that never says how it ended": (
        """
wire.open()
wire.prompt()
wire.send(wire.ended(wire.turn, "inProgress"))
wire.read()
""",
        "failed",
        "broke its protocol",
    ),
    "a message of five megabytes": (
        "wire.open()\nwire.prompt()\nwire.say('x' * 5_000_000)\nwire.read()",
        "failed",
        "more than 4,194,304 bytes",
    ),
    "members of other types": (
        """
wire.open()
wire.prompt()
for method in ("item/started", "item/completed", "turn/plan/updated", "turn/started", "turn/completed", "x"):
    for params in (None, 7, [], {"item": 7}, {"turn": {}}, {"plan": 7}):
        wire.send({"method": method, "params": params})
wire.send({"id": "q", "method": "item/fileChange/requestApproval", "params": 7})
assert wire.read()["result"]["decision"] == "cancel"
wire.send({"id": "r", "method": "item/tool/requestUserInput", "params": {}})
assert "error" in wire.read()
wire.edit("1", "calc.py", "a - b", "a + b")
wire.end()
wire.read()
""",
        "proven",
        "",
    ),
}


@pytest.mark.parametrize("case", CODEX)
async def test_codex_ends_the_turns_that_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    program, outcome, reason = CODEX[case]
    end, _ = await of_wire(monkeypatch, tmp_path, "codex", program)
    assert end.outcome == outcome and reason in end.reason, end


async def test_an_interrupt_of_claude_code_ends_before_the_next_turn_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = """
wire.open()
wire.prompt()
wire.tells("1", path="/work/.git/config")
wire.done("1")
interrupt = wire.read()
assert interrupt["request"]["subtype"] == "interrupt", interrupt
wire.end()
wire.say("The last words of the first turn.")
wire.answer(interrupt)
assert "Not allowed here" in wire.prompt()
wire.edit("3", "calc.py", "a - b", "a + b")
wire.say("Add adds.")
wire.end()
wire.read()
"""
    end, bench = await of_wire(monkeypatch, tmp_path, "claude", slow)
    assert end.outcome == "proven", end
    replies = [body for body in bench.of(ModelReplied) if isinstance(body, ModelReplied)]
    texts = [body.text for body in replies if body.text]
    assert texts == ["The last words of the first turn.", "Add adds."]
