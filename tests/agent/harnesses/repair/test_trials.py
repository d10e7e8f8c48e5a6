import sys
from pathlib import Path

import pytest

from cloister.core.errors import UserError, sole
from cloister.harnesses.repair.api import Candidate, Hunk, Trial
from cloister.harnesses.repair.trials import Trials

from .conftest import PYTEST, Repo, suite

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


async def test_a_candidate_that_loops_is_killed_and_a_looping_test_is_repaired(tmp_path: Path) -> None:
    loop = "def count(n):\n    found = 0\n    while n > 0:\n        n += 1\n        found += 1\n    return found\n"
    tests = "from loop import count\n\n\ndef test_count():\n    assert count(3) == 3\n\n\ndef test_none():\n    assert count(0) == 0\n"
    repo = Repo(tmp_path, {"loop.py": loop, "test_loop.py": tests})
    chosen = await repo.repair(PYTEST)
    assert chosen is not None
    assert "n -= 1" in chosen.trial.candidate.after


async def test_tests_that_depend_on_their_order_run_in_it(tmp_path: Path) -> None:
    code = "def longest(words):\n    return sorted(words, key=len)[0] if words else None\n"
    tests = (
        "import time\nfrom words import longest\n\nWORDS = []\n\n\n"
        "def test_slow_start():\n    time.sleep(0.05)\n    assert longest(WORDS) is None\n\n\n"
        "def test_quick_end():\n    WORDS.append('b')\n    assert longest(WORDS) == 'b'\n\n\n"
        "def test_longest():\n    assert longest(['a', 'bcd']) == 'bcd'\n"
    )
    chosen = await Repo(tmp_path, {"words.py": code, "test_words.py": tests}).repair(PYTEST)
    assert chosen is not None
    assert "[-1]" in chosen.trial.candidate.after


async def test_a_bug_at_module_level_is_found_by_the_lines_that_use_it(tmp_path: Path) -> None:
    files = {
        "calc.py": CALC.replace("LIMIT = 3", "LIMIT = 4").replace("> 50", ">= 50"),
        "pkg/__init__.py": "",
    }
    tests = TESTS.replace("pkg.calc", "calc")
    repo = Repo(tmp_path, {**files, "tests/test_calc.py": tests})
    chosen = await repo.repair(PYTEST)
    assert chosen is not None
    assert chosen.trial.candidate.after == "LIMIT = 3\n"
    assert _differing([*chosen.reasons]) > 0


async def test_change_at_module_level_is_compared_with_the_code_before_it(repo: Repo) -> None:
    wrong = CALC.replace("LIMIT = 3", "LIMIT = 4").replace("> 50", ">= 50")
    (repo.computer.work / "pkg/calc.py").write_text(wrong)
    found: list[int] = []
    async with Trials(repo.computer, suite(PYTEST)) as trials:
        await trials.localise()
        for text in ("LIMIT = 4\nUNUSED = 3\n", "LIMIT = 3\n", "LIMIT = len\n"):
            one = Candidate(0, "number", "pkg/calc.py", (Hunk(1, "LIMIT = 4\n", text),), 0.5, 0.5)
            chosen = await trials.choose([Trial(one, "all", plausible=True)], {"pkg/calc.py": wrong})
            found.append(_differing([*chosen.reasons]))
    assert found[0] == 0 < found[1] < found[2]


def _differing(reasons: list[str]) -> int:
    (said,) = [one for one in reasons if "inputs near those of the tests" in one]
    return int(said.split(" give another result")[0].rpartition(" ")[2])


async def test_a_module_that_cannot_be_imported_is_repaired_by_its_traceback(tmp_path: Path) -> None:
    broken = "SIZES = {'a': 1, 'b': 2}\n\n\ndef f(name):\n    return SIZES[name]\n\n\nDEFAULT = f(len('b'))\n"
    tests = "from broken import DEFAULT\n\n\ndef test_default():\n    assert DEFAULT == 2\n"
    repo = Repo(tmp_path, {"broken.py": broken, "test_broken.py": tests})
    found = await repo.localise(PYTEST)
    assert found.method == "traceback"
    chosen = await repo.repair(PYTEST)
    assert chosen is not None
    assert chosen.trial.candidate.line == 8


