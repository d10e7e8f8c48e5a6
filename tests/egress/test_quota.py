"""What one sandbox may use of the door, and that another is not held up by it."""

import threading
from functools import partial

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import SocketStream
from tests.egress.world import (
    CONNECT,
    ESTABLISHED,
    GET,
    SANDBOX,
    World,
    ask,
    echo,
    going,
    listening,
    read_all,
    read_until,
    scripted,
)

from cloister.core import limits
from cloister.core.events import ConnectionDecided, RequestDecided
from cloister.core.ids import SandboxId
from cloister.core.requests import CredentialEntry, DoorBounds
from cloister.egress.credentials import Keeper, Vault, read_credentials
from cloister.egress.git_push import Repository
from cloister.egress.http.head import parse_head
from cloister.egress.quota import Account, Accounts, Refused
from cloister.egress.rules import Gate, Guest, Lookups, Visit
from cloister.egress.streams import Inlet

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def test_a_sandbox_that_moved_its_bytes_is_cut_off_and_gets_no_more() -> None:
    world = World("example.com:22", "example.com")
    async with listening(echo) as port, going(world, DoorBounds(bytes=100_000)) as connect:
        world.has("example.com", port)
        async with await connect() as client:
            await client.send(CONNECT % (22, 22))
            await read_until(client, b"\r\n\r\n")
            with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
                while True:
                    await client.send(bytes(10_000))
                    await client.receive()
        await world.closed.wait()
        refused = await ask(connect, GET)

    assert refused.startswith(b"HTTP/1.1 503 ") and b"100,000 bytes" in refused
    assert sum(world.traffic[0]) < 400_000


async def test_an_answer_without_an_end_is_cut_off() -> None:
    async def serve(stream: SocketStream) -> None:
        async with stream:
            await read_until(stream, b"\r\n\r\n")
            await stream.send(b"HTTP/1.1 200 OK\r\n\r\n")
            with pytest.raises((anyio.BrokenResourceError, anyio.ClosedResourceError)):
                while True:
                    await stream.send(bytes(65_536))

    world = World("example.com")
    async with listening(serve) as port, going(world, DoorBounds(bytes=1_000_000)) as connect:
        world.has("example.com", port)
        assert len(await ask(connect, GET)) < 4_000_000


async def test_a_connection_has_an_end_however_busy_it_is() -> None:
    world = World("example.com:22")
    async with listening(echo) as port, going(world, DoorBounds(connection_seconds=1.0)) as connect:
        world.has("example.com", port)
        async with await connect() as client:
            await client.send(CONNECT % (22, 22))
            await read_until(client, b"\r\n\r\n")
            with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
                while True:
                    await client.send(b"x")
                    await client.receive()


async def test_requests_over_the_rate_are_refused_and_those_before_are_not() -> None:
    world = World("example.com")
    bounds = DoorBounds(requests_at_once=3, requests_per_second=0.001)
    async with listening(scripted([], OK, OK, OK, OK)) as port, going(world, bounds) as connect:
        world.has("example.com", port)
        async with await connect() as client:
            for _ in range(3):
                await client.send(GET.replace(b"Connection: close\r\n", b""))
                await read_until(client, b"ok")
            await client.send(GET)
            assert (await read_all(client)).startswith(b"HTTP/1.1 429 ")
        assert (await ask(connect, GET)).startswith(b"HTTP/1.1 429 ")


async def test_a_rate_fills_up_again() -> None:
    now = 0.0
    account = Account(DoorBounds(requests_at_once=2, requests_per_second=0.1), lambda: now)
    await account.request()
    await account.request()
    with pytest.raises(Refused):
        await account.request()
    now = 10.0
    await account.request()
    with pytest.raises(Refused):
        await account.request()


async def test_one_sandbox_does_not_use_up_what_is_anothers() -> None:
    accounts = Accounts(DoorBounds(connections=1))
    with accounts.of(SANDBOX).connection():
        with pytest.raises(Refused), accounts.of(SANDBOX).connection():
            pass
        with accounts.of(SandboxId("s-other000")).connection():
            pass


async def test_many_sandboxes_are_remembered_within_a_bound_and_busy_ones_always() -> None:
    accounts = Accounts(DoorBounds(connections=1))
    with accounts.of(SANDBOX).connection():
        for number in range(limits.DOOR_SANDBOXES + 50):
            accounts.of(SandboxId(f"s-{number}"))
        with pytest.raises(Refused), accounts.of(SANDBOX).connection():
            pass


