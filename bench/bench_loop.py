"""The loop's own cost per step: everything but the command, with the durable log and a real sandbox.

A scripted model calls `bash` with `true`; the time of a step is from one reply to the next, the command's
own time is what the tool took.
"""

import os
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path

import anyio

from cloister.app import open_app
from cloister.core.events import Event, ModelReplied, RunFinished, ToolReturned
from cloister.core.records import Budget, NewRun
from cloister.settings import read_settings
from cloister.testing.sample_repo import SampleRepo

STEPS = int(os.environ.get("STEPS", "200"))
WARM = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cloister-tests"


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="cloister-bench-") as name:
        directory = Path(name)
        for part in ("templates", "programs"):
            (WARM / part).mkdir(parents=True, exist_ok=True)
            (directory / part).symlink_to(WARM / part)
        repo = SampleRepo(directory / "repo")
        repo.write("a.txt", "a\n")
        repo.git("add", "--all")
        repo.git("commit", "--quiet", "-m", "base")
        script = directory / "loop.script.toml"
        script.write_text(
            '[[reply]]\nname = "again"\ncalls = [{ tool = "bash", command = "true" }]\ngoto = "again"\n'
        )
        # The same command again and again is what is measured, not a circle to be broken.
        (directory / "config.toml").write_text("[stuck]\nrepeats = 0\nidle = 0\n")
        settings = read_settings(dict(os.environ), data_dir=directory)
        async with open_app(settings, role="embedded") as app:
            new = NewRun(
                "bench",
                str(repo.path),
                model=f"script:{script}",
                checks=("true",),
                budget=Budget(steps=STEPS),
            )
            run, _ = await app.submit(new, "bench")
            async with app.backbone.follow(run) as items:
                events = [item async for item in items if isinstance(item, Event)]
        assert isinstance(events[-1].body, RunFinished), events[-1]
        replies = [event for event in events if isinstance(event.body, ModelReplied)]
        commands = [event.body.seconds for event in events if isinstance(event.body, ToolReturned)]
        steps = [b.at - a.at for a, b in pairwise(replies)]
        own = sorted(step - command for step, command in zip(steps, commands, strict=False))
        command = statistics.median(commands) * 1000
        p50, p99 = statistics.median(own) * 1000, own[int(len(own) * 0.99)] * 1000
        print(
            f"loop overhead per step ({len(own)} steps)   p50 {p50:.2f} ms   p99 {p99:.2f} ms   "
            f"the command itself {command:.2f} ms   ratio {p50 / command:.2f}x   (goal: p50 < 10 ms)"
        )


if __name__ == "__main__":
    anyio.run(main)
