"""`cloister verify` on another machine: only the file and the repository; no file can permit the loss of a test."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.conftest import borrowing

TEST = """import unittest
import calc


class T(unittest.TestCase):
    def test_add(self):
        self.assertEqual(calc.add(1, 2), 3)

    def test_old(self):
        self.assertTrue(calc.add)
"""
FIX = "sed -i 's/a - b/a + b/' calc.py && sed -i '/test_old/,$d' test_calc.py"
MODEL = f"""
[[reply]]
calls = [{{ tool = "bash", command = "{FIX}" }}]
[[reply]]
calls = [{{ tool = "finish", summary = "Add adds; the old test is gone." }}]
"""


def repository(cloister: Any) -> Path:
    repo = cloister.cwd / "calc"
    repo.mkdir()
    (repo / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (repo / "test_calc.py").write_text(TEST)
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
        cloister.git(repo, *args)
    return repo


def test_a_permitted_loss_of_a_test_holds_where_the_log_is_and_elsewhere_by_the_callers_word(
    cloister: Any, warm_dir: Path
) -> None:
    repo = repository(cloister)
    check = ("--check", "python3 -m unittest -v")
    model = ("--model", cloister.script(MODEL), "--allow-test-changes", "test_calc.py")
    cloister("run", "Fix add and drop the old test", "--repo", str(repo), *model, *check)
    assert cloister.json("verify", "last")["holds"]
    file = cloister.cwd / "proof.json"
    said = json.loads(cloister("receipt", "last", "--json").stdout)
    lies = {
        "allow_test_changes": ["**"],
        "permitted": ["test_old"],
        "proof": {**said["proof"], "lost": ["**"]},
    }
    file.write_text(json.dumps({**said, **lies}))
    # The file and the repository are all that the other machine has.
    copy = cloister.cwd / "copy"
    cloister.git(repo, "clone", "-q", "--mirror", str(repo), str(copy))
    other = replace(cloister, data_dir=borrowing(warm_dir, cloister.cwd / "other"))
    verify = ("verify", str(file), "--repo", str(copy), "--json")
    done = other(*verify, code=1)
    found = json.loads(done.stdout)
    assert (found["holds"], found["found"]) == (False, "red")
    assert "test_old" in found["statement"] and "--allow-test-changes" in found["statement"]
    assert not json.loads(other(*verify, "--allow-test-changes", "other.py", code=1).stdout)["holds"]
    allowed = json.loads(other(*verify, "--allow-test-changes", "test_*.py").stdout)
    assert (allowed["holds"], allowed["found"], allowed["shown"]) == (True, "proven", found["shown"])
