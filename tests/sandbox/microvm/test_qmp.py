"""The emulator's control line: one question, one answer, and nothing it says is believed."""

import socket
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress

import anyio
import msgspec
import pytest
from anyio.abc import UNIXSocketStream

from cloister.core.errors import HostError
from cloister.sandbox.microvm.machine import LINE_BYTES, Qmp

pytestmark = pytest.mark.anyio

GREETING = b'{"QMP": {"version": {}}}\n'
Speak = Callable[[UNIXSocketStream], Coroutine[object, object, None]]


@asynccontextmanager
async def emulator(speak: Speak) -> AsyncGenerator[Qmp]:
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
    async with await UNIXSocketStream.from_socket(theirs) as stream, anyio.create_task_group() as tasks:
        tasks.start_soon(speak, stream)
        qmp = await Qmp.over(ours)
        try:
            yield qmp
        finally:
            await qmp.aclose()


async def test_answers_are_separated_from_events_and_the_greeting() -> None:
    asked: list[object] = []

    async def speak(stream: UNIXSocketStream) -> None:
        await stream.send(GREETING)
        for _ in range(3):
            asked.append(msgspec.json.decode(await stream.receive()))
            await stream.send(b'{"event": "STOP"}\n{"ret')
            await stream.send(b'urn": {}}\n')

    with anyio.fail_after(60):
        async with emulator(speak) as qmp:
            await qmp.ask("stop")
            await qmp.ask("cont", {"a": 1})
    assert asked == [
        {"execute": "qmp_capabilities"},
        {"execute": "stop"},
        {"execute": "cont", "arguments": {"a": 1}},
    ]


@pytest.mark.parametrize(
    "said",
    [
        b'{"error": {"class": "GenericError", "desc": "no \x1b[31m such"}}\n',
        b"garbage\n",
        b'{"error": 7}\n',
        b'{"return"\n',
        b"x" * (LINE_BYTES + 70_000),
        b"",
    ],
    ids=["a refusal", "garbage", "a wrong error", "half an answer", "too much", "the end"],
)
async def test_whatever_else_it_says_is_one_error(said: bytes) -> None:
    async def speak(stream: UNIXSocketStream) -> None:
        await stream.receive()
        with suppress(anyio.BrokenResourceError):  # who was told enough does not listen to the end
            if said:
                await stream.send(said)
            await stream.send_eof()

    with anyio.fail_after(60):
        async with emulator(speak) as qmp:
            with pytest.raises(HostError) as caught:
                await qmp.ask("stop")
    assert caught.value.code == "emulator_failed"
    assert "\x1b" not in caught.value.message
