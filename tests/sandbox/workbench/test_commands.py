"""Background commands over a computer that is this machine; the sandbox's own behaviour is tested elsewhere."""

import os
import subprocess
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import msgspec
import pytest

from cloister.app.workbench.commands import Background, Commands, Record, Skipped, open_commands
from cloister.core import limits
from cloister.core.computer import WORK_DIR, Command, Exited, Output, shell
from cloister.core.errors import SandboxLost, UserError
from cloister.core.ids import OwnerId, SandboxId
from cloister.sandbox.code.contexts import DEFAULT, CodeResult, Contexts
from cloister.testing.local import LocalComputer

pytestmark = pytest.mark.anyio

HERE = SandboxId("s-0123456789ab")
ME = OwnerId("o-0123456789ab")


@pytest.fixture
def computer(tmp_path: Path) -> LocalComputer:
    return LocalComputer(tmp_path / "computer")


@asynccontextmanager
async def opened(
    tmp_path: Path, *, lives: bool = False, kept: int = limits.COMMANDS_KEPT
) -> AsyncGenerator[Commands]:
    async with open_commands(tmp_path / "commands", ME, lambda owner: lives, kept) as commands:
        yield commands


async def followed(command: Background, offset: int = 0) -> tuple[bytes, bytes, Exited]:
    out, err = b"", b""
    with anyio.fail_after(20):
        async with command.follow(offset) as items:
            async for item in items:
                match item:
                    case Output("out", data):
                        out += data
                    case Output(_, data):
                        err += data
                    case Exited():
                        return out, err, item
                    case Skipped():
                        raise AssertionError("nothing should be skipped")
    raise AssertionError("there was no end")


