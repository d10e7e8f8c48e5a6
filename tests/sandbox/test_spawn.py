import os
import sys
from functools import partial
from pathlib import Path

import anyio
import pytest
from tests.core.system.cancelled import left_behind

from cloister.core.errors import HostError
from cloister.sandbox._spawn import CAPTURE_BYTES, capture, spawn

pytestmark = pytest.mark.anyio

WAIT_SECONDS = 20.0
"""Only what is broken takes so long."""


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def wait_gone(pid: int) -> None:
    with anyio.fail_after(WAIT_SECONDS):
        while alive(pid):  # noqa: ASYNC110  a process that is not our child signals its end to nobody
            await anyio.sleep(0.01)


async def test_capture_returns_status_and_both_streams() -> None:
    done = await capture(["sh", "-c", "cat; echo oops >&2; exit 3"], seconds=10, stdin=b"hello")
    assert (done.code, done.out, done.err) == (3, b"hello", b"oops\n")
    assert not done.ok


async def test_a_program_that_does_not_read_its_input_is_no_error() -> None:
    done = await capture(["true"], seconds=10, stdin=b"x" * 1_000_000)
    assert done.ok


async def test_a_program_over_its_time_is_killed_with_its_children(tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    ours = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(HostError) as caught:
        await capture(["sh", "-c", f"sleep 1000 > {held} & echo begun > {held}; wait"], seconds=0.5)
    assert caught.value.code == "program_timeout"
    with anyio.fail_after(WAIT_SECONDS):
        while True:
            try:
                if not os.read(ours, 100):
                    break  # that is: nobody has it open for writing any more
            except BlockingIOError:
                await anyio.wait_readable(ours)
    os.close(ours)


async def test_a_program_that_floods_is_killed() -> None:
    with anyio.fail_after(20), pytest.raises(HostError) as caught:
        await capture(["yes"], seconds=20)
    assert caught.value.code == "program_output"
    assert f"{CAPTURE_BYTES:,}" in caught.value.message


async def test_a_missing_program_is_a_host_error() -> None:
    with pytest.raises(HostError) as caught:
        await capture(["/nowhere/program"], seconds=1)
    assert caught.value.code == "no_program"


async def test_the_environment_given_replaces_ours() -> None:
    done = await capture(["/usr/bin/env"], env={"A": "b"}, seconds=10)
    assert done.out == b"A=b\n"


async def test_leaving_a_spawn_block_kills_the_whole_group() -> None:
    with anyio.fail_after(60):
        async with spawn(["sh", "-c", "sleep 1000 & echo $!; wait"]) as process:
            assert process.stdout is not None
            child = int(await process.stdout.receive())
        assert process.returncode is not None
    await wait_gone(child)


async def test_cancelling_a_capture_kills_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    os.mkfifo(pid_file)
    pids: list[int] = []
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                partial(capture, ["sh", "-c", f"echo $$ > {pid_file}; exec sleep 999"], seconds=20)
            )
            pids.append(int(await anyio.Path(pid_file).read_text()))
            tasks.cancel_scope.cancel()
    assert [pid for pid in pids if alive(pid)] == []


async def test_a_program_that_begins_in_the_moment_of_a_cancellation_is_ended_and_waited_for() -> None:
    assert await left_behind(partial(capture, ["sh", "-c", "sleep 1000 & wait"], seconds=60)) == {}


async def test_a_process_may_have_as_many_files_open_as_its_hard_limit_says() -> None:
    program = (
        "import resource as r; from cloister.sandbox._spawn import allow_many_files\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (256, 512)); allow_many_files(); print(r.getrlimit(r.RLIMIT_NOFILE)[0])"
    )
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    shown = await capture([sys.executable, "-c", program], env=env, seconds=30)
    assert shown.out == b"512\n", shown.err
