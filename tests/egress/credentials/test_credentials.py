"""Credentials by reference: outside the real one, inside a stand-in, and nothing in between."""

import base64
import gzip
import os
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.egress.world import World, listening, over_tls, read_until, scripted, secure_going

from cloister.app.checkup import credential_findings
from cloister.app.settings import read_settings
from cloister.core.errors import UserError
from cloister.core.requests import CredentialEntry, DoorBounds
from cloister.egress.credentials import (
    Credential,
    Keeper,
    Redactor,
    Unreadable,
    Vault,
    fake,
    read_credentials,
    spellings,
)
from cloister.egress.http.connection import Offer

pytestmark = pytest.mark.anyio

SECRET = "ghp_q7Rk2Lw9Zx4Vn8Bt6Ys1Dc3Fh5Jm0Pg"
HOST = "api.test"
QUICK = DoorBounds(dial_seconds=0.5)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def credential(**more: object) -> Credential:
    table = {"name": "forge", "from": "env:TOKEN", "host": HOST, **more}
    return read_credentials((msgspec.convert(table, CredentialEntry),), "test")[0]


def keeper(*credentials: Credential, **variables: str) -> Keeper:
    return Keeper(credentials, Vault(variables or {"TOKEN": SECRET}))


class Talk:
    """One conversation with the host through the door."""

    def __init__(self, world: World, seen: list[bytes], client: TLSStream) -> None:
        self.world = world
        self.seen = seen
        self.client = client

    async def ask(self, *lines: str, end: bytes = b"ok") -> bytes:
        await self.client.send("\r\n".join((*lines, f"Host: {HOST}", "", "")).encode())
        return await read_until(self.client, end)


@asynccontextmanager
async def talking(
    holder: Keeper, *answers: bytes, allowed: Sequence[str] = (HOST, "credential:forge")
) -> AsyncGenerator[Talk]:
    world = World(*allowed)
    seen: list[bytes] = []
    serve = over_tls(world, HOST, scripted(seen, *(answers or (OK, OK, OK))))
    async with listening(serve) as port, secure_going(world, offer=Offer(holder)) as connect:
        world.has(HOST, port)
        async with await connect(HOST) as client:
            yield Talk(world, seen, client)
    assert SECRET not in repr(world.log)


async def test_a_header_is_added_outside_for_the_host_method_and_path_it_is_for() -> None:
    one = credential(header="Authorization: Bearer {}", methods=["GET"], paths=["/repos/**"])
    async with talking(keeper(one)) as talk:
        await talk.ask("GET /repos/a HTTP/1.1", "Authorization: Bearer mine")
        await talk.ask("GET /user HTTP/1.1")
        await talk.ask("DELETE /repos/a HTTP/1.1")

    assert [f"Bearer {SECRET}".encode() in head for head in talk.seen] == [True, False, False]
    assert b"Bearer mine" not in talk.seen[0]
    assert talk.world.requests == [
        ("allow", "GET", "/repos/a", "forge"),
        ("allow", "GET", "/user", None),
        ("allow", "DELETE", "/repos/a", None),
    ]


async def test_a_stand_in_becomes_the_real_value_in_headers_and_nowhere_else() -> None:
    holder = keeper(credential(env="GH_TOKEN"))
    inside = (await holder.env())["GH_TOKEN"]
    async with talking(holder) as talk:
        await talk.ask(f"GET /?t={inside} HTTP/1.1", f"Authorization: token {inside}")
        await talk.ask("GET / HTTP/1.1", "X-Token: {{secret:forge}}")
        basic = base64.b64encode(f"user:{inside}".encode()).decode()
        await talk.ask("GET / HTTP/1.1", f"Authorization: Basic {basic}")

    assert inside.startswith("ghp_") and len(inside) == len(SECRET) and inside != SECRET
    assert f"Authorization: token {SECRET}".encode() in talk.seen[0]
    assert f"/?t={inside} ".encode() in talk.seen[0]
    assert f"X-Token: {SECRET}".encode() in talk.seen[1]
    assert b"Basic " + base64.b64encode(f"user:{SECRET}".encode()) in talk.seen[2]


