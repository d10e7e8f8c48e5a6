"""Processes and threads without an event loop: the limits are those of processes with one."""

import os
import resource
import select
import threading

import anyio
import pytest

from cloister.core.system import in_thread, looped
from cloister.core.system._spawn import blocking

ENV = {"PATH": "/usr/bin:/bin"}


def test_input_output_errors_and_exit_code_are_those_of_the_process() -> None:
    done = blocking(
        ["sh", "-c", "cat; echo wrong >&2; exit 3"],
        ENV,
        b"x" * 500_000,
        seconds=30,
        out_bytes=1 << 20,
        limits={},
    )
    assert (done.code, len(done.out), done.err, done.cut, done.late) == (3, 500_000, b"wrong\n", False, False)


@pytest.mark.parametrize("line", ["yes", "yes >&2"])
def test_a_process_that_prints_without_end_is_killed(line: str) -> None:
    done = blocking(["sh", "-c", line], ENV, None, seconds=30, out_bytes=10_000, limits={})
    assert done.cut
    assert done.code != 0
    assert max(len(done.out), len(done.err)) == 10_000


def test_a_process_that_does_not_end_is_killed_with_its_children() -> None:
    done = blocking(
        ["sh", "-c", "sleep 3600 & echo $!; wait"], ENV, None, seconds=3, out_bytes=100, limits={}
    )
    assert done.late
    wait_for_the_end_of(int(done.out))


def wait_for_the_end_of(pid: int) -> None:
    """Only the leader of the group is a child of this process: the kernel may still be ending the other one."""
    try:
        ending = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([ending], [], [], 60)[0]
    finally:
        os.close(ending)


def test_limits_of_resources_hold_for_the_process() -> None:
    limits = {resource.RLIMIT_DATA: 1 << 27}
    done = blocking(["sh", "-c", "read x; ulimit -d"], ENV, b"go\n", seconds=30, out_bytes=100, limits=limits)
    assert int(done.out) == (1 << 27) // 1024


def test_work_runs_in_a_thread_only_where_an_event_loop_runs() -> None:
    async def where() -> tuple[bool, bool]:
        return looped(), await in_thread(threading.current_thread) is threading.main_thread()

    with pytest.raises(StopIteration) as ended:
        where().send(None)
    assert ended.value.value == (False, True)
    assert anyio.run(where) == (True, False)
