"""The same verdicts in a real sandbox, with pytest and its JUnit report."""

import shutil
from pathlib import Path

import msgspec
import pytest
from tests.agent.evidence.court import committed

from cloister.agent.evidence.proof import Task, run_proof
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
        Comparison(fixed=(RED,), passed=2, green=True, ran=1, shown=(RED,)),
    ),
    "a conftest that skips": (
        {
            "conftest.py": "import pytest\n\n\ndef pytest_collection_modifyitems(items):\n"
            "    items[0].add_marker(pytest.mark.skip)\n"
        },
        Comparison(
            passed=1,
            skipped=(RED,),
            ran=1,
        ),
    ),
    "a setting that deselects": (
        {"pytest.ini": f"[pytest]\naddopts = --deselect {RED}\n"},
        Comparison(passed=1, missing=(RED,), ran=1),
    ),
    "another expectation": (
        {TEST_FILE: TESTS.replace("27", "20")},
        Comparison(passed=2, weakened=(f"{RED} (it fails with the tests of the base)",), ran=1),
    ),
    "another expectation in what git is told is binary": (
        {TEST_FILE: TESTS.replace("27", "20"), ".gitattributes": "*.py binary\n"},
        Comparison(passed=2, weakened=(f"{RED} (it fails with the tests of the base)",), ran=1),
    ),
    "no test": (
        {TEST_FILE: TESTS.replace("test_discount", "check_discount")},
        Comparison(passed=1, missing=(RED,), ran=1),
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
            found = await run_proof(sandbox, Task(checks, baseline, baseline, wish), _quiet)
            assert found.comparison == expected, how


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

        assert await look(SHOP) == (Comparison(new=(RED,), passed=2, ran=1), False)
        assert await look("import os\n" + SHOP.replace("- off", "* (100 - off) // 100")) == (
            Comparison(passed=3, green=True, ran=1),
            True,
        )


OWN = {
    "pyproject.toml": '[project]\nname = "shop"\nversion = "1"\n',
    "src/shop/__init__.py": "from shop.prices import total\n",
    "src/shop/prices.py": "def total():\n    return 'own'\n",
    "tests/test_shop.py": (
        "import subprocess, sys\nimport shop\n\n\n"
        "def test_own(tmp_path):\n    assert shop.total() == 'own'\n\n\n"
        "def test_own_in_a_process(tmp_path):\n"
        "    line = [sys.executable, '-c', 'import shop; print(shop.total())']\n"
        "    assert subprocess.check_output(line, cwd=tmp_path) == b'own\\n'\n"
    ),
}
PACKAGES = "/usr/lib/python3/dist-packages"
THEIRS = f"mkdir {PACKAGES}/shop && echo 'def total(): return \"distribution\"' > {PACKAGES}/shop/__init__.py"
LINKED = f'echo "$PWD{{}}/src" > {PACKAGES}/shop.pth'
COMPILED = (
    f"mkdir {PACKAGES}/shop && cp src/shop/*.py {PACKAGES}/shop && echo x = 1 > {PACKAGES}/shop/_fast.py"
)


async def _seen(host: ContainerHost, root: Path, files: dict[str, str], prepare: str) -> tuple[str, bool]:
    """The check of a repository in a sandbox that root prepared, and whether it is green there."""
    bare, base = committed(root, files)
    async with host.open(SandboxSpec()) as sandbox:
        await workspace.put(sandbox, bare, base)
        done = await sandbox.run(msgspec.structs.replace(shell(prepare), user="root"))
        assert done.ok, done.err
        (check,) = await find_checks(sandbox)
        assert not (await sandbox.run(shell("git status --porcelain --ignored"))).out, "and nothing is left"
        (found,) = await run_checks(sandbox, (check,), "own", _quiet)
    return check, found.green


@pytest.mark.parametrize(
    ("prepare", "own", "prefix"),
    [
        ("true", OWN, "PYTHONPATH=/work/src "),
        (THEIRS, OWN, "PYTHONPATH=/work/src "),
        (LINKED.format(""), OWN, ""),
        (COMPILED, {**OWN, "src/shop/prices.py": "import shop._fast\n" + OWN["src/shop/prices.py"]}, ""),
        (THEIRS, {f"app/{name}": text for name, text in OWN.items()}, "cd app && PYTHONPATH=/work/app/src "),
        (LINKED.format("/app"), {f"app/{name}": text for name, text in OWN.items()}, "cd app && "),
    ],
    ids=["not installed", "shadowed", "development mode", "compiled", "nested and shadowed", "nested"],
)
async def test_a_src_layout_imports_its_own_code(
    host: ContainerHost, tmp_path: Path, prepare: str, own: dict[str, str], prefix: str
) -> None:
    assert await _seen(host, tmp_path, own, prepare) == (f"{prefix}python3 -m pytest -q", True)


@pytest.mark.parametrize(
    ("files", "check", "missing"),
    [
        ({"package.json": '{"scripts": {"test": "jest"}}', "pnpm-lock.yaml": ""}, "pnpm test", "pnpm"),
        ({"package.json": '{"scripts": {"test": "jest"}}', "yarn.lock": ""}, "yarn test", "yarn"),
        ({"Cargo.toml": "[package]\n"}, "cargo test", "cargo"),
        ({"app/go.mod": "module a\n"}, "cd app && go test ./...", "go"),
        ({"CMakeLists.txt": "enable_testing()\n"}, None, "cmake"),
        ({"pom.xml": "<project/>"}, "mvn -B -q test", "mvn"),
        ({"mix.exs": ""}, "mix test", "mix"),
        ({"noxfile.py": ""}, "nox", "nox"),
    ],
)
async def test_a_suite_without_its_tool_says_what_is_missing(
    host: ContainerHost, tmp_path: Path, files: dict[str, str], check: str | None, missing: str
) -> None:
    bare, base = committed(tmp_path, files)
    async with host.open(SandboxSpec()) as sandbox:
        await workspace.put(sandbox, bare, base)
        checks = await find_checks(sandbox)
        (found,) = await run_checks(sandbox, checks, "missing", _quiet)

    assert check is None or checks == (check,)
    assert (found.green, found.exit_code) == (False, 127)
    assert [one.message for one in found.diagnostics if one.tool == "sandbox"] == [
        f"{missing} is not installed in the sandbox. Add it to the template, or choose another check with --check."
    ]


async def test_a_test_in_a_nested_project_has_the_name_of_its_file_in_the_repository(
    host: ContainerHost, tmp_path: Path
) -> None:
    bare, base = committed(
        tmp_path, {"app/pyproject.toml": "", "app/shop.py": SHOP, f"app/{TEST_FILE}": TESTS}
    )
    async with host.open(SandboxSpec()) as sandbox:
        await workspace.put(sandbox, bare, base)
        checks = await find_checks(sandbox)
        (found,) = await run_checks(sandbox, checks, "nested", _quiet)

    assert checks == ("cd app && python3 -m pytest -q",)
    (failing,) = found.failing
    assert (failing.name, failing.file, failing.line) == (f"app/{RED}", f"app/{TEST_FILE}", 5)
    assert "> 5 |     assert total([10, 20], 10) == 27" in (failing.source or "")
