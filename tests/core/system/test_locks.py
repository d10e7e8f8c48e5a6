"""Locks between processes, with real files and a real second process."""

import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from cloister.core.system.locks import is_locked, lock, lock_within, take

pytestmark = pytest.mark.anyio

HOLDER = """
import sys
from pathlib import Path
from cloister.core.system.locks import lock
with lock(Path(sys.argv[1]), create=True):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_exclusive_lock_excludes_every_other_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock(path, create=True):
        assert is_locked(path)
        with pytest.raises(BlockingIOError), lock(path):
            pass
        with pytest.raises(BlockingIOError), lock(path, shared=True):
            pass
    assert not is_locked(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_shared_locks_coexist_and_exclude_an_exclusive_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with lock(path, shared=True), lock(path, shared=True):
        assert not is_locked(path)
        with pytest.raises(BlockingIOError):
            take(path)
    os.close(take(path))


def test_missing_file_is_not_locked_and_not_created(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    with pytest.raises(FileNotFoundError):
        take(path)
    assert not path.exists()


def test_directory_can_be_locked(tmp_path: Path) -> None:
    with lock(tmp_path):
        assert is_locked(tmp_path)


def test_failed_lock_leaves_no_descriptor_open(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock(path, create=True):
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(BlockingIOError):
            take(path)
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_killed_holder_releases_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert is_locked(path)
        holder.kill()
        holder.wait()
        assert not is_locked(path)


async def test_lock_within_waits_for_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    tries: list[int] = []
    held = take(path, create=True)

    def waiting() -> None:
        tries.append(1)
        if len(tries) == 3:
            os.close(held)

    async with lock_within(path, 60.0, poll_seconds=0.001, waiting=waiting):
        assert is_locked(path)
    assert len(tries) == 3
    assert not is_locked(path)


async def test_lock_within_gives_up_at_its_deadline(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock(path, create=True), pytest.raises(TimeoutError):
        async with lock_within(path, 0.0, poll_seconds=0.001):
            pass


async def test_cancelled_wait_takes_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock(path, create=True):
        with anyio.CancelScope() as scope:
            async with lock_within(path, 60.0, waiting=scope.cancel):
                pytest.fail("the lock was not free")
        assert scope.cancelled_caught
    assert not is_locked(path)
