"""A hostile client, ten thousand times: the door answers or hangs up, and forgets it."""

import gc
import random

import anyio
import anyio.lowlevel
import pytest
from anyio import EndOfStream
from anyio.abc import ByteStream
from tests.egress.world import PUBLIC, SANDBOX, World, hello, listening, scripted

from cloister.core.requests import CredentialEntry, DoorBounds
from cloister.egress.credentials import Keeper, Vault, read_credentials
from cloister.egress.http.connection import Offer
from cloister.egress.proxy import Door

pytestmark = pytest.mark.anyio

COUNT = 10_000
SECRET = "the-real-value-31"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SEEDS = [
    b"GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
    b"POST http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 4\r\n\r\nbody",
    b"POST http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
    b"CONNECT allowed.test:443 HTTP/1.1\r\nHost: allowed.test:443\r\n\r\n" + hello("allowed.test"),
    b"CONNECT read.test:443 HTTP/1.1\r\n\r\n" + hello("read.test"),
    b"\x05\x01\x00\x05\x01\x00\x03\x0callowed.test\x01\xbb" + hello("allowed.test"),
    b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50",
    b"CONNECT evil.test:443 HTTP/1.1\r\n\r\n",
    b"CONNECT 127.0.0.1:80 HTTP/1.1\r\n\r\n",
    b"GET http://169.254.169.254/latest HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n",
]
TOKENS = [
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"\xff", b"%00", b"@evil.test", b"#", b"\\", b"..", b"//",
    b"Host: evil.test\r\n", b"Content-Length: 9\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: host\r\n",
    b"evil.test", b"127.1", b"[::1]", b"localhost", b":99999", b"HTTP/1.0", b"CONNECT ", b"\x05", b"\x16\x03\x01", b"A" * 20_000,
]  # fmt: skip


def malformed(chance: random.Random) -> bytes:
    data = bytearray(chance.choice(SEEDS))
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data[at:at] = chance.choice(TOKENS)
            case 1:
                del data[at : at + chance.randint(1, 20)]
            case 2 if at < len(data):
                data[at] = chance.randrange(256)
            case 3:
                data[at:at] = data[: chance.randint(0, 80)]
            case _:
                data[at:] = chance.randbytes(chance.randint(0, 40))
    return bytes(data)


class Hostile(ByteStream):
    """Says its piece in pieces, hears what it is told, and is gone."""

    def __init__(self, data: bytes, chance: random.Random) -> None:
        self._data = data
        self._chance = chance
        self.heard = 0
        self.closed = False

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        await anyio.lowlevel.checkpoint()
        if not self._data:
            raise EndOfStream
        size = min(max_bytes, self._chance.choice((1, 5, 200, 65_536)))
        piece, self._data = self._data[:size], self._data[size:]
        return piece

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        assert SECRET.encode() not in item
        self.heard += len(item)

    async def send_eof(self) -> None:
        await anyio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self.closed = True
        await anyio.lowlevel.checkpoint()


@pytest.mark.long
async def test_ten_thousand_malformed_requests_crash_nothing_leak_nothing_and_hang_nothing(
    long: bool,
) -> None:
    total = 200_000 if long else COUNT
    chance = random.Random(None if long else 20_260_417)
    world = World("allowed.test", "read.test", "credential:one")
    entry = CredentialEntry("one", "env:ONE", "read.test", header="X-Key: {}")
    holder = Keeper(read_credentials((entry,), "test"), Vault({"ONE": SECRET}))
    bounds = DoorBounds(requests_at_once=total * 20, dial_seconds=5, head_seconds=5, idle_seconds=5)
    reached: list[bytes] = []
    async with listening(scripted(reached, OK, OK)) as port:
        world.has("allowed.test", port)
        world.names["read.test"] = [PUBLIC]
        door = Door(world.decide, world.record, outside=world.outside, bounds=bounds, offer=Offer(holder))
        clients: list[Hostile] = []

        async def some(count: int) -> None:
            for _ in range(count):
                client = Hostile(malformed(chance), chance)
                await door.serve(SANDBOX, client)
                clients.append(client)

        gc.collect()
        with anyio.fail_after(1_800 if long else 60):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(some, total // 20)
        assert door.connections(SANDBOX) == 0
        await anyio.wait_all_tasks_blocked()

    assert len(clients) == total and all(client.closed for client in clients)
    assert set(world.resolved) <= {"allowed.test", "read.test"}
    assert set(world.dialled) <= {PUBLIC}
    assert SECRET not in repr(world.log)
    assert len(reached) > 50, "some of them are whole by chance, so the rest of the door was tried too"