async def test_a_decorator_between_two_functions_belongs_to_the_second_one(tmp_path: Path) -> None:
    code = "class Box:\n    def one(self):\n        return 1\n    def two(self):\n        return self.one() + 1\n"
    tests = "from box import Box\n\n\ndef test_two():\n    assert Box().two == 2\n"
    chosen = await Repo(tmp_path, {"box.py": code, "test_box.py": tests}).repair(PYTEST)
    assert chosen is not None
    assert (chosen.trial.candidate.after, chosen.trial.candidate.line) == ("    @property\n", 4)


async def test_a_patch_repairs_what_the_old_code_did_at_import(tmp_path: Path) -> None:
    code = "def keep(name, known):\n    if name in known:\n        known.append(name)\n"
    tests = (
        "from registry import keep\n\nKNOWN = []\nkeep('a', KNOWN)\n\n\ndef test_import():\n    assert KNOWN == ['a']\n\n\n"
        "def test_call():\n    known = ['b']\n    keep('c', known)\n    keep('c', known)\n    assert known == ['b', 'c']\n"
    )
    chosen = await Repo(tmp_path, {"registry.py": code, "test_registry.py": tests}).repair(PYTEST)
    assert chosen is not None
    assert "if name not in known" in chosen.trial.candidate.after
    assert (len(chosen.trial.made_green), chosen.trial.still_red) == (2, ())


async def test_a_suite_without_a_failing_test_has_no_suspects(tmp_path: Path) -> None:
    repo = Repo(tmp_path, {"test_a.py": "def test_a():\n    assert True\n"})
    found = await repo.localise(PYTEST)
    assert (found.failing, found.suspects, found.passing) == ((), (), ("test_a.py::test_a",))


async def test_a_flaky_test_is_left_out(tmp_path: Path) -> None:
    mark = tmp_path / "seen"
    flaky = (
        f"from pathlib import Path\nMARK = Path({str(mark)!r})\n\n\ndef test_flaky():\n"
        "    seen = MARK.exists()\n    MARK.touch()\n    assert seen\n"
    )
    found = await Repo(tmp_path, {"test_flaky.py": flaky}).localise(PYTEST)
    assert (found.failing, found.flaky) == ((), ("test_flaky.py::test_flaky",))


async def test_a_node_suite_is_localised_by_v8_coverage_and_repaired(tmp_path: Path, node: str) -> None:
    code = (
        "function total(items) {\n  let sum = 0;\n  for (let i = 0; i < items.length - 1; i++) {\n    sum += items[i];\n  }\n"
        "  return sum;\n}\n\nfunction twice(x) {\n  return x * 2;\n}\n\nmodule.exports = { total, twice };\n"
    )
    tests = (
        'const { test } = require("node:test");\nconst assert = require("node:assert");\n'
        'const { total, twice } = require("../calc.js");\n\n'
        'test("total of calc.js", () => assert.strictEqual(total([1, 2, 3]), 6));\n'
        'test("twice", () => assert.strictEqual(twice(2), 4));\n'
    )
    repo = Repo(tmp_path, {"calc.js": code, "test/calc.test.js": tests})
    before = repo.files()
    found = await repo.localise(f"{node} --test")
    assert found.method == "coverage"
    assert {one.line for one in found.suspects} <= set(range(1, 8))
    chosen = await repo.repair(f"{node} --test")
    assert chosen is not None
    assert chosen.trial.candidate.line == 3
    assert repo.files() == before


async def test_a_missing_guard_in_javascript_is_found_early(tmp_path: Path, node: str) -> None:
    code = (
        "function city(user) {\n  const street = user.address.street;\n  return street + ', ' + user.address.city;\n}\n\n"
        "function name(user) {\n  if (!user) {\n    return 'nobody';\n  }\n  return user.name;\n}\n\n"
        "module.exports = { city, name };\n"
    )
    tests = (
        'const { test } = require("node:test");\nconst assert = require("node:assert");\n'
        'const { city, name } = require("../city.js");\n\n'
        'test("city", () => assert.strictEqual(city({ address: { street: "A", city: "B" } }), "A, B"));\n'
        'test("nowhere", () => assert.strictEqual(city({}), null));\n'
        'test("name", () => assert.strictEqual(name(null), "nobody"));\n'
    )
    chosen = await Repo(tmp_path, {"city.js": code, "test/city.test.js": tests}).repair(f"{node} --test")
    assert chosen is not None
    assert chosen.trial.candidate.after == "  if (!user.address) return null;\n"
    assert chosen.trial.candidate.number < 60


