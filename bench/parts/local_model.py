"""How often the embedded model does the demo's job: the till's bug, default settings, RUNS times (10).

Needs the file of the model (`cloister model fetch`, or MODEL_FILE for its path) and says so without it.
"""

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import anyio

from cloister.app.settings import default_data_dir, read_settings
from cloister.app.tokens import Caller
from cloister.app.verbs.local import LocalVerbs
from cloister.app.wiring import open_app
from cloister.core.events import Event, RunFinished
from cloister.core.requests import Budget, NewRun
from cloister.model.local.files import FILES, Shelf
from cloister.testing.samples import SampleRepo

RUNS = int(os.environ.get("RUNS", "10"))
NAME = os.environ.get("MODEL", next(iter(FILES)))
TILL = Path(__file__).parent.parent / "examples" / "till"
PROMPT = "A test fails. Read till.py, repair it, and finish when the tests pass."
WARM = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cloister-tests"


def model_file() -> Path | None:
    named = os.environ.get("MODEL_FILE")
    places = [Path(named)] if named else []
    places += [Shelf(folder / "models").place(NAME) for folder in (default_data_dir(os.environ), WARM)]
    return next((place for place in places if place.is_file()), None)


async def main() -> None:
    file = model_file()
    if file is None:
        print(f"local model: not measured, the file of {NAME} is not here (cloister model fetch {NAME})")
        return
    with tempfile.TemporaryDirectory(prefix="cloister-bench-") as name:
        directory = Path(name)
        for part in ("templates", "programs"):
            (WARM / part).mkdir(parents=True, exist_ok=True)
            (directory / part).symlink_to(WARM / part)
        (directory / "config.toml").write_text(f'[local_models]\n"{NAME}" = "{file}"\n')
        repo = SampleRepo(directory / "repo")
        for source in TILL.glob("*.py"):
            shutil.copy(source, repo.path / source.name)
        repo.git("add", "--all")
        repo.git("commit", "--quiet", "-m", "base")
        settings = read_settings(dict(os.environ), data_dir=directory)
        outcomes: list[str] = []
        seconds: list[float] = []
        async with open_app(settings, role="embedded") as app:
            for number in range(RUNS):
                started = time.monotonic()
                new = NewRun(
                    PROMPT,
                    str(repo.path),
                    checks=("python3 -m pytest -q",),
                    model=f"local:{NAME}",
                    budget=Budget(steps=12),
                    key=f"bench-{number}",
                )
                run = (await LocalVerbs(app, Caller("bench", "admin")).runs.submit(new)).id
                async with app.backbone.follow(run) as items:
                    last = [item async for item in items if isinstance(item, Event)][-1].body
                assert isinstance(last, RunFinished)
                outcomes.append(last.outcome)
                seconds.append(time.monotonic() - started)
    green = outcomes.count("green")
    print(
        f"{NAME} repairs the till   {green} of {RUNS} runs green   p50 {statistics.median(seconds):.1f} s   "
        "(goal: 9 of 10)"
    )


if __name__ == "__main__":
    anyio.run(main)