async def test_basic_authentication_is_made_outside() -> None:
    async with talking(keeper(credential(basic="x-access-token"))) as talk:
        await talk.ask("GET / HTTP/1.1")

    assert b"Basic " + base64.b64encode(f"x-access-token:{SECRET}".encode()) in talk.seen[0]


async def test_without_a_rule_for_it_a_credential_is_not_used() -> None:
    holder = keeper(credential(env="GH_TOKEN"))
    inside = (await holder.env())["GH_TOKEN"]
    async with talking(holder, allowed=(HOST,)) as talk:
        refused = await talk.ask("GET / HTTP/1.1", f"Authorization: token {inside}", end=b".\n")
    assert refused.startswith(b"HTTP/1.1 403 ") and b"forge" in refused
    assert talk.seen == []
    assert talk.world.requests == [("deny", "GET", "/", "forge")]

    async with talking(keeper(credential(header="Authorization: Bearer {}")), allowed=(HOST,)) as talk:
        await talk.ask("GET / HTTP/1.1")
    assert b"Authorization" not in talk.seen[0]


async def test_a_stand_in_that_goes_to_another_host_stays_a_stand_in() -> None:
    holder = keeper(credential(), credential(name="other", host="other.test"))
    fakes = await holder.fakes()
    async with talking(holder, allowed=(HOST, "credential:*")) as talk:
        await talk.ask("GET / HTTP/1.1", f"Authorization: {fakes['other']}", "X: {{secret:other}}")

    assert SECRET.encode() not in talk.seen[0]
    assert fakes["other"].encode() in talk.seen[0]


@pytest.mark.parametrize(
    "path", ["/repos/../admin", "/repos/%2e%2e/admin", "/repos//../admin", "/repos/x%2f..%2f..%2fadmin"]
)
async def test_a_path_that_a_server_may_read_as_another_gets_no_credential(path: str) -> None:
    one = credential(header="Authorization: Bearer {}", paths=["/repos/**"])
    async with talking(keeper(one)) as talk:
        await talk.ask(f"GET {path} HTTP/1.1")

    assert b"Authorization" not in talk.seen[0]


@pytest.mark.parametrize(
    "told",
    [
        SECRET,
        f'{{"authorization": "Bearer {SECRET}"}}',
        SECRET * 3,
        base64.b64encode(f"x:{SECRET}".encode()).decode(),
        base64.b64encode(f"xy:{SECRET} and more".encode()).decode(),
        base64.urlsafe_b64encode(f"abc:{SECRET}!".encode()).decode(),
    ],
)
@pytest.mark.parametrize("way", ["length", "chunks", "close", "gzip", "bytes", "header"])
async def test_echoed_secret_never_reaches_the_sandbox(told: str, way: str) -> None:
    body = told.encode()
    match way:
        case "length":
            answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        case "gzip":
            packed = gzip.compress(body)
            answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (
                len(packed),
                packed,
            )
        case "close":
            answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body
        case "header":
            answer = b"HTTP/1.1 200 OK\r\nX-Echo: %s\r\nSet-Cookie: t=%s\r\nContent-Length: 0\r\n\r\n" % (
                body,
                body,
            )
        case _:
            step = 1 if way == "bytes" else 7
            parts = [body[at : at + step] for at in range(0, len(body), step)]
            chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
            answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    one = credential(header="Authorization: Bearer {}")
    async with talking(keeper(one), answer) as talk:
        await talk.client.send(f"GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
        heard = b""
        with pytest.raises(anyio.EndOfStream):
            while True:
                heard += await talk.client.receive()

    assert SECRET.encode() in talk.seen[0]
    assert b"Accept-Encoding: identity" in talk.seen[0]
    plain = b"".join(heard.partition(b"\r\n\r\n")[2].split(b"\r\n")[1::2]) if b"chunked" in heard else heard
    assert b"****" in plain
    for spelling in spellings(SECRET):
        assert spelling not in heard and spelling not in plain


async def test_a_secret_cannot_be_had_in_pieces() -> None:
    """A server that echoes it and answers ranges would hand it over half by half."""
    piece = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-9/40\r\nContent-Length: 10\r\n\r\n"
    one = credential(header="Authorization: Bearer {}")
    async with talking(keeper(one), piece + SECRET[:10].encode()) as talk:
        told = await talk.ask("GET / HTTP/1.1", "Range: bytes=0-9", "If-Range: x", end=b".\n")
    assert b"ange" not in talk.seen[0]
    assert told.startswith(b"HTTP/1.1 502 ") and SECRET[:10].encode() not in told


async def test_neither_the_reason_nor_the_name_of_a_header_tells_it() -> None:
    secret = SECRET.encode()
    answer = b"HTTP/1.1 400 bad token %s\r\nX-%s: 1\r\nContent-Length: 2\r\n\r\nok" % (secret, secret)
    async with talking(keeper(credential(header="Authorization: Bearer {}")), answer) as talk:
        told = await talk.ask("GET / HTTP/1.1")
    assert secret not in told and told.count(b"*" * len(secret)) == 2


@pytest.mark.parametrize(
    "told",
    [
        'a\\/b+c&d\\"e=fgh',
        "a%2fb%2bc%26d%22e%3dfgh",
        "a%2Fb%2Bc%26d%22e%3Dfgh",
        "a/b+c&amp;d&quot;e=fgh",
        b'a/b+c&d"e=fgh'.hex(),
        b'a/b+c&d"e=fgh'.hex().upper(),
    ],
)
def test_a_secret_with_signs_is_found_in_every_usual_spelling(told: str) -> None:
    redactor = Redactor(spellings('a/b+c&d"e=fgh'))
    assert redactor.whole(told.encode()) == b"*" * len(told)


@settings(deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(1, 50), max_size=20), st.integers(0, 3))
def test_however_an_answer_is_cut_no_secret_is_left_and_no_length_changes(
    noise: bytes, cuts: list[int], times: int
) -> None:
    secret = SECRET.encode()
    data = noise + (secret + noise[:7]) * times + secret[:9] + noise
    redactor = Redactor([secret])
    told, left = b"", data
    for cut in cuts:
        told, left = told + redactor.feed(left[:cut]), left[cut:]
    told += redactor.feed(left) + redactor.end()
    assert told == data.replace(secret, b"*" * len(secret))


