"""Runs with a harness of somebody else: a program in a real sandbox that speaks ACP, and asks the model at the endpoint."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

AGENT = Path(__file__).parents[3] / "agent" / "harnesses" / "acp" / "agent.py"
HARNESS = "acp:python3 agent.py"
CHECK = "python3 -m pytest -q -p no:cacheprovider"
FIX = '{ tool = "write", path = "calc.py", content = "def add(a, b):\\n    return a + b\\n" }'
WRONG = '{ tool = "write", path = "calc.py", content = "def add(a, b):\\n    return b - a\\n" }'


@pytest.fixture
def calc(cloister: Any) -> Path:
    """A repository with one bug, and the harness."""
    at = cloister.cwd / "calc"
    at.mkdir()
    (at / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (at / "test_calc.py").write_text("import calc\n\ndef test_add():\n    assert calc.add(1, 2) == 3\n")
    (at / ".gitignore").write_text("__pycache__/\n")
    shutil.copy(AGENT, at / "agent.py")
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
        cloister.git(at, *args)
    return at


def start(cloister: Any, calc: Path, script: str, *more: str, **how: Any) -> Any:
    model = ("--model", cloister.script(script), "--check", CHECK, "--harness", HARNESS)
    return cloister("run", "Make add work.", "--repo", str(calc), *model, *more, **how)


def bodies(cloister: Any, kind: str) -> list[dict[str, Any]]:
    return [e["body"] for e in cloister.events() if e["body"]["type"] == kind]


def test_a_harness_is_judged_by_our_policy_and_our_evidence(cloister: Any, calc: Path) -> None:
    script = f"""
[[reply]]
say = "I push first."
calls = [{{ tool = "bash", command = "git push origin main" }}]
[[reply]]
expect = "rejected"
calls = [{{ tool = "look", path = "calc.py" }}, {WRONG}]
[[reply]]
say = "It is done."
[[reply]]
expect = "Not done yet: (?s:.*)test_add(?s:.*)Not allowed here(?s:.*)git push"
calls = [{FIX}]
[[reply]]
say = "Add adds."
"""
    done = start(cloister, calc, script, "--rule", "deny bash:git push *")
    assert "✓ proven" in done.stdout
    assert f"· harness {HARNESS} in the sandbox, model script:" in done.stdout
    assert bodies(cloister, "AttemptStarted")[0]["harness"] == HARNESS
    replies = bodies(cloister, "ModelReplied")
    said = [(body["text"], [call["name"] for call in body["calls"]]) for body in replies]
    assert said == [
        ("I push first.", ["bash"]),
        ("", ["read"]),
        ("", ["edit"]),
        ("It is done.", []),
        ("", ["edit"]),
        ("Add adds.", []),
    ]
    decided = [(body["effect"], body["action"]) for body in bodies(cloister, "ActionDecided")]
    assert decided == [
        ("deny", "bash: git push origin main"),
        ("allow", "read: calc.py"),
        ("allow", "edit: calc.py"),
        ("allow", "edit: calc.py"),
    ]
    assert [body["ok"] for body in bodies(cloister, "ToolReturned")] == [False, True, True, True]
    assert len(bodies(cloister, "FinishRefused")) == 1
    spent = bodies(cloister, "ModelSpent")
    assert [body["purpose"] for body in spent] == ["harness"] * 5
    assert all(body["usage"]["input_tokens"] for body in spent)
    (change,) = bodies(cloister, "ChangeMade")
    assert change["summary"].startswith("Add adds.")
    plans = [(body["role"], body["text"]) for body in bodies(cloister, "Advised")]
    assert plans == [("plan", "- Do what is asked.")]


def test_a_harness_resumes_after_kill_9_of_the_server_and_of_itself(cloister: Any, calc: Path) -> None:
    """A person is asked in between. The new sandbox has no session, so a summary begins the new one."""
    script = f"""
[[reply]]
calls = [{{ tool = "bash", command = "grep -c 'An earlier sessio[n]' ~/.acp-agent/*; cat calc.py" }}]
branch = [{{ when = "b - a", goto = "again" }}, {{ when = "a - b", goto = "first" }}]
[[reply]]
name = "first"
calls = [{WRONG}]
[[reply]]
say = "Done?"
[[reply]]
calls = [{{ tool = "bash", command = "touch /tmp/asked" }}]
[[reply]]
name = "again"
calls = [{{ tool = "bash", command = "kill -9 $PPID" }}]
[[reply]]
expect = "You were cut off"
calls = [{{ tool = "bash", command = "touch /tmp/asked" }}]
[[reply]]
calls = [{FIX}]
[[reply]]
say = "Add adds."
"""
    cloister("serve", "--background", "--port", "0")
    start(cloister, calc, script, "--detach", "--rule", "ask bash:touch *")
    cloister.until(lambda: cloister.has("AskRaised"))
    cloister.kill_server()
    cloister("serve", "--background", "--port", "0")
    cloister.until(lambda: len(bodies(cloister, "AskRaised")) == 2)
    asked = bodies(cloister, "AskRaised")[-1]
    assert asked["action"] == "bash: touch /tmp/asked"
    cloister("answer", "last", asked["ask"], "allow")
    assert "✓ proven" in cloister("watch", "last").stdout
    kinds = cloister.kinds()
    assert kinds.index("AskRaised") < kinds.index("RunResumed")
    looked = [
        body["text"].split("\n")[0] for body in bodies(cloister, "ToolReturned") if "def add" in body["text"]
    ]
    assert [text.rpartition(":")[2] for text in looked] == ["0", "1"], "only the new session has the summary"
    (died,) = bodies(cloister, "ModelFailed")
    assert "ended (signal 9)" in died["message"]
    steps = [body["step"] for body in bodies(cloister, "ModelReplied")]
    assert steps == sorted(set(steps))


def test_a_sandbox_that_crashes_takes_its_harness_along_and_the_next_one_goes_on(
    cloister: Any, calc: Path
) -> None:
    script = f"""
