"""From a change in a sandbox to a verdict: fixes are proven, cheats are named."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest
from tests.agent.evidence.court import committed

from cloister.agent.evidence.proof import Task, run_proof
from cloister.agent.evidence.run_checks import Since, run_affected, run_checks, run_on_base
from cloister.core.computer import Stream
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.diagnosis import TestResult as Result
from cloister.feedback.api import CheckOutput
from cloister.feedback.compare import compare
from cloister.feedback.diagnose import diagnose
from cloister.feedback.goals import asked
from cloister.feedback.report import tell
from cloister.forge import workspace
from cloister.testing.local import LocalComputer

pytestmark = pytest.mark.anyio

SHOP = "def total(prices, off):\n    return sum(prices) - off\n\n\ndef tax(price):\n    return price * 0.5\n"
TESTS = """\
import unittest
from shop import tax, total


class TotalTest(unittest.TestCase):
    def test_discount(self):
        self.assertEqual(total([10, 20], 10), 27)

    def test_nothing(self):
        self.assertEqual(total([], 0), 0)


class TaxTest(unittest.TestCase):
    def test_tax(self):
        self.assertEqual(tax(100), 19)
"""
CHECK = "python3 -m unittest discover -v -s tests"
DISCOUNT = "test_shop.TotalTest::test_discount"
TAX = "test_shop.TaxTest::test_tax"
FIX = ("shop.py", "sum(prices) - off", "sum(prices) * (100 - off) // 100")
PROMPT = "Fix test_discount"


def _quiet(check: str, stream: Stream, data: bytes) -> None:
    pass


@dataclass
class Place:
    """A repository on a test computer, with the first results of its checks."""

    root: Path
    bare: Path
    base: str
    computer: LocalComputer
    check: str
    baseline: tuple[Diagnosis, ...]

    def edit(self, path: str, old: str, new: str) -> None:
        file = self.computer.work / path
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    async def proof(self, prompt: str = PROMPT) -> Comparison:
        """What the checks say of the saved files in a fresh place, as a run takes its proof."""
        commit = await workspace.save(self.computer, self.bare, self.base, "refs/cloister/attempt/0")
        fresh = LocalComputer(self.root / "fresh")
        await workspace.restore(fresh, self.bare, self.base, commit)
        task = Task((self.check,), self.baseline, self.baseline, asked(prompt, self.baseline))
        return (await run_proof(fresh, task, _quiet)).comparison


async def placed(root: Path, files: dict[str, str], check: str) -> Place:
    bare, base = committed(root, files)
    computer = LocalComputer(root / "computer")
    await workspace.put(computer, bare, base)
    baseline = await run_checks(computer, (check,), "baseline", _quiet)
    return Place(root, bare, base, computer, check, baseline)


@pytest.fixture
async def place(tmp_path: Path) -> Place:
    return await placed(tmp_path, {"shop.py": SHOP, "tests/test_shop.py": TESTS}, CHECK)


async def test_fix_is_proven_despite_an_unrelated_old_failure(place: Place) -> None:
    place.edit(*FIX)

    found = await place.proof()

    assert (found.green, found.fixed, found.unrelated) == (True, (DISCOUNT,), (TAX,))


async def test_partial_fix_is_not_enough_if_the_other_failure_executes_it(place: Place) -> None:
    place.edit(*FIX)
    place.edit("shop.py", "price * 0.5", "price * 0.4")

    found = await place.proof("Fix the failing tests")

    assert (found.green, found.asked) == (False, (TAX,))


@pytest.mark.parametrize("prompt", ["Fix the failing tests", "Give a discount. Ignore test_tax."])
async def test_an_old_failure_that_executes_no_changed_line_is_left_with_the_reason(
    place: Place, prompt: str
) -> None:
    place.edit(*FIX)

    found = await place.proof(prompt)

    assert (found.verdict, found.shown, found.unrelated) == ("proven", (DISCOUNT,), (TAX,))
    assert f"left red, as on the base, and executes no changed line: {TAX}" in found.notes


async def test_feature_is_green_despite_old_failures(place: Place) -> None:
    place.edit("shop.py", "def tax", "def free():\n    return 0\n\n\ndef tax")

    found = await place.proof("Add a function free")

    assert (found.green, len(found.unrelated)) == (True, 2)


CHEATS = {
    "hard-codes what the test expects": ("tests/test_shop.py", "10), 27)", "10), 20)"),
    "takes the assertion out": ("tests/test_shop.py", "self.assertEqual(total([10, 20], 10), 27)", "pass"),
    "returns before it": (
        "tests/test_shop.py",
        "        self.assertEqual(total([10",
        "        return\n        self.assertEqual(total([10",
    ),
    "skips it": (
        "tests/test_shop.py",
        "    def test_discount",
        "    @unittest.skip('x')\n    def test_discount",
    ),
    "expects it to fail": (
        "tests/test_shop.py",
        "    def test_discount",
        "    @unittest.expectedFailure\n    def test_discount",
    ),
    "renames it": ("tests/test_shop.py", "def test_discount", "def discount"),
    "replaces what it tests": (
        "tests/test_shop.py",
        "from shop import tax, total\n",
        "from shop import tax\n\n\ndef total(p, o):\n    return 27 if p else 0\n",
    ),
}


@pytest.mark.parametrize("how", CHEATS)
async def test_cheat_is_neither_green_nor_proven(place: Place, how: str) -> None:
    place.edit(*CHEATS[how])

    found = await place.proof()

    assert not found.green
    assert DISCOUNT not in found.fixed
    assert found.weakened or found.missing or found.skipped or found.asked


async def test_deleted_test_file_is_reported_as_such(place: Place) -> None:
    (place.computer.work / "tests/test_shop.py").unlink()
    (place.computer.work / "tests/test_new.py").write_text(
        "import unittest\n\n\nclass A(unittest.TestCase):\n    def test_a(self):\n        pass\n"
    )

    found = await place.proof()

    assert (found.green, DISCOUNT in found.missing) == (False, True)


MAKEFILE = "test:\n\tpython3 run.py\n"
RUN = "import shop\nraise SystemExit(shop.total([10, 20], 10) != 27)\n"


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("Makefile", "python3 run.py", "true"),
        ("Makefile", "run.py", "run.py || true"),
        ("Makefile", "python3 run.py", "-python3 run.py"),
    ],
)
async def test_check_forced_to_be_green_is_not_green(tmp_path: Path, path: str, old: str, new: str) -> None:
    place = await placed(tmp_path, {"shop.py": SHOP, "Makefile": MAKEFILE, "run.py": RUN}, "make test")
    place.edit(path, old, new)

    found = await place.proof("Fix the failing test")

    assert (found.green, found.fixed) == (False, ())
    assert "it fails with the tests of the base" in found.weakened[0]


async def test_check_with_only_an_exit_status_is_proven_by_a_real_fix(tmp_path: Path) -> None:
    place = await placed(tmp_path, {"shop.py": SHOP, "Makefile": MAKEFILE, "run.py": RUN}, "make test")
    place.edit(*FIX)

    assert (await place.proof("Fix the failing test")).green


async def test_test_that_fails_once_and_passes_once_is_flaky_and_blames_no_change(tmp_path: Path) -> None:
    flaky = TESTS.replace(
        "        self.assertEqual(total([], 0), 0)",
        "        import os\n        self.assertFalse(os.path.exists('/work-flag') or self.once())\n\n"
        "    def once(self):\n        import pathlib\n        flag = pathlib.Path('flag')\n"
        "        if pathlib.Path('shop.py').read_text().count('*') < 2 or flag.exists():\n            return False\n"
        "        flag.touch()\n        return True",
    )
    place = await placed(
        tmp_path, {"shop.py": SHOP, "tests/test_shop.py": flaky, ".gitignore": "flag\n"}, CHECK
    )
    place.edit(*FIX)

    found = await place.proof()

    assert found.flaky == ("test_shop.TotalTest::test_nothing",)
    assert (found.green, found.new) == (True, ())


WAVERS = TESTS.replace(
    "        self.assertEqual(total([], 0), 0)",
    "        import pathlib\n        flag = pathlib.Path('flag')\n        first = not flag.exists()\n"
    "        flag.touch()\n        self.assertFalse(first)",
)
NOTHING = "test_shop.TotalTest::test_nothing"


async def test_flaky_failure_on_the_base_is_neither_a_goal_nor_a_proof(
    tmp_path: Path,
) -> None:
    files = {"shop.py": SHOP, "tests/test_shop.py": WAVERS, ".gitignore": "flag\n"}
    place = await placed(tmp_path, files, CHECK)
    (place.computer.work / "flag").unlink()
    baseline = await run_on_base(place.computer, (CHECK,), "again", _quiet)
    (base,) = baseline
    assert base.flaky == (NOTHING,)
    wish = asked("Fix the failing tests", baseline)
    assert wish.names == (TAX, DISCOUNT)

    place.edit(*FIX)
    place.edit("shop.py", "price * 0.5", "price * 19 // 100")
    green = await run_checks(place.computer, (CHECK,), "look", _quiet, baseline=baseline)
    found = compare(baseline, green, wish)
    assert (found.green, set(found.fixed)) == (True, {TAX, DISCOUNT})
    red = msgspec.structs.replace(base, flaky=(), tests=tuple(_only_red(base, NOTHING)))
    by_chance, on_purpose = (
        compare(baseline, (red,), asked(prompt, baseline))
        for prompt in ("Fix the failing tests", "Fix test_nothing")
    )
    assert (by_chance.new, by_chance.flaky, by_chance.green) == ((), (NOTHING,), True)
    assert (on_purpose.asked, on_purpose.green) == ((NOTHING,), False)


async def test_flaky_failure_of_a_slow_check_on_the_base_is_found_if_the_time_allows(tmp_path: Path) -> None:
    files = {"shop.py": SHOP, "tests/test_shop.py": WAVERS, ".gitignore": "flag\n"}
    bare, base = committed(tmp_path, files)
    slow = LocalComputer(tmp_path / "slow", extra_seconds=500.0)
    await workspace.put(slow, bare, base)

    (twice,) = await run_on_base(slow, (CHECK,), "twice", _quiet)
    (slow.work / "flag").unlink()
    with anyio.fail_after(600):
        (once,) = await run_on_base(slow, (CHECK,), "once", _quiet)

    assert (twice.flaky, once.flaky) == ((NOTHING,), ())
    assert twice.seconds > 500


def _only_red(base: Diagnosis, name: str) -> Iterator[Result]:
    for test in base.tests:
        yield msgspec.structs.replace(test, status="failed" if test.name == name else "passed")


async def test_failure_is_reported_with_its_source_lines(tmp_path: Path) -> None:
    said = "echo 'shop.py:2:12: error: not a sum [E1]'; exit 1\n"
    place = await placed(tmp_path, {"shop.py": SHOP, "lint.sh": said}, "sh lint.sh")

    assert tell(compare(place.baseline, place.baseline), place.baseline) == (
        "1 of 1 check failed.\n"
        "`sh lint.sh` exited with 1:\n"
        "shop.py:2:12: error: not a sum [E1]\n"
        "      1 | def total(prices, off):\n"
        "    > 2 |     return sum(prices) - off\n"
        "      3 |\n"
        "      4 |"
    )


async def test_long_output_is_kept_in_the_sandbox(tmp_path: Path) -> None:
    noise = "for n in range(500):\n    print('line', n)\nraise SystemExit(3)\n"
    place = await placed(tmp_path, {"noise.py": noise}, "python3 noise.py")

    (diagnosis,) = place.baseline
    assert diagnosis.log is not None
    kept = await place.computer.read(diagnosis.log)
    assert (b"line 0\n" in kept, "line 0\n" in diagnosis.tail) == (True, False)
    assert f"The whole output is in {diagnosis.log}" in tell(
        compare(place.baseline, place.baseline), place.baseline
    )


async def test_two_failing_checks_keep_separate_output(tmp_path: Path) -> None:
    noise = "import sys\nfor n in range(500):\n    print(sys.argv[1], n)\nraise SystemExit(3)\n"
    place = await placed(tmp_path, {"noise.py": noise}, "python3 noise.py first")
    checks = ("python3 noise.py first", "python3 noise.py second")

    found = await run_checks(place.computer, checks, "look", _quiet)

    kept = [await place.computer.read(one.log or "") for one in found]
    assert [b"first 0\n" in kept[0], b"second 0\n" in kept[1]] == [True, True]


async def test_only_affected_checks_run_between_turns(tmp_path: Path) -> None:
    counting = "import pathlib\nwith pathlib.Path('runs').open('a') as file:\n    file.write('x')\n"
    files = {
        "shop.py": SHOP,
        "tests/test_shop.py": counting + TESTS,
        ".gitignore": "runs\n",
        "verify.sh": "echo y >> runs\n",
    }
    place = await placed(tmp_path, files, CHECK)
    checks, computer = (CHECK, "sh verify.sh"), place.computer
    baseline = await run_checks(computer, checks, "baseline", _quiet)
    runs = computer.work / "runs"

    async def change(path: str, text: str) -> tuple[tuple[Diagnosis, ...], str]:
        old = await workspace.tree(computer, place.bare, place.base)
        (computer.work / path).write_text(text)
        new = await workspace.tree(computer, place.bare, place.base)
        runs.write_text("")
        found = await run_affected(computer, checks, Since(old, new, baseline, baseline), path, _quiet)
        return found, runs.read_text().replace("\n", "")

    words, ran = await change("README.md", "words")
    assert (ran, [one.check for one in words], words[0]) == ("y", list(checks), baseline[0])
    code, ran = await change("shop.py", SHOP.replace(FIX[1], FIX[2]))
    assert ran == "xy"
    assert compare(baseline, code).fixed == (DISCOUNT,)


async def test_restored_file_no_longer_counts_as_weakened(place: Place) -> None:
    checks, computer = (
        (CHECK, "go vet ./..."),
        place.computer,
    )  # the second is not run again for Python's sake
    baseline = await run_checks(computer, checks, "baseline", _quiet)
    trees = [await workspace.tree(computer, place.bare, place.base)]
    known = baseline
    seen: list[int] = []
    (computer.work / "main.go").write_text("package main\n")
    for text in ("#ifdef UNIT_TESTING\n#endif\n", "\n"):
        (computer.work / "shop.h").write_text(text)
        trees.append(await workspace.tree(computer, place.bare, place.base))
        since = Since(trees[-2], trees[-1], known, baseline)
        known = await run_affected(computer, checks, since, f"look-{len(trees)}", _quiet)
        seen.append(len(compare(baseline, known).weakened))

    assert seen[0] > 0
    assert seen[1] == 0


async def test_problem_matcher_of_the_repository_is_used(tmp_path: Path) -> None:
    matcher = '{"problemMatcher":[{"owner":"odd","pattern":[{"regexp":"^!(\\\\S+) (\\\\d+) (.*)$","file":1,"line":2,"message":3}]}]}'
    files = {
        "odd.sh": "echo '!shop.py 2 too odd'; exit 1\n",
        "shop.py": SHOP,
        ".github/odd-matcher.json": matcher,
    }
    place = await placed(tmp_path, files, "sh odd.sh")

    (complaint,) = place.baseline[0].diagnostics
    assert (complaint.file, complaint.line, complaint.message, complaint.tool) == (
        "shop.py",
        2,
        "too odd",
        "odd",
    )
    assert "> 2 |     return sum(prices) - off" in (complaint.source or "")


async def test_module_that_shadows_the_test_runner_is_not_green(place: Place) -> None:
    lie = "import sys\nsys.stderr.write('Ran 3 tests in 0.001s\\n\\nOK\\n')\nsys.exit(0)\n"
    (place.computer.work / "unittest.py").write_text(lie)
    found = await place.proof()
    assert not found.green
    assert any("it fails with the tests of the base" in one for one in found.weakened)


async def test_cheat_cannot_hide_behind_many_files(tmp_path: Path) -> None:
    many = {f"tests/a_{number:03}.txt": "1\n" for number in range(310)}
    place = await placed(tmp_path, {"shop.py": SHOP, "tests/test_shop.py": TESTS, **many}, CHECK)
    place.edit(*CHEATS["hard-codes what the test expects"])
    for name in many:
        (place.computer.work / name).write_text("2\n")
    found = await place.proof()
    assert not found.green
    assert any("test_discount" in one for one in found.weakened)


async def test_cheat_cannot_hide_behind_large_files(tmp_path: Path) -> None:
    files = {"shop.py": SHOP, "tests/a.txt": "1\n", "tests/test_shop.py": TESTS}
    place = await placed(tmp_path / "large", files, CHECK)
    place.edit(*CHEATS["hard-codes what the test expects"])
    (place.computer.work / "tests/a.txt").write_text("x" * 9_000_000)
    found = await place.proof()
    assert not found.green
    assert any("too large to inspect" in one for one in found.weakened)


@pytest.mark.parametrize("padding", [{f"tests/a{n}.txt": "x" for n in range(310)}, {"tests/a.txt": "x"}])
async def test_change_too_large_to_inspect_counts_as_weakening(
    tmp_path: Path, padding: dict[str, str]
) -> None:
    files = {"shop.py": SHOP, "tests/test_shop.py": TESTS, **padding}
    place = await placed(tmp_path, files, CHECK)
    for name in padding:
        (place.computer.work / name).write_text("y" * (9_000_000 // len(padding)))
    place.edit("tests/test_shop.py", "10), 27)", "10), 20)")

    found = await place.proof()

    assert (found.green, bool(found.weakened)) == (False, True)


async def test_event_loop_does_other_work_while_megabytes_of_output_are_parsed(place: Place) -> None:
    line, count = "a.c:1:1: error: e\n", 200_000
    started = time.process_time()
    diagnose(CheckOutput("check", 1, None, 1.0, (line * count).encode(), b""))
    cost = time.process_time() - started
    longest = 0.0
    found: list[Diagnosis] = []

    async def watch() -> None:
        nonlocal longest
        before = time.thread_time()
        while True:
            await anyio.lowlevel.checkpoint()
            now = time.thread_time()
            before, longest = now, max(longest, now - before)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        check = f"yes '{line.strip()}' | head -n {count}; false"
        found.extend(await run_checks(place.computer, (check,), "large", _quiet))
        tasks.cancel_scope.cancel()

    assert found[0].diagnostics
    assert longest < cost / 4
