"""Real harnesses, from the registry, in a real sandbox: each solves a task with a scripted model, and pushes nothing."""

from pathlib import Path
from typing import Any

import pytest
from tests.whole.e2e.setup.ordinary import registry

pytestmark = pytest.mark.long(only=True)
TASK = """
[[reply]]
say = "I push first."
calls = [{{ tool = "{bash}", command = "git push origin main", description = "Push" }}]
[[reply]]
calls = [{{ tool = "{read}", {path} = "/work/calc.py" }}]
[[reply]]
calls = [{{ tool = "{edit}", {path} = "/work/calc.py", {old} = "b - a", {new} = "a - b" }}]
[[reply]]
say = "It is done."
[[reply]]
expect = "Not done yet"
calls = [{{ tool = "{edit}", {path} = "/work/calc.py", {old} = "a - b", {new} = "a + b" }}]
[[reply]]
say = "Add adds."
"""
OPENCODE = {
    "bash": "bash",
    "read": "read",
    "edit": "edit",
    "path": "filePath",
    "old": "oldString",
    "new": "newString",
}
CLAUDE = {
    "bash": "Bash",
    "read": "Read",
    "edit": "Edit",
    "path": "file_path",
    "old": "old_string",
    "new": "new_string",
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


@pytest.mark.parametrize(("harness", "words"), [("opencode", OPENCODE), ("claude", CLAUDE)])
def test_a_real_harness_solves_a_task_and_its_push_is_denied(
    cloister: Any, calc: Path, harness: str, words: dict[str, str]
) -> None:
    registry("pypi")
    registry("npm")
    script = cloister.script(TASK.format(**words))
    model = ("--model", script, "--check", "python3 -m pytest -q -p no:cacheprovider")
    rule = ("--rule", "deny bash:git push *", "--harness", harness)
    done = cloister("run", "Make add work.", "--repo", str(calc), *model, *rule, seconds=800, code=None)
    assert "✓ proven" in done.stdout, done.stdout
    (denied,) = [body for body in bodies(cloister, "ActionDecided") if body["effect"] == "deny"]
    assert denied["action"] == "bash: git push origin main"
    edits = [body for body in bodies(cloister, "ActionDecided") if body["action"] == "edit: calc.py"]
    assert [body["effect"] for body in edits] == ["allow", "allow"]
    assert len(bodies(cloister, "FinishRefused")) == 1
    assert {body["purpose"] for body in bodies(cloister, "ModelSpent")} == {"harness"}
