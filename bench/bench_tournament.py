"""Five attempts from one warm sandbox against one attempt, and against five runs one after another.

The scripted model runs a real test command that waits rather than computes, so that what is measured is whether
attempts get in each other's way. Each kind of run happens several times, in turns; medians are compared.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path

import anyio

from cloister.app.settings import read_settings
from cloister.app.tokens import Caller
from cloister.app.verbs.local import LocalVerbs
from cloister.app.wiring import App, open_app
from cloister.core.events import AttemptEnded, Event, RunFinished
from cloister.core.requests import NewRun
from cloister.testing.samples import SampleRepo

ROUNDS = int(os.environ.get("ROUNDS", "3"))
WAIT = float(os.environ.get("WAIT_SECONDS", "2"))
ATTEMPTS = 5
WARM = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cloister-tests"

CHECK = f"sleep {WAIT} && python3 -m unittest -q"
TESTS = """\
import unittest
from calc import add


class Add(unittest.TestCase):
    def test_add(self) -> None:
        self.assertEqual(add(1, 2), 3)
"""
SCRIPT = f"""
[[reply]]
say = "Look first."
calls = [{{ tool = "bash", command = "sleep {WAIT}; cat calc.py" }}]
[[reply]]
calls = [{{ tool = "bash", command = "sed -i 's/a - b/a + b/' calc.py && {CHECK}" }}]
[[reply]]
calls = [{{ tool = "finish", summary = "Add adds." }}]
"""


async def took(app: App, new: NewRun) -> float:
    """Seconds from the request to the end of the run, which must be green in all its attempts."""
    started = time.monotonic()
    run = (await LocalVerbs(app, Caller("bench", "admin")).runs.submit(new)).id
    async with app.backbone.follow(run) as items:
        events = [item async for item in items if isinstance(item, Event)]
    seconds = time.monotonic() - started
    ended = [event.body.outcome for event in events if isinstance(event.body, AttemptEnded)]
    last = events[-1].body
    assert isinstance(last, RunFinished)
    assert ended == ["green"] * new.n, last
    return seconds


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="cloister-bench-") as name:
        directory = Path(name)
        for part in ("templates", "programs"):
            (WARM / part).mkdir(parents=True, exist_ok=True)
            (directory / part).symlink_to(WARM / part)
        repo = SampleRepo(directory / "repo")
        repo.write("calc.py", "def add(a, b):\n    return a - b\n")
        repo.write("test_calc.py", TESTS)
        repo.commit("base")
        script = directory / "fix.script.toml"
        script.write_text(SCRIPT)
        new = NewRun("Make add work.", str(repo.path), model=f"script:{script}", checks=(CHECK,))
        five = NewRun("Make add work.", str(repo.path), model=f"script:{script}", checks=(CHECK,), n=ATTEMPTS)
        single: list[float] = []
        forked: list[float] = []
        loop: list[float] = []
        async with open_app(read_settings(dict(os.environ), data_dir=directory), role="embedded") as app:
            await took(app, new)  # programs and pages are in memory after this
            for _ in range(ROUNDS):
                single.append(await took(app, new))
                forked.append(await took(app, five))
            loop.append(sum([await took(app, new) for _ in range(ATTEMPTS)]))
        one, many, fresh = (statistics.median(times) for times in (single, forked, loop))
        print(
            f"one attempt {one:.2f} s   {ATTEMPTS} attempts from one warm sandbox {many:.2f} s   "
            f"ratio {many / one:.2f}x (goal: at most 1.5x)   {ATTEMPTS} runs one after another {fresh:.2f} s   "
            f"ratio {fresh / one:.2f}x"
        )


if __name__ == "__main__":
    anyio.run(main)
