"""Plain HTTP through the door: many requests on one connection, each read, judged and framed anew."""

import anyio
import pytest
from anyio.abc import ByteStream, SocketStream
from tests.egress.world import World, ask, going, listening, read_all, read_until, scripted

from cloister.core.ids import SandboxId
from cloister.egress.http.connection import Offer
from cloister.egress.http.head import Head
from cloister.egress.streams import Inlet

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def get(path: str = "/", host: str = "example.com", *more: str, method: str = "GET") -> bytes:
    lines = (f"{method} http://{host}{path} HTTP/1.1", f"Host: {host}", *more)
    return "\r\n".join((*lines, "", "")).encode()


async def test_requests_of_one_connection_share_one_connection_to_the_server() -> None:
    seen: list[bytes] = []
    world = World("example.com")
    async with listening(scripted(seen, OK, OK, OK)) as port, going(world) as connect:
        world.has("example.com", port)
        async with await connect() as client:
            for path in ("/1", "/2", "/3"):
                await client.send(get(path))
                assert (await read_until(client, b"ok")).startswith(b"HTTP/1.1 200 OK\r\n")
        await world.closed.wait()

    assert [head.split(b" ")[1] for head in seen] == [b"/1", b"/2", b"/3"]
    assert len(world.dialled) == 1
    assert world.decisions == [("allow", "allow connect:example.com (test)")]


async def test_a_server_that_hung_up_meanwhile_is_dialled_again_once() -> None:
    seen: list[bytes] = []
    world = World("example.com")
    async with listening(scripted(seen, OK)) as port, going(world) as connect:
        world.has("example.com", port)
        async with await connect() as client:
            for _ in range(3):
                await client.send(get())
                await read_until(client, b"ok")

    assert len(world.dialled) == 3


async def test_another_host_on_the_same_connection_gets_its_own_decision_and_connection() -> None:
    one: list[bytes] = []
    two: list[bytes] = []
    world = World("one.test", "two.test")
    async with listening(scripted(one, OK, OK)) as first, listening(scripted(two, OK)) as second:
        world.has("one.test", first, "93.184.216.34")
        world.has("two.test", second, "93.184.216.35")
        async with going(world) as connect, await connect() as client:
            for host in ("one.test", "two.test", "evil.test"):
                await client.send(get("/", host))
                reply = await client.receive()
                assert (b" 200 " in reply) == (host != "evil.test")

    assert (len(one), len(two)) == (1, 1)
    assert [effect for effect, _ in world.decisions] == ["allow", "allow", "deny"]


async def test_a_rule_about_requests_holds_for_each_request_of_a_connection() -> None:
    seen: list[bytes] = []
    world = World("request:GET example.com/public/**", "request:POST example.com/forms/new")
    async with listening(scripted(seen, OK, OK, OK)) as port, going(world) as connect:
        world.has("example.com", port)
        async with await connect() as client:
            await client.send(get("/public/a?b=/secret"))
            await read_until(client, b"ok")
            await client.send(get("/forms/new", "example.com", "Content-Length: 2", method="POST") + b"hi")
            await read_until(client, b"ok")
            await client.send(get("/public/../secret"))
            refused = await read_all(client)

    assert refused.startswith(b"HTTP/1.1 403 ") and b"no rule allows it" in refused
    assert len(seen) == 2
    assert world.requests == [
        ("allow", "GET", "/public/a", None),
        ("allow", "POST", "/forms/new", None),
        ("deny", "GET", "/public/../secret", None),
    ]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/repo/x"),
        ("GET", "/repo/admin/x"),
        ("GET", "/repo//admin/x"),
        ("GET", "/repo/%61dmin/x"),
        ("GET", "/repo/./admin/x"),
        ("GET", "/repo/y/%2e%2e/admin/x"),
        ("GET", "/repo/y%2f..%2fadmin/x"),
        ("GET", "/other"),
    ],
)
async def test_a_denied_method_or_path_stays_denied_in_every_spelling(method: str, path: str) -> None:
    world = World("request:GET example.com/repo/**", denied=["request:* example.com/repo/admin/**"])
    async with going(world) as connect:
        reply = await ask(connect, get(path, method=method))

    assert reply.startswith(b"HTTP/1.1 403 ")
    assert world.resolved == []


async def test_a_body_in_chunks_goes_on_in_chunks_of_our_own() -> None:
    arrived: list[bytes] = []

    async def serve(stream: ByteStream) -> None:
        async with stream:
            arrived.append(await read_until(stream, b"0\r\n\r\n"))
            await stream.send(OK)

    world = World("example.com")
    async with listening(serve) as port, going(world) as connect:
        world.has("example.com", port)
        async with await connect() as client:
            await client.send(get("/", "example.com", "Transfer-Encoding: chunked", method="POST"))
            await client.send(b"5\r\nhel")
            await client.send(b"lo\r\nA\r\n, worl")
            await client.send(b"d...\r\n0\r\n\r\n")
            await read_until(client, b"ok")

    head, _, body = arrived[0].partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert b"".join(body.split(b"\r\n")[1::2]) == b"hello, world..."


