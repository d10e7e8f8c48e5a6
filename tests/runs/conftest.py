"""The arena: made once, and a copy of its repository for each test."""

import shutil
from pathlib import Path

import anyio
import pytest
from tests.runs.arena import BROKEN, CHECK, FIX, TESTS, Arena

from cloister.agent.evidence.run_checks import run_checks
from cloister.core.computer import Stream
from cloister.core.diagnosis import Diagnosis
from cloister.forge import workspace
from cloister.forge.plain_git import PlainGit
from cloister.testing.local import LocalHost
from cloister.testing.samples import SampleRepo


def _quiet(check: str, stream: Stream, data: bytes) -> None:
    pass


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Arena:
    root = tmp_path_factory.mktemp("arena")
    repo = SampleRepo(root / "repo")
    repo.write("calc.py", BROKEN)
    repo.write("test_calc.py", TESTS)
    base = repo.commit("base")
    bare = root / "base.git"
    arena = Arena(root, repo, LocalHost(root / "first"), bare, base, ())
    arena.baseline = anyio.run(_baseline, arena)
    return arena


async def _baseline(arena: Arena) -> tuple[Diagnosis, ...]:
    await PlainGit().fetch(str(arena.repo.path), None, arena.bare)
    async with arena.host.open(arena.services().sandbox_spec(arena.request(FIX), "default")) as sandbox:
        await workspace.put(sandbox, arena.bare, arena.base)
        return await run_checks(sandbox, (CHECK,), "baseline", _quiet)


@pytest.fixture
def arena(made: Arena, tmp_path: Path) -> Arena:
    bare = tmp_path / "repo.git"
    shutil.copytree(made.bare, bare)
    return Arena(tmp_path, made.repo, LocalHost(tmp_path / "sandboxes"), bare, made.base, made.baseline)
