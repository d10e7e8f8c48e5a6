"""A run in which a model of its own says what kind of task it is, plans, codes and reviews."""

from typing import Any

CLASSIFIER = """
[[reply]]
expect = "Kinds: docs, fix"
calls = [{ tool = "choose", kind = "fix" }]
"""
PLANNER = """
[[reply]]
say = "Turn the sign around."
"""
CODER = """
[[reply]]
expect = "Turn the sign around"
calls = [{ tool = "bash", command = "sed -i 's/a - b/b + a/' calc.py" }]
[[reply]]
calls = [{ tool = "finish", summary = "It adds." }]
[[reply]]
expect = "Keep the order"
calls = [{ tool = "bash", command = "sed -i 's/b + a/a + b/' calc.py" }]
[[reply]]
calls = [{ tool = "finish", summary = "It adds, in order." }]
"""
REVIEWER = """
[[reply]]
expect = "return b \\\\+ a"
calls = [{ tool = "verdict", approve = false, objections = "Keep the order of the names." }]
"""


def test_each_role_is_done_by_its_own_model_and_a_review_can_send_a_proven_change_back(cloister: Any) -> None:
    at = cloister.cwd / "calc"
    at.mkdir()
    (at / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (at / "test_calc.py").write_text(
        "import unittest, calc\n\n\nclass T(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(calc.add(1, 2), 3)\n"
    )
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
        cloister.git(at, *args)
    nobody = cloister.script('[[reply]]\nsay = "Nobody asks me."\n')
    classifier, planner = cloister.script(CLASSIFIER), cloister.script(PLANNER)
    reviewer = cloister.script(REVIEWER)
    cloister.data_dir.mkdir(exist_ok=True)
    (cloister.data_dir / "config.toml").write_text(
        f'[models]\ncode = "{nobody}"\nclassify = "{classifier}"\nplan = "{planner}"\n'
        f'review = "{reviewer}"\n'
        f'[models.kind.docs]\ncode = "{nobody}"\n[models.kind.fix]\ncode = "{cloister.script(CODER)}"\n'
    )

    cloister("run", "Make add work.", "--repo", str(at), "--check", "python3 -m unittest -q", code=0)

    bodies = [event["body"] for event in cloister.events()]
    advice = [(body["role"], body["model"], body["text"]) for body in bodies if body["type"] == "Advised"]
    assert advice == [
        ("classify", classifier, "fix"),
        ("plan", planner, "Turn the sign around."),
        ("review", reviewer, "Keep the order of the names."),
    ]
    assert [body["role"] for body in bodies if body["type"] == "ModelFailed"] == ["review"], (
        "it had no more to say"
    )
    assert bodies[-1]["outcome"] == "proven"
    branch = cloister.git(at, "branch", "--list", "cloister/*").split()[-1]
    assert "return a + b" in cloister.git(at, "show", f"{branch}:calc.py")