@pytest.mark.parametrize(
    "body",
    [
        b"5;ext=1\r\nhello\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"5\nhello\n0\n\n" + b"x" * 5_000,
        b"-1\r\nhello\r\n0\r\n\r\n",
        b"4\r\nhello\r\n0\r\n\r\n",
        b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        b"0\r\nSmuggled: yes\r\n\r\n",
        b"5\r\nhello",
    ],
)
async def test_chunks_that_two_readers_could_read_differently_are_refused(body: bytes) -> None:
    arrived: list[bytes] = []

    async def serve(stream: ByteStream) -> None:
        async with stream:
            arrived.append(await read_all(stream))

    world = World("example.com")
    async with listening(serve) as port, going(world) as connect:
        world.has("example.com", port)
        async with await connect() as client:
            await client.send(get("/", "example.com", "Transfer-Encoding: chunked", method="POST") + body)
            await client.send_eof()
            reply = await read_all(client)
        await world.closed.wait()

    assert not reply or reply.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 502 "))
    assert b"0\r\n\r\n" not in arrived[0] and b"Smuggled" not in arrived[0]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"204"),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 999\r\n\r\n", b"304"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nT: 1\r\n\r\n",
            b"3\r\nabc\r\n0\r\n\r\n",
        ),
        (
            b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
            b"abc",
        ),
        (b"HTTP/1.0 200 OK\r\n\r\nabc", b"abc"),
    ],
)
async def test_answers_of_every_framing_reach_the_client_whole(answer: bytes, told: bytes) -> None:
    world = World("example.com")
    async with listening(scripted([], answer)) as port, going(world) as connect:
        world.has("example.com", port)
        reply = await ask(connect, get("/", "example.com", "Connection: close"))

    assert told in reply
    assert b"Early Hints" not in reply


async def test_after_head_there_is_no_body_and_the_connection_goes_on() -> None:
    world = World("example.com")
    answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", OK]

    async def serve(stream: SocketStream) -> None:
        await scripted([], answers.pop(0))(stream)

    async with listening(serve) as port, going(world) as connect:
        world.has("example.com", port)
        async with await connect() as client:
            await client.send(get(method="HEAD"))
            assert b"Content-Length: 1000" in await read_until(client, b"\r\n\r\n")
            await client.send(get())
            await read_until(client, b"ok")


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nX: %d\r\n\r\n%s"),
        ("GET", b"HTTP/1.1 204 No Content\r\nContent-Length: %d\r\n\r\n%s"),
        ("GET", b"HTTP/1.1 204 No Content\r\nX: %d\r\n\r\n%s"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: %d\r\n\r\n%s"),
        ("GET", b"HTTP/1.1 200 OK\r\nY: %d\r\nContent-Length: 0\r\n\r\n%s"),
        ("GET", b"HTTP/1.1 200 OK\r\nY: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n%s"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
async def test_bytes_after_the_end_of_a_reply_answer_no_request(
    method: str, answer: bytes, late: bool
) -> None:
    extra = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
    whole = answer % (len(extra), extra)
    said = anyio.Event()
    connections: list[int] = []

    async def serve(stream: SocketStream) -> None:
        connections.append(1)
        async with stream:
            await read_until(stream, b"\r\n\r\n")
            if len(connections) > 1:
                await stream.send(OK)
                return
            if late:
                await stream.send(whole.removesuffix(extra))
                await said.wait()
                await stream.send(extra)
            else:
                await stream.send(whole)
            said.set()
            await read_all(stream)

    world = World("example.com")
    async with listening(serve) as port, going(world) as connect:
        world.has("example.com", port)
        async with await connect() as client:
            await client.send(get(method=method))
            end = b"0\r\n\r\n" if b"chunked" in answer else b"\r\n\r\n"
            await read_until(client, end)
            said.set()
            await anyio.wait_all_tasks_blocked()
            await client.send(get("/next"))
            assert (await read_until(client, b"ok")).startswith(b"HTTP/1.1 200 OK\r\n")

    assert len(connections) == 2


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.parametrize(
    "framing",
    [("Content-Length: 40",), ("Transfer-Encoding: chunked",), ("Expect: 100-continue", "Content-Length: 9")],
)
async def test_a_body_that_servers_do_not_expect_is_refused_before_anything_is_sent(
    method: str, framing: tuple[str, ...]
) -> None:
    world = World("example.com")
    async with going(world) as connect:
        inner = b"DELETE /admin HTTP/1.1\r\nHost: example.com\r\n\r\n"
        reply = await ask(connect, get("/", "example.com", *framing, method=method) + inner)

    assert reply.startswith(b"HTTP/1.1 400 ") and reply.count(b"HTTP/1.1 ") == 1
    assert f"A {method} request has no body here".encode() in reply
    assert world.resolved == [] and world.dialled == []


async def test_a_request_with_a_body_is_the_last_on_its_connection_to_the_server() -> None:
    seen: list[bytes] = []
    world = World("example.com")
    async with listening(scripted(seen, OK, OK)) as port, going(world) as connect:
        world.has("example.com", port)
        async with await connect() as client:
            for _ in range(2):
                await client.send(get("/", "example.com", "Content-Length: 2", method="POST") + b"hi")
                await read_until(client, b"ok")

    assert len(world.dialled) == 2
    assert all(b"\r\nConnection: close\r\n" in head for head in seen)


OVERRIDES = (
    "X-HTTP-Method-Override: DELETE",
    "x-http-method: DELETE",
    "X-Method-Override: DELETE",
    "X_HTTP_Method_Override: DELETE",
    "X-Original-URL: /admin",
    "X-Rewrite-URL: /admin",
    "X-Original-URI: /admin",
    "X-Forwarded-Path: /admin",
    "X-Forwarded-Prefix: /admin",
    "X-Forwarded-Method: DELETE",
    "X-Forwarded-Host: other.test",
    "X-HTTP-Host-Override: other.test",
    "X-Host: other.test",
    "Forwarded: host=other.test",
)


@pytest.mark.parametrize("rule", ["request:POST example.com/public/**", "example.com"])
async def test_headers_that_name_another_method_or_path_are_dropped_where_a_rule_names_them(
    rule: str,
) -> None:
    seen: list[bytes] = []
    world = World(rule)
    async with listening(scripted(seen, OK)) as port, going(world) as connect:
        world.has("example.com", port)
        async with await connect() as client:
            more = (*OVERRIDES, "X-Kept: 1", "X-Forwarded-For: 1.2.3.4", "X-Request-Id: 7")
            await client.send(get("/public/x", "example.com", *more, method="POST"))
            await read_until(client, b"ok")

    kept = [line.decode() for line in seen[0].split(b"\r\n") if line.decode() in OVERRIDES]
    assert kept == ([] if rule.startswith("request:") else list(OVERRIDES))
    assert all(name in seen[0] for name in (b"X-Kept: 1", b"X-Forwarded-For: ", b"X-Request-Id: 7"))


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n folded: b\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20,
        b"X" * 70_000,
        b"",
    ],
)
async def test_an_answer_in_doubt_is_a_bad_gateway(answer: bytes) -> None:
    world = World("example.com")
    async with listening(scripted([], answer)) as port, going(world) as connect:
        world.has("example.com", port)
        assert (await ask(connect, get())).startswith(b"HTTP/1.1 502 ")


