"""A process is begun and ended by one and the same, whatever happens in between."""

import os
import signal
from pathlib import Path
from subprocess import DEVNULL

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import Process
from tests.core.system.cancelled import children, left_behind

from cloister.core.system._spawn import begin, ending, kill_group

pytestmark = pytest.mark.anyio

FOR_EVER = ("sh", "-c", "sleep 1000 & echo $!; wait")


async def stay() -> None:
    async with ending(await begin(FOR_EVER)):
        await anyio.sleep_forever()


async def test_a_process_that_begins_in_the_moment_of_a_cancellation_is_ended_and_waited_for() -> None:
    assert await left_behind(stay) == {}


async def test_who_was_cancelled_before_it_began_still_has_it_to_end() -> None:
    begun: list[Process] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        begun.append(await begin(FOR_EVER, stdout=DEVNULL))
        async with ending(begun[0]):
            assert begun[0].pid in children()
            await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert begun[0].returncode == -signal.SIGKILL
    assert begun[0].pid not in children()


async def test_the_group_is_gone_also_when_its_leader_ended_first() -> None:
    process = await begin(("sh", "-c", "sleep 1000 & echo $!"))
    async with ending(process):
        assert process.stdout is not None
        child = os.pidfd_open(int(await process.stdout.receive()))
        assert await process.wait() == 0
    with anyio.fail_after(60):
        await anyio.wait_readable(child)  # that is: it has ended
    os.close(child)
    kill_group(process)  # once more does no harm


async def test_what_cannot_be_started_leaves_nothing_to_end() -> None:
    before = children()
    with pytest.raises(FileNotFoundError):
        await begin(["/nowhere/program"])
    assert children() == before


def test_there_is_one_place_where_a_process_that_can_be_cancelled_begins() -> None:
    src = Path(__file__).parents[3] / "src" / "cloister"
    found = [path for path in src.rglob("*.py") if "open_process(" in path.read_text(encoding="utf-8")]
    assert [str(path.relative_to(src)) for path in found] == ["core/system/_spawn.py"]
