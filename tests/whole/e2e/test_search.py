"""A beam of three in real forks: the tree is in the log, `cloister tree` and the API show it, the budget bounds it."""

import json
import urllib.request
from collections import Counter
from typing import Any

CHECK = "python3 -m unittest -q"
BROKEN = "".join(
    f"def {name}(a, b):\n    return {wrong}\n\n\n"
    for name, wrong in (("add", "a - b"), ("sub", "a + b"), ("mul", "a / b"))
)
TESTS = """\
import unittest
import calc


class Calc(unittest.TestCase):
    def test_add(self):
        self.assertEqual(calc.add(1, 2), 3)

    def test_sub(self):
        self.assertEqual(calc.sub(3, 2), 1)

    def test_mul(self):
        self.assertEqual(calc.mul(3, 2), 6)
"""
ADD = "sed -i '/def add/,/return/ s/a - b/a + b/' calc.py"
SUB = "sed -i '/def sub/,/return/ s/a + b/a - b/' calc.py"
MUL = "sed -i '/def mul/,/return/ s@a / b@a * b@' calc.py"


def reply(command: str, name: str, *, told: str = "round", then: str = "round") -> str:
    """Does `command`, and goes on at `told` if it hears that somebody was stuck here."""
    branch = f'[{{ when = "Take another way", goto = "{told}" }}, {{ goto = "{then}" }}]'
    calls = f'[{{ tool = "bash", command = """{command}""" }}]'
    return f'[[reply]]\nname = "{name}"\ncalls = {calls}\nbranch = {branch}\n'


NOTE = reply("echo note > notes.txt", "note") + reply("echo round and round", "round")
LOST = reply(ADD, "one", then="note") + NOTE
FINDS = (
    reply(ADD, "one", told="two", then="note")
    + NOTE
    + reply(SUB, "two", told="three")
    + reply(MUL, "three", then="end")
    + '[[reply]]\nname = "end"\ncalls = [{ tool = "finish", summary = "All three are right." }]\n'
)
"""Fixes one bug and is stuck. A fork from there fixes another and is stuck; a fork from that one fixes the third."""


def calc(cloister: Any) -> str:
    at = cloister.cwd / "calc"
    at.mkdir()
    (at / "calc.py").write_text(BROKEN)
    (at / "test_calc.py").write_text(TESTS)
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
        cloister.git(at, *args)
    return str(at)


def searched(cloister: Any, repo: str, script: str, steps: int, *more: str) -> list[dict[str, Any]]:
    cloister(
        *("run", "Fix it.", "--repo", repo, "--check", CHECK, "--model", cloister.script(script)),
        *("--search", "beam:3", "--steps", str(steps), *more),
        code=None,
    )
    return cloister.events()


def of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event["body"] for event in events if event["body"]["type"] == kind]


def asked(cloister: Any, path: str) -> Any:
    server = json.loads((cloister.data_dir / "server.json").read_text())
    token = (cloister.data_dir / "token").read_text().strip()
    request = urllib.request.Request(
        f"http://127.0.0.1:{server['port']}{path}", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def check_bounds(events: list[dict[str, Any]], steps: int) -> None:
    """Never more than three at work; what is given on is not more than was left; all in all no more than was given."""
    live: set[int] = set()
    given: dict[int, int] = {}
    spent: Counter[int] = Counter()
    forks: dict[int, list[dict[str, Any]]] = {}
    for body in (event["body"] for event in events):
        match body["type"]:
            case "AttemptStarted":
                live.add(body["attempt"])
                given[body["attempt"]] = body["budget"]["steps"]
            case "AttemptForked":
                live.discard(body["stuck"])
                live.add(body["attempt"])
                forks.setdefault(body["stuck"], []).append(body)
                together = sum(one["budget"]["steps"] for one in forks[body["stuck"]])
                assert together <= given[body["stuck"]] - spent[body["stuck"]]
            case "AttemptEnded":
                live.discard(body["attempt"])
            case "ModelReplied":
                spent[body["attempt"]] += 1
                assert spent[body["attempt"]] <= given[body["attempt"]]
            case _:
                pass
        assert len(live) <= 3
    assert sum(spent.values()) <= steps


def test_a_beam_of_three_grows_a_tree_that_can_be_seen_and_ends_within_its_budget(cloister: Any) -> None:
    repo = calc(cloister)
    cloister.data_dir.mkdir(parents=True, exist_ok=True)
    (cloister.data_dir / "config.toml").write_text("[stuck]\nrepeats = 2\n")
    cloister("serve", "--background", "--port", "0")

    events = searched(cloister, repo, FINDS, 90, "--first-green")
    forks = of(events, "AttemptForked")
    points = {event["seq"] for event in events if event["body"]["type"] == "TurnEnded"}
    first = [fork for fork in forks if fork["stuck"] == 0]
    assert [fork["attempt"] for fork in first] == [1, 2, 3]
    assert {fork["parent"] for fork in first} == {0}
    best, noted, base = (fork["at_seq"] for fork in first)
    assert {best, noted} <= points
    assert best < noted, "of the two that are equally red the earlier comes first"
    assert base == 0, "and the untouched base last"
    opened = Counter(body["attempt"] for body in of(events, "SandboxOpened"))
    assert all(opened[number] == 1 for number in (0, 1, 2, 3)), "each in a fork of its own"
    check_bounds(events, 90)
    finished = of(events, "RunFinished")[0]
    assert finished["outcome"] == "proven"
    winner = next(fork for fork in forks if fork["attempt"] == finished["attempt"])
    assert winner["stuck"] != 0, "it took two forks in a row"
    assert next(fork for fork in forks if fork["attempt"] == winner["parent"])["parent"] == 0

    run = events[0]["run"]
    shown = asked(cloister, f"/v1/runs/{run}/tree")
    assert shown == cloister.json("tree", run)
    nodes = {node["attempt"]: node for node in shown["nodes"]}
    assert {number: (node["parent"], node["at"]) for number, node in nodes.items()} == {
        0: (None, None),
        **{fork["attempt"]: (fork["parent"], fork["at_seq"]) for fork in forks},
    }
    assert shown["winner"] == finished["attempt"]
    drawn = cloister("tree", run).stdout.splitlines()
    depths = {
        line.split("attempt ")[1].split()[0]: line.index("attempt ") for line in drawn if "─ attempt" in line
    }
    assert depths["0"] < depths["1"] == depths["2"] == depths["3"] < depths[str(finished["attempt"])]
    assert any(
        f"attempt {finished['attempt']} proven ★  from event {winner['at_seq']}" in line for line in drawn
    )
    assert any("attempt 3 " in line and "from the base" in line for line in drawn)

    lost = searched(cloister, repo, LOST, 30)
    assert of(lost, "RunFinished")[0]["outcome"] in ("red", "budget")
    assert len(of(lost, "AttemptForked")) >= 3
    check_bounds(lost, 30)
    ended = Counter(body["attempt"] for body in of(lost, "AttemptEnded"))
    assert ended == Counter(body["attempt"] for body in of(lost, "AttemptStarted")), "all of them ended, once"
