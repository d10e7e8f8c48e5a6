"""Reading the log from a process that does nothing else."""

import sys
from pathlib import Path

import anyio
import pytest
from tests.whole.conformance.suites.backbone import claimed, collect

from cloister.core.errors import HostError, UserError
from cloister.core.events import Event, PhaseStarted, RunFinished, StopRequested
from cloister.core.ids import RunId, new_run_id
from cloister.core.requests import NewRun
from cloister.log.sqlite.backbone import open_backbone
from cloister.log.sqlite.reader import PAGE_BYTES, LogReader

pytestmark = pytest.mark.anyio


def refused(log: LogReader, name: str) -> str:
    with pytest.raises(UserError) as caught:
        log.resolve(name)
    return caught.value.code


def test_a_log_that_was_never_made_is_empty_and_stays_unmade(tmp_path: Path) -> None:
    with LogReader(tmp_path / "log.db") as log:
        assert log.rows() == ()
        assert refused(log, "last") == "no_such_run"
        with pytest.raises(UserError):
            log.events(new_run_id())
        with pytest.raises(UserError):
            log.row(new_run_id())
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_an_empty_log(tmp_path: Path) -> None:
    (tmp_path / "log.db").touch()
    with LogReader(tmp_path / "log.db") as log:
        assert log.rows() == ()


async def test_it_reads_what_the_backbone_wrote_while_that_is_open_and_after(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with open_backbone(path, owner_lives=lambda owner: True) as backbone:
        fence = await claimed(backbone)
        with LogReader(path, lambda owner: owner == fence.owner) as log:
            assert log.rows() == await backbone.runs()
            assert log.row(fence.run).owner_lives
            added = await backbone.append(fence, [PhaseStarted("work")] * 3)
            assert log.events(fence.run, after=2) == added
            assert log.events(fence.run, after=2, limit=1) == added[:1]
    with LogReader(path) as log:
        assert log.events(fence.run)[-3:] == added
        assert not log.row(fence.run).owner_lives


async def test_large_events_are_read_in_pages_that_fit_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with open_backbone(path, owner_lives=lambda owner: True) as backbone:
        fence = await claimed(backbone)
        large = StopRequested("x" * (PAGE_BYTES // 5))
        for _ in range(12):
            await backbone.append(fence, [large])
        await backbone.append(fence, [RunFinished("proven", "done")])
        with LogReader(path) as log:
            page = log.page(fence.run, 0)
            assert ([event.seq for event in page.events], page.more) == ([1, 2, 3, 4, 5, 6, 7], True)
            assert [event.seq for event in log.page(fence.run, 12).events] == [13, 14, 15]
        followed = await collect(backbone, fence.run)
        assert [event.seq for event in followed if isinstance(event, Event)] == list(range(1, 16))


async def test_a_run_is_named_by_any_beginning_that_is_its_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with open_backbone(path, owner_lives=lambda owner: True) as backbone:
        ids = [(await backbone.admit(NewRun(prompt="p", repo="r"), "me"))[0] for _ in range(40)]
    with LogReader(path) as log:
        assert log.resolve("last") == ids[-1]
        for run in ids:
            assert log.resolve(run) == run
            assert log.resolve(run[2:]) == run
            assert log.resolve(run[:9]) == run
        assert refused(log, "r-") == "ambiguous_run"
        assert refused(log, "r") == "ambiguous_run"
        for name in ("", "%", "r-%", "zzzzzzzzzzzzz", "\udcff", "r-\x00", "x" * 10_000):
            assert refused(log, name) == "no_such_run"


async def test_a_name_that_is_no_id_is_an_unknown_run(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with open_backbone(path, owner_lives=lambda owner: True) as backbone:
        await backbone.admit(NewRun(prompt="p", repo="r"), "me")
    with LogReader(path) as log, pytest.raises(UserError) as caught:
        log.events(RunId("\udcff"))
    assert caught.value.code == "no_such_run"


def test_a_file_that_is_no_log_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"x" * 5_000)
    with pytest.raises(HostError) as caught:
        LogReader(tmp_path / "log.db")
    assert caught.value.code == "corrupt_data"


async def test_it_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with open_backbone(path, owner_lives=lambda owner: True) as backbone:
        await backbone.admit(NewRun(prompt="p", repo="r"), "me")
    before = path.read_bytes()
    with LogReader(path) as log:
        assert len(log.rows()) == 1
    assert path.read_bytes() == before


async def test_importing_it_brings_no_event_loop_along(tmp_path: Path) -> None:
    code = "import sys, cloister.log.sqlite.reader; print(*sorted({'anyio', 'asyncio', 'httpx'} & set(sys.modules)))"
    done = await anyio.run_process([sys.executable, "-c", code], stderr=None)
    assert done.stdout.strip() == b""
