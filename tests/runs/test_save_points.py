"""The save points of finished runs are removed by age and number; results and unfinished runs keep theirs."""

from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from cloister.core.attempts import ForkedFrom
from cloister.core.diagnosis import Comparison
from cloister.core.errors import HostError, UserError
from cloister.core.events import (
    AttemptEnded,
    AttemptStarted,
    BaseFixed,
    ChangeMade,
    ChecksRan,
    Event,
    ModelReplied,
    PromptReceived,
    RunFinished,
    TurnEnded,
)
from cloister.core.ids import RunId, SandboxId, SnapshotId, new_owner_id
from cloister.core.requests import NewRun, ProjectRetention, Retention, SavePointLimits, State, Usage
from cloister.forge.host import LocalRepositories, in_bare
from cloister.log.api import Backbone, Fence
from cloister.log.sqlite.backbone import open_backbone
from cloister.runs.attempts.tree import all_points, check_saved, copy_files, point_at
from cloister.runs.delivery import Collector, remove_files
from cloister.sandbox.api import SnapshotInfo
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio
RED = (3, 1, 2)
"""Failures after each turn."""


@dataclass
class Made:
    """A run with one save point for each entry of `RED`."""

    id: RunId
    bare: Path
    base: str
    points: list[str] = field(default_factory=list[str])

    async def there(self) -> list[bool]:
        return [(await in_bare(self.bare, "cat-file", "-e", commit)).ok for commit in self.points]


@dataclass
class Room:
    """A log and the repositories of its runs."""

    root: Path
    backbone: Backbone
    repositories: LocalRepositories

    async def read(self, run: RunId) -> tuple[Event, ...]:
        return await self.backbone.read(run)

    async def begin(self, new: NewRun | None = None) -> tuple[Made, Fence]:
        """A run at work whose three turns are saved as `workspace.save` does it."""
        repo = SampleRepo(self.root / "repo") if not (self.root / "repo").exists() else None
        if repo is not None:
            repo.write("a.txt", "base")
            repo.commit()
        run, _ = await self.backbone.admit(new or NewRun("p", str(self.root / "repo")), "ada")
        fence = await self.backbone.claim(new_owner_id(), run)
        assert fence is not None
        bare = await self.repositories.open(run)
        bare.parent.mkdir(parents=True)
        await self.git(self.root, "clone", "-q", "--bare", str(self.root / "repo"), str(bare))
        base = (await self.git(bare, "rev-parse", "HEAD")).strip()
        made = Made(run, bare, base)
        await self.backbone.append(fence, [BaseFixed(base, "main"), AttemptStarted(0, "m")])
        for step, red in enumerate(RED, start=1):
            blob = (await self.git(bare, "hash-object", "-w", "--stdin", stdin=f"{run} {step}")).strip()
            tree = (await self.git(bare, "mktree", stdin=f"100644 blob {blob}\ta.txt\n")).strip()
            commit = (await self.git(bare, "commit-tree", "-p", base, "-m", "Save point", tree)).strip()
            await self.git(bare, "update-ref", "refs/cloister/attempt/0", commit)
            made.points.append(commit)
            ran = ChecksRan(0, step, (), Comparison(new=tuple(f"t{n}" for n in range(red))))
            await self.backbone.append(fence, [ran, TurnEnded(0, step, commit, True)])
        return made, fence

    async def finished(self, outcome: str = "green") -> Made:
        made, fence = await self.begin()
        last = made.points[-1]
        if outcome == "green":
            await self.git(made.bare, "update-ref", "refs/heads/cloister/x", last)
            ends = [
                AttemptEnded(0, "green", "Done.", last, Comparison()),
                ChangeMade("cloister/x", last, (), "Done."),
            ]
            await self.backbone.append(fence, [*ends, RunFinished("green", "Done.", 0)])
        else:
            await self.backbone.append(fence, [RunFinished("stopped", "Stopped by ada.")])
        return made

    async def git(self, at: Path, *args: str, stdin: str = "") -> str:
        env = {
            "GIT_AUTHOR_NAME": "a",
            "GIT_AUTHOR_EMAIL": "a@b",
            "GIT_COMMITTER_NAME": "a",
            "GIT_COMMITTER_EMAIL": "a@b",
        }
        done = await anyio.run_process(["git", "-C", str(at), *args], input=stdin.encode(), env=env)
        return done.stdout.decode()

    async def collect(self, days: float = 0.0, runs: int = 1_000) -> tuple[RunId, ...]:
        limits = SavePointLimits(days, runs)
        return tuple(RunId(one.id) for one in await self.collector(limits).collect())

    def collector(self, limits: SavePointLimits, **more: Any) -> Collector:
        return Collector(self.backbone, self.read, self.repositories, limits, "root", **more)


