"""The writer thread: one request's failure is nobody else's."""

import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from cloister.core.errors import Bug, CloisterError, Fenced
from cloister.core.events import Event
from cloister.log.hub import Hub
from cloister.log.sqlite.writer import Writer, open_writer

pytestmark = pytest.mark.anyio

Answer = tuple[int, tuple[Event, ...]]
Work = Callable[[sqlite3.Connection], Answer]


@asynccontextmanager
async def opened(tmp_path: Path) -> AsyncGenerator[Writer]:
    with anyio.fail_after(20):
        async with open_writer(tmp_path / "log.db", Hub()) as writer:
            yield writer


def insert(db: sqlite3.Connection, number: int) -> Answer:
    db.execute(
        "INSERT INTO runs (num, id, state, prompt, repo, created_at, updated_at, last_seq, epoch) "
        "VALUES (?, ?, 'queued', '', '', 0, 0, 0, 0)",
        (number, f"r-{number}"),
    )
    return number, ()


def stored(db: sqlite3.Connection) -> tuple[list[int], tuple[Event, ...]]:
    return [number for (number,) in db.execute("SELECT num FROM runs ORDER BY num")], ()


def good(number: int) -> Work:
    return lambda db: insert(db, number)


def fenced(number: int) -> Work:
    def work(db: sqlite3.Connection) -> Answer:
        insert(db, number)
        raise Fenced("Somebody else has it.")

    return work


def broken(number: int) -> Work:
    def work(db: sqlite3.Connection) -> Answer:
        insert(db, number)
        raise ZeroDivisionError

    return work


def twice(number: int) -> Work:
    def work(db: sqlite3.Connection) -> Answer:
        insert(db, number)
        return insert(db, number)

    return work


async def test_in_one_transaction_each_request_stands_or_falls_alone(tmp_path: Path) -> None:
    outcome: dict[int, str] = {}
    gate = threading.Event()

    def wait(db: sqlite3.Connection) -> Answer:
        gate.wait(10)  # until the others wait behind it, so that one transaction takes them all
        return insert(db, 0)

    async def submit(writer: Writer, number: int, work: Work) -> None:
        try:
            assert await writer.write(work) == number
            outcome[number] = "ok"
        except CloisterError as error:
            outcome[number] = type(error).__name__

    async with opened(tmp_path) as writer:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(submit, writer, 0, wait)
            for number, work in enumerate((good, fenced, good, broken, twice, good), start=1):
                tasks.start_soon(submit, writer, number, work(number))
            await anyio.wait_all_tasks_blocked()
            gate.set()
        assert outcome == {0: "ok", 1: "ok", 2: "Fenced", 3: "ok", 4: "Bug", 5: "Bug", 6: "ok"}
        assert await writer.write(stored) == [0, 1, 3, 6]


async def test_a_request_begun_before_closing_is_finished(tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks, opened(tmp_path) as writer:
        for number in range(200):
            tasks.start_soon(writer.write, good(number))
        await anyio.wait_all_tasks_blocked()
    async with opened(tmp_path) as writer:
        assert await writer.write(stored) == list(range(200))


async def test_a_closed_log_takes_nothing_more(tmp_path: Path) -> None:
    async with opened(tmp_path) as writer:
        await writer.write(good(1))
    with pytest.raises(Bug):
        await writer.write(good(2))


async def test_no_thread_is_left_behind(tmp_path: Path) -> None:
    async with opened(tmp_path) as writer:
        await writer.write(good(1))
    assert not any(thread.name == "cloister-log" for thread in threading.enumerate())