@settings(deadline=None)
@given(st.text("abcXYZ019-_./+=", min_size=8, max_size=60))
def test_a_stand_in_has_the_shape_of_the_secret_and_is_not_it(secret: str) -> None:
    if not any(char.isalnum() for char in secret):
        return
    made = fake(secret)
    assert made != secret and len(made) == len(secret)
    for real, instead in zip(secret, made, strict=True):
        assert (real.islower(), real.isupper(), real.isdigit()) == (
            instead.islower(),
            instead.isupper(),
            instead.isdigit(),
        )
        assert real.isalnum() or real == instead


async def test_a_file_that_changes_is_read_again_without_a_restart(tmp_path: Path) -> None:
    place = tmp_path / "token"
    place.write_text("first-value-0001\n")
    one = credential(**{"from": f"file:{place}", "header": "X-Key: {}"})
    async with talking(keeper(one)) as talk:
        await talk.ask("GET / HTTP/1.1")
        place.write_text("second-value-0002\n")
        await talk.ask("GET / HTTP/1.1")

    assert b"X-Key: first-value-0001\r\n" in talk.seen[0]
    assert b"X-Key: second-value-0002\r\n" in talk.seen[1]


async def test_a_file_that_changes_twice_within_a_tick_of_its_clock_is_read_again(tmp_path: Path) -> None:
    place = tmp_path / "token"
    one = credential(**{"from": f"file:{place}", "header": "X-Key: {}"})
    tick = time.time_ns() + 10**12
    async with talking(keeper(one)) as talk:
        for value in ("first-value-0001", "other-value-0002"):
            place.write_text(value)
            os.utime(place, ns=(tick, tick))
            await talk.ask("GET / HTTP/1.1")

    assert b"X-Key: first-value-0001\r\n" in talk.seen[0]
    assert b"X-Key: other-value-0002\r\n" in talk.seen[1]


async def test_a_command_is_asked_again_when_a_server_did_not_take_its_answer(tmp_path: Path) -> None:
    place = tmp_path / "token"
    place.write_text("first-value-0001")
    one = credential(**{"from": f"command:cat {place}", "header": "X-Key: {}"})
    no = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nok"
    async with talking(keeper(one), OK, no, OK) as talk:
        await talk.ask("GET / HTTP/1.1")
        place.write_text("second-value-0002")
        await talk.ask("GET / HTTP/1.1")
        await talk.ask("GET / HTTP/1.1")

    assert [b"X-Key: second-value-0002" in head for head in talk.seen] == [False, False, True]


