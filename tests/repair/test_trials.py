import sys
from pathlib import Path

import pytest

from .conftest import PYTEST, Repo

pytestmark = pytest.mark.anyio

CALC = """LIMIT = 3


def clamp(x):
    if x > LIMIT:
        return LIMIT
    return x


def grade(points):
    if points > 50:
        return "pass"
    return "fail"
"""
TESTS = """from pkg.calc import clamp, grade


def test_clamp():
    assert clamp(4) == 3
    assert clamp(1) == 1


def test_grade():
    assert grade(51) == "pass"
    assert grade(49) == "fail"


def test_edge():
    assert grade(50) == "pass"
"""


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path, {"pkg/__init__.py": "", "pkg/calc.py": CALC, "tests/test_calc.py": TESTS})


async def test_coverage_points_at_the_function_of_the_failing_test(repo: Repo) -> None:
    found = await repo.localise(PYTEST)
    assert found.method == "coverage"
    assert [failure.test for failure in found.failing] == ["tests/test_calc.py::test_edge"]
    assert {(one.path, one.line) for one in found.suspects} == {("pkg/calc.py", 11), ("pkg/calc.py", 13)}


async def test_a_wrong_boundary_is_repaired_and_the_files_stay_as_they_are(repo: Repo) -> None:
    before = repo.files()
    chosen = await repo.repair(PYTEST)
    assert chosen is not None
    assert chosen.trial.candidate.diff == (
        "--- a/pkg/calc.py\n+++ b/pkg/calc.py\n@@ -11,1 +11,1 @@\n-    if points > 50:\n+    if points >= 50:\n"
    )
    assert chosen.trial.made_green == ("tests/test_calc.py::test_edge",)
    assert chosen.reasons[-1] == "found by search, plausible, not proven correct"
    assert repo.files() == before


async def test_a_suite_without_pytest_is_driven_by_unittest(tmp_path: Path) -> None:
    tests = (
        "import unittest\nfrom calc import grade\n\n\nclass Grades(unittest.TestCase):\n"
        "    def test_edge(self):\n        self.assertEqual(grade(50), 'pass')\n\n"
        "    def test_low(self):\n        self.assertEqual(grade(49), 'fail')\n"
    )
    repo = Repo(tmp_path, {"calc.py": CALC, "test_calc.py": tests})
    chosen = await repo.repair(f"{sys.executable} -m unittest discover")
    assert chosen is not None
    assert "points >= 50" in chosen.trial.candidate.after
    assert chosen.trial.made_green == ("test_calc.Grades.test_edge",)
