"""Every open pull request of a run is followed, however many runs came after it; a slow forge delays no other."""

import json
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from tests.forge.pulls.conftest import place_of
from tests.forge.pulls.wires import Forge, Request, served

from cloister.core import events as e
from cloister.core.ids import RunId, new_owner_id
from cloister.core.requests import NewRun
from cloister.forge import Forges
from cloister.forge.pulls.marks import Marks
from cloister.log.sqlite.backbone import SqliteBackbone, open_backbone
from cloister.runs.follow_up import Follower

pytestmark = pytest.mark.anyio
one_kind = pytest.mark.parametrize("forge", ["github"], indirect=True)


@dataclass
class World:
    """A log with runs, and what their follower does."""

    backbone: SqliteBackbone
    file: Path
    told: list[tuple[RunId, str]] = field(default_factory=list[tuple[RunId, str]])
    heard: anyio.Event = field(default_factory=anyio.Event)
    reads: int = 0

    async def run(self, forge: Forge, number: int | None) -> RunId:
        """A finished run with the pull request `number`, or without one."""
        where = f"{forge.url}/team/shop"
        run, _ = await self.backbone.admit(NewRun("Fix it", where), "ann")
        fence = await self.backbone.claim(new_owner_id(), run)
        assert fence is not None
        made = e.ChangeMade("fix", forge.commit("fix"), (), "Fixed.")
        sent = e.ChangeDelivered(where, "fix", url=f"{where}/{number}", number=number or 0)
        end = e.RunFinished("proven", "Fixed.", 0)
        await self.backbone.append(fence, (made, sent, end) if number else (made, end))
        return run

    def follower(self, *forges: Forge, patience: float = 3_600.0, seconds: float = 0) -> Follower:
        async def read(run: RunId) -> tuple[e.Event, ...]:
            self.reads += 1
            return await self.backbone.read(run)

        async def tell(run: RunId, prompt: e.PromptReceived) -> None:
            self.told.append((run, prompt.text))
            await self.backbone.append_outside(run, prompt)
            self.heard.set()

        async def bare(_: RunId) -> Path:
            return self.file.parent

        known, marks = Forges(places=[place_of(one) for one in forges]), Marks(b"k" * 32)
        return Follower(
            *(known, self.backbone, read, tell, bare, "ann", marks, self.file, seconds), patience=patience
        )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_backbone(tmp_path / "log.db", owner_lives=lambda _: True) as backbone:
        yield World(backbone, tmp_path / "open.json")


@one_kind
async def test_an_open_pull_request_is_followed_after_however_many_other_runs(
    forge: Forge, world: World
) -> None:
    forge.open("fix", "main", "Fix", "")
    first = await world.run(forge, 1)
    for _ in range(520):
        await world.backbone.admit(NewRun("Other", "/repo"), "ann")
    follower = world.follower(forge)
    assert await follower.look() == set()
    place = f"{forge.url.removeprefix('http://')}/team/shop"
    assert (follower.follows(place, 1), follower.follows(place, 2), world.told) == (True, False, [])
    forge.comments.append((1, "ann", "rename it", "", 0))
    again = world.follower(forge)  # after a restart
    await again.look({place})
    assert world.told == [(first, "rename it")]


@one_kind
async def test_what_has_not_changed_costs_no_request_and_no_look_at_the_log(
    forge: Forge, world: World
) -> None:
    forge.open("fix", "main", "Fix", "")
    await world.run(forge, 1)
    follower = world.follower(forge)
    for _ in range(3):
        await follower.look()
    assert world.reads == 1
    assert forge.unchanged * 3 == len(forge.requests) * 2 > 0


@one_kind
async def test_a_pull_request_that_ended_is_looked_at_no_more_and_the_next_one_of_the_run_is(
    forge: Forge, world: World
) -> None:
    forge.open("fix", "main", "Fix", "").state = "merged"
    run = await world.run(forge, 1)
    follower = world.follower(forge)
    await follower.look()
    asked = len(forge.requests)
    await follower.look()
    await world.follower(forge).look()
    assert len(forge.requests) == asked
    assert [one.kind for one in await world.backbone.audit()].count("PullRequestEnded") == 1
    forge.open("fix", "main", "Fix", "")
    where = f"{forge.url}/team/shop"
    sent = e.ChangeDelivered(where, "fix", url=f"{where}/2", number=2, who="ann")
    await world.backbone.append_outside(run, sent)
    forge.comments.append((2, "ann", "rename it", "", 0))
    await follower.look()
    assert world.told == [(run, "rename it")]


@one_kind
async def test_an_approval_that_is_pending_for_ever_hides_no_failure_for_long(
    forge: Forge, world: World
) -> None:
    forge.open("fix", "main", "Fix", "")
    await world.run(forge, 1)
    forge.jobs = [("tests", "failed"), ("approval", "running")]
    follower = world.follower(forge, patience=0.2)
    await follower.look()
    assert world.told == []
    with anyio.fail_after(20):
        while not world.told:
            await follower.look()
    assert "test_total" in world.told[0][1]


async def test_a_slow_forge_delays_no_other(tmp_path: Path, world: World) -> None:
    with ExitStack() as stack:
        slow, fast = (stack.enter_context(served("github", tmp_path / name)) for name in ("slow", "fast"))
        for one in (slow, fast):
            one.open("fix", "main", "Fix", "")
            await world.run(one, 1)
        released = threading.Event()

        def hold(_: Request) -> None:
            released.wait(30)

        slow.faults.append(hold)
        stack.callback(released.set)
        fast.comments.append((1, "ann", "rename it", "", 0))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.follower(slow, fast, seconds=0.05).run)
            with anyio.fail_after(20):
                await world.heard.wait()
            assert slow.requests
            tasks.cancel_scope.cancel()
        assert [text for _, text in world.told] == ["rename it"]


@one_kind
async def test_the_pull_requests_that_an_older_version_saw_ending_are_not_looked_at(
    forge: Forge, world: World
) -> None:
    forge.open("fix", "main", "Fix", "").state = "merged"
    world.file.write_text(json.dumps({await world.run(forge, 1): "merged"}))
    assert await world.follower(forge).look() == set()
    assert forge.requests == []
