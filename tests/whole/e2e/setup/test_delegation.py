"""What a run has beside its own commands, in real sandboxes: helpers, functions of Python packages, a person's skills."""

import json
from pathlib import Path
from typing import Any

from tests.runs.arena import ADD, BROKEN, SUB, TESTS
from tests.runs.attempts.test_helpers import REPORT, TASK, both, take
from tests.runs.attempts.test_skills import put_skill
from tests.whole.e2e.setup.test_environments import bodies

PROMPT = "The tests of calc fail. Correct add and sub."
FINISH = 'calls = [{ tool = "finish", summary = "Both are right." }]'


def bash(command: str) -> str:
    return f'calls = [{{ tool = "bash", command = """{command}""" }}]'


def calc(cloister: Any) -> str:
    at = cloister.cwd / "calc"
    at.mkdir()
    (at / "calc.py").write_text(BROKEN)
    (at / "test_calc.py").write_text(TESTS)
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
        cloister.git(at, *args)
    return str(at)


def test_a_helper_works_in_a_sandbox_of_its_own_and_the_attempt_takes_its_change(cloister: Any) -> None:
    ask = f'calls = [{{ tool = "delegate", task = "{TASK}" }}]'
    look = bash(f"cat helped; sed -n '/def sub/,/return/p' calc.py; {ADD}")
    script = both([ask, look, take(1), FINISH], [bash(f"echo yes > helped; {SUB}"), REPORT])
    done = cloister("run", PROMPT, "--repo", calc(cloister), "--model", cloister.script(script), seconds=300)
    assert "✓ proven" in done.stdout, done.stdout
    (begun,), (ended,) = bodies(cloister, "Delegated"), bodies(cloister, "DelegationEnded")
    assert (begun["attempt"], begun["parent"], begun["task"]) == (1, 0, TASK)
    assert (ended["outcome"], ended["report"]) == ("done", "sub added instead of subtracting.")
    opened = [(body["attempt"], body["sandbox"]) for body in bodies(cloister, "SandboxOpened")]
    assert len([one for one in opened if one[0] == 1]) == 1
    assert len({sandbox for _, sandbox in opened}) == len(opened)
    own = [body for body in bodies(cloister, "ToolReturned") if body["attempt"] == 0]
    _, report, looked, took = own[:4]
    assert report["text"].startswith("Helper 1 is done. Its report:\nsub added instead of subtracting.")
    assert "No such file" in looked["text"] and "return a + b" in looked["text"]
    assert took["text"] == "Changed: calc.py, helped"
    assert {"+    return a + b", "+    return a - b", "+yes"} <= set(
        cloister("diff", "last").stdout.split("\n")
    )
    tree = cloister("tree", "last").stdout
    assert "└─ helper 1 done" in tree, tree


PACKAGE = '''\
async def ticket(number: int, lines: int = 3) -> str:
    """Look up a ticket."""
    return f"ticket {number}: sub adds ({lines} lines)"
'''


def test_a_run_uses_a_function_of_a_package_and_a_skill_of_the_person(cloister: Any, tmp_path: Path) -> None:
    about = tmp_path / "packages" / "company_tools-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: company-tools\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[cloister.tools]\nticket = company_tools:ticket\n")
    (about.parent / "company_tools.py").write_text(PACKAGE)
    put_skill(tmp_path / "home" / ".claude" / "skills", "release", body="Run the script with a name.")
    cloister.more_env |= {"PYTHONPATH": str(about.parent), "HOME": str(tmp_path / "home")}
    there = ("--repo", calc(cloister))
    script = cloister.script(
        '[[reply]]\ncalls = [{ tool = "skill", name = "release" }, { tool = "ticket", number = 7 }]\n'
        f'[[reply]]\nexpect = "no rule allows it|ticket 7"\n{bash(f"/tmp/skills/release/scripts/tag.sh one; {ADD}; {SUB}")}\n'
        f"[[reply]]\n{FINISH}\n"
    )
    denied = cloister("run", PROMPT, *there, "--model", script, seconds=300)
    assert "✓ proven" in denied.stdout, denied.stdout
    assert [body["text"] for body in bodies(cloister, "ToolReturned")][1] == "Not allowed: no rule allows it."
    with (cloister.data_dir / "config.toml").open("a") as file:
        file.write('[[policy]]\naction = "tool:ticket"\neffect = "allow"\n')
    cloister("run", PROMPT, *there, "--model", script, seconds=300)
    skill, ticket, ran, *_ = bodies(cloister, "ToolReturned")
    assert "Run the script with a name." in skill["text"]
    assert (ticket["text"], ticket["origin"]) == ("ticket 7: sub adds (3 lines)", "server")
    assert ran["text"].startswith("tagged one")
    (pinned,) = bodies(cloister, "SkillsPinned")
    assert [(one["name"], one["layer"]) for one in pinned["skills"]] == [("release", "user")]
    shown = cloister("skills", "show", "release").stdout
    assert "Run the script with a name." in shown and "scripts/tag.sh" in shown
    listed = json.loads(cloister("tools", "list", *there, "--json", stdin="").stdout)["tools"]
    assert [(one["name"], one["effect"]) for one in listed] == [("ticket", "allow")]
    tried = cloister("tools", "try", "ticket", '{"number": 8}', *there, stdin="").stdout
    assert tried == "ticket 8: sub adds (3 lines)\n"