@pytest.fixture
async def room(tmp_path: Path) -> AsyncGenerator[Room]:
    async with open_backbone(tmp_path / "cloister.db", owner_lives=lambda _: True) as backbone:
        yield Room(tmp_path, backbone, LocalRepositories(tmp_path))


async def test_an_old_run_keeps_its_result_and_loses_the_turns_before_it(room: Room) -> None:
    made = await room.finished()
    assert await made.there() == [True, True, True]
    assert await room.collect() == (made.id,)
    assert await made.there() == [False, False, True]
    assert (await room.git(made.bare, "show", "refs/heads/cloister/x:a.txt")) == f"{made.id} 3"
    assert (await room.git(made.bare, "fsck", "--full", "--strict")) == ""
    (noted,) = [one for one in await room.backbone.audit(limit=1_000) if one.kind == "SavePointsRemoved"]
    assert made.id in noted.detail
    assert await room.collect() == (), "it is done once"


async def test_a_run_without_a_winner_keeps_the_save_point_that_a_message_continues(room: Room) -> None:
    made = await room.finished("stopped")
    _, further = point_at(await room.read(made.id), None)
    await room.collect()
    assert await made.there() == [False, False, True]
    await check_saved(made.bare, further)
    await copy_files(made.bare, further, made.base, room.root / "fork.git")


async def test_age_and_number_decide(room: Room) -> None:
    old, newer, newest = [await room.finished() for _ in range(3)]
    assert await room.collect(days=30.0) == ()
    assert await room.collect(days=30.0, runs=2) == (old.id,)
    assert await newer.there() == await newest.there() == [True, True, True]
    assert set(await room.collect(days=0.0)) == {newer.id, newest.id}
    assert await room.collect(days=float("inf"), runs=0) == (), "all are collected by now"


async def test_unfinished_runs_keep_every_save_point(room: Room) -> None:
    made, _ = await room.begin()
    assert await room.collect(runs=0) == ()
    assert await made.there() == [True, True, True]


async def test_a_continued_run_is_left_alone_until_it_ends_again(room: Room) -> None:
    made = await room.finished()
    await room.backbone.append_outside(made.id, PromptReceived("More.", "bob", "user"))
    assert await room.collect(runs=0) == ()
    fence = await room.backbone.claim(new_owner_id(), made.id)
    assert fence is not None
    await room.backbone.append(fence, [RunFinished("stopped", "Stopped by bob.")])
    assert await room.collect() == (made.id,)
    assert (await made.there())[2]


async def test_an_unfinished_fork_keeps_the_save_point_that_it_continues(room: Room) -> None:
    made = await room.finished()
    first = min(all_points(await room.read(made.id)))
    fork = NewRun("p", str(room.root / "repo"), forked_from=ForkedFrom(made.id, first))
    await room.backbone.admit(fork, "ada")
    assert await room.collect() == (made.id,)
    assert await made.there() == [True, False, True]


