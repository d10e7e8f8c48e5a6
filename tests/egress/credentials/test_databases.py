"""Databases by credential reference: a real client inside, a real PostgreSQL outside, and the password only between proxy and server."""

import os
import struct
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from ssl import create_default_context

import anyio
import msgspec
import pytest
from anyio.abc import SocketAttribute, SocketStream
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.egress.credentials.database_server import Database, open_database
from tests.egress.world import World, entering, listening

from cloister.core.errors import UserError
from cloister.core.events import ConnectionDecided
from cloister.core.requests import CredentialEntry
from cloister.egress.credentials import Credential, Keeper, Vault, read_credentials
from cloister.egress.http.connection import Offer
from cloister.egress.proxy import Door
from cloister.egress.rules import Outside

pytestmark = pytest.mark.anyio

SECRET = "correct-horse-battery-staple-17"
HOST = "db.test"
ALLOWED = (f"{HOST}:5432", "credential:orders")


def credential(**more: object) -> Credential:
    table = {"name": "orders", "from": "env:TOKEN", "host": HOST, "postgresql": "app/shop", **more}
    return read_credentials((msgspec.convert(table, CredentialEntry),), "test")[0]


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with open_database(SECRET, name=HOST) as found:
        yield found


@dataclass(frozen=True)
class Inside:
    """A program in the sandbox, as far as the door can tell."""

    world: World
    port: int
    connect: Callable[[], Awaitable[SocketStream]]

    async def psql(
        self, query: str, user: str = "orders", more: str = ""
    ) -> subprocess.CompletedProcess[bytes]:
        address = f"postgresql://{user}@127.0.0.1:{self.port}/shop{more}"
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PGCONNECT_TIMEOUT": "10"}
        return await anyio.run_process(("psql", address, "-tAc", query), check=False, env=env)


@asynccontextmanager
async def inside(
    port: int,
    *allowed: str,
    certificate: str | None = None,
    vault: Vault | None = None,
    found: Credential | None = None,
) -> AsyncGenerator[Inside]:
    denied = (f"request:DELETE {HOST}:5432/**",) if "denied" in allowed else ()
    world = World(*(one for one in allowed or ALLOWED if one != "denied"), denied=denied)
    world.has(HOST, port)
    keeper = Keeper((found or credential(),), vault or Vault({"TOKEN": SECRET}))
    trust = create_default_context(cadata=certificate)
    outside = Outside(world.resolve, world.dial, trust)
    async with entering(Door(world.decide, world.record, outside=outside, offer=Offer(keeper))) as connect:
        async with await connect() as probe:
            port = probe.extra(SocketAttribute.remote_port)
        yield Inside(world, port, connect)
    assert SECRET not in repr(world.log)


async def test_a_client_without_a_password_works_with_the_database_that_the_credential_names(
    database: Database,
) -> None:
    async with inside(database.port, certificate=database.certificate) as there:
        done = await there.psql(
            "SELECT current_user, current_database(), count(*) FROM pg_stat_ssl WHERE ssl"
        )
        assert (done.stdout, done.stderr) == (b"app|shop|1\n", b"")
        long = await there.psql("SELECT repeat('x', 100) FROM generate_series(1, 20000)")
        assert len(long.stdout) == 20_000 * 101
        wrong = await there.psql("SELECT no_such")
        assert b'column "no_such" does not exist' in wrong.stderr
    decided = [
        (body.effect, body.rule, body.credential)
        for body in there.world.log
        if isinstance(body, ConnectionDecided)
    ]
    assert decided == [("allow", f"allow connect:{HOST}:5432 (test)", "orders")] * 3
    assert there.world.traffic[1][1] > 2_000_000


async def test_the_address_is_in_the_sandbox_and_the_password_is_not() -> None:
    keeper = Keeper((credential(env="DATABASE_URL"),), Vault({"TOKEN": SECRET}))
    assert await keeper.env() == {"DATABASE_URL": "postgresql://orders@127.0.0.1:3128/shop"}
    assert not keeper.holds(HOST, 5_432), "TLS to its port is not read along"


@pytest.mark.parametrize(
    ("allowed", "said"),
    [
        ((f"{HOST}:5432",), f"The credential orders may not be used for {HOST}: no rule allows it."),
        (("credential:orders",), f"{HOST}:5432 is denied: no rule allows it."),
        ((*ALLOWED, "denied"), "rules about requests hold for this host"),
    ],
)
async def test_without_a_rule_for_the_host_and_one_for_the_credential_nothing_is_dialled(
    allowed: tuple[str, ...], said: str
) -> None:
    async with inside(1, *allowed) as there:
        done = await there.psql("SELECT 1")
    assert said in done.stderr.decode()
    assert there.world.dialled == []
    assert [effect for effect, _ in there.world.decisions] == ["deny"]


