"""Hostile and slow connections: each is answered or dropped, and the others are served meanwhile."""

import json
import logging
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import SocketStream
from tests.server.conftest import Serve, Served, serve_app
from websockets.exceptions import ConnectionClosed, InvalidStatus

from cloister.app.settings import Settings, read_settings
from cloister.app.tokens import Tokens
from cloister.core.events import PromptReceived
from cloister.server.auth import REVOKED, STRANGERS
from cloister.server.serve import HALF_OPEN, Deadlines

pytestmark = pytest.mark.anyio

KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
UPGRADE = f"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{KEY}"
SHORT = Deadlines(head=0.5, body=0.5, farewell=0.5)


async def dial(port: int) -> SocketStream:
    return await anyio.connect_tcp("127.0.0.1", port)


async def to_the_end(stream: SocketStream) -> bytes:
    """All that the server sends until it closes the connection."""
    received = b""
    try:
        while True:
            received += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return received


async def told(port: int, request: str) -> tuple[int, dict[str, Any]]:
    """Status and JSON body of the answer to raw bytes, after which the server closes."""
    async with await dial(port) as stream:
        with anyio.fail_after(20):
            await stream.send(request.encode())
            answer = await to_the_end(stream)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower(), answer
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize(
    ("name", "request_text", "status"),
    [
        (
            "140 headers",
            f"GET /v1/x HTTP/1.1\r\n{UPGRADE}" + "".join(f"X-{n}: y\r\n" for n in range(140)) + "\r\n",
            431,
        ),
        ("one long header", f"GET /v1/x HTTP/1.1\r\n{UPGRADE}X-Long: {'y' * 9_000}\r\n\r\n", 431),
        ("a long address", f"GET /{'x' * 9_000} HTTP/1.1\r\n{UPGRADE}\r\n", 431),
        ("HTTP/1.0", f"GET /v1/x HTTP/1.0\r\n{UPGRADE}\r\n", 400),
        ("POST", f"POST /v1/x HTTP/1.1\r\n{UPGRADE}\r\n", 400),
        ("a body", f"GET /v1/x HTTP/1.1\r\n{UPGRADE}Content-Length: 5\r\n\r\nhello", 400),
        (
            "no key",
            "GET /v1/x HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            400,
        ),
        (
            "an old version",
            "GET /v1/x HTTP/1.1\r\n" + UPGRADE.replace("Version: 13", "Version: 8") + "\r\n",
            400,
        ),
        ("endless headers", "GET / HTTP/1.1\r\nHost: localhost\r\n" + "X-Y: z\r\n" * 20_000, 431),
        ("no HTTP", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        ("no token", f"GET /v1/x HTTP/1.1\r\n{UPGRADE}\r\n", 401),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 20 else "",
)
async def test_every_bad_request_is_answered_in_json_and_dropped(
    served: Served, name: str, request_text: str, status: int
) -> None:
    found, body = await told(served.port, request_text)
    assert (found, set(body)) == (status, {"code", "message"}), (name, body)
    assert "yyy" not in body["message"] and "xxx" not in body["message"]


@asynccontextmanager
async def serving_briefly(settings: Settings) -> AsyncGenerator[Served]:
    async with serve_app(settings, deadlines=SHORT) as served:
        yield served


HALF = "GET /v1/runs HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize("begin", ["", "G", HALF, "GET /v1/ru"])
async def test_a_request_that_does_not_arrive_is_dropped(settings: Settings, begin: str) -> None:
    async with serving_briefly(settings) as served, await dial(served.port) as stream:
        with anyio.fail_after(20):
            if begin:
                await stream.send(begin.encode())
            answer = await to_the_end(stream)
    assert answer.startswith(b"HTTP/1.1 408") if begin else answer == b""


async def test_a_trickle_of_bytes_does_not_keep_a_connection(settings: Settings) -> None:
    """Neither in the head, nor in a body that nobody asked for, nor after the answer."""
    unasked = HALF + "Content-Length: 1000\r\n\r\n"
    async with serving_briefly(settings) as served:
        for begin in (HALF, unasked):
            async with await dial(served.port) as stream, anyio.create_task_group() as tasks:
                with anyio.fail_after(20):
                    await stream.send(begin.encode())

                    async def trickle(stream: SocketStream = stream) -> None:
                        while True:
                            await stream.send(b"x")
                            await anyio.sleep(0.05)

                    async def watched(stream: SocketStream = stream) -> None:
                        await to_the_end(stream)
                        tasks.cancel_scope.cancel()

                    tasks.start_soon(watched)
                    try:
                        await trickle()
                    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                        tasks.cancel_scope.cancel()


async def test_a_body_that_stops_arriving_ends_its_request(settings: Settings) -> None:
    async with serving_briefly(settings) as served, await dial(served.port) as stream:
        head = (
            "PUT /v1/sandboxes/s-none/files?path=x HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {served.token}\r\nContent-Length: 100000\r\n\r\nbegin"
        )
        post = (
            "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {served.token}\r\nContent-Length: 100000\r\n\r\n{{"
        )
        with anyio.fail_after(20):
            await stream.send(head.encode())
            await to_the_end(stream)
            async with await dial(served.port) as other:
                await other.send(post.encode())
                await to_the_end(other)


async def test_half_open_requests_do_not_keep_others_from_being_served(served: Served) -> None:
    async with AsyncExitStack() as opened:
        strangers: list[SocketStream] = []
        for _ in range(600):
            strangers.append(await opened.enter_async_context(await dial(served.port)))
            await strangers[-1].send(HALF.encode())
        assert (await served.client.get("/v1/health")).status_code == 200
        assert (await served.client.get("/v1/runs")).status_code == 200
        with anyio.fail_after(20):  # the oldest were dropped to make room
            for stream in strangers[: 600 - HALF_OPEN - 10]:
                assert await to_the_end(stream) == b""


async def test_beyond_the_limit_only_admins_and_health_are_served(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("connections = 16\n")
    env = {"CLOISTER_MODEL": "script:/nowhere.toml", "USER": "tester"}
    async with serve_app(read_settings(env, tmp_path)) as served:
        await fill_and_ask(served)


async def fill_and_ask(served: Served) -> None:
    fence = await served.claimed_run()
    viewer = Tokens(served.app.settings.data_dir).add("vera", "viewer", "tester")
    as_viewer = {"Authorization": f"Bearer {viewer}"}
    path = f"/v1/runs/{fence.run}/stream"
    async with AsyncExitStack() as opened:
        for _ in range(served.app.settings.file.connections):
            await opened.enter_async_context(served.socket(path, max_queue=None))
        with pytest.raises(InvalidStatus) as refused:
            await opened.enter_async_context(served.socket(path, token=viewer))
        assert refused.value.response.status_code == 503
        assert json.loads(refused.value.response.body)["code"] == "server_busy"
        async with httpx.AsyncClient(base_url=served.client.base_url, trust_env=False) as client:
            answer = await client.get("/v1/runs", headers=as_viewer)
            assert (answer.status_code, answer.json()["code"]) == (503, "server_busy")
            assert (await client.get("/v1/health")).status_code == 200
            assert (await client.get("/v1/runs")).status_code == 401
        assert (await served.client.get("/v1/runs")).status_code == 200
    answer = await served.client.get("/v1/runs", headers=as_viewer)
    assert answer.status_code == 200


HALF_LOGIN = "POST /v1/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"


async def test_strangers_at_open_routes_take_no_places_of_others(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloister.server.auth.SLOW_SECONDS", 600.0)
    async with AsyncExitStack() as opened:
        for _ in range(STRANGERS):
            await (await opened.enter_async_context(await dial(served.port))).send(HALF_LOGIN.encode())
        async with httpx.AsyncClient(base_url=served.client.base_url, trust_env=False) as client:
            with anyio.fail_after(20):  # until the server has read them all
                answer = await client.post("/v1/login", json={"secret": "x"})
                while answer.status_code != 503:
                    await anyio.sleep(0.01)
                    answer = await client.post("/v1/login", json={"secret": "x"})
            assert answer.json()["code"] == "server_busy"
            assert (await client.get("/v1/health")).status_code == 200
        viewer = Tokens(served.app.settings.data_dir).add("vera", "viewer", "tester")
        answer = await served.client.get("/v1/runs", headers={"Authorization": f"Bearer {viewer}"})
        assert answer.status_code == 200


async def test_a_stranger_who_is_slow_gives_its_place_to_the_next(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloister.server.auth.SLOW_SECONDS", 0.2)
    async with AsyncExitStack() as opened:
        slow = [await opened.enter_async_context(await dial(served.port)) for _ in range(STRANGERS)]
        for stream in slow:
            await stream.send(HALF_LOGIN.encode())
        async with httpx.AsyncClient(base_url=served.client.base_url, trust_env=False) as client:
            with anyio.fail_after(20):
                for _ in range(3):
                    answer = await client.post("/v1/login", json={"secret": "x"})
                    while answer.status_code == 503:
                        answer = await client.post("/v1/login", json={"secret": "x"})
                    assert answer.status_code == 401
                    if b"408" in await slow[0].receive():
                        return
    raise AssertionError("the first stranger kept its place")


async def test_a_refused_websocket_is_not_an_error_of_the_server(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            with pytest.raises(InvalidStatus):
                async with served.socket("/v1/runs/last/stream", token="wrong"):
                    pass
        await served.client.get("/v1/health")
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def frame(opcode: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    """A masked frame of a client."""
    assert len(data) < 126
    return struct.pack("!BB", (0x80 if fin else 0) | opcode, 0x80 | len(data)) + b"\0\0\0\0" + data


@pytest.mark.parametrize(
    ("flood", "last", "times", "answers_meanwhile"),
    [
        (frame(1, fin=False) + frame(0, fin=False) * 400_000, struct.pack("!H", 1008), 1, 0),
        (frame(9) * 200_000, b"\x8a\x00", 200_000, 20),
        (frame(1) * 20_000, struct.pack("!H", 4429), 1, 0),
    ],
    ids=["fragments", "pings", "messages"],
)
async def test_others_are_served_during_a_flood_of_frames(
    served: Served, flood: bytes, last: bytes, times: int, answers_meanwhile: int
) -> None:
    fence = await served.claimed_run()
    received, answers = bytearray(), 0
    async with await dial(served.port) as stream, anyio.create_task_group() as tasks:
        request = f"GET /v1/runs/{fence.run}/stream HTTP/1.1\r\n{UPGRADE}Authorization: Bearer {served.token}\r\n\r\n"
        await stream.send(request.encode())
        assert (await stream.receive()).startswith(b"HTTP/1.1 101")

        async def read() -> None:
            while True:
                received.extend(await stream.receive())

        async def send() -> None:
            with suppress(anyio.BrokenResourceError):  # closed in the middle of it
                await stream.send(flood)

        async def alone(work: Callable[[], Awaitable[None]]) -> None:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await work()

        tasks.start_soon(alone, read)
        tasks.start_soon(alone, send)
        with anyio.fail_after(120):
            while received.count(last) < times:
                assert (await served.client.get("/v1/health")).status_code == 200
                answers += 1
        tasks.cancel_scope.cancel()
    assert answers >= answers_meanwhile


async def test_a_client_that_reads_late_learns_why_it_was_closed(
    serving: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(send_seconds=0.3, close_seconds=0.3) as served:
        fence = await served.claimed_run("x" * 200_000)
        app = served.app.backbone
        async with await dial(served.port) as stream:
            request = f"GET /v1/runs/{fence.run}/stream HTTP/1.1\r\n{UPGRADE}Authorization: Bearer {served.token}\r\n\r\n"
            await stream.send(request.encode())
            assert (await stream.receive(64)).startswith(b"HTTP/1.1 101")
            for _ in range(200):
                await app.append_outside(fence.run, PromptReceived("y" * 90_000, "me"))
            with anyio.fail_after(30):
                while "reads too slowly" not in caplog.text:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                received = await to_the_end(stream)
    assert struct.pack("!H", 1013) in received[-200:]


@pytest.mark.parametrize("change", ["removed", "another role", "file gone"])
async def test_a_removed_token_loses_its_open_connections(served: Served, change: str) -> None:
    fence = await served.claimed_run()
    tokens = Tokens(served.app.settings.data_dir)
    admin = tokens.add("ann", "admin", "tester")
    kept = tokens.add("ben", "viewer", "tester")
    path = f"/v1/runs/{fence.run}/stream"
    async with served.socket(path, token=admin) as lost, served.socket(path) as own:
        if change == "file gone":
            (served.app.settings.data_dir / "tokens.json").unlink()
        else:
            tokens.remove("ann")
        if change == "another role":
            tokens.add("ann", "viewer", "tester")
        with anyio.fail_after(60), pytest.raises(ConnectionClosed) as closed:
            while True:
                await lost.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == REVOKED
        await own.ping()
        if change != "file gone":
            async with served.socket(path, token=kept) as still:
                await still.recv()
