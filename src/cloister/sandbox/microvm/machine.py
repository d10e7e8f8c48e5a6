"""One running emulator: its process, the link to its guest, its QMP monitor."""

import os
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import anyio
import msgspec
from anyio.abc import TaskGroup, UNIXSocketStream

from cloister.core.errors import HostError
from cloister.core.text import decode, one_line
from cloister.sandbox._spawn import spawn
from cloister.sandbox.local.cgroup import Cgroup
from cloister.sandbox.local.lifetime import PARTING_SECONDS, Lifetime, lived

ANSWER_SECONDS = 30.0
LINE_BYTES = 1_048_576
_GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


class _Error(msgspec.Struct):
    desc: str = ""


class _Message(msgspec.Struct):
    """A greeting, an answer or an event; greetings and events are skipped."""

    answer: object = msgspec.field(default=msgspec.UNSET, name="return")
    error: _Error | None = None


class Qmp:
    """A client of QEMU's control protocol, one command at a time.

    A guest may have taken over the emulator, so its answers are untrusted.
    """

    def __init__(self, stream: UNIXSocketStream) -> None:
        self._stream = stream
        self._rest = b""
        self._asking = anyio.Lock()
        self._greeted = False

    @staticmethod
    async def over(sock: socket.socket) -> "Qmp":
        return Qmp(await UNIXSocketStream.from_socket(sock))

    async def ask(self, command: str, arguments: object = None, descriptors: Sequence[int] = ()) -> None:
        """Execute `command`. Raises `HostError` (`emulator_failed`)."""
        async with self._asking:
            try:
                with anyio.fail_after(ANSWER_SECONDS):
                    if not self._greeted:
                        await self._ask("qmp_capabilities", None, ())
                        self._greeted = True
                    await self._ask(command, arguments, descriptors)
            except TimeoutError as error:
                raise HostError(
                    "emulator_failed", f"The emulator did not answer {command} in time."
                ) from error
            except _GONE as error:
                raise HostError(
                    "emulator_failed", f"The emulator ended before {command} was done."
                ) from error

    async def _ask(self, command: str, arguments: object, descriptors: Sequence[int]) -> None:
        question = {"execute": command} if arguments is None else {"execute": command, "arguments": arguments}
        line = msgspec.json.encode(question) + b"\n"
        if descriptors:
            await self._stream.send_fds(line, list(descriptors))
        else:
            await self._stream.send(line)
        while True:
            message = await self._next()
            if message.error is not None:
                said = one_line(message.error.desc, 300)
                raise HostError("emulator_failed", f"The emulator refused {command}: {said}")
            if message.answer is not msgspec.UNSET:
                return

    async def _next(self) -> _Message:
        while b"\n" not in self._rest:
            if len(self._rest) > LINE_BYTES:
                raise HostError("emulator_failed", "The emulator sent an answer that is too long.")
            self._rest += await self._stream.receive()
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            return msgspec.json.decode(line, type=_Message)
        except msgspec.MsgspecError as error:
            raise HostError("emulator_failed", "The emulator sent an invalid answer.") from error

    async def aclose(self) -> None:
        await self._stream.aclose()


_KILLED = (-9, 137)
_OFF = "reboot: Restarting system"
"""Printed on the console of every machine at its end."""

_ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_TOP_PAD_": "4194304"}
"""Lets the emulator's heap grow in large steps instead of page by page."""


@dataclass(slots=True, kw_only=True)
class Machine(Lifetime):
    """One machine as the host sees it."""

    link: UNIXSocketStream
    monitor: Qmp

    @property
    def last_words(self) -> str:
        """The last output of the emulator and of the machine's console, as one harmless line."""
        lines = decode(bytes(self._tail)).splitlines()
        return one_line(" ".join(line for line in lines if not line.rstrip().endswith(_OFF)), 300)

    def pid(self) -> int:
        """The emulator's process; the one we started waits for it. Raises `HostError` when it has ended."""
        for pid in self.cgroup.pids():
            if pid != self.process.pid:
                return pid
        raise HostError("emulator_failed", "The emulator of the machine has ended.")

    async def close(self) -> None:
        self.reason = self.reason or "The sandbox was closed."
        # The emulator first, so that the jail reaps it; killing both would leave a zombie.
        with suppress(HostError, ProcessLookupError):
            os.kill(self.pid(), signal.SIGKILL)
        with anyio.move_on_after(PARTING_SECONDS):
            await self.ended.wait()
        self.cgroup.kill()
        await self.ended.wait()
        await self.link.aclose()
        await self.monitor.aclose()

    def explain(self) -> str:
        if self.cgroup.oom_kills() and self.process.returncode in _KILLED:
            return "The sandbox ran out of memory: the kernel killed its virtual machine."
        return ""


Plan = Callable[[int, int], tuple[Sequence[str], Sequence[int]]]
"""From the descriptors of the link and the monitor: the command line, and all descriptors to pass on.

The emulator owns the descriptors; `started` closes them once it runs.
"""


@asynccontextmanager
async def started(plan: Plan, path: str, cgroup: Cgroup, ttl_seconds: float) -> AsyncGenerator[Machine]:
    """Start an emulator; leaving the block kills it and waits for its end."""
    ours, theirs = _pairs()
    given: Sequence[int] = ()
    try:
        argv, given = plan(theirs[0].detach(), theirs[1].detach())
        async with spawn(argv, env={"PATH": path, **_ALLOCATOR}, pass_fds=given) as process:
            for descriptor in given:
                os.close(descriptor)
            given = ()
            link, monitor = await UNIXSocketStream.from_socket(ours[0]), await Qmp.over(ours[1])

            def machine(tasks: TaskGroup) -> Machine:
                ends = anyio.current_time() + ttl_seconds
                return Machine(
                    process=process, cgroup=cgroup, link=link, monitor=monitor, ttl_ends=ends, tasks=tasks
                )

            async with lived(machine) as life:
                yield life
    finally:
        for descriptor in given:
            with suppress(OSError):
                os.close(descriptor)
        for sock in (*ours, *theirs):
            sock.close()


def _pairs() -> tuple[tuple[socket.socket, socket.socket], tuple[socket.socket, socket.socket]]:
    link, monitor = socket.socketpair(), socket.socketpair()
    for sock in (link[0], monitor[0]):
        sock.setblocking(False)
    return (link[0], monitor[0]), (link[1], monitor[1])
