"""Large repositories: one with 100,000 files, also when a change touches each of them, and one with a gigabyte of history."""

import os
import subprocess
from pathlib import Path

import anyio
import pytest

from cloister.core import limits
from cloister.forge import Forges, workspace
from cloister.forge.change import files, make_change
from cloister.forge.host import in_bare
from cloister.forge.read import blobs
from cloister.testing.local import LocalComputer
from cloister.testing.samples import SampleRepo

pytestmark = [pytest.mark.anyio, pytest.mark.long]

COUNT = 100_000
COMMITS, BLOB = 1_024, 1_048_576


def _large(at: Path) -> Path:
    """A bare repository whose newest commit, on `all`, changes every file of `main`.

    Each name is so long that a list of all is larger than what one command may print.
    """
    at.mkdir()
    subprocess.run(["git", "init", "-q", "--bare", "--initial-branch=main", "."], cwd=at, check=True)
    with subprocess.Popen(["git", "fast-import", "--quiet"], cwd=at, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        for branch, parent in (("main", ""), ("all", "from refs/heads/main\n")):
            head = f"commit refs/heads/{branch}\ncommitter A <a@example.org> 1 +0000\ndata 1\nc\n{parent}"
            process.stdin.write(head.encode())
            for number in range(COUNT):
                text = f"{branch} {number % 1_000}"
                name = f"{number % 200:03}-a-directory-with-a-long-name/{number:06}-and-a-file-with-one"
                process.stdin.write(f"M 100644 inline {name}\ndata {len(text)}\n{text}\n".encode())
    return at


async def test_every_file_is_there_and_may_be_changed(tmp_path: Path) -> None:
    repo = await anyio.to_thread.run_sync(_large, tmp_path / "large")
    bare, computer = tmp_path / "bare", LocalComputer(tmp_path / "guest")
    every = (await Forges().bring(str(repo), "all", bare)).commit
    base = (await Forges().bring(str(repo), "main", bare)).commit
    assert len(await blobs(bare, base)) == COUNT
    made = await make_change(bare, base, every, "cloister/x", "Change everything")
    assert len(await files(bare, base, made)) == COUNT
    await workspace.put(computer, bare, base)
    SampleRepo(computer.work).write("new.txt", "new\n")
    saved = await workspace.save(computer, bare, base, "refs/cloister/one")
    assert [one.path for one in await files(bare, base, saved)] == ["new.txt"]


def _deep(at: Path) -> Path:
    """A bare repository whose history has a gigabyte that cannot be compressed, in the versions of 40 files."""
    at.mkdir()
    subprocess.run(["git", "init", "-q", "--bare", "--initial-branch=main", "."], cwd=at, check=True)
    git = ["git", "-c", "core.compression=0", "-c", "pack.compression=0", "fast-import", "--quiet"]
    with subprocess.Popen(git, cwd=at, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        for number in range(COMMITS):
            head = f"commit refs/heads/main\ncommitter A <a@example.org> {number} +0000\ndata 1\nc\n"
            process.stdin.write(f"{head}M 100644 inline d{number % 40}/file\ndata {BLOB}\n".encode())
            process.stdin.write(os.urandom(BLOB) + b"\n")
    return at


@pytest.mark.long(only=True)
async def test_a_gigabyte_of_history_is_fetched_whole_and_cut_in_the_sandbox(tmp_path: Path) -> None:
    repo = await anyio.to_thread.run_sync(_deep, tmp_path / "deep")
    bare, computer = tmp_path / "bare", LocalComputer(tmp_path / "guest")
    base = (await Forges().bring(str(repo), "main", bare)).commit
    assert (await in_bare(bare, "rev-list", "--count", base)).out.split() == [str(COMMITS).encode()]
    await workspace.put(computer, bare, base)
    inside = SampleRepo(computer.work)
    assert inside.head == base
    assert 0 < int(inside.git("rev-list", "--count", "HEAD")) < COMMITS
    packed = sum(path.stat().st_size for path in (computer.work / ".git/objects/pack").glob("*.pack"))
    assert packed < limits.HISTORY_BYTES
    inside.write("new.txt", "new\n")
    saved = await workspace.save(computer, bare, base, "refs/cloister/one")
    assert [one.path for one in await files(bare, base, saved)] == ["new.txt"]