async def test_a_command_goes_on_without_us_and_anyone_can_follow_it(
    tmp_path: Path, computer: LocalComputer
) -> None:
    async with opened(tmp_path) as commands:
        line = "echo one; echo two >&2; read word; echo got $word; exit 3"
        command = await commands.start(HERE, computer, shell(line))
        assert commands.list(HERE) == (command.record,)
        results: list[tuple[bytes, bytes, Exited]] = []

        async def watch() -> None:
            results.append(await followed(commands.get(HERE, command.record.id)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            tasks.start_soon(watch)
            await anyio.wait_all_tasks_blocked()
            await command.send(b"this\n")
        assert [(out, err) for out, err, _ in results] == [(b"one\ngot this\n", b"two\n")] * 2
        record = await command.ended()
        assert record.state == "exited"
        assert record.exited is not None
        assert (record.exited.code, record.exited.killed) == (3, None)
        tail, _, _ = await followed(command, command.spool.end - 5)
        assert tail == b"this\n"
        await command.send(b"nobody listens")
        await command.kill()


async def test_an_end_survives_a_restart_with_its_output(tmp_path: Path, computer: LocalComputer) -> None:
    async with opened(tmp_path) as commands:
        command = await commands.start(HERE, computer, shell("echo kept; exit 5"))
        before = await command.ended()
    async with opened(tmp_path) as commands:
        assert commands.list(HERE) == (before,)
        again = commands.get(HERE, before.id)
        out, _, exited = await followed(again)
        assert (out, exited.code) == (b"kept\n", 5)
        with pytest.raises(UserError):
            commands.get("s-someoneelse", before.id)


async def test_commands_that_start_at_once_forget_each_old_one_once(
    tmp_path: Path, computer: LocalComputer
) -> None:
    async with opened(tmp_path) as commands:
        for _ in range(4):
            await (await commands.start(HERE, computer, shell("true"))).ended()
    async with opened(tmp_path, kept=2) as commands:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(commands.start, HERE, computer, shell("true"))
        assert len(commands.list(HERE)) == 4, "one of the old, and the three"


async def test_a_result_that_was_not_reported_is_never_invented(
    tmp_path: Path, computer: LocalComputer
) -> None:
    async with opened(tmp_path) as commands:
        command = await commands.start(HERE, computer, shell("echo up; sleep 600"))
        async with command.follow(0) as items:
            assert await anext(aiter(items)) == Output("out", b"up\n")
        record_path = tmp_path / "commands" / command.record.id / "record.json"
        running = record_path.read_bytes()
        assert msgspec.json.decode(running, type=Record).state == "running"
    stopped = msgspec.json.decode(record_path.read_bytes(), type=Record)
    assert (stopped.state, stopped.exited) == ("lost", None)
    assert stopped.reason == "The server was stopped and ended the command."
    # As after `kill -9`: the record still says that it runs, and nobody holds it.
    record_path.write_bytes(running)
    async with opened(tmp_path, lives=True) as commands:
        assert commands.list(HERE) == ()
    async with opened(tmp_path) as commands:
        (lost,) = commands.list(HERE)
        assert (lost.state, lost.exited) == ("lost", None)
        assert lost.reason == "The server ended before the command did."
        with pytest.raises(SandboxLost):
            await followed(commands.get(HERE, lost.id))
    assert msgspec.json.decode(record_path.read_bytes(), type=Record).state == "lost"


async def test_killing_is_an_end_like_any_other(tmp_path: Path, computer: LocalComputer) -> None:
    async with opened(tmp_path) as commands:
        command = await commands.start(HERE, computer, shell("sleep 600"))
        await command.kill()
        with anyio.fail_after(20):
            record = await command.ended()
        assert record.exited is not None
        assert record.exited.killed == "cancelled"


async def test_a_command_that_cannot_start_raises_and_leaves_no_record(
    tmp_path: Path, computer: LocalComputer
) -> None:
    async with opened(tmp_path) as commands:
        with pytest.raises(UserError):
            await commands.start(HERE, computer, Command(("no-such-program",)))
        assert commands.list(HERE) == ()


async def test_a_flood_is_kept_within_bounds_and_its_end_is_exact(
    tmp_path: Path, computer: LocalComputer
) -> None:
    async with opened(tmp_path) as commands:
        command = await commands.start(HERE, computer, shell("yes | head -c 60000000; exit 1"))
        with anyio.fail_after(60):
            record = await command.ended()
        assert record.exited is not None
        assert (record.exited.code, command.spool.end) == (1, 60_000_000)
        home = tmp_path / "commands" / record.id
        assert sum(path.stat().st_size for path in home.iterdir()) < 20_000_000
        pieces, after = command.read(0, 1_000_000)
        assert pieces[0] == Skipped(command.spool.begin)
        assert after == command.spool.begin + 1_000_000
        with pytest.raises(UserError):
            async with command.follow(60_000_001):
                pass


async def test_the_oldest_of_those_that_are_over_are_forgotten(
    tmp_path: Path, computer: LocalComputer
) -> None:
    async with opened(tmp_path, kept=2) as commands:
        running = await commands.start(HERE, computer, shell("sleep 600"))
        ids: list[str] = [running.record.id]
        for _ in range(4):
            command = await commands.start(HERE, computer, shell("true"))
            await command.ended()
            ids.append(command.record.id)
        assert [record.id for record in commands.list(HERE)] == [ids[0], *ids[-2:]]
        assert sorted(path.name for path in (tmp_path / "commands").iterdir()) == sorted([ids[0], *ids[-2:]])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small disk")
    small = tmp_path / "commands"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(small)], check=True)
    yield
    subprocess.run(["umount", str(small)], check=True)


async def test_a_full_disk_ends_the_command_and_says_how_it_ended(
    tmp_path: Path, computer: LocalComputer, small_disk: None
) -> None:
    async with opened(tmp_path) as commands:
        command = await commands.start(HERE, computer, shell("yes"))
        with anyio.fail_after(30):
            record = await command.ended()
        assert record.exited is not None
        assert record.exited.killed == "cancelled"
        out, _, _ = await followed(command)
        assert out == (b"y\n" * len(out))[: len(out)]


async def test_code_for_a_context_that_is_just_being_made_waits_for_it(computer: LocalComputer) -> None:
    ran: list[CodeResult] = []
    async with anyio.create_task_group() as tasks:
        contexts = Contexts(tasks)
        make = partial(contexts.make, HERE, computer, cwd=WORK_DIR, env={}, user="agent", name=DEFAULT)
        tasks.start_soon(make)
        while not contexts.list(HERE):
            await anyio.lowlevel.checkpoint()
        ran += [await contexts.run(HERE, DEFAULT, "x = 1", 30, {}) for _ in range(2)]
        tasks.cancel_scope.cancel()
    assert [(one.count, one.timed_out) for one in ran] == [(1, False), (2, False)]