CALC_JS = (
    "function total(items) {\n  let sum = 0;\n  for (let i = 0; i < items.length - 1; i++) {\n    sum += items[i];\n  }\n"
    "  return sum;\n}\n\nfunction twice(x) {\n  return x * 2;\n}\n\n"
)
TESTS_JS = (
    'describe("calc", () => {\n  it("totals some", () => same(total([1, 2, 3]), 6));\n'
    '  it("doubles", () => same(twice(2), 4));\n});\n'
)
SAME = "const same = (a, b) => { if (a !== b) throw new Error(`${a} is not ${b}`); };\n"


@pytest.mark.long
@pytest.mark.parametrize("runner", ["mocha", "jest", "vitest"])
async def test_other_runners_of_scripts_are_driven_too(
    tmp_path: Path, node_modules: Path, runner: str
) -> None:
    common = f'const {{ total, twice }} = require("../calc.js");\n{SAME}{TESTS_JS}'
    files = {"calc.js": CALC_JS + "module.exports = { total, twice };\n", "test/calc.test.js": common}
    if runner == "vitest":
        typed = CALC_JS.replace("(items)", "(items: number[])").replace("(x)", "(x: number)")
        tests = (
            'import { describe, it } from "vitest";\nimport { total, twice } from "../calc";\n'
            + SAME
            + TESTS_JS
        )
        files = {"calc.ts": typed + "export { total, twice };\n", "test/calc.test.ts": tests}
    repo = Repo(tmp_path, {**files, "package.json": "{}"})
    (repo.computer.work / "node_modules").symlink_to(node_modules)
    found = await repo.localise(f"npx {runner}" + (" test" if runner == "mocha" else ""))
    assert [failure.test.partition("::")[2] for failure in found.failing] == ["calc totals some"]
    assert found.method == ("imports" if runner == "vitest" else "coverage")
    chosen = await repo.repair(f"npx {runner}" + (" test" if runner == "mocha" else ""))
    assert chosen is not None
    assert (chosen.trial.candidate.path.partition(".")[0], chosen.trial.candidate.line) == ("calc", 3)


async def test_a_go_suite_is_localised_by_its_profiles_and_repaired(tmp_path: Path, go: str) -> None:
    code = (
        "package calc\n\nfunc Total(items []int) int {\n\tsum := 0\n\tfor i := 0; i < len(items)-1; i++ {\n\t\tsum += items[i]\n\t}\n"
        "\treturn sum\n}\n\nfunc Twice(x int) int {\n\treturn x * 2\n}\n"
    )
    tests = (
        'package calc\n\nimport "testing"\n\nfunc TestTotal(t *testing.T) {\n\tif got := Total([]int{1, 2, 3}); got != 6 {\n'
        '\t\tt.Errorf("got %d", got)\n\t}\n}\n\nfunc TestTwice(t *testing.T) {\n\tif Twice(2) != 4 {\n\t\tt.Error("twice")\n\t}\n}\n'
    )
    files = {"go.mod": "module example.com/m\n\ngo 1.19\n", "calc/calc.go": code, "calc/calc_test.go": tests}
    files["main.go"] = "package main\n\nfunc main() {}\n"  # a package without tests does not fail
    repo = Repo(tmp_path, files)
    found = await repo.localise(f"{go} test ./...")
    assert [failure.test for failure in found.failing] == ["calc::TestTotal"]
    assert (found.method, {one.path for one in found.suspects}) == ("coverage", {"calc/calc.go"})
    assert {one.line for one in found.suspects} <= set(range(3, 10))
    chosen = await repo.repair(f"{go} test ./...")
    assert chosen is not None
    assert chosen.trial.candidate.line == 5
    assert repo.files() == files


# Tests that are slow, that wait, that are flaky, or that end their worker.

TOTAL = "def total(numbers):\n    found = 0\n    for one in numbers[1:]:\n        found += one\n    return found\n"
USES = "from total import total\n\n\ndef test_none():\n    assert total([]) == 0\n\n\n"


WAITS, COMPUTES = "time.sleep(1.5)", "while time.process_time() - began < 1.2:\n        pass"


