"""Long suites in parts: the parts run every test once, each in a sandbox of its own, and say what one run would say."""

import shutil
from pathlib import Path

import msgspec
import pytest

from cloister.agent.evidence.run_checks import Shards, run_checks
from cloister.core.computer import Stream, shell
from cloister.core.diagnosis import Diagnosis
from cloister.core.diagnosis import TestResult as Result
from cloister.feedback import shards as cut
from cloister.feedback.check_commands import specify
from cloister.feedback.shards import joined
from cloister.forge import workspace
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.testing.local import LocalHost
from cloister.testing.samples import SampleRepo

PYTEST = "python3 -m pytest -q"
FILES = ("a/test_one.py", "test_two.py", "test_three.py")


def known(*files: str, seconds: float = 100.0, check: str = PYTEST) -> Diagnosis:
    """Earlier results of a suite with three tests in each of these files."""
    tests = tuple(Result(f"{file}::test_{n}", "passed") for file in files for n in range(3))
    return Diagnosis(check, 0, seconds, tests=tests)


def lines(before: Diagnosis, *, files: tuple[str, ...] = FILES, cpus: float = 2.0) -> tuple[str, ...]:
    return cut.lines(specify(before.check), (before,), cpus, files)


def test_the_first_part_runs_everything_that_the_others_do_not_name() -> None:
    first, second = lines(known(*FILES))
    named = second.split(PYTEST)[1].split()
    assert {*named} < {*FILES}
    assert [word for word in first.split() if word.startswith("--ignore")] == [f"--ignore={n}" for n in named]
    assert len(lines(known(*FILES), cpus=3)) == 3


@pytest.mark.parametrize(
    "check",
    [
        f"{PYTEST} tests/unit",
        f"{PYTEST} -x",
        f"{PYTEST} -n auto",
        f"{PYTEST} -p no:randomly",
        f"cd sub && {PYTEST}",
        f"{PYTEST} | tee log",
        "tox",
        "npm test",
        "go test ./...",
        "npx mocha",
        "npx vitest run --shard=1/2",
        "ctest --test-dir build --output-on-failure",
    ],
)
def test_a_suite_that_may_not_be_cut_runs_as_a_whole(check: str) -> None:
    assert lines(known(*FILES, check=check)) == ()


@pytest.mark.parametrize(
    ("check", "script", "option"),
    [
        ("npx vitest run", "", "--shard="),
        ("npx jest", "", "--shard="),
        ("npm test", "jest --verbose", "--shard="),
        ("cd web && pnpm test", "vitest run", "--shard="),
        ("node --test", "", "--test-shard="),
    ],
)
def test_a_runner_that_cuts_its_suite_itself_is_asked_for_each_part(
    check: str, script: str, option: str
) -> None:
    spec = specify(check, {"test": script} if script else None)
    parts = cut.lines(spec, (Diagnosis(check, 0, 100.0),), 2.0, ())
    assert [part.replace(f" {option}{number}/2", "") for number, part in enumerate(parts, 1)] == [
        spec.run
    ] * 2
    assert cut.lines(spec, (Diagnosis(check, 0, 10.0),), 2.0, ()) == ()


def test_a_short_suite_one_with_one_file_or_one_processor_and_odd_names_run_as_a_whole() -> None:
    assert lines(known(*FILES, seconds=10)) == ()
    assert lines(known(*FILES), cpus=1.5) == ()
    assert lines(known("test_two.py")) == ()
    assert lines(known(*FILES), files=("test_two.py",)) == (), "the others are gone"
    assert lines(known("test_$(id).py", "test_b c.py"), files=("test_$(id).py", "test_b c.py")) == ()
    for odd in (
        ("test_a(1).py", "test_b;c.py"),
        ("test_d&e.py", "test_g>h.py"),
        ("-test_f.py", "-test_i.py"),
    ):
        assert lines(known(*odd), files=odd) == ()
    assert lines(msgspec.structs.replace(known(*FILES), killed="time")) == ()


