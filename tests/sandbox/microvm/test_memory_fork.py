"""A fork of a machine takes everything along that runs in it, and both sides go on by themselves."""

import fcntl
import random
import zlib
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from tests.whole.conformance.suites.sandbox import first_output, rest

from cloister.core.computer import Command, shell
from cloister.sandbox.api import Sandbox, SandboxSpec
from cloister.sandbox.microvm.host import MicrovmHost

pytestmark = pytest.mark.anyio

WAIT_SECONDS = 120.0
F_GET_SEALS, SEALED = 1034, 0b1111
"""From Linux's fcntl.h: neither more seals nor other sizes nor writing."""

COUNTER = """
import os, sys, threading
os.mkfifo('/work/ask'); os.mkfifo('/work/answer')
number, log = 0, open('/work/log', 'a', buffering=1)
print('up', flush=True)
while True:
    word = open('/work/ask').readline().strip()
    number += 1
    log.write(f'{word}\\n')
    with open('/work/answer', 'w') as answer: answer.write(f'{word} {number}\\n')
"""


async def say(sandbox: Sandbox, word: str) -> str:
    finished = await sandbox.run(shell(f"echo {word} > /work/ask; cat /work/answer", seconds=60))
    assert finished.ok, finished.err
    return finished.out.decode().strip()


async def test_an_interpreter_goes_on_in_both_with_its_variables_and_open_files(
    machines: MicrovmHost, small: SandboxSpec
) -> None:
    with anyio.fail_after(WAIT_SECONDS):
        async with (
            machines.open(small) as parent,
            parent.start(Command(("python3", "-c", COUNTER))) as running,
        ):
            await first_output(running)
            assert await say(parent, "one") == "one 1"
            async with parent.fork() as child:
                assert child.info.fork == "memory"
                assert await say(child, "mine") == "mine 2"
                assert await say(parent, "two") == "two 2"
                assert await say(child, "again") == "again 3"
                async with child.fork() as grandchild:
                    assert await say(grandchild, "deep") == "deep 4"
                    assert await grandchild.read("log") == b"one\nmine\nagain\ndeep\n"
                assert await child.read("log") == b"one\nmine\nagain\n"
            assert await parent.read("log") == b"one\ntwo\n"


async def test_a_command_in_flight_is_the_parents_alone_and_a_fork_can_run_as_many(
    machines: MicrovmHost, small: SandboxSpec
) -> None:
    with anyio.fail_after(WAIT_SECONDS):
        async with (
            machines.open(small) as parent,
            parent.start(shell("echo up; read line; echo got $line")) as running,
        ):
            await first_output(running)
            async with parent.fork() as child:
                assert (await child.run(shell("echo here"))).out == b"here\n"
                assert (await child.run(shell("pgrep -c -f 'got [$]line'"))).ok, "it goes on in the fork too"
            await running.send(b"word\n")
            assert (await rest(running)).out == b"got word\n"


async def test_forks_differ_in_entropy_host_name_and_machine_id_and_have_the_right_time(
    machines: MicrovmHost, small: SandboxSpec
) -> None:
    ask = "hostname; cat /etc/machine-id; head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid"
    with anyio.fail_after(WAIT_SECONDS):
        async with machines.open(small) as parent, parent.fork() as one, parent.fork() as two:
            seen = [
                (await sandbox.run(shell(ask))).out.decode().split("\n") for sandbox in (parent, one, two)
            ]
            for facts in zip(*(lines[:4] for lines in seen), strict=True):
                assert len(set(facts)) == 3, facts
            clock = float((await two.run(Command(("date", "+%s.%N")))).out)
            assert abs(clock - two.info.created_at) < WAIT_SECONDS