@pytest.mark.parametrize("spend", [WAITS, COMPUTES], ids=["waits", "computes"])
async def test_failing_test_that_takes_seconds_is_repaired(tmp_path: Path, spend: str) -> None:
    begins = "import time\n\n\ndef test_total():\n    began = time.process_time()\n"
    tests = f"{USES}{begins}    {spend}\n    assert total([1, 2]) == 3\n"
    repo = Repo(tmp_path, {"total.py": TOTAL, "test_total.py": tests})
    chosen = await repo.repair(PYTEST, hints=("test_total.py::test_total",), longest=3.0)
    assert chosen is not None
    assert chosen.trial.candidate.line == 3
    assert chosen.trial.made_green == ("test_total.py::test_total",)


async def test_flaky_test_that_passes_otherwise_refuses_no_patch(tmp_path: Path) -> None:
    """It fails when it first runs with the right patch, and passes when it is repeated."""
    mark = tmp_path / "seen"
    tests = (
        f"from pathlib import Path\n{USES}MARK = Path({str(mark)!r})\n\n\ndef test_flaky():\n"
        "    if total([1, 2]) == 3 and not MARK.exists():\n        MARK.touch()\n        raise AssertionError\n\n\n"
        "def test_total():\n    assert total([1, 2]) == 3\n"
    )
    chosen = await Repo(tmp_path, {"total.py": TOTAL, "test_total.py": tests}).repair(PYTEST)
    assert mark.exists()
    assert chosen is not None
    assert "numbers[0:]" in chosen.trial.candidate.after


ENDING = (
    "import os\nfrom pathlib import Path\n\n\ndef end_worker():\n    parent = os.getppid()\n"
    "    first = int(Path(f'/proc/{parent}/stat').read_text().split()[3])\n"
    "    if b'class First' in Path(f'/proc/{first}/cmdline').read_bytes():\n"
    "        os.kill(first, 9)\n        os.kill(parent, 9)\n    os._exit(1)\n"
)


async def test_worker_that_is_lost_is_replaced_and_its_work_is_done_again(tmp_path: Path) -> None:
    mark = tmp_path / "lost"
    tests = (
        f"from pathlib import Path\nfrom ending import end_worker\n{USES}MARK = Path({str(mark)!r})\n\n\n"
        "def test_total():\n    if not MARK.exists():\n        MARK.touch()\n        end_worker()\n"
        "    assert total([1, 2]) == 3\n"
    )
    repo = Repo(tmp_path, {"total.py": TOTAL, "ending.py": ENDING, "test_total.py": tests})
    chosen = await repo.repair(PYTEST)
    assert mark.exists()
    assert chosen is not None
    assert (chosen.trial.candidate.path, chosen.trial.candidate.line) == ("total.py", 3)


async def test_suite_whose_workers_are_always_lost_cannot_be_driven(tmp_path: Path) -> None:
    tests = f"from ending import end_worker\n{USES}def test_total():\n    end_worker()\n"
    repo = Repo(tmp_path, {"total.py": TOTAL, "ending.py": ENDING, "test_total.py": tests})
    with pytest.raises(ExceptionGroup) as lost:
        await repo.localise(PYTEST)
    error = sole(lost.value)
    assert isinstance(error, UserError)
    assert error.code == "worker_lost"


async def test_of_two_patches_the_one_wins_that_bears_other_inputs(tmp_path: Path) -> None:
    """Both pass all tests; the one that ranks higher raises where the old code did not."""
    code = "def top(numbers):\n    return min(numbers, default=0)\n"
    tests = "from top import top\n\n\ndef test_top():\n    assert top([1, 2]) == 2\n\n\ndef test_one():\n    assert top([5, 5]) == 5\n"
    repo = Repo(tmp_path, {"top.py": code, "test_top.py": tests})

    def patch(number: int, text: str, score: float) -> Candidate:
        lines = ("    return min(numbers, default=0)\n", f"    return {text}\n")
        return Candidate(number, "called function", "top.py", (Hunk(2, *lines),), score, score)

    order = [patch(0, "numbers[1]", 0.9), patch(1, "max(numbers, default=0)", 0.1)]
    async with Trials(repo.computer, suite(PYTEST)) as trials:
        await trials.localise()
        tried = [trial async for trial in trials.over(order, {"top.py": code})]
        assert [trial.plausible for trial in tried] == [True, True]
        chosen = await trials.choose(tried, {"top.py": code})
    assert chosen.trial.candidate.number == 1
    assert any("inputs near those of the tests" in reason for reason in chosen.reasons)
