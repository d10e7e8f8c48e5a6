"""`cloister budget` reads the log and the settings, as a real process."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import anyio

from cloister.core.events import ModelReplied
from cloister.core.ids import OwnerId, RunId
from cloister.core.requests import NewRun, Usage
from cloister.log.sqlite.backbone import open_backbone

Cloister = Callable[..., subprocess.CompletedProcess[str]]

CONFIG = """
[budgets]
organisation = { dollars = 5.0 }
[[budgets.project]]
match = "/repo"
period = "day"
tokens = 2000
"""


def spend(data_dir: Path) -> RunId:
    async def make() -> RunId:
        async with open_backbone(data_dir / "cloister.db", owner_lives=lambda _: False) as backbone:
            run, _ = await backbone.admit(NewRun("fix it", "/repo"), "ann")
            fence = await backbone.claim(OwnerId("o-aaaaaaaaaaaa"), run)
            assert fence is not None
            body = ModelReplied(0, 1, "p:m", "", (), Usage(900, 100), 0.1, cost=1.25)
            await backbone.append(fence, [body])
            return run

    return anyio.run(make)


def test_every_level_is_shown_with_what_is_spent_of_its_limits(cloister: Cloister, data_dir: Path) -> None:
    assert "No spending yet." in cloister("budget").stdout
    run = spend(data_dir)
    (data_dir / "config.toml").write_text(CONFIG)
    shown = cloister("budget")
    assert shown.returncode == 0, shown.stderr
    assert "$1.25 of $5.00 (25%)" in shown.stdout
    assert "1,000 tokens of 2,000 tokens (50%)" in shown.stdout
    assert "user          ann" in shown.stdout
    levels = [json.loads(line) for line in cloister("budget", "last", "--json").stdout.splitlines()]
    assert [(one["level"], one["name"]) for one in levels] == [
        ("organisation", "all"),
        ("project", "/repo"),
        ("user", "ann"),
        ("run", run),
        ("attempt", "0"),
    ]
    assert all(one["spent"]["dollars"] == 1.25 for one in levels)
    wrong = cloister("budget", "r-nosuchrun0")
    assert (wrong.returncode, "There is no run" in wrong.stderr) == (2, True)


def test_a_wrong_limit_is_refused_with_its_place(cloister: Cloister, data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "config.toml").write_text("[budgets]\norganisation = { dollars = -1 }\n")
    refused = cloister("budget")
    assert refused.returncode == 2
    assert "organisation.dollars" in refused.stderr
