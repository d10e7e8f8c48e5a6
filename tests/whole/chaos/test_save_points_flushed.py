"""A save point is on the disk when `save` returns, so that a power failure cannot take what the log names."""

import re
import shutil
import sys
from pathlib import Path

import anyio
import pytest

from cloister.forge.host import in_bare, oid
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

PROGRAM = """
import sys, anyio
from pathlib import Path
from cloister.forge import workspace
from cloister.forge.plain_git import PlainGit
from cloister.testing.local import LocalComputer
from cloister.testing.samples import SampleRepo
async def main():
    repo, room = Path(sys.argv[1]), Path(sys.argv[2])
    bare, computer = room / "bare", LocalComputer(room / "guest")
    base = (await PlainGit().fetch(str(repo), None, bare)).commit
    await workspace.put(computer, bare, base)
    SampleRepo(computer.work).write("new.txt", "new")
    print("saving", flush=True)
    await workspace.save(computer, bare, base, "refs/cloister/attempt/0")
    print("saved", flush=True)
anyio.run(main)
"""


async def test_a_save_point_is_flushed_before_the_log_can_name_it(tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed: the order of syncing and acknowledging is not tested")
    trace, bare, repo = tmp_path / "trace", tmp_path / "bare", SampleRepo(tmp_path / "repo")
    repo.write("README.md", "# Sample")
    repo.commit("First")
    program = [sys.executable, "-c", PROGRAM, str(repo.path), str(tmp_path)]
    with anyio.fail_after(120):
        await anyio.run_process(
            [strace, "-f", "-y", "-qq", "-o", str(trace), "-e", "trace=fsync,fdatasync,write", *program]
        )
    lines = (await anyio.Path(trace).read_text(encoding="utf-8", errors="replace")).splitlines()
    marks = [at for at, line in enumerate(lines) if re.search(r'"sav(?:ing|ed)(?:\\n)?"', line)]
    flushed = {
        found[1].removeprefix(f"{bare}/")
        for line in lines[marks[0] : marks[1]]
        if (found := re.search(r"f(?:data)?sync\(\d+<([^>]+)>", line))
    }
    saved = oid((await in_bare(bare, "rev-parse", "refs/cloister/attempt/0")).out)
    for wanted in (
        r".*/pack/tmp_pack_\w+",  # the files, as they came
        r".*/pack/tmp_idx_\w+",
        rf"objects/({saved[:2]}/)?tmp_obj_\w+",  # the commit
        r"refs/cloister/attempt/0\.lock",
        r"objects/pack",  # the names of all of them
        rf"objects/{saved[:2]}",
        r"refs/cloister/attempt",
    ):
        assert any(re.fullmatch(wanted, one) for one in flushed), (wanted, sorted(flushed))
