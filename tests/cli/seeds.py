"""Runs in the log of a data directory, without a process that drives them."""

from collections.abc import Sequence
from pathlib import Path

import anyio

from cloister.core.events import AnyBody, AskRaised, RunFinished
from cloister.core.ids import OwnerId, RunId
from cloister.core.requests import NewRun
from cloister.log.sqlite.backbone import open_backbone

DEAD = OwnerId("o-aaaaaaaaaaaa")


def queue(data_dir: Path, prompt: str) -> RunId:
    """A run that no one has claimed."""

    async def make() -> RunId:
        async with open_backbone(data_dir / "cloister.db", owner_lives=lambda _: False) as backbone:
            return (await backbone.admit(NewRun(prompt, "/repo"), "ann"))[0]

    return anyio.run(make)


def seed(
    data_dir: Path,
    prompt: str = "fix it",
    *,
    finished: bool = False,
    ask: str | None = None,
    owner: OwnerId = DEAD,
    more: Sequence[AnyBody] = (),
) -> RunId:
    """A run in the log that `owner` has claimed; by default one that is dead."""

    async def make() -> RunId:
        async with open_backbone(data_dir / "cloister.db", owner_lives=lambda _: False) as backbone:
            run, _ = await backbone.admit(NewRun(prompt, "/repo"), "ann")
            fence = await backbone.claim(owner, run)
            assert fence is not None
            if ask:
                await backbone.append(fence, [AskRaised(ask, 1, "bash: x", "x", 4e9)])
            if finished:
                await backbone.append(fence, [RunFinished("proven", "Done.", 1)])
            if more:
                await backbone.append(fence, more)
            return run

    return anyio.run(make)
