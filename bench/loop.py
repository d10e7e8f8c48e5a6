"""The loop's own cost per step, side by side with mini-swe-agent on the same replies and the same commands.

Both call the shell with a command that waits a known time and prints two thousand bytes. What is counted is the time
from one reply of the model to the next, without the model's own time and without that wait. So it holds, on both
sides, the start and the end of the shell and of its two programs, and besides:

- ours: a real sandbox, the policy's decision, the audit, and every event on disk (`synchronous = FULL`) before the
  next thing is done or shown: two transactions a step. `reads` is a command that plainly changes no file; `may write`
  is one by a program that could, after which the files in the sandbox are looked at.
- mini-swe-agent: a plain `sh` on this machine without any isolation, and its trajectory file, which is written and
  not made durable.

Both sides run in short turns one after the other, so that whatever else the machine does weighs on all of them; what
is compared are medians. mini-swe-agent is put into an environment of its own; where it cannot be had, only ours is
measured.

Before that it prints what declared tools cost of each request's context, in tokens as the budget estimates them.
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

from cloister.agent.context.messages import fixed_tokens
from cloister.agent.context.prompts import SYSTEM
from cloister.agent.tools.declared import read_tools
from cloister.agent.tools.toolset import ToolSet
from cloister.app.settings import read_settings
from cloister.app.tokens import Caller
from cloister.app.verbs.local import LocalVerbs
from cloister.app.wiring import open_app
from cloister.core.events import Event, ModelReplied, RunFinished
from cloister.core.requests import Budget, NewRun
from cloister.testing.samples import SampleRepo

STEPS = int(os.environ.get("STEPS", "25"))
ROUNDS = int(os.environ.get("ROUNDS", "8"))
WAIT = 0.05
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
WARM = CACHE / "cloister-tests"
COMMANDS = {
    "reads": f"sleep {WAIT}; head -c 2000 a.txt",
    "may write": f"sleep {WAIT}; dd if=a.txt bs=2000 count=1 status=none",
}
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


def mini_steps(python: Path, repo: Path, scratch: Path, command: str) -> list[float]:
    """Overhead of each of its steps."""
    script = Path(__file__).with_name("parts") / "mini_steps.py"
    done = subprocess.run(
        [str(python), str(script), str(repo), str(scratch / "trajectory.json"), str(STEPS), command],
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
        run = (await LocalVerbs(app, Caller("bench", "admin")).runs.submit(new)).id
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
        runs = {name: _run(directory, repo, name, line) for name, line in COMMANDS.items()}
        ours: dict[str, list[float]] = {name: [] for name in runs}
        theirs: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(ROUNDS):
            for name, new in runs.items():
                ours[name] += await our_steps(directory, new)
                if python is not None:
                    theirs[name] += await anyio.to_thread.run_sync(
                        mini_steps, python, repo.path, directory, COMMANDS[name]
                    )
    for name, own in ours.items():
        peer = theirs[name]
        print(f"loop overhead per step of a command that {name} ({len(own)} steps):")
        print(f"  {shown('ours', own)}")
        if peer:
            print(f"  {shown('mini-swe-agent', peer)}")
            print(f"  ratio {statistics.median(own) / statistics.median(peer):.2f}x (goal: at most 1x)")


def _run(directory: Path, repo: SampleRepo, name: str, line: str) -> NewRun:
    script = directory / f"{name.replace(' ', '-')}.script.toml"
    script.write_text(
        f'[[reply]]\nname = "again"\nsay = "Look."\ncalls = [{{ tool = "bash", command = "{line}" }}]\n'
        'goto = "again"\n'
    )
    budget = Budget(steps=STEPS, tokens=1_000_000_000)
    return NewRun("bench", str(repo.path), model=f"script:{script}", checks=("true",), budget=budget)


GOAL_TOKENS = 2_000
COUNTS = (10, 30, 100, 500)
DECLARATION = """\
description = "Look up or change one {what} of the team {number}, in the company's own system."
command = ["bin/company", "--team={number}", "--to={{to}}", "--", "{{note}}"]

[arguments]
required = ["to"]

[arguments.properties.to]
type = "string"
enum = ["staging", "prod"]

[arguments.properties.note]
type = "string"
maxLength = 200
"""
SUBJECTS = ("invoice", "release", "feature flag", "database replica", "pager rotation")


def tokens(count: int) -> tuple[int, int]:
    """What so many declared tools add to each request, and what listing them all would."""
    files = {
        f".cloister/tools/team_{n}.toml": DECLARATION.format(what=SUBJECTS[n % 5], number=n).encode()
        for n in range(count)
    }
    declared, problems = read_tools(files)
    assert not problems, problems
    tools = [one.tool for one in declared]
    plain, added = ToolSet(), ToolSet(tools)
    listed = (*plain.specs, *(tool.spec for tool in tools))
    base = fixed_tokens(SYSTEM, plain.specs)
    return fixed_tokens(SYSTEM, added.specs) - base, fixed_tokens(SYSTEM, listed) - base


def tools_cost() -> None:
    print(f"{'declared tools':<16} {'tokens':>8} {'all listed':>12} {'ratio':>8}")
    for count in COUNTS:
        ours, listed = tokens(count)
        met = "" if ours <= GOAL_TOKENS else f"  over {GOAL_TOKENS:,}"
        print(f"{count:<16} {ours:>8,} {listed:>12,} {ours / listed:>7.2f}×{met}")


if __name__ == "__main__":
    tools_cost()
    anyio.run(main)