def test_parts_are_joined_and_a_part_that_did_not_run_makes_them_worthless() -> None:
    red = Diagnosis("part", 1, 3.0, tests=(Result("b::x", "failed"),), unlisted=2)
    green, empty = known("a.py", seconds=2.0), Diagnosis("part", 5, 1.0, not_run="no test ran")
    whole = joined(PYTEST, (green, red, empty))
    assert whole is not None
    assert (whole.check, whole.exit_code, whole.seconds, whole.unlisted) == (PYTEST, 1, 6.0, 2)
    assert [test.name for test in whole.tests][-1] == "b::x"
    assert joined(PYTEST, (green, Diagnosis("part", 127, 1.0, not_run="pytest is missing"))) is None
    assert joined(PYTEST, (green, green)) is None, "a test ran twice"
    assert joined(PYTEST, (empty,)) is None
    assert joined("jest", (green, Diagnosis("part", 1, 1.0))) is None, "the runner does not know the option"
    twice = msgspec.structs.replace(green, tests=(*green.tests, *green.tests))
    assert joined("jest", (twice, red)) is not None, "two tests of one file may have one name"


ALONE = """import pathlib, time

def test_alone():
    mark = pathlib.Path("/tmp/.seen")
    assert not mark.exists()
    mark.touch()

def test_red():
    assert {good}
"""
REWRITES = (
    "import pathlib\n\ndef test_it():\n    pathlib.Path('a/test_one.py').write_text('def test_red(): pass')\n"
)


def _quiet(check: str, stream: Stream, data: bytes) -> None:
    pass


@pytest.mark.anyio
async def test_parts_run_in_sandboxes_of_their_own_with_new_tests_and_a_rewriter_is_not_believed(
    host: ContainerHost, tmp_path: Path
) -> None:
    repo = SampleRepo(tmp_path / "repo")
    repo.write("a/test_one.py", ALONE.format(good="False"))
    repo.write("test_two.py", ALONE.format(good="True"))
    commit = repo.commit("base")
    async with host.open(SandboxSpec()) as sandbox:
        await workspace.put(sandbox, repo.path / ".git", commit)
        shards = Shards(sandbox.fork, (known("a/test_one.py", "test_two.py"),))
        [found] = await run_checks(sandbox, (PYTEST,), "one", _quiet, cpus=2.0, shards=shards)
        status = {test.name: test.status for test in found.tests}
        assert status == {
            "a/test_one.py::test_alone": "passed",
            "a/test_one.py::test_red": "failed",
            "test_two.py::test_alone": "passed",
            "test_two.py::test_red": "passed",
        }
        assert (await sandbox.run(shell("test ! -e /tmp/.seen"))).ok, "nothing ran in the sandbox itself"

        await sandbox.write("test_new.py", REWRITES.encode())
        [found] = await run_checks(sandbox, (PYTEST,), "two", _quiet, cpus=2.0, shards=shards)
        status = {test.name: test.status for test in found.tests}
        assert status["test_new.py::test_it"] == "passed"
        both = [status[f"{name}::test_alone"] for name in ("a/test_one.py", "test_two.py")]
        assert sorted(both) == ["failed", "passed"], "all ran in one sandbox, because a file was rewritten"


NODE = "node --test"
EACH = "const test = require('node:test'); const fs = require('fs'); test('{0}', () => {{ fs.appendFileSync('ran', '{0}'); if ({1}) throw new Error(); }});\n"


@pytest.mark.anyio
async def test_the_parts_of_a_runner_that_cuts_its_suite_itself_run_every_test_once(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("node cannot be fetched here")
    repo = SampleRepo(tmp_path / "repo")
    for name in "abcde":
        repo.write(f"test/{name}.test.js", EACH.format(name, str(name == "c").lower()))
    repo.write(".gitignore", "ran\n")
    commit = repo.commit("base")
    async with LocalHost(tmp_path / "sandboxes").open(SandboxSpec()) as sandbox:
        await workspace.put(sandbox, repo.path / ".git", commit)
        before = Diagnosis(NODE, 0, 100.0)
        shards = Shards(sandbox.fork, (before,))
        [found] = await run_checks(sandbox, (NODE,), "one", _quiet, cpus=2.0, shards=shards)
        assert sorted(test.name.rpartition("::")[2] for test in found.tests) == [*"abcde"]
        assert [test.name.rpartition("::")[2] for test in found.failing] == ["c"]
        assert not (await sandbox.run(shell("test -e ran"))).ok, "nothing ran in the sandbox itself"
