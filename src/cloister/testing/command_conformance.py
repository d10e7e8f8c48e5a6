"""What every kind of sandbox promises of ending commands; `sandbox_conformance.PROMISES` has these, too."""

from collections.abc import Awaitable, Callable

import anyio

from cloister.core import limits
from cloister.core.commands import Command, shell
from cloister.sandbox.api import Host, Sandbox, SandboxSpec
from cloister.testing.expecting import (
    WAIT_SECONDS,
    Promise,
    expect,
    first_output,
    refused,
    rest,
    text,
)


async def killing_a_command_ends_its_tree_and_says_so(host: Host) -> None:
    stubborn = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 980' &); echo up; sleep 980"
    async with host.open(SandboxSpec()) as sandbox:
        async with sandbox.start(shell(stubborn, grace_seconds=0.2)) as process:
            await first_output(process)
            await process.kill()
            exited = (await rest(process)).exited
            expect((exited.killed, exited.ok), ("cancelled", False))
            await process.kill()
        expect(await text(sandbox, "pgrep -c -f 'sleep 98[0]' || true"), "0")


async def a_command_keeps_the_limits_it_was_given(host: Host) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        both = [Command(("yes",), limit_bytes=size, grace_seconds=0.1) for size in (0, 1, 100_000)]
        for command in both:
            finished = await sandbox.run(command)
            expect((len(finished.out), finished.exited.killed), (command.limit_bytes, "output"))
        slow = await sandbox.run(Command(("sleep", "979"), seconds=0.2, grace_seconds=0.1))
        expect(slow.exited.killed, "time")
        quick = await sandbox.run(shell("echo -n 12345", limit_bytes=5))
        expect((quick.out, quick.exited.killed), (b"12345", None))


class _Waiters:
    """People who wait for all kinds of things in one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.waiting = anyio.Semaphore(0)
        self.all = (self.command, self.stdin, self.reading, self.writing, self.watching)

    async def command(self) -> None:
        async with self._sandbox.start(shell("echo up; sleep 978")) as process:
            await first_output(process)
            self.waiting.release()
            await rest(process)

    async def stdin(self) -> None:
        async with self._sandbox.start(Command(("sleep", "978"))) as process:
            self.waiting.release()
            await process.send(bytes(10 * limits.WINDOW_BYTES))

    async def reading(self) -> None:
        async with self._sandbox.read_stream("big") as pieces:
            self.waiting.release()
            await self._sandbox.wait_lost()
            async for _ in pieces:
                pass

    async def writing(self) -> None:
        async with self._sandbox.write_stream("new"):
            self.waiting.release()
            await self._sandbox.wait_lost()

    async def watching(self) -> None:
        async with self._sandbox.watch("/work") as changes:
            self.waiting.release()
            while True:
                await anext(changes)


async def everyone_who_waits_on_a_lost_sandbox_is_told(host: Host) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        await sandbox.write("big", bytes(4_000_000))
        waiters, told = _Waiters(sandbox), list[str]()

        async def wait(what: Callable[[], Awaitable[None]]) -> None:
            with anyio.fail_after(WAIT_SECONDS), refused("sandbox_lost"):
                await what()
            told.append(what.__name__)

        async with anyio.create_task_group() as tasks:
            for what in waiters.all:
                tasks.start_soon(wait, what)
            with anyio.fail_after(WAIT_SECONDS):
                for _ in waiters.all:
                    await waiters.waiting.acquire()
                with refused("sandbox_lost"):
                    await sandbox.run(shell("kill -TERM 1; sleep 977", user="root"))
        expect(sorted(told), sorted(what.__name__ for what in waiters.all))


COMMAND_PROMISES: tuple[Promise, ...] = (
    killing_a_command_ends_its_tree_and_says_so,
    a_command_keeps_the_limits_it_was_given,
    everyone_who_waits_on_a_lost_sandbox_is_told,
)
