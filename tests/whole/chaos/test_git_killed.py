"""git on the host is killed, as by a machine that runs out of memory: the run goes on, or says so."""

import os
import stat
from pathlib import Path

from tests.whole.e2e.conftest import Cloister
from tests.whole.e2e.test_continue import bash, finish, repository, script

CHECK = ("--check", "python3 -m unittest -q")
TURNS = script(bash("sed -i 's/a - b/a + b/' calc.py"), finish("Add adds."))


class WithGit(Cloister):
    """The command with a `git` of its own first on the path."""

    @property
    def env(self) -> dict[str, str]:
        return {**super().env, "PATH": f"{self.cwd / 'bin'}:{os.environ['PATH']}"}

    def put_git(self, line: str) -> None:
        at = self.cwd / "bin" / "git"
        at.parent.mkdir()
        at.write_text(f'#!/bin/bash\n{line}\nexec {real_git()} "$@"\n')
        at.chmod(at.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def real_git() -> str:
    found = (Path(at) / "git" for at in os.environ["PATH"].split(":"))
    return str(next(path for path in found if path.exists()))


def test_a_run_ends_green_though_git_is_killed_again_and_again(data_dir: Path, tmp_path: Path) -> None:
    cloister = WithGit(data_dir, tmp_path)
    count = tmp_path / "count"
    repo = repository(cloister)
    cloister.put_git(f"echo >> {count}; (( $(wc -l < {count}) % 4 == 0 )) && kill -9 $$")
    done = cloister("run", "Fix add", "--repo", str(repo), "--model", cloister.script(TURNS), *CHECK)
    assert "✓ proven" in done.stdout
    assert len(count.read_text()) > 12, "it was killed several times"


def test_a_run_whose_git_is_always_killed_says_so(data_dir: Path, tmp_path: Path) -> None:
    cloister = WithGit(data_dir, tmp_path)
    repo = repository(cloister)
    cloister.put_git("kill -9 $$")
    done = cloister(
        "run", "Fix add", "--repo", str(repo), "--model", cloister.script(TURNS), *CHECK, code=None
    )
    assert "was killed by signal 9" in done.stdout + done.stderr
    assert done.returncode not in (0, 70)
