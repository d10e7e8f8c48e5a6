"""The same verdicts in a real sandbox, with pytest and its JUnit report."""

import shutil
from pathlib import Path

import msgspec
import pytest

from cloister.agent.evidence.run_checks import Since, find_checks, run_affected, run_checks
from cloister.core.computer import Stream, shell
from cloister.core.diagnosis import Comparison
from cloister.feedback.compare import compare
from cloister.feedback.goals import asked
from cloister.forge import workspace
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

SHOP = "def total(prices, off):\n    return sum(prices) - off\n"
TESTS = """\
from shop import total


def test_discount():
    assert total([10, 20], 10) == 27


def test_nothing():
    assert total([], 0) == 0
"""
RED = "tests/test_shop.py::test_discount"
TEST_FILE = "tests/test_shop.py"
ENDS: dict[str, tuple[dict[str, str], Comparison]] = {
    "a fix": (
        {"shop.py": SHOP.replace("- off", "* (100 - off) // 100")},
        Comparison(fixed=(RED,), passed=2, green=True),
    ),
    "a conftest that skips": (
        {
            "conftest.py": "import pytest\n\n\ndef pytest_collection_modifyitems(items):\n"
            "    items[0].add_marker(pytest.mark.skip)\n"
        },
        Comparison(
            passed=1,
            skipped=(RED,),
            weakened=("conftest.py (fewer tests run: pytest_collection_modifyitems)",),
        ),
    ),
    "a setting that deselects": (
        {"pytest.ini": f"[pytest]\naddopts = --deselect {RED}\n"},
        Comparison(passed=1, missing=(RED,), weakened=("pytest.ini (fewer tests run: --deselect)",)),
    ),
    "another expectation": (
        {TEST_FILE: TESTS.replace("27", "20")},
        Comparison(passed=2, weakened=(f"{RED} (the test was changed)",)),
    ),
    "another expectation in what git is told is binary": (
        {TEST_FILE: TESTS.replace("27", "20"), ".gitattributes": "*.py binary\n"},
        Comparison(passed=2, weakened=(f"{RED} (the test was changed)",)),
    ),
    "no test": (
        {TEST_FILE: TESTS.replace("test_discount", "check_discount")},
        Comparison(passed=1, missing=(RED,), weakened=(f"{RED} (the test was deleted)",)),
    ),
}


def _quiet(check: str, stream: Stream, data: bytes) -> None:
    pass


async def test_fix_is_green_and_every_cheat_is_named(host: ContainerHost, tmp_path: Path) -> None:
    repo = SampleRepo(tmp_path / "repo")
    repo.write("shop.py", SHOP)
    repo.write(TEST_FILE, TESTS)
    repo.write("conftest.py", "")
    repo.git("add", "--all")
    repo.git("commit", "--quiet", "-m", "base")
    base = repo.git("rev-parse", "HEAD")
    bare = tmp_path / "bare.git"
    shutil.copytree(repo.path / ".git", bare)
    async with host.open(SandboxSpec()) as sandbox:
        await workspace.put(sandbox, bare, base)
        checks = await find_checks(sandbox)
        assert checks == ("python3 -m pytest -q",)
        baseline = await run_checks(sandbox, checks, "baseline", _quiet)
        failing = baseline[0].failing[0]
        assert (failing.name, failing.file, failing.line) == (RED, TEST_FILE, 5)
        assert "> 5 |     assert total([10, 20], 10) == 27" in (failing.source or "")
        wish = asked("Fix the failing test", baseline)
        for how, (files, expected) in ENDS.items():
            await workspace.restore(sandbox, bare, base, base)
            await sandbox.run(shell("git clean -fdq && git checkout -q -f ."))
            for name, text in files.items():
                await sandbox.write(name, text.encode())
            commit = await workspace.save(sandbox, bare, base, "refs/cloister/attempt/0")
            await workspace.restore(sandbox, bare, base, commit)
            found = await run_checks(sandbox, checks, f"proof-{len(how)}", _quiet, baseline=baseline)
            assert compare(baseline, found, wish) == expected, how


MVNW = """#!/bin/sh
mkdir -p target/surefire-reports
echo '<testsuite name="shop.AddTest"><testcase name="adds" classname="shop.AddTest"/></testsuite>' \\
    > target/surefire-reports/TEST-shop.AddTest.xml
"""
OLD = '<testsuite name="old"><testcase name="gone" classname="shop.OldTest"/></testsuite>'


async def test_reports_of_java_tools_are_read_unless_old(host: ContainerHost) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        await sandbox.write("mvnw", MVNW.encode(), mode=0o755)
        await sandbox.write("target/surefire-reports/TEST-shop.OldTest.xml", OLD.encode())
        await sandbox.run(shell("touch -d '1 hour ago' target/surefire-reports/*"))

        lines = ("./mvnw -B -q test", "cd . && ./mvnw -B test")
        found = await run_checks(sandbox, lines, "java", _quiet)

    for one in found:
        assert [(test.name, test.status) for test in one.tests] == [("shop.AddTest::adds", "passed")]


GRADLEW = """#!/bin/sh
echo ':test UP-TO-DATE'
"""


async def test_old_reports_count_for_up_to_date_gradle_tests(
    host: ContainerHost,
) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        await sandbox.write("gradlew", GRADLEW.encode(), mode=0o755)
        for place in ("build/test-results/test", "build/test-results/slowTest"):
            name = place.rpartition("/")[2]
            report = OLD.replace("gone", name)
            await sandbox.write(f"{place}/TEST-shop.OldTest.xml", report.encode())
        await sandbox.run(shell("touch -d '1 hour ago' build/test-results/*/*"))

        (found,) = await run_checks(sandbox, ("./gradlew test",), "gradle", _quiet)

    assert [(test.name, test.status) for test in found.tests] == [("shop.OldTest::test", "passed")]


async def test_failing_test_near_the_change_is_reported_before_the_slow_rest(
    host: ContainerHost, tmp_path: Path
) -> None:
    repo = SampleRepo(tmp_path / "repo")
    repo.write("shop.py", SHOP.replace("- off", "* (100 - off) // 100"))
    repo.write(TEST_FILE, TESTS)
    repo.write(
        "tests/test_rest.py", "import pathlib\n\n\ndef test_rest():\n    pathlib.Path('/tmp/ran').touch()\n"
    )
    repo.git("add", "--all")
    repo.git("commit", "--quiet", "-m", "base")
    bare = tmp_path / "bare.git"
    shutil.copytree(repo.path / ".git", bare)
    base = repo.git("rev-parse", "HEAD")
    check = ("python3 -m pytest -q",)
    async with host.open(SandboxSpec()) as sandbox:
        await workspace.put(sandbox, bare, base)
        found = await run_checks(sandbox, check, "baseline", _quiet)
        slow = tuple(msgspec.structs.replace(one, seconds=30.0) for one in found)

        async def look(text: str) -> tuple[Comparison, bool]:
            old = await workspace.tree(sandbox, bare, base)
            await sandbox.write("shop.py", text.encode())
            new = await workspace.tree(sandbox, bare, base)
            await sandbox.run(shell("rm -f /tmp/ran"))
            now = await run_affected(sandbox, check, Since(old, new, slow, slow), f"look-{len(text)}", _quiet)
            rest = (await sandbox.run(shell("test -e /tmp/ran"))).ok
            return compare(slow, now), rest

        assert await look(SHOP) == (Comparison(new=(RED,), passed=2), False)
        assert await look("import os\n" + SHOP.replace("- off", "* (100 - off) // 100")) == (
            Comparison(passed=3, green=True),
            True,
        )