async def test_a_fork_under_write_load_is_a_consistent_disk(
    machines: MicrovmHost, small: SandboxSpec
) -> None:
    writer = "i=0; echo up; while :; do i=$((i+1)); echo $i > a.$i; mv a.$i done.$((i % 50)); done"
    with anyio.fail_after(WAIT_SECONDS):
        async with (
            machines.open(small) as parent,
            parent.start(Command(("/bin/sh", "-c", writer))) as running,
        ):
            await first_output(running)
            await parent.run(shell("until [ -e done.49 ]; do sleep 0.05; done"))
            async with parent.fork() as child:
                # Each name holds one whole number, whatever was under way; and the disk can still be written.
                ended = await child.run(
                    shell("pkill -x sh; sync; cat done.* | grep -cvE '^[0-9]+$'; ls done.* | wc -l")
                )
                assert ended.out == b"0\n50\n"
                assert (
                    await child.run(shell("rm done.* && head -c 20M /dev/urandom > big && wc -c < big"))
                ).ok
            assert (await parent.run(shell("ls done.* | wc -l"))).out == b"50\n"


async def test_a_connection_out_does_not_survive_a_fork(machines: MicrovmHost, small: SandboxSpec) -> None:
    program = (
        "import socket\ns = socket.create_connection(('127.0.0.1', 3128)); s.sendall(b'x'); print('up', flush=True)\n"
        "print('end', repr(s.recv(10)), flush=True); open('/work/ended', 'w').write('yes')"
    )

    async def door(_sandbox: object, stream: anyio.abc.ByteStream) -> None:
        await stream.receive()
        await anyio.sleep_forever()

    with anyio.fail_after(WAIT_SECONDS):
        async with (
            machines.open(small, door) as parent,
            parent.start(Command(("python3", "-c", program))) as running,
        ):
            await first_output(running)
            async with parent.fork() as child:
                ended = await child.run(
                    shell("until [ -s ended ]; do sleep 0.05; done; cat ended", seconds=30)
                )
                assert ended.out == b"yes"
            assert (await parent.run(shell("test -e ended"))).exited.code == 1


async def test_many_forks_of_one_moment_share_their_memory(machines: MicrovmHost, small: SandboxSpec) -> None:
    ready: list[Sandbox] = []
    enough = anyio.Event()

    async with machines.open(small) as parent:
        await parent.write("number", b"7")

        async def one() -> None:
            async with parent.fork() as child:
                assert await child.read("number") == b"7"
                ready.append(child)
                if len(ready) == 3:
                    enough.set()
                await enough.wait()

        with anyio.fail_after(WAIT_SECONDS):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(one)
    assert len({child.info.id for child in ready}) == 3


async def test_a_machine_that_has_written_much_is_forked_whole_too(
    machines: MicrovmHost, small: SandboxSpec
) -> None:
    program = (
        "import os, random, time, zlib\nx = random.Random(7).randbytes(40 << 20)\nprint('up', flush=True)\n"
        "while not os.path.exists('/work/go'): time.sleep(0.05)\n"
        "open('/work/sum', 'w').write(str(zlib.crc32(x)))"
    )
    wanted = str(zlib.crc32(random.Random(7).randbytes(40 << 20)))
    with anyio.fail_after(WAIT_SECONDS):
        async with (
            machines.open(small) as parent,
            parent.start(Command(("python3", "-c", program), seconds=100)) as running,
        ):
            await first_output(running)
            async with parent.fork() as child, child.fork() as grandchild:
                for sandbox in (child, grandchild, parent):
                    ended = await sandbox.run(
                        shell("touch go; until [ -s sum ]; do sleep 0.05; done; cat sum")
                    )
                    assert ended.out.decode() == wanted


async def test_the_files_that_a_fork_starts_from_cannot_be_changed(
    machines: MicrovmHost, small: SandboxSpec
) -> None:
    """An emulator that was taken over may keep descriptors of what it saved; its forks start from that."""
    with anyio.fail_after(WAIT_SECONDS):
        async with machines.open(small) as parent, parent.fork() as child, child.fork():
            seals = memory_file_seals()
    assert {name for name, _ in seals} >= {"/memfd:ram (deleted)", "/memfd:state (deleted)"}
    assert {found for _, found in seals} == {SEALED}


def memory_file_seals() -> list[tuple[str, int]]:
    """The names and seals of this process's memory files of machines."""
    found: list[tuple[str, int]] = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            name = str(entry.readlink())
            if name.startswith(("/memfd:ram", "/memfd:state", "/memfd:initramfs")):
                found.append((name, fcntl.fcntl(int(entry.name), F_GET_SEALS)))
    return found
