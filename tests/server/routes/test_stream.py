import json
import logging
from collections.abc import Iterator
from itertools import count
from typing import Any, cast
from urllib.parse import quote

import anyio
import pytest
from tests.server.conftest import Serve, Served
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from cloister.core.errors import UserError
from cloister.core.events import (
    CommandOutput,
    ModelText,
    PromptReceived,
    RunFinished,
    StopRequested,
    ToolReturned,
)
from cloister.log.api import Fence
from cloister.server.routes.stream import begin

pytestmark = pytest.mark.anyio

FINISH = RunFinished("proven", "done")


async def messages(socket: ClientConnection, most: int = 10_000) -> list[dict[str, Any]]:
    """What comes until the socket is closed, or the first `most`."""
    found: list[dict[str, Any]] = []
    with anyio.fail_after(60):
        while len(found) < most:
            try:
                found.append(json.loads(await socket.recv()))
            except ConnectionClosed:
                break
    return found


def seqs(found: list[dict[str, Any]]) -> list[int]:
    return [message["event"]["seq"] for message in found if "event" in message]


async def next_message(socket: ClientConnection) -> dict[str, Any]:
    """The next message but for those about who watches."""
    with anyio.fail_after(20):
        while (found := json.loads(await socket.recv()))["type"] == "watchers":
            pass
        return cast("dict[str, Any]", found)


async def answer_to(socket: ClientConnection, message: dict[str, Any]) -> dict[str, Any]:
    """What the server says to a message; events may come before it."""
    await socket.send(json.dumps(message))
    while (found := await next_message(socket))["type"] not in ("done", "error"):
        pass
    assert found["id"] == message["id"]
    return found


async def closed(socket: ClientConnection) -> tuple[int | None, str | None]:
    with anyio.fail_after(20):
        await socket.wait_closed()
    return socket.close_code, socket.close_reason


async def test_the_log_is_replayed_then_followed_and_the_end_is_normal(served: Served) -> None:
    fence = await served.claimed_run()
    async with served.socket(f"/v1/runs/{fence.run}/stream") as socket:
        assert (await next_message(socket))["event"]["body"]["type"] == "RunAdmitted"
        assert (await next_message(socket))["event"]["body"]["type"] == "RunClaimed"
        served.app.backbone.publish(fence.run, ModelText(1, "hm"))
        delta = await next_message(socket)
        assert delta == {"type": "delta", "delta": {"type": "ModelText", "attempt": 1, "text": "hm"}}
        await served.app.backbone.append(fence, [FINISH])
        last = await next_message(socket)
        assert (last["event"]["seq"], last["event"]["body"]["type"]) == (3, "RunFinished")
        assert await closed(socket) == (1000, "The run is finished.")


async def test_a_client_that_comes_back_with_its_cursor_misses_nothing_and_sees_nothing_twice(
    served: Served,
) -> None:
    fence = await served.claimed_run()
    await served.app.backbone.append(fence, [PromptReceived(str(n), "x") for n in range(700)])
    async with served.socket(f"/v1/runs/{fence.run}/stream", max_queue=None) as socket:
        seen = seqs(await messages(socket, most=300))
    await served.app.backbone.append(fence, [FINISH])
    async with served.socket(f"/v1/runs/{fence.run}/stream?after={seen[-1]}") as socket:
        seen += seqs(await messages(socket))
    assert seen == list(range(1, 704))


async def test_the_stream_of_a_finished_run_closes_at_once(served: Served) -> None:
    fence = await served.claimed_run()
    await served.app.backbone.append(fence, [FINISH])
    async with served.socket(f"/v1/runs/{fence.run}/stream?after=3") as socket:
        assert seqs(await messages(socket)) == []
        assert (await closed(socket))[0] == 1000


async def test_an_unknown_run_closes_with_4404_and_says_so(served: Served) -> None:
    async with served.socket("/v1/runs/r-nosuchrun/stream") as socket:
        code, reason = await closed(socket)
    assert code == 4404
    assert "r-nosuchrun" in (reason or "")


async def test_an_invalid_cursor_is_refused_with_4400(served: Served) -> None:
    fence = await served.claimed_run()
    for after in ("-1", "x", "", "1.5", "3", "99999999999999999999999999", "+1", "٣", "1_0"):
        async with served.socket(f"/v1/runs/{fence.run}/stream?after={quote(after)}") as socket:
            code, reason = await closed(socket)
        assert code == 4400
        assert (reason or "").startswith("after ")


async def test_messages_and_stops_of_a_client_appear_in_the_log(served: Served) -> None:
    fence = await served.claimed_run()
    async with served.socket(f"/v1/runs/{fence.run}/stream?after=2") as socket:
        done = await answer_to(socket, {"type": "say", "id": "m1", "text": "hello"})
        assert done == {"type": "done", "id": "m1", "run": fence.run, "seq": 3}
        assert (await answer_to(socket, {"type": "stop", "id": "m2"}))["seq"] == 4
    said, stop = await served.app.backbone.read(fence.run, after=2)
    assert said.body == PromptReceived("hello", "tester", key="m1")
    assert stop.body == StopRequested("tester", "m2")