async def test_two_hundred_connections_of_a_sandbox_are_held_at_once() -> None:
    world = World("example.com:22")
    async with listening(echo) as port, going(world) as connect:
        world.has("example.com", port)
        clients = [await connect() for _ in range(200)]
        for client in clients:
            await client.send(CONNECT % (22, 22))
        for client in clients:
            assert await read_until(client, b"\r\n\r\n") == ESTABLISHED
        for client in clients:
            await client.send(b"ping")
            assert await client.receive() == b"ping"
        for client in clients:
            await client.aclose()


async def test_idle_connections_of_slow_clients_do_not_hold_up_others() -> None:
    world = World("example.com")
    async with listening(scripted([], OK)) as port, going(world) as connect:
        world.has("example.com", port)
        slow = [await connect() for _ in range(100)]
        for client in slow:
            await client.send(b"GET http://example.com/ HTTP/1.1\r\nHost: exa")
        assert (await ask(connect, GET)).endswith(b"ok")
        for client in slow:
            await client.aclose()


async def test_requests_are_on_record_one_by_one_up_to_a_bound_and_connections_always() -> None:
    world = World("request:GET example.com/x")
    count = limits.DOOR_REQUESTS_RECORDED + 20
    bounds = DoorBounds(requests_at_once=count + 10)
    async with listening(scripted([], *[OK] * count)) as port, going(world, bounds) as connect:
        world.has("example.com", port)
        async with await connect() as client:
            for _ in range(count):
                await client.send(GET.replace(b"Connection: close\r\n", b""))
                await read_until(client, b"ok")
        await world.closed.wait()

    assert sum(isinstance(body, RequestDecided) for body in world.log) == limits.DOOR_REQUESTS_RECORDED
    assert sum(isinstance(body, ConnectionDecided) for body in world.log) == 1


async def test_refusals_of_credentials_and_pushes_fill_no_log_either() -> None:
    world = World("example.com")
    gate = Gate(world.decide, world.record, world.outside, DoorBounds())
    account = Account(DoorBounds())
    account.recorded = limits.DOOR_REQUESTS_RECORDED - 1
    visit = Visit(Guest(SANDBOX, account), "example.com", 443, world.record)
    entry = CredentialEntry("forge", "env:TOKEN", "example.com")
    keeper = Keeper(read_credentials((entry,), "test"), Vault({"TOKEN": "a-secret-of-some-length"}))
    uses = b"GET / HTTP/1.1\r\nHost: example.com\r\nX: {{secret:forge}}\r\n\r\n"
    pushes = b"POST /o.git/git-receive-pack HTTP/1.1\r\nHost: example.com\r\n\r\n"
    repository = Repository("example.com", 443, "/r.git", "cloister/x")
    async with listening(echo) as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
        for _ in range(3):
            with pytest.raises(Refused, match="may not be used"):
                await keeper.dress(gate, visit, parse_head(uses, ("example.com", 443)))
            with pytest.raises(Refused, match="own repository only"):
                await repository.admit(gate, visit, parse_head(pushes, ("example.com", 443)), Inlet(stream))

    assert len(world.requests) == 1


async def test_a_sandbox_cannot_fill_the_log_with_connections() -> None:
    world = World("example.com")
    account = Account(DoorBounds())
    account.decisions = limits.DOOR_DECISIONS - 1
    for host in ("evil.test", "evil.test", "example.com"):
        visit = Visit(Guest(SANDBOX, account), host, 80, world.record)
        gate = Gate(world.decide, world.record, world.outside, DoorBounds())
        world.names["example.com"] = ["93.184.216.34"]
        with pytest.raises(Refused):
            await gate.open(visit, await gate.connection(visit))
    assert world.decisions == [("deny", "no rule allows it")]
    assert world.dialled == []


async def test_lookups_that_were_given_up_count_until_their_threads_end() -> None:
    lookups, release = Lookups(3), threading.Event()
    began: list[str] = []

    def slow(name: str) -> list[str]:
        began.append(name)
        release.wait(60)
        return [name]

    async def given_up(name: str) -> None:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lookups.run, partial(slow, name))
                while name not in began:
                    await anyio.lowlevel.checkpoint()
                scope.cancel()

    with anyio.fail_after(60):
        for name in ("a", "b", "c"):
            await given_up(name)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lookups.run, partial(slow, "d"))
            await anyio.wait_all_tasks_blocked()
            assert began == ["a", "b", "c"], "a fourth thread would be one too many"
            release.set()
        assert began == ["a", "b", "c", "d"]


async def test_lookups_cancelled_at_any_moment_give_their_places_back() -> None:
    lookups = Lookups(2)
    with anyio.fail_after(60):
        for turns in range(200):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lookups.run, lambda: ["x"])
                for _ in range(turns % 5):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(lookups.run, lambda: ["x"])
        failing = Lookups(1)
        for _ in range(3):
            with pytest.raises(OSError, match="no such name"):
                await failing.run(no_such_name)


def no_such_name() -> list[str]:
    raise OSError("no such name")
