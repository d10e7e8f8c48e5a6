"""A repository with 100,000 files: fetched, put, saved and described, also when a change touches each of them."""

import subprocess
from pathlib import Path

import anyio
import pytest

from cloister.forge import Forges, workspace
from cloister.forge.change import files, make_change
from cloister.forge.read import blobs
from cloister.testing.local import LocalComputer
from cloister.testing.samples import SampleRepo

pytestmark = [pytest.mark.anyio, pytest.mark.long]

COUNT = 100_000


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