BAD_MESSAGES = [
    "",
    "{",
    "{}",
    "null",
    '{"type": "say", "id": "x", "text": 1}',
    '{"type": "say", "text": "without an id"}',
    '{"type": "say", "id": "", "text": "a"}',
    '{"type": "say", "id": "x", "text": "a", "stop": true}',
    '{"type": "shout", "id": "x", "text": "a"}',
    '{"type": "rewind", "id": "x", "to": "hunter2"}',
    '{"type": "approve", "id": "x", "ask": "nobody asked"}',
    '{"type": "say", "id": "x", "text": "  "}',
    '{"type": "say", "id": "é", "text": "a"}',
    '{"type": "resume", "id": "x"}',
    '{"type": "fork", "id": "x", "at": 1}',
    b"\xff\x00",
]


async def test_a_bad_message_is_answered_and_the_stream_goes_on(served: Served) -> None:
    fence = await served.claimed_run()
    async with served.socket(f"/v1/runs/{fence.run}/stream?after=2") as socket:
        for bad in BAD_MESSAGES:
            await socket.send(bad)
            answer = await next_message(socket)
            assert set(answer) == {"type", "error", "id"}
            assert set(answer["error"]) == {"code", "message"}
            assert "hunter2" not in str(answer)
        assert (await answer_to(socket, {"type": "say", "id": "x", "text": "still here"}))["seq"] == 3


async def test_a_message_that_is_far_too_long_is_refused_by_the_protocol(served: Served) -> None:
    fence = await served.claimed_run()
    async with served.socket(f"/v1/runs/{fence.run}/stream?after=2") as socket:
        with pytest.raises(ConnectionClosed):
            await socket.send("x" * 3_000_000)
            await next_message(socket)
        assert (await closed(socket))[0] == 1009


async def _write_much(served: Served, fence: Fence) -> None:
    big = ToolReturned(1, "c", "bash", ok=True, text="x" * 200_000, seconds=0)
    for _ in range(100):
        await served.app.backbone.append(fence, [big])
        served.app.backbone.publish(fence.run, CommandOutput(1, "c", "out", "y"))
    await served.app.backbone.append(fence, [FINISH])


async def _watch_to_the_end(served: Served, path: str) -> tuple[list[int], int]:
    """What a client sees that reads, and how often it had to come back with its cursor.

    A stall of this machine may look like slowness.
    """
    seen: list[int] = []
    for again in count():
        after = seen[-1] if seen else 0
        async with served.socket(f"{path}?after={after}") as socket:
            seen += seqs(await messages(socket))
            if (await closed(socket))[0] == 1000:
                return seen, again
    raise AssertionError


class _Noticed(logging.Handler):
    """Counts the clients that were cut off."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self._more = anyio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "too slow" in record.getMessage():
            self._count += 1
            self._more.set()
            self._more = anyio.Event()

    async def until(self, count: int) -> None:
        with anyio.fail_after(20):
            while self._count < count:
                await self._more.wait()


@pytest.fixture
def cut_off() -> Iterator[_Noticed]:
    logger, noticed = logging.getLogger("cloister.server.ws"), _Noticed()
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(noticed)
    yield noticed
    logger.removeHandler(noticed)
    logger.setLevel(before)


async def test_client_that_does_not_read_blocks_no_other_and_is_disconnected_with_a_retry_code(
    serving: Serve, cut_off: _Noticed
) -> None:
    async with serving(send_seconds=0.2, close_seconds=60) as served:
        fence = await served.claimed_run()
        path = f"/v1/runs/{fence.run}/stream"
        # The idle one holds one message and stops taking bytes from the kernel.
        async with served.socket(path, max_queue=1) as idle:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_write_much, served, fence)
                seen, came_back = await _watch_to_the_end(served, path)
                assert seen == list(range(1, 104))
                await cut_off.until(came_back + 1)  # the one that did not read
            last = seqs(await messages(idle))[-1]
            assert last < 103
            assert (await closed(idle))[0] == 1013
        async with served.socket(f"{path}?after={last}") as again:
            assert seqs(await messages(again)) == list(range(last + 1, 104))


async def test_clients_receive_1001_when_the_server_stops(serving: Serve) -> None:
    async with serving() as served:
        fence = await served.claimed_run()
        socket = await served.socket(f"/v1/runs/{fence.run}/stream").__aenter__()
        await next_message(socket)
    async with socket:
        assert (await closed(socket))[0] == 1001


async def test_a_client_that_never_reads_cannot_keep_the_server_from_ending(serving: Serve) -> None:
    with anyio.fail_after(60):
        async with serving(send_seconds=600, close_seconds=600) as served:
            fence = await served.claimed_run()
            path = f"/v1/runs/{fence.run}/stream"
            idle = await served.socket(path, max_queue=1, close_timeout=0).__aenter__()
            await _write_much(served, fence)
        await idle.close()


def test_the_largest_cursor_is_the_end_of_the_log() -> None:
    assert begin("7", None, 7) == 7
    with pytest.raises(UserError):
        begin("8", None, 7)
    assert [begin(None, last, 7) for last in ("0", "3", "100")] == [7, 4, 0]
    assert begin("5", "3", 7) == 5
