"""Real harnesses, from the registry, in a real sandbox: what a person, a rule, a crash and the evidence do to each of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.whole.e2e.setup.ordinary import registry

LONG = pytest.mark.long(only=True)
TASK = """
[[reply]]
say = "I push first."
calls = [{push}]
[[reply]]
calls = [{look}]
[[reply]]
calls = [{wrong}]
[[reply]]
say = "It is done."
[[reply]]
expect = "Not done yet"
calls = [{right}]
[[reply]]
say = "Add adds."
"""


def call(tool: str, **arguments: str) -> str:
    return (
        f"{{ tool = {json.dumps(tool)}, "
        + ", ".join(f"{k} = {json.dumps(v)}" for k, v in arguments.items())
        + " }"
    )


def patched(old: str, new: str) -> str:
    patch = (
        f"*** Begin Patch\n*** Update File: calc.py\n@@\n-    return {old}\n+    return {new}\n*** End Patch"
    )
    return call("exec_command", cmd=f"apply_patch <<'E'\n{patch}\nE\n")


OPENCODE = {
    "push": call("bash", command="git push origin main", description="Push"),
    "look": call("read", filePath="/work/calc.py"),
    "wrong": call("edit", filePath="/work/calc.py", oldString="b - a", newString="a - b"),
    "right": call("edit", filePath="/work/calc.py", oldString="a - b", newString="a + b"),
}
CLAUDE = {
    "push": call("Bash", command="git push origin main", description="Push"),
    "look": call("Read", file_path="/work/calc.py"),
    "wrong": call("Edit", file_path="/work/calc.py", old_string="b - a", new_string="a - b"),
    "right": call("Edit", file_path="/work/calc.py", old_string="a - b", new_string="a + b"),
}
CODEX = {
    "push": call("exec_command", cmd="git push origin main"),
    "look": call("exec_command", cmd="cat calc.py"),
    "wrong": patched("b - a", "a - b"),
    "right": patched("a - b", "a + b"),
}


def bodies(cloister: Any, kind: str) -> list[dict[str, Any]]:
    return [e["body"] for e in cloister.events() if e["body"]["type"] == kind]


@pytest.fixture
def calc(cloister: Any) -> Path:
    at = cloister.cwd / "calc"
    at.mkdir()
    (at / "calc.py").write_text("def add(a, b):\n    return b - a\n")
    (at / "test_calc.py").write_text("import calc\n\ndef test_add():\n    assert calc.add(1, 2) == 3\n")
    (at / ".gitignore").write_text("__pycache__/\n")
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
        cloister.git(at, *args)
    return at


@LONG
def test_opencode_and_our_own_loop_are_ranked_by_the_same_evidence(cloister: Any, calc: Path) -> None:
    registry("pypi")
    registry("npm")
    fix = call("edit", path="calc.py", old="b - a", new="a + b")
    ours = cloister.script(f'[[reply]]\ncalls = [{fix}]\n[[reply]]\nsay = "Add adds."\n')
    theirs = cloister.script(TASK.format(**OPENCODE))
    attempts = (f"model={ours},harness=native", f"model={theirs},harness=opencode")
    both = [word for one in attempts for word in ("--attempt", one)]
    check = ("--check", "python3 -m pytest -q -p no:cacheprovider")
    cloister("run", "Make add work.", "--repo", str(calc), *check, *both, seconds=800)
    ended = {body["attempt"]: body["outcome"] for body in bodies(cloister, "AttemptEnded")}
    assert ended == {0: "proven", 1: "proven"}
    assert len(bodies(cloister, "AttemptsRanked")) == 1


WORDS = {"opencode": OPENCODE, "claude": CLAUDE, "codex": CODEX}


@LONG
@pytest.mark.parametrize("harness", WORDS)
def test_a_real_harness_solves_a_task_and_its_push_is_denied(cloister: Any, calc: Path, harness: str) -> None:
    registry("pypi")
    registry("npm")
    script = cloister.script(TASK.format(**WORDS[harness]))
    model = ("--model", script, "--check", "python3 -m pytest -q -p no:cacheprovider")
    rule = ("--rule", "deny bash:git push *", "--harness", harness)
    done = cloister("run", "Make add work.", "--repo", str(calc), *model, *rule, seconds=800, code=None)
    assert "✓ proven" in done.stdout, done.stdout
    (denied,) = [body for body in bodies(cloister, "ActionDecided") if body["effect"] == "deny"]
    assert denied["action"].startswith("bash: ") and "git push origin main" in denied["action"]
    called = [call["arguments"] for body in bodies(cloister, "ModelReplied") for call in body["calls"]]
    assert "git push origin main" in called[0]["command"], called[0]
    edits = [body for body in bodies(cloister, "ActionDecided") if body["action"] == "edit: calc.py"]
    assert [body["effect"] for body in edits] == ["allow", "allow"]
    assert len(bodies(cloister, "FinishRefused")) == 1
    assert {body["purpose"] for body in bodies(cloister, "ModelSpent")} == {"harness"}


def shell(harness: str, line: str) -> str:
    """A call of the tool by which a harness runs a command line."""
    if harness == "codex":
        return call("exec_command", cmd=line)
    return call("Bash" if harness == "claude" else "bash", command=line, description="Run it")


CHECK = ("--check", "python3 -m pytest -q -p no:cacheprovider")


@LONG
@pytest.mark.parametrize("harness", WORDS)
def test_a_real_harness_that_cheats_ends_red(cloister: Any, calc: Path, harness: str) -> None:
    registry("pypi")
    registry("npm")
    cheat = shell(harness, "printf 'def test_add():\\n    assert True\\n' > test_calc.py")
    claims = '[[reply]]\nname = "claims"\nsay = "All tests pass."\ngoto = "claims"\n'
    model = ("--model", cloister.script(f"[[reply]]\ncalls = [{cheat}]\n{claims}"), "--harness", harness)
    cloister("run", "Make add work.", "--repo", str(calc), *model, *CHECK, seconds=800, code=1)
    (end,) = bodies(cloister, "AttemptEnded")
    assert (end["outcome"], len(bodies(cloister, "FinishRefused"))) == ("red", 3)
    assert "without a change" in end["reason"]


@pytest.mark.parametrize(
    "harness", ["opencode", *(pytest.param(one, marks=LONG) for one in ("claude", "codex"))]
)
def test_a_real_harness_is_stopped_with_its_commands(cloister: Any, calc: Path, harness: str) -> None:
    registry("pypi")
    registry("npm")
    script = cloister.script(f"[[reply]]\ncalls = [{shell(harness, 'sleep 1000')}]\n")
    cloister("serve", "--background", "--port", "0")
    more = ("--model", script, "--harness", harness, "--detach", *CHECK)
    cloister("run", "Make add work.", "--repo", str(calc), *more)
    cloister.until(lambda: cloister.has("ActionDecided"), seconds=800)
    cloister("stop", "last")
    cloister("watch", "last", code=None)
    end = cloister.events()[-1]["body"]
    assert (end["type"], end["outcome"]) == ("RunFinished", "stopped")
    cloister.until(lambda: not cloister.sandbox_processes())


RESUMED = """
[[reply]]
calls = [{look}]
branch = [{{ when = "return a - b", goto = "again" }}, {{ when = "return b - a", goto = "first" }}]
[[reply]]
name = "first"
calls = [{wrong}]
[[reply]]
say = "Done?"
[[reply]]
calls = [{ask}]
[[reply]]
name = "again"
calls = [{ask}]
[[reply]]
calls = [{die}]
[[reply]]
calls = [{right}]
[[reply]]
calls = [{right}]
[[reply]]
name = "over"
say = "Add adds."
goto = "over"
"""
"""A program may add a message of its own to a session that it loads, so what comes after the crash is there twice."""
KILL = (
    "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline | "
    "grep -qE 'opencode [a]cp|[c]laude-agent-acp|codex [a]pp-server' && kill -9 ${p#/proc/}; done"
)
"""Ends the program of a harness, whichever of its processes runs commands."""


@LONG
@pytest.mark.parametrize("harness", WORDS)
def test_a_real_harness_asks_a_person_and_resumes_after_kill_9_of_the_server_and_of_itself(
    cloister: Any, calc: Path, harness: str
) -> None:
    registry("pypi")
    registry("npm")
    more = {"ask": shell(harness, "touch /tmp/asked"), "die": shell(harness, KILL)}
    script = cloister.script(
        RESUMED.format(**WORDS[harness] | {"look": shell(harness, "cat calc.py")} | more)
    )
    cloister("serve", "--background", "--port", "0")
    how = ("--model", script, "--harness", harness, "--rule", "ask bash:touch *", "--detach", *CHECK)
    cloister("run", "Make add work.", "--repo", str(calc), *how)
    cloister.until(lambda: cloister.has("AskRaised"), seconds=800)
    cloister.kill_server()
    cloister("serve", "--background", "--port", "0")
    cloister.until(lambda: len(bodies(cloister, "AskRaised")) == 2, seconds=800)
    asked = bodies(cloister, "AskRaised")[-1]
    assert "touch /tmp/asked" in asked["action"]
    cloister("answer", "last", asked["ask"], "allow")
    assert "✓ proven" in cloister("watch", "last", seconds=800).stdout
    (died,) = bodies(cloister, "ModelFailed")
    assert f"The harness {harness} ended (signal 9)" in died["message"]
    assert len(bodies(cloister, "AskRaised")) == 2, "a new session would begin the script again"