async def test_client_that_expects_100_continue_receives_it() -> None:
    seen: list[bytes] = []
    world = World("example.com")
    async with listening(scripted(seen, OK)) as port, going(world) as connect:
        world.has("example.com", port)
        async with await connect() as client:
            more = ("Expect: 100-continue", "Content-Length: 4")
            await client.send(get("/", "example.com", *more, method="PUT"))
            assert await read_until(client, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(b"data")
            await read_until(client, b"ok")

    assert b"Expect" not in seen[0] and seen[0].endswith(b"data")


async def test_a_server_that_answers_before_it_has_read_everything_is_heard() -> None:
    async def serve(stream: ByteStream) -> None:
        async with stream:
            await read_until(stream, b"\r\n\r\n")
            await stream.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
            await heard.wait()

    heard = anyio.Event()
    world = World("example.com")
    async with listening(serve) as port, going(world) as connect:
        world.has("example.com", port)
        async with await connect() as client:
            await client.send(get("/", "example.com", "Content-Length: 1000000", method="PUT"))
            assert (await read_until(client, b"\r\n\r\n")).startswith(b"HTTP/1.1 413 ")
            heard.set()


async def test_upgrade_request_is_ignored() -> None:
    seen: list[bytes] = []
    world = World("example.com")
    async with listening(scripted(seen, OK)) as port, going(world) as connect:
        world.has("example.com", port)
        more = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
        async with await connect() as client:
            await client.send(get("/", "example.com", *more))
            await read_until(client, b"ok")

    assert b"pgrade" not in seen[0] and b"HTTP2" not in seen[0]


async def test_a_connect_behind_a_plain_request_opens_nothing() -> None:
    world = World("example.com", "other.test:22")
    async with listening(scripted([], OK, OK)) as port, going(world) as connect:
        world.has("example.com", port)
        async with await connect() as client:
            await client.send(get() + b"CONNECT other.test:22 HTTP/1.1\r\n\r\n")
            reply = await read_all(client)

    assert b" 400 " in reply
    assert world.resolved == ["example.com"]


async def test_a_host_that_is_served_inside_is_never_looked_up() -> None:
    asked: list[tuple[str, str, bytes]] = []

    async def handle(sandbox: SandboxId, head: Head, client: Inlet) -> None:
        body = await client.receive_exactly(head.body) if isinstance(head.body, int) and head.body else b""
        asked.append((head.method, head.path, body))
        await client.send(OK)

    world = World()
    async with going(world, offer=Offer(inside={"model.cloister": handle})) as connect:
        hello = get("/v1/x", "model.cloister", "Content-Length: 2", method="POST") + b"hi"
        assert (await ask(connect, hello)).endswith(b"ok")
        assert (await ask(connect, b"CONNECT model.cloister:443 HTTP/1.1\r\n\r\n")).startswith(
            b"HTTP/1.1 400 "
        )

    assert asked == [("POST", "/v1/x", b"hi")]
    assert world.resolved == []
