"""The machines of a cluster, as they find each other through a real NATS server."""

import json
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest
from tests.log.jetstream.servers import NatsServer, one_server

from cloister.core.errors import CloisterError
from cloister.core.ids import OwnerId, new_owner_id
from cloister.log.api import Peer
from cloister.log.jetstream.link import Cluster, open_link
from cloister.log.jetstream.machines import Machines, open_machines

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(tmp_path: Path) -> Generator[NatsServer]:
    with one_server(tmp_path / "nats") as started:
        yield started


def peer(name: str, identity: str = "") -> Peer:
    now = time.time()
    return Peer(name, identity or name, new_owner_id(), "both", "1", now, now)


@asynccontextmanager
async def opened(
    url: str,
    dead: Callable[[OwnerId], bool] = lambda _: False,
    now: Callable[[], float] = time.time,
) -> AsyncGenerator[Machines]:
    with anyio.fail_after(60):
        async with open_link(Cluster((url,))) as link:
            yield await open_machines(link, lambda owner: not dead(owner), now)


async def test_every_machine_sees_the_others_and_what_they_say(server: NatsServer) -> None:
    gone: set[OwnerId] = set()
    async with opened(server.url) as one, opened(server.url, gone.__contains__) as two:
        first, second = peer("a"), peer("b")
        await one.join(first, 0.0)
        await two.join(second, 0.0)
        assert [each.name for each in await one.all()] == ["a", "b"]
        gone.add(first.owner)
        assert [each.lives for each in await two.all()] == [False, True]
        await two.leave("b")
        assert [each.name for each in await one.all()] == ["a"]


async def test_a_name_is_free_for_its_own_data_directory_and_after_its_machine_died(
    server: NatsServer,
) -> None:
    gone: set[OwnerId] = set()
    async with opened(server.url, gone.__contains__) as machines:
        first = peer("a", "disk-1")
        assert await machines.join(first, 0.0) is None
        again = peer("a", "disk-1")
        assert await machines.join(again, 0.0) == first
        with pytest.raises(CloisterError) as refused:
            await machines.join(peer("a", "disk-2"), 0.0)
        assert refused.value.code == "machine_taken"
        gone.add(again.owner)
        other = peer("a", "disk-2")
        assert await machines.join(other, 0.0) is None
        assert [each.owner for each in await machines.all()] == [other.owner]


async def test_a_record_that_cannot_be_read_belongs_to_a_machine_while_it_is_renewed(
    server: NatsServer,
) -> None:
    async with opened(server.url) as machines, open_link(Cluster((server.url,))) as link:
        bucket = await link.jetstream.key_value(f"{link.cluster.name}-machines")
        await bucket.put("a", b'{"of": "another version"}')

        async def renew() -> None:
            while True:
                await bucket.put("a", b'{"of": "another version"}')
                await anyio.sleep(0.1)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(renew)
            with pytest.raises(CloisterError) as refused:
                await machines.join(peer("a"), 1.0)
            assert refused.value.code == "machine_taken"
            tasks.cancel_scope.cancel()
        assert await machines.join(peer("a"), 0.5) is None


async def test_a_person_drains_a_machine_that_there_is(server: NatsServer) -> None:
    async with opened(server.url) as machines:
        await machines.join(peer("a"), 0.0)
        await machines.drain("a", True)
        assert await machines.is_drained("a")
        assert [(each.name, each.draining) for each in await machines.all()] == [("a", True)]
        await machines.drain("a", False)
        assert not await machines.is_drained("a")
        with pytest.raises(CloisterError) as refused:
            await machines.drain("b", True)
        assert refused.value.code == "no_such_machine"


@pytest.mark.parametrize(("apart", "word"), [(300.0, "300 s ahead of"), (-300.0, "300 s behind")])
async def test_a_machine_with_a_wrong_clock_is_refused(server: NatsServer, apart: float, word: str) -> None:
    async with opened(server.url, now=lambda: time.time() + apart) as machines:
        with pytest.raises(CloisterError) as refused:
            await machines.join(peer("a"), 0.0)
        assert refused.value.code == "clock_apart"
        assert word in refused.value.message.replace("299 s", "300 s")


@contextmanager
def old_server() -> Generator[str]:
    """A server that says that it is of 2019, and answers pings only."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                told = {"server_id": "N", "version": "2.1.0", "max_payload": 1_048_576, "proto": 1}
                connection.sendall(f"INFO {json.dumps(told)}\r\n".encode())
                while data := connection.recv(65_536):
                    if b"PING" in data:
                        connection.sendall(b"PONG\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"nats://127.0.0.1:{listener.getsockname()[1]}"
    thread.join(10)


async def test_a_nats_server_that_is_too_old_is_refused() -> None:
    with old_server() as url:
        with pytest.raises(CloisterError) as refused:
            async with opened(url):
                pass
        assert refused.value.code == "nats_too_old"
        assert "2.1" in refused.value.message