async def test_an_unfinished_fork_keeps_the_files_that_it_continues(room: Room) -> None:
    made = await room.finished()
    first = min(all_points(await room.read(made.id)))
    fork = NewRun("p", str(room.root / "repo"), forked_from=ForkedFrom(made.id, first))
    await room.backbone.admit(fork, "ada")
    never = SavePointLimits(days=float("inf"))
    collector = room.collector(never, retention=Retention(files_days=0.0))
    assert await collector.collect(dry=True) == await collector.collect() == ()
    assert await made.there() == [True, True, True]


async def test_a_message_that_continues_a_run_at_that_moment_keeps_its_files(room: Room) -> None:
    made, asked = await room.finished(), anyio.Event()

    async def state() -> State:
        found = (await room.backbone.row(made.id)).state
        asked.set()
        return found

    async def remove() -> None:
        with pytest.raises(UserError) as refused:
            await remove_files(room.repositories, made.id, state, "ada")
        assert refused.value.code == "run_not_finished"

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks, room.repositories.working(made.id):
            tasks.start_soon(remove)
            await asked.wait()
            await room.backbone.append_outside(made.id, PromptReceived("More.", "bob", "user"))
    assert await made.there() == [True, True, True]


async def test_a_repository_at_work_is_not_collected_and_work_waits_for_a_collection(room: Room) -> None:
    made = await room.finished()
    async with room.repositories.working(made.id):
        assert await room.collect() == ()
    order: list[str] = []

    async def kept() -> frozenset[str] | None:
        tasks.start_soon(work)
        await anyio.wait_all_tasks_blocked()
        order.append("collected")
        return None

    async def work() -> None:
        async with room.repositories.working(made.id):
            order.append("worked")

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            assert not await room.repositories.collect(made.id, 0.0, kept)
    assert order == ["collected", "worked"]
    assert await made.there() == [True, True, True]


async def test_a_collected_save_point_is_refused_in_one_sentence(room: Room) -> None:
    made = await room.finished()
    await room.collect()
    _, first = all_points(await room.read(made.id))[min(all_points(await room.read(made.id)))]
    for use in (check_saved(made.bare, first), copy_files(made.bare, first, made.base, room.root / "f.git")):
        with pytest.raises(UserError) as refused:
            await use
        assert refused.value.code == "no_save_point" and "save_points" in refused.value.message


async def test_a_damaged_repository_does_not_keep_others_from_being_collected(room: Room) -> None:
    made, damaged = await room.finished(), await room.finished()
    (damaged.bare / "HEAD").write_text("nonsense")
    removed = await room.finished()
    with suppress(UserError):
        await room.repositories.remove(removed.id, "ada")
    assert await room.collect() == (made.id,)


class Kept:
    """Snapshots of a machine."""

    def __init__(self, *infos: SnapshotInfo) -> None:
        self.infos = list(infos)

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        return tuple(self.infos)

    async def delete_snapshot(self, reference: str) -> None:
        self.infos = [one for one in self.infos if one.id != reference]


class Stuck(Kept):
    """A machine that cannot remove the first of its snapshots."""

    async def delete_snapshot(self, reference: str) -> None:
        if reference == self.infos[0].id:
            raise HostError("no_disk", "The store is read-only.")
        await super().delete_snapshot(reference)


async def test_a_snapshot_that_cannot_be_removed_keeps_no_other_from_it(room: Room) -> None:
    first, second = (
        SnapshotInfo(SnapshotId(f"p-{at}"), None, None, SandboxId("s"), "t", at, 0) for at in (1.0, 2.0)
    )
    never, old = SavePointLimits(days=float("inf")), Retention(snapshots_days=365.0)
    machine = Stuck(first, second)
    removed = await room.collector(never, retention=old, machine=machine).collect()
    assert ([one.id for one in removed], machine.infos) == ([second.id], [first])


