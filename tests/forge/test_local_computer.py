"""The computer for tests behaves as the seam says, short of isolating anything."""

from pathlib import Path

import anyio
import pytest

from cloister.core.computer import Command, Computer, Exited, Finished, Output, Pty, shell
from cloister.core.errors import UserError
from cloister.testing.local import LocalComputer

pytestmark = pytest.mark.anyio


@pytest.fixture
def computer(tmp_path: Path) -> Computer:
    return LocalComputer(tmp_path)


def _without_time(done: Finished) -> tuple[int | None, int | None, str | None, bytes, bytes]:
    return done.exited.code, done.exited.signal, done.exited.killed, done.out, done.err


async def test_a_command_runs_in_work_with_its_input_and_environment(computer: Computer) -> None:
    await computer.write("a/b.txt", b"file\n", mode=0o600)
    command = shell("cat - a/b.txt; echo $X >&2; exit 3", {"X": "y"})
    assert _without_time(await computer.run(command, b"in\n")) == (3, None, None, b"in\nfile\n", b"y\n")


async def test_a_command_is_killed_for_time_and_for_output(computer: Computer) -> None:
    slow = await computer.run(Command(("sleep", "1000"), seconds=0.05))
    loud = await computer.run(Command(("yes",), limit_bytes=10_000))
    assert [(d.exited.code, d.exited.signal, d.exited.killed) for d in (slow, loud)] == [
        (None, 9, "time"),
        (None, 9, "output"),
    ]


async def test_a_process_can_be_talked_to_and_is_gone_with_its_block(computer: Computer) -> None:
    with anyio.fail_after(60):
        async with computer.start(shell("read line; echo got $line; sleep 1000")) as process:
            await process.send(b"hello\n")
            async for item in process:
                assert item == Output("out", b"got hello\n")
                break
        async with computer.start(shell("sleep 1000")) as process:
            await process.signal(15)
            ended = [item async for item in process]
    assert [(e.code, e.signal) for e in ended if isinstance(e, Exited)] == [(None, 15)]


async def test_files_are_read_written_and_listed(computer: Computer) -> None:
    await computer.write("/work/dir/file", b"0123456789")
    await computer.write("/etc/elsewhere", b"x")
    assert await computer.read("dir/file", offset=2, limit_bytes=3) == b"234"
    assert await computer.read("/etc/elsewhere") == b"x"
    assert [(entry.name, entry.kind, entry.size) for entry in await computer.list("dir")] == [
        ("file", "file", 10)
    ]


async def test_what_cannot_be_done_has_a_code(computer: Computer) -> None:
    await computer.write("file", b"")
    codes: list[str] = []
    for wrong in (
        computer.read("missing"),
        computer.read("/work"),
        computer.list("file"),
        computer.run(Command(("no-such-program",))),
        computer.run(Command(("true",), pty=Pty())),
    ):
        with pytest.raises(UserError) as caught:
            await wrong
        codes.append(caught.value.code)
    assert codes == ["not_found", "not_a_file", "not_a_directory", "not_found", "no_pty"]