async def test_a_credential_is_for_its_own_database_and_an_unknown_user_gets_a_sentence() -> None:
    async with inside(1) as there:
        other = await there.psql("SELECT 1", more="?dbname=postgres")
        stranger = await there.psql("SELECT 1", user="app")
    assert b"The credential orders is for the database shop." in other.stderr
    assert b"There is no credential 'app' for a database" in stranger.stderr
    assert there.world.dialled == []


async def test_a_rejected_password_is_read_again_and_the_servers_words_are_passed_on(
    database: Database, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("the wrong password")
    vault = Vault({})
    found = credential(**{"from": f"file:{file}"})
    async with inside(database.port, certificate=database.certificate, vault=vault, found=found) as there:
        refused = await there.psql("SELECT 1")
        assert b'password authentication failed for user "app"' in refused.stderr
        file.write_text(SECRET)
        assert (await there.psql("SELECT 1")).stdout == b"1\n"
        file.unlink()
        missing = await there.psql("SELECT 1")
    assert b"The credential orders cannot be read on the host: its file cannot be read" in missing.stderr


async def test_a_server_with_another_certificate_learns_nothing(database: Database) -> None:
    async with inside(database.port, certificate=World().authority.pem.decode()) as there:
        done = await there.psql("SELECT 1")
    assert f"The certificate of {HOST} is not accepted".encode() in done.stderr


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def asks(way: int, more: bytes = b"") -> bytes:
    return message(b"R", struct.pack("!I", way) + more)


PLAIN_ALLOWED = (*ALLOWED, f"raw:{HOST}")


@pytest.mark.parametrize(
    ("allowed", "answers", "said"),
    [
        (ALLOWED, [b"N"], f"{HOST} offers no TLS; a rule `raw:{HOST}` with allow permits that."),
        (PLAIN_ALLOWED, [b"N", asks(3)], "wants the password without TLS"),
        (PLAIN_ALLOWED, [b"N", asks(5, b"salt")], "wants the password without TLS"),
        (PLAIN_ALLOWED, [b"N", asks(9)], "wants a log-in other than"),
        (PLAIN_ALLOWED, [b"N", asks(10, b"SCRAM-SHA-1\0\0")], "wants a log-in other than"),
        (PLAIN_ALLOWED, [b"N", asks(11, b"r=x,s=AA==,i=4096")], "wants a log-in other than"),
        (
            PLAIN_ALLOWED,
            [b"N", asks(10, b"SCRAM-SHA-256\0\0"), asks(0)],
            "did not prove that it knows the password",
        ),
        (
            PLAIN_ALLOWED,
            [b"N", asks(10, b"SCRAM-SHA-256\0\0"), asks(11, b"r=x,s=AA==,i=4096")],
            "not acceptable",
        ),
        (PLAIN_ALLOWED, [b"N", asks(10, b"SCRAM-SHA-256\0\0"), asks(11, b"junk")], "cannot be read"),
        (PLAIN_ALLOWED, [b"N", asks(10, b"SCRAM-SHA-256\0\0"), asks(12, b"v=") + asks(0)], "did not prove"),
        (PLAIN_ALLOWED, [b"N", b"HTTP/1.1 400 Bad Request\r\n\r\n"], "another protocol than PostgreSQL"),
        (PLAIN_ALLOWED, [b"N", b"R" + b"\xff" * 4], "another protocol than PostgreSQL"),
        (ALLOWED, [b"S" + b"x" * 100], f"{HOST}"),
        (ALLOWED, [b""], "ended the connection"),
    ],
)
async def test_a_hostile_server_does_not_get_the_password(
    allowed: tuple[str, ...], answers: list[bytes], said: str
) -> None:
    heard = bytearray()

    async def serve(stream: SocketStream) -> None:
        async with stream:
            for answer in answers:
                heard.extend(await stream.receive())
                if answer:
                    await stream.send(answer)
            if answers[-1].endswith(asks(0)):
                return

    async with listening(serve) as port, inside(port, *allowed) as there:
        done = await there.psql("SELECT 1")
    assert said in done.stderr.decode(), done.stderr
    assert SECRET.encode() not in heard
    assert done.stdout == b""


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
async def test_nothing_but_a_start_up_reaches_a_server(junk: bytes) -> None:
    async with inside(1) as there, await there.connect() as client:
        await client.send(b"\0" + junk)
        await client.send_eof()
        with anyio.move_on_after(5), suppress(anyio.EndOfStream):
            while await client.receive():
                pass
    assert there.world.dialled == []


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"postgresql": "app"}, "postgresql is written USER/DATABASE"),
        ({"postgresql": "/shop"}, "postgresql is written USER/DATABASE"),
        ({"basic": "x"}, "a database has no header, basic, methods and paths"),
        ({"paths": ["/x"]}, "a database has no header, basic, methods and paths"),
    ],
)
def test_a_wrong_entry_is_named(more: dict[str, object], why: str) -> None:
    with pytest.raises(UserError, match=why):
        credential(**more)
