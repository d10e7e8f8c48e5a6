"""How a sandbox's process ended is told with its last words, however late they arrive."""

import anyio
import pytest
from anyio.abc import ByteReceiveStream, Process

from cloister.sandbox._spawn import spawn
from cloister.sandbox.local.cgroup import Cgroup, Layout
from cloister.sandbox.local.lifetime import Lifetime

pytestmark = pytest.mark.anyio


class Late(ByteReceiveStream):
    """Its words are there only when everybody knows that the process has ended."""

    def __init__(self, process: Process, *words: bytes) -> None:
        self._process = process
        self._words = list(words)

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        await self._process.wait()
        await anyio.wait_all_tasks_blocked()
        if not self._words:
            raise anyio.EndOfStream
        return self._words.pop(0)

    async def aclose(self) -> None:
        self._words.clear()


async def test_words_that_arrive_after_the_end_are_still_the_reason() -> None:
    with anyio.fail_after(20):
        async with spawn(["true"]) as process, anyio.create_task_group() as tasks:
            life = Lifetime(
                process=process,
                cgroup=Cgroup(Layout({}, None), "none"),
                ttl_ends=anyio.current_time() + 60,
                tasks=tasks,
            )
            for words in ((b"the moon is in ", b"the wrong phase "), (b"and the sun too ",)):
                tasks.start_soon(life.listen, Late(process, *words))
            tasks.start_soon(life.watch)
            await life.ended.wait()
            assert all(words in life.reason for words in ("moon", "wrong phase", "sun")), life.reason


async def test_waiters_for_the_end_are_woken_after_the_watch_was_cancelled() -> None:
    lives: list[Lifetime] = []
    async with spawn(["sleep", "1000"]) as process, anyio.create_task_group() as tasks:
        lives.append(
            Lifetime(
                process=process,
                cgroup=Cgroup(Layout({}, None), "none"),
                ttl_ends=anyio.current_time() + 60,
                tasks=tasks,
            )
        )
        tasks.start_soon(lives[0].watch)
        await anyio.wait_all_tasks_blocked()
        assert not lives[0].ended.is_set()
        tasks.cancel_scope.cancel()
    assert lives[0].ended.is_set()