@pytest.mark.parametrize(
    "script", ["date +%s%N", "echo unchanged-value", "exit 3", "echo short", "date +%s%N; exit 1"]
)
async def test_a_command_that_a_program_inside_makes_doubtful_runs_at_most_twice_in_a_while(
    script: str, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    one = credential(**{"from": f"command:sh -c 'echo >> {runs}; {script}'", "header": "X-Key: {}"})
    no = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nok"
    holder = keeper(one)
    for _ in range(5):
        async with talking(holder, no, no, no) as talk:
            await talk.ask(
                "GET / HTTP/1.1", end=b"ok" if "short" not in script and "exit" not in script else b".\n"
            )
    assert runs.read_text().count("\n") <= 2


@pytest.mark.parametrize(
    ("source", "data"),
    [
        ("env:NOT_SET", None),
        ("file:{}", None),
        ("file:{}", b"short"),
        ("file:{}", b"two lines\nof-a-secret"),
        ("file:{}", b"x" * 20_000),
        ("file:{}", b"caf\xe9-and-more"),
        ("command:false", None),
        ("command:sh -c 'echo sensitive-words >&2; exit 3'", None),
        ("command:/no/such/program", None),
        ("keyring:nobody/nowhere", None),
    ],
)
async def test_a_value_that_cannot_be_read_is_a_clear_refusal_without_it(
    source: str, data: bytes | None, tmp_path: Path
) -> None:
    place = tmp_path / "token"
    if data is not None:
        place.write_bytes(data)
    one = credential(**{"from": source.format(place), "header": "X-Key: {}"})
    async with talking(keeper(one)) as talk:
        refused = await talk.ask("GET / HTTP/1.1", end=b".\n")

    assert (
        refused.startswith(b"HTTP/1.1 502 ") and b"The credential forge cannot be read on the host" in refused
    )
    assert b"sensitive-words" not in refused and b"of-a-secret" not in refused
    assert talk.seen == []


async def test_a_server_whose_certificate_is_not_trusted_gets_nothing() -> None:
    stranger = World()
    world = World(HOST, "credential:forge")
    seen: list[bytes] = []
    one = credential(header="Authorization: Bearer {}")
    for serve in (
        over_tls(stranger, HOST, scripted(seen, OK)),
        over_tls(world, "other.test", scripted(seen, OK)),
        scripted(seen, OK),
    ):
        async with listening(serve) as port, secure_going(world, QUICK, Offer(keeper(one))) as connect:
            world.has(HOST, port)
            async with await connect(HOST) as client:
                await client.send(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
                assert (await read_until(client, b".\n")).startswith(b"HTTP/1.1 502 ")

    assert all(SECRET.encode() not in data for data in seen)


async def test_within_tls_another_host_cannot_be_named() -> None:
    one = credential(header="Authorization: Bearer {}")
    async with talking(keeper(one)) as talk:
        await talk.client.send(b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n")
        assert (await read_until(talk.client, b".\n")).startswith(b"HTTP/1.1 400 ")
    assert talk.seen == []


async def test_tls_to_other_hosts_is_not_inspected() -> None:
    world = World("plain.test")
    seen: list[bytes] = []

    async def serve(stream: ByteStream) -> None:
        await scripted(seen, OK)(stream)

    one = credential(header="Authorization: Bearer {}")
    async with listening(over_tls(world, "plain.test", serve)) as port:
        world.has("plain.test", port)
        async with secure_going(world, offer=Offer(keeper(one))) as connect:
            # The server's own certificate arrives, which the client here does not trust.
            with pytest.raises(Exception, match="certificate"):
                await connect("plain.test")


async def test_host_with_request_rules_is_inspected_too() -> None:
    world = World("request:GET example.com/a")
    seen: list[bytes] = []
    async with (
        listening(over_tls(world, "example.com", scripted(seen, OK, OK))) as port,
        secure_going(world) as connect,
    ):
        world.has("example.com", port)
        async with await connect("example.com") as client:
            await client.send(b"GET /a HTTP/1.1\r\nHost: example.com\r\n\r\n")
            await read_until(client, b"ok")
            await client.send(b"GET /b HTTP/1.1\r\nHost: example.com\r\n\r\n")
            assert (await read_until(client, b".\n")).startswith(b"HTTP/1.1 403 ")

    assert len(seen) == 1
    assert world.requests == [("allow", "GET", "/a", None), ("deny", "GET", "/b", None)]


async def test_bytes_in_a_tls_record_after_the_reply_answer_no_request() -> None:
    """The first record is full, so the forged reply is in one that has arrived and is not decrypted yet."""
    size = 16_384 - len(b"HTTP/1.1 200 OK\r\nContent-Length: 00000\r\n\r\n")
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (size, b"\n" * size)
    assert len(whole) == 16_384
    forged = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
    async with talking(keeper(credential()), whole + forged, OK) as talk:
        for _ in range(2):
            answer = await talk.ask("GET / HTTP/1.1", end=b"\r\n\r\n")
            assert b"Content-Length: %d" % size in answer
            left = size - len(answer.partition(b"\r\n\r\n")[2])
            while left:
                left -= len(await talk.client.receive(left))
    assert len(talk.seen) == 2


async def test_a_reply_of_several_gzip_members_is_read_to_its_end() -> None:
    parts = gzip.compress(b"first ") + gzip.compress(b"second ") + gzip.compress(f"{SECRET} ok".encode())
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    async with talking(keeper(credential()), head % len(parts) + parts) as talk:
        answer = await talk.ask("GET / HTTP/1.1", end=b"ok\r\n0\r\n\r\n")
    assert b"first " in answer and b"second " in answer and SECRET.encode() not in answer


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"name": "a b"}, "a name consists of"),
        ({"from": "vault:x"}, "from is"),
        ({"from": "env:"}, "from is"),
        ({"from": "keyring:x"}, "SERVICE/USER"),
        ({"host": "*.test"}, "not a DNS name"),
        ({"host": "127.1"}, "number"),
        ({"header": "Authorization: Bearer"}, "one {}"),
        ({"header": "Bad\r\nHeader: {}"}, "one {}"),
        ({"header": "Host: {}"}, "reserved for the proxy"),
        ({"header": "X: {}", "basic": "u"}, "not both"),
        ({"basic": "a:b"}, "without a colon"),
        ({"env": "A=B"}, "name of a variable"),
        ({"paths": ["repos"]}, ""),
        ({"paths": ["/a/../b"]}, ". nor .."),
        ({"methods": ["get"]}, "METHOD"),
        ({"methods": []}, "needs a method"),
        ({"port": 0}, "port"),
    ],
)
def test_a_wrong_table_is_refused_with_its_place(table: dict[str, object], why: str) -> None:
    with pytest.raises(UserError) as caught:
        credential(**table)
    assert caught.value.code == "bad_credential"
    assert caught.value.message.startswith("test, credential 1 (") and why in caught.value.message


async def test_a_vault_does_not_show_what_it_holds() -> None:
    vault = Vault({"TOKEN": SECRET})
    assert await vault.value(credential()) == SECRET
    assert SECRET not in repr(vault) + repr(credential()) + repr(Keeper((credential(),), vault))
    with pytest.raises(Unreadable) as caught:
        await Vault({"TOKEN": "two\nlines-of-it"}).value(credential())
    assert "lines-of-it" not in str(caught.value)
    assert os.environ.get("TOKEN") is None


async def test_the_checkup_says_of_each_credential_whether_it_can_be_read_and_never_what_it_is(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.toml").write_text(
        f"""
[[credential]]
name = "there"
from = "env:TOKEN"
host = "{HOST}"

[[credential]]
name = "missing"
from = "file:{tmp_path}/nothing"
host = "{HOST}"
"""
    )
    settings = read_settings({"TOKEN": SECRET, "PATH": os.environ["PATH"]}, tmp_path)
    found = await credential_findings(settings)
    assert [(finding.ok, finding.found.split()[0].strip(",")) for finding in found] == [
        (True, "there"),
        (False, "missing"),
    ]
    assert SECRET not in repr(found)
