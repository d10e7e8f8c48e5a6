import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import HostError, UserError
from cloister.core.ids import SandboxId, SnapshotId, new_sandbox_id
from cloister.sandbox.api import SnapshotInfo
from cloister.sandbox.snapshots import Origin, Snapshots, Subject, outgrown, reference_in
from cloister.sandbox.store.api import Root, writable
from cloister.sandbox.store.btrfs import BtrfsStore

pytestmark = pytest.mark.anyio

PATH = os.environ["PATH"]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="stores need root")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[BtrfsStore]:
    opened = BtrfsStore(tmp_path, PATH, native=False)
    try:
        await opened.snapshots()
    except HostError as error:
        pytest.skip(f"no btrfs in a file here: {error.message}")
    yield opened
    await opened.close()


@asynccontextmanager
async def still() -> AsyncGenerator[None]:
    yield


def subject(root: Root) -> Subject[Root]:
    return Subject(SandboxId("s-0123456789ab"), "container", root, Origin("default"), still)


def info(number: int, *, named: bool, size: int) -> SnapshotInfo:
    name = f"name{number}" if named else None
    return SnapshotInfo(
        SnapshotId(f"sn-{number:04}"), name, None, SandboxId("s-0000"), "default", float(number), size
    )


infos = st.lists(st.tuples(st.booleans(), st.integers(0, 100)), max_size=12).map(
    lambda pairs: [info(n, named=named, size=size) for n, (named, size) in enumerate(pairs)]
)


@given(infos, st.integers(0, 20), st.integers(0, 400))
def test_the_kept_snapshots_fit_and_no_more_are_removed_than_needed(
    kept: list[SnapshotInfo], age: int, total: int
) -> None:
    now = 12.0
    gone = outgrown(kept, now, float(age), total)
    left = [snapshot for snapshot in kept if snapshot not in gone]
    assert sum(snapshot.size_bytes for snapshot in left) <= total
    assert all(snapshot.name is not None or now - snapshot.created_at <= age for snapshot in left)
    too_many = [
        snapshot for snapshot in gone if snapshot.name is not None or now - snapshot.created_at <= age
    ]
    if too_many:
        last = too_many[-1]
        assert sum(snapshot.size_bytes for snapshot in (*left, last)) > total, "the last one had to go too"
    if any(snapshot.name is not None for snapshot in gone):
        assert all(snapshot.name is not None for snapshot in left), "those without a name go first"


def test_only_the_prefix_makes_a_template_a_snapshot() -> None:
    assert [reference_in(text) for text in ("default", "snapshot:x", "snapshot:", "Snapshot:x")] == [
        *(None, "x", "", None)
    ]


@needs_root
async def test_excess_snapshots_and_leftovers_of_the_dead_are_removed(store: BtrfsStore) -> None:
    root = await store.create(None, new_sandbox_id(), 2**30)
    snapshots = Snapshots(store)
    first = await snapshots.take(subject(root), None)
    named = await snapshots.take(subject(root), "named")
    directory = await store.snapshots()
    (directory / ".new-sn-dead").mkdir()
    await store.save(root, directory / ".new-sn-dead")
    (directory / ".old-sn-dead").mkdir()
    assert await snapshots.collect(seconds=-1.0) == 3
    assert await snapshots.list() == (named,)
    assert first.id not in {path.name for path in directory.iterdir()}
    assert sorted(path.name for path in directory.iterdir()) == [".lock", named.id]


@needs_root
async def test_of_two_who_want_one_name_one_gets_it(store: BtrfsStore) -> None:
    root = await store.create(None, new_sandbox_id(), 2**30)
    taken: list[SnapshotInfo] = []
    refused: list[UserError] = []

    async def one() -> None:
        try:
            taken.append(await Snapshots(store).take(subject(root), "wanted"))
        except UserError as error:
            refused.append(error)

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(one)
    assert (len(taken), [error.code for error in refused]) == (1, ["name_taken"] * 3)
    assert await Snapshots(store).list() == tuple(taken)
    assert not list((await store.snapshots()).glob(".new-*"))


@needs_root
async def test_one_that_is_being_taken_is_left_alone_and_one_that_is_cancelled_leaves_nothing(
    store: BtrfsStore,
) -> None:
    root = await store.create(None, new_sandbox_id(), 2**30)
    entered = anyio.Event()

    @asynccontextmanager
    async def slow() -> AsyncGenerator[None]:
        entered.set()
        await anyio.sleep_forever()
        yield

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(
            Snapshots(store).take,
            Subject(SandboxId("s-0000"), "container", root, Origin("default"), slow),
            None,
        )
        await entered.wait()
        assert await Snapshots(store).collect() == 0
        assert len(list((await store.snapshots()).glob(".new-*"))) == 1
        tasks.cancel_scope.cancel()
    assert not list((await store.snapshots()).glob(".new-*"))
    assert await Snapshots(store).list() == ()


@needs_root
async def test_deleting_a_snapshot_does_not_affect_its_descendants(store: BtrfsStore) -> None:
    root = await store.create(None, new_sandbox_id(), 2**30)
    (writable(root) / "file").write_text("kept")
    snapshots = Snapshots(store)
    taken = await snapshots.take(subject(root), "first")
    _, home = await snapshots.find("first")
    restored = await store.restore(home, new_sandbox_id(), 2**30)
    await snapshots.delete(taken.id)
    assert (writable(restored) / "file").read_text() == "kept"
    assert await snapshots.list() == ()