[[reply]]
calls = [{{ tool = "bash", command = "cat kept.txt; echo kept > kept.txt" }}]
branch = [{{ when = "No such file", goto = "first" }}, {{ when = "kept", goto = "again" }}]
[[reply]]
name = "first"
say = "Done?"
[[reply]]
calls = [{{ tool = "bash", command = "sleep 1000" }}]
[[reply]]
name = "again"
calls = [{FIX}]
[[reply]]
say = "Add adds."
"""
    cloister("serve", "--background", "--port", "0")
    start(cloister, calc, script, "--detach")
    cloister.until(lambda: any("sleep" in body["action"] for body in bodies(cloister, "ActionDecided")))
    for pid in cloister.sandbox_processes():
        cloister.kill(pid)
    assert "✓ proven" in cloister("watch", "last").stdout
    kinds = cloister.kinds()
    assert "SandboxOpened" in kinds[kinds.index("RunResumed") :]
    told = [body["text"] for body in bodies(cloister, "ToolReturned")]
    assert any(text.startswith("kept") for text in told), told


def test_a_harness_takes_no_step_beyond_its_budget_and_its_work_is_kept(cloister: Any, calc: Path) -> None:
    script = """
[[reply]]
name = "again"
calls = [{ tool = "bash", command = "echo line >> kept.txt" }]
goto = "again"
"""
    fields = {"repo": str(calc), "model": cloister.script(script), "checks": [CHECK], "harness": HARNESS}
    lines = [
        f"{name} = {json.dumps(value)}" for name, value in (fields | {"prompt": "Make add work."}).items()
    ]
    (cloister.cwd / "run.toml").write_text("\n".join(lines))
    cloister("run", "--file", str(cloister.cwd / "run.toml"), "--steps", "2", code=1)
    (end,) = bodies(cloister, "AttemptEnded")
    assert end["outcome"] == "budget", end
    assert "2 steps" in end["reason"]
    assert len(bodies(cloister, "ModelSpent")) == len(bodies(cloister, "ModelReplied")) == 2
    assert "+line\n+line\n" in cloister("diff", "last").stdout


def test_a_message_ends_the_turn_of_a_harness_and_a_stop_ends_the_run(cloister: Any, calc: Path) -> None:
    script = f"""
[[reply]]
calls = [{{ tool = "bash", command = "sleep 1000" }}]
[[reply]]
expect = "Message from (?s:.*)Look at calc.py"
calls = [{FIX}]
[[reply]]
calls = [{{ tool = "bash", command = "sleep 2000" }}]
"""
    cloister("serve", "--background", "--port", "0")
    start(cloister, calc, script, "--detach")
    cloister.until(lambda: cloister.has("ActionDecided"))
    cloister("say", "last", "Look at calc.py.")
    cloister.until(lambda: len(bodies(cloister, "ActionDecided")) == 3)
    cloister("stop", "last")
    cloister("watch", "last", code=None)
    end = cloister.events()[-1]["body"]
    assert (end["type"], end["outcome"]) == ("RunFinished", "stopped")
    first = bodies(cloister, "ToolReturned")[0]
    assert (first["tool"], first["ok"]) == ("bash", False)


def test_a_harness_that_cheats_ends_red_and_one_beside_our_own_loop_is_ranked_with_it(
    cloister: Any, calc: Path
) -> None:
    cheats = """
[[reply]]
calls = [{ tool = "write", path = "test_calc.py", content = "def test_add():\\n    assert True\\n" }]
[[reply]]
name = "claims"
say = "All tests pass."
goto = "claims"
"""
    start(cloister, calc, cheats, code=1)
    end = bodies(cloister, "AttemptEnded")[0]
    assert (end["outcome"], len(bodies(cloister, "FinishRefused"))) == ("red", 3)
    assert "without a change" in end["reason"]

    solves = f"""
[[reply]]
calls = [{FIX}]
[[reply]]
say = "Add adds."
"""
    model = ("--model", cloister.script(solves), "--check", CHECK)
    both = ("--attempt", "harness=native", "--attempt", f"harness={HARNESS}")
    cloister("run", "Make add work.", "--repo", str(calc), *model, *both)
    started = {body["attempt"]: body.get("harness", "native") for body in bodies(cloister, "AttemptStarted")}
    assert started == {0: "native", 1: HARNESS}
    assert [body["outcome"] for body in bodies(cloister, "AttemptEnded")] == ["proven", "proven"]