async def test_a_run_goes_as_a_whole_when_its_project_says_and_the_audit_keeps_what_it_did(
    room: Room,
) -> None:
    never = SavePointLimits(days=float("inf"))
    done, (open_run, fence) = await room.finished(), await room.begin()
    newest = await room.finished()
    await room.backbone.append(fence, [PromptReceived("more", "ada")])
    said = await room.backbone.audit(run=done.id)
    others = Retention(logs_days=0.0, project=(ProjectRetention("*", logs_days=float("inf")),))
    assert await room.collector(never, retention=others).collect() == (), "the project's rule counts"
    collector = room.collector(
        never, retention=Retention(project=(ProjectRetention("*/repo", logs_days=0.0),))
    )
    planned = await collector.collect(dry=True)
    assert [(one.kind, one.id) for one in planned] == [("log", done.id)]
    assert len(await room.read(done.id)) > 3 and await room.repositories.exists(done.id)
    assert await collector.collect() == planned
    assert [row.id for row in await room.backbone.runs()] == [newest.id, open_run.id]
    assert not await room.repositories.exists(done.id)
    with pytest.raises(UserError):
        await room.read(done.id)
    assert await room.backbone.audit(run=done.id) == said
    assert "RunForgotten" in [one.kind for one in await room.backbone.audit(limit=1_000)]
    assert (await room.backbone.verify_audit()).ok
    assert await collector.collect() == ()


async def test_the_text_of_a_run_that_is_gone_is_in_no_page_of_the_file(tmp_path: Path) -> None:
    path, text = tmp_path / "cloister.db", "the words of a customer"
    async with open_backbone(path, owner_lives=lambda _: True) as backbone:
        run, _ = await backbone.admit(NewRun("p", "/r"), "ada")
        fence = await backbone.claim(new_owner_id(), run)
        assert fence is not None
        said = ModelReplied(0, 1, "m", text, (), Usage(1, 1), 0.1)
        await backbone.append(fence, [said, RunFinished("green", "Done.", 0)])
        await backbone.admit(NewRun("p", "/r"), "ada")
    assert text.encode() in path.read_bytes()
    async with open_backbone(path, owner_lives=lambda _: True) as backbone:
        assert await backbone.forget(run, "root")
    assert text.encode() not in path.read_bytes()


async def test_files_and_snapshots_go_when_the_settings_say_and_a_dry_run_says_so_before(room: Room) -> None:
    done, (open_run, _) = await room.finished(), await room.begin()
    never = SavePointLimits(days=float("inf"))
    old, new = (
        SnapshotInfo(SnapshotId(f"p-{at}"), None, None, SandboxId("s"), "t", at, 0) for at in (1.0, 2e9)
    )
    kept = Kept(old, new)
    rules = Retention(files_days=0.0, snapshots_days=365.0)
    elsewhere = Retention(project=(ProjectRetention("*/other", 0.0),))
    assert await room.collector(never, retention=elsewhere, machine=kept).collect() == ()
    theirs = Retention(files_days=0.0, project=(ProjectRetention("*", float("inf")),))
    assert await room.collector(never, retention=theirs).collect() == (), "the project's rule counts"
    collector = room.collector(never, retention=rules, machine=kept)
    planned = await collector.collect(dry=True)
    assert {(one.kind, one.id) for one in planned} == {("files", done.id), ("snapshot", old.id)}
    assert await done.there() == [True, True, True] and kept.infos == [old, new]
    soon = await room.collector(SavePointLimits(days=0.0)).collect(dry=True)
    assert [(one.kind, one.id) for one in soon] == [("save_points", done.id)]
    assert await done.there() == [True, True, True]
    assert await collector.collect() == planned
    assert not await room.repositories.exists(done.id) and kept.infos == [new]
    assert await room.repositories.exists(open_run.id), "an unfinished run keeps its files"
    assert len(await room.read(done.id)) > 3, "the log stays"
    noted = [one.kind for one in await room.backbone.audit(limit=1_000)]
    assert noted.count("RunRemoved") == noted.count("SnapshotRemoved") == 1
    assert (await room.backbone.verify_audit()).ok
    assert await collector.collect() == ()
