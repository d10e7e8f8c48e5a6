import json
from typing import Any

TESTS = """
import unittest
import calc


class Calc(unittest.TestCase):
    def test_add(self):
        self.assertEqual(calc.add(1, 2), 3)

    def test_sub(self):
        self.assertEqual(calc.sub(3, 2), 1)
"""
ADD = "sed -i '/def add/,/return/ s/a - b/a + b/' calc.py"
SUB = "sed -i '/def sub/,/return/ s/a + b/a - b/' calc.py"
STUCK = f"""
[[reply]]
calls = [{{ tool = "bash", command = \"\"\"{ADD}\"\"\" }}]
branch = [{{ when = "Take another way|The other one, too", goto = "right" }}, {{ goto = "on" }}]
[[reply]]
name = "on"
calls = [{{ tool = "bash", command = "echo round and round" }}]
goto = "on"
[[reply]]
name = "right"
calls = [{{ tool = "bash", command = \"\"\"sleep 1; {SUB}\"\"\" }}]
[[reply]]
calls = [{{ tool = "finish", summary = "Both are right." }}]
"""
HASTY = f"""
[[reply]]
calls = [{{ tool = "bash", command = \"\"\"{ADD}; {SUB}; echo '# done' >> calc.py\"\"\" }}]
[[reply]]
name = "slow"
calls = [{{ tool = "bash", command = "sleep 2" }}]
[[reply]]
calls = [{{ tool = "finish", summary = "Done, with a comment." }}]
"""


def calc(cloister: Any) -> str:
    """A repository with two bugs."""
    at = cloister.cwd / "calc"
    at.mkdir()
    (at / "calc.py").write_text("def add(a, b):\n    return a - b\n\n\ndef sub(a, b):\n    return a + b\n")
    (at / "test_calc.py").write_text(TESTS)
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
        cloister.git(at, *args)
    return str(at)


def ran(cloister: Any, *args: str, code: int = 0) -> Any:
    return cloister("run", "Fix it.", "--check", "python3 -m unittest -q", *args, code=code)


def test_a_tournament_stays_inspectable_and_any_save_point_can_be_resumed(cloister: Any) -> None:
    repo = calc(cloister)
    stuck, hasty = cloister.script(STUCK), cloister.script(HASTY)
    done = ran(cloister, "--repo", repo, "--attempt", f"model={hasty}", "--attempt", f"model={stuck}")
    assert "1. attempt 0 proven" in done.stdout
    run = cloister.events()[0]["run"]
    once = [e["body"].get("phase") for e in cloister.events(run) if e["body"]["type"] == "PhaseStarted"]
    assert [once.count(phase) for phase in ("fetch", "create", "clone", "baseline", "fork")] == [1] * 5
    assert cloister.kinds(run).count("BaselineTaken") == 1
    shown = cloister.json("tree", run)
    assert [(node["outcome"], shown["winner"]) for node in shown["nodes"]] == [("proven", 0), ("red", 0)]
    assert "# done" in cloister("diff", run, "--attempt", "0").stdout
    lost = cloister("diff", run, "--attempt", "1").stdout
    assert "return a + b" in lost
    assert "# done" not in lost
    own = [json.loads(line) for line in cloister("log", run, "--attempt", "1", "--json").stdout.splitlines()]
    assert {event["body"].get("attempt") for event in own} == {None, 1}
    assert "no attempt 5" in cloister("diff", run, "--attempt", "5", code=2).stderr

    point = next(p["seq"] for p in shown["nodes"][1]["points"] if p["red"] == 1)
    assert "no save point" in cloister("fork", run, "--at", "2", code=2).stderr
    cloister("fork", run, "--at", str(point), "--prompt", "The other one, too.")
    forked = cloister.json("tree", "last")
    assert forked["forked_from"] == {"run": run, "seq": point, "say": "The other one, too."}
    assert cloister.events()[-1]["body"]["outcome"] == "proven"
    assert cloister.kinds().count("ModelReplied") == 2, "what was inherited was not asked for again"

    both = cloister.json("compare", f"{run}/0", "last")
    assert (both["a"]["outcome"], both["b"]["outcome"], both["same_change"]) == ("proven", "proven", False)
    assert "-+# done" in both["diff"]
    assert "outcome" in cloister("compare", run, "last").stdout

    again = cloister.json("tree", "last")["nodes"][0]["points"][0]["seq"]
    cloister("rewind", "last", "--to", str(again))
    assert cloister.events()[-1]["body"]["outcome"] == "proven"

    cloister("rm", run)
    assert "only its log is left" in cloister("diff", run, code=2).stderr
    assert cloister.events(run)[-1]["body"]["type"] == "RunFinished"
    assert "only its log is left" in cloister("fork", run, code=2).stderr


def test_kill_9_with_attempts_and_forks_in_flight_ends_the_same(cloister: Any, outside: int) -> None:
    repo = calc(cloister)
    # What was forked waits until the world outside lets it, which is after the kill.
    until_let_go = f"until curl -sf --noproxy '' http://localhost:{outside}/; do sleep 0.1; done"
    stuck, hasty = cloister.script(STUCK.replace("sleep 1", until_let_go)), cloister.script(HASTY)
    cloister("serve", "--background", "--port", "0")
    ran(
        cloister,
        *("--repo", repo, "--attempt", f"model={stuck}", "--attempt", f"model={hasty}"),
        *("--search", "greedy", "--detach", "--allow-host", f"localhost:{outside}"),
    )
    cloister.until(lambda: "AttemptForked" in cloister.kinds())
    cloister.kill_server()
    assert "RunFinished" not in cloister.kinds()
    cloister.let_go()
    cloister("serve", "--background", "--port", "0")
    cloister("watch", "last")
    events = [event["body"] for event in cloister.events()]
    assert "RunResumed" in [body["type"] for body in events]
    ended = {body["attempt"]: body["outcome"] for body in events if body["type"] == "AttemptEnded"}
    assert ended == {0: "red", 1: "proven", 2: "proven"}
    assert (events[-1]["outcome"], events[-1]["attempt"]) == ("proven", 2)
    replies = [(body["attempt"], body["step"]) for body in events if body["type"] == "ModelReplied"]
    assert len(replies) == len(set(replies)), "no reply was asked for twice"
    cloister("serve", "--stop")
    assert list((cloister.data_dir / "sandboxes").iterdir()) == []
