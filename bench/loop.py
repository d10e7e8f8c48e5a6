"""The loop's own cost per step, side by side with mini-swe-agent on the same replies and the same commands.

Both call the shell with a command that waits a known time and prints two thousand bytes. What a step takes beyond
that wait and the model's own time is overhead: for us with the durable log, the policy, the save points' look at the
files and a real sandbox; for mini-swe-agent with its trajectory file, on this machine without any isolation. Both run
in short turns, so that whatever else the machine does weighs on both. mini-swe-agent is put into an environment of its own; where it cannot be had, only ours is measured.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import anyio
import anyio.to_thread

from cloister.app import open_app
from cloister.core.events import Event, ModelReplied, RunFinished
from cloister.core.records import Budget, NewRun
from cloister.settings import read_settings
from cloister.testing.sample_repo import SampleRepo

STEPS = int(os.environ.get("STEPS", "25"))
ROUNDS = int(os.environ.get("ROUNDS", "8"))
WAIT = 0.05
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
WARM = CACHE / "cloister-tests"
COMMAND = f"sleep {WAIT}; head -c 2000 a.txt"
MINI = "mini-swe-agent==2.4.6"
NEEDS = ("pyyaml", "jinja2", "pydantic", "rich", "python-dotenv", "platformdirs", "requests", "tenacity")
"""What its loop imports; the providers' libraries are not needed for a scripted model."""


def mini_python() -> Path | None:
    """An interpreter that has mini-swe-agent, kept between measurements; None where it cannot be installed."""
    home = CACHE / "cloister-bench" / MINI.replace("==", "-")
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        pip = (str(python), "-m", "pip", "install", "--quiet", "--quiet", "--disable-pip-version-check")
        try:
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=120)
            subprocess.run([*pip, "--no-deps", MINI], check=True, timeout=300)
            subprocess.run([*pip, *NEEDS], check=True, timeout=600)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"mini-swe-agent cannot be installed here, so there is nothing to compare with: {error}")
            return None
        (home / "ready").touch()
    return python


def mini_steps(python: Path, repo: Path, scratch: Path) -> list[float]:
    """Overhead of each of its steps."""
    script = Path(__file__).with_name("mini_steps.py")
    done = subprocess.run(
        [str(python), str(script), str(repo), str(scratch / "trajectory.json"), str(STEPS), COMMAND],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "MSWEA_GLOBAL_CONFIG_DIR": str(scratch)},
    )
    return [wall - WAIT for wall in json.loads(done.stdout.splitlines()[-1])]


async def our_steps(directory: Path, new: NewRun) -> list[float]:
    """Overhead of each of our steps."""
    settings = read_settings(dict(os.environ), data_dir=directory)
    async with open_app(settings, role="embedded") as app:
        run, _ = await app.submit(new, "bench")
        async with app.backbone.follow(run) as items:
            events = [item async for item in items if isinstance(item, Event)]
    assert isinstance(events[-1].body, RunFinished), events[-1]
    replies = [(event.at, event.body.seconds) for event in events if isinstance(event.body, ModelReplied)]
    assert len(replies) >= STEPS * 0.9, events[-1].body
    return [later - earlier - own - WAIT for (earlier, _), (later, own) in pairwise(replies)]


def shown(name: str, own: list[float]) -> str:
    ordered = sorted(own)
    p50, p99 = statistics.median(ordered) * 1000, ordered[int(len(ordered) * 0.99)] * 1000
    return f"{name} p50 {p50:.2f} ms, p99 {p99:.2f} ms"


async def main() -> None:
    python = mini_python()
    with tempfile.TemporaryDirectory(prefix="cloister-bench-") as name:
        directory = Path(name)
        for part in ("templates", "programs"):
            (WARM / part).mkdir(parents=True, exist_ok=True)
            (directory / part).symlink_to(WARM / part)
        (directory / "config.toml").write_text("[stuck]\nrepeats = 0\nalternations = 0\nidle = 0\n")
        repo = SampleRepo(directory / "repo")
        repo.write("a.txt", "a line of the file that is looked at\n" * 100)
        repo.commit("base")
        script = directory / "loop.script.toml"
        script.write_text(
            f'[[reply]]\nname = "again"\nsay = "Look."\ncalls = [{{ tool = "bash", command = "{COMMAND}" }}]\n'
            'goto = "again"\n'
        )
        budget = Budget(steps=STEPS, tokens=1_000_000_000)
        new = NewRun("bench", str(repo.path), model=f"script:{script}", checks=("true",), budget=budget)
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(ROUNDS):
            ours += await our_steps(directory, new)
            if python is not None:
                theirs += await anyio.to_thread.run_sync(mini_steps, python, repo.path, directory)
    print(shown(f"loop overhead per step ({len(ours)} steps): ours", ours))
    if theirs:
        ratio = statistics.median(ours) / statistics.median(theirs)
        print(f"{shown('mini-swe-agent', theirs)}   ratio {ratio:.2f}x (goal: at most 1x)")


if __name__ == "__main__":
    anyio.run(main)
