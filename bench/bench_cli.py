"""CPU time of quick commands, next to Python starting and doing nothing.

User and system time of the process and of those that it starts are counted, not the clock: a busy machine matters less.
The commands take turns, so that it weighs on all of them alike. The data directory has one finished run with a change
and one that is not finished, and no server. Modules are compiled, as after the first command.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio

from cloister.core.events import BaseFixed, ChangeMade, RunFinished
from cloister.core.ids import OwnerId, RunId
from cloister.core.requests import NewRun
from cloister.forge.host import bare_repository
from cloister.log.sqlite.backbone import open_backbone
from cloister.testing.samples import SampleRepo

ROUNDS = int(os.environ.get("ROUNDS", "15"))
CLOISTER = [sys.executable, "-m", "cloister"]


async def seed(data_dir: Path, repo: SampleRepo) -> tuple[RunId, RunId]:
    """A run that is not finished, and one with a change."""
    repo.write("calc.py", "def add(a, b):\n    return a - b\n")
    base = repo.commit("base")
    repo.write("calc.py", "def add(a, b):\n    return a + b\n")
    fixed = repo.commit("fix")
    found: list[RunId] = []
    async with open_backbone(data_dir / "cloister.db", owner_lives=lambda _: False) as backbone:
        for finished in (False, True):
            run, _ = await backbone.admit(NewRun("Fix add.", str(repo.path)), "bench")
            fence = await backbone.claim(OwnerId("o-aaaaaaaaaaaa"), run)
            assert fence is not None
            await backbone.append(fence, [BaseFixed(base, "main")])
            if finished:
                bare = bare_repository(data_dir, run)
                repo.git("clone", "--quiet", "--bare", str(repo.path), str(bare))
                made = ChangeMade("cloister/fix", fixed, (), "Fix add.")
                await backbone.append(fence, [made, RunFinished("proven", "Fix add.")])
            found.append(run)
    return found[0], found[1]


def spent(argv: list[str], env: dict[str, str], at: Path) -> float:
    """Milliseconds of CPU that a process and its children take."""
    child = subprocess.Popen(argv, env=env, cwd=at, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert child.stdout is not None
    said = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, (argv, said.decode())
    return (used.ru_utime + used.ru_stime) * 1000


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        data_dir = Path(name) / "data"
        repo = SampleRepo(Path(name) / "repo")
        going, done = anyio.run(seed, data_dir, repo)
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env = kept | {"CLOISTER_DATA_DIR": str(data_dir)}
        asks = {"_CLOISTER_COMPLETE": "complete_bash"}
        commands: dict[str, tuple[list[str], dict[str, str], int]] = {
            "python -c pass": ([sys.executable, "-c", "pass"], {}, 0),
            "--help": ([*CLOISTER, "--help"], {}, 120),
            "completion of di": (CLOISTER, asks | {"COMP_WORDS": "cloister\ndi", "COMP_CWORD": "1"}, 120),
            "completion of diff r-": (
                CLOISTER,
                asks | {"COMP_WORDS": "cloister\ndiff\nr-", "COMP_CWORD": "2"},
                120,
            ),
            "ps": ([*CLOISTER, "ps"], {}, 250),
            "log": ([*CLOISTER, "log", done], {}, 250),
            "diff": ([*CLOISTER, "diff", done], {}, 250),
            "say": ([*CLOISTER, "say", going, "Hello."], {}, 250),
            "policy explain": ([*CLOISTER, "policy", "explain", "bash:git push"], {}, 250),
        }
        found: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(ROUNDS + 1):
            for name, (argv, more, _) in commands.items():
                took = spent(argv, env | more, repo.path)
                if turn:  # the first one compiles
                    found[name].append(took)
        nothing = statistics.median(found["python -c pass"])
        for name, took in found.items():
            middle, goal = statistics.median(took), commands[name][2]
            told = f"   (goal ≤ {goal} ms)" if goal else ""
            print(
                f"{name:22s} {middle:5.0f} ms CPU   best {min(took):4.0f} ms   {middle / nothing:4.1f}x python alone{told}"
            )


if __name__ == "__main__":
    main()
