"""A browser's login: a one-time secret becomes a cookie, and calls with it must come from a page of this server."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import anyio
import httpx
import pytest
from tests.server.conftest import Serve, Served
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from cloister.app.people.logins import LOGIN_SECONDS, OF_ONE, ONCE_SECONDS, Logins
from cloister.app.tokens import Caller, Tokens
from cloister.core.errors import UserError
from cloister.server.auth import REVOKED

pytestmark = pytest.mark.anyio


class Page:
    """A page of this server in a browser: it keeps cookies, and sends its origin with each change."""

    opened: ClassVar[list["Page"]] = []

    def __init__(self, served: Served) -> None:
        self.origin = f"http://127.0.0.1:{served.port}"
        self.client = httpx.AsyncClient(base_url=self.origin, timeout=30, trust_env=False, verify=False)
        self.opened.append(self)

    async def post(self, path: str, body: object = None, origin: str | None = None) -> httpx.Response:
        headers = {"Origin": origin or self.origin}
        return await self.client.post(path, json=body, headers=headers)

    async def log_in(self, secret: str) -> httpx.Response:
        return await self.post("/v1/login", {"secret": secret})

    @property
    def cookie(self) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.client.cookies.items())


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    while Page.opened:
        await Page.opened.pop().client.aclose()


async def secret_of(served: Served, token: str | None = None) -> str:
    headers = {"Authorization": f"Bearer {token or served.token}"}
    reply = await served.client.post("/v1/logins", headers=headers)
    assert (reply.status_code, reply.json()["seconds"]) == (201, 60)
    return str(reply.json()["secret"])


async def logged_in(served: Served, token: str | None = None) -> Page:
    page = Page(served)
    assert (await page.log_in(await secret_of(served, token))).status_code == 200
    return page


async def kinds(served: Served) -> list[tuple[str, str]]:
    return [(entry.kind, entry.who) for entry in await served.app.backbone.audit(limit=10_000)]


async def test_a_secret_becomes_a_cookie_that_only_this_host_gets_and_no_script_reads(served: Served) -> None:
    page = Page(served)
    reply = await page.log_in(await secret_of(served))
    assert reply.json()["name"] == "tester"
    value, *rules = reply.headers["set-cookie"].split("; ")
    assert value.startswith(f"cloister-{served.port}=")
    assert set(rules) == {"Path=/", "Max-Age=86400", "HttpOnly", "SameSite=Strict"}
    me = (await page.client.get("/v1/me")).json()
    assert (me["name"], me["role"], me["login"]) == ("tester", "admin", reply.json()["login"])
    entries = await kinds(served)
    assert ("LoginOffered", "tester") in entries
    assert ("LoginBegun", "tester") in entries


async def test_a_secret_works_once_and_a_guess_never(served: Served) -> None:
    secret = await secret_of(served)
    assert (await Page(served).log_in(secret)).status_code == 200
    for wrong in (secret, secret[:-1], "", "x" * 43, served.token, "\u0000é"):
        reply = await Page(served).log_in(wrong)
        assert (reply.status_code, reply.json()["code"]) == (401, "bad_login")
        assert "set-cookie" not in reply.headers
        assert wrong not in reply.json()["message"] or wrong == ""
    assert (await Page(served).log_in("x" * 201)).status_code == 400
    assert ("LoginRefused", "") in await kinds(served)


async def test_two_browsers_with_one_secret_are_not_both_logged_in(served: Served) -> None:
    secret, found = await secret_of(served), list[int]()

    async def one() -> None:
        found.append((await Page(served).log_in(secret)).status_code)

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(one)
    assert sorted(found) == [200, 401, 401, 401, 401]


async def test_a_secret_holds_a_minute_and_a_login_a_day(tmp_path: Path) -> None:
    clock = [1_000_000.0]
    logins, ann = Logins(tmp_path, lambda: clock[0]), Caller("ann", "viewer", token="0" * 64)
    late = logins.offer(ann)
    clock[0] += ONCE_SECONDS
    with pytest.raises(UserError, match="older than a minute"):
        logins.exchange(late.encode())
    cookie, made = logins.exchange(logins.offer(ann).encode())
    clock[0] += LOGIN_SECONDS - 1
    assert logins.find(cookie.encode()) == made
    clock[0] += 1
    assert logins.find(cookie.encode()) is None
    kept = (tmp_path / "logins.json").read_text()
    assert cookie not in kept
    assert late not in kept


async def test_the_oldest_login_of_a_person_gives_way_to_one_more(tmp_path: Path) -> None:
    logins = Logins(tmp_path)
    made = [
        logins.exchange(logins.offer(Caller(name, "viewer", token="0" * 64)).encode())[1].id
        for name in ["bob", *["ann"] * (OF_ONE + 1)]
    ]
    assert [each.id for each in logins.all()] == [made[0], *made[2:]]


async def test_a_change_with_the_cookie_needs_the_origin_of_this_server(served: Served) -> None:
    page = await logged_in(served)
    fence = await served.claimed_run()
    path = f"/v1/runs/{fence.run}/say"
    without = await page.client.post(path, json={"text": "hello"})
    assert (without.status_code, without.json()["code"]) == (403, "bad_origin")
    others = ("http://evil.example", "null", "http://127.0.0.1:1", f"https://127.0.0.1:{served.port}", "")
    for origin in (*others, f"http://localhost:{served.port}"):
        headers = {"Origin": origin}
        reply = await page.client.post(path, json={"text": "hello"}, headers=headers)
        assert (reply.status_code, reply.json()["code"]) == (403, "bad_origin"), origin
    for site in ("cross-site", "same-site"):
        headers = {"Origin": page.origin, "Sec-Fetch-Site": site}
        assert (await page.client.post(path, json={"text": "hello"}, headers=headers)).status_code == 403
        assert (await page.client.get("/v1/runs", headers={"Sec-Fetch-Site": site})).status_code == 403
    assert len(await served.app.backbone.read(fence.run)) == 2
    assert (await page.post(path, {"text": "hello"})).status_code == 200
    assert (await page.client.get("/v1/runs")).status_code == 200


async def test_a_websocket_with_the_cookie_needs_the_origin_of_this_server(served: Served) -> None:
    page = await logged_in(served)
    fence = await served.claimed_run()
    url = f"ws://127.0.0.1:{served.port}/v1/runs/{fence.run}/stream"

    def opened(**headers: str) -> Any:
        return connect(url, additional_headers={"Cookie": page.cookie, **headers}, proxy=None)

    for wrong in ({}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
        with pytest.raises(InvalidStatus) as refused:
            async with opened(**wrong):
                pass
        assert refused.value.response.status_code == 403
    async with opened(Origin=page.origin) as socket:
        seen = [json.loads(await socket.recv()) for _ in range(2)]  # beside who watches
        assert [message["event"]["seq"] for message in seen if "event" in message] == [1]


async def test_a_login_ends_when_it_is_ended_by_its_page_and_no_sooner(served: Served) -> None:
    one, two = await logged_in(served), await logged_in(served)
    reply = await one.post("/v1/logout")
    assert (reply.status_code, "Max-Age=0" in reply.headers["set-cookie"]) == (200, True)
    ended = await one.client.get("/v1/me", headers={"Cookie": one.cookie})
    assert ended.status_code == 401
    assert (await two.client.get("/v1/me")).status_code == 200


async def test_a_login_ends_with_the_token_that_it_came_from(served: Served) -> None:
    tokens = Tokens(served.app.settings.data_dir)
    page = await logged_in(served, tokens.add("vera", "viewer", "tester"))
    assert (await page.client.get("/v1/me")).json()["role"] == "viewer"
    fence = await served.claimed_run()
    url = f"ws://127.0.0.1:{served.port}/v1/runs/{fence.run}/stream"
    headers = {"Cookie": page.cookie, "Origin": page.origin}
    async with connect(url, additional_headers=headers, proxy=None) as socket:
        tokens.remove("vera")
        tokens.add("vera", "admin", "tester")
        with anyio.fail_after(60), pytest.raises(ConnectionClosed) as closed:
            while True:
                await socket.recv()
    assert closed.value.rcvd is not None and closed.value.rcvd.code == REVOKED
    reply = await page.client.get("/v1/me")
    assert (reply.status_code, "cloister open" in reply.json()["message"]) == (401, True)


async def test_people_end_their_own_logins_and_admins_everyones(served: Served) -> None:
    tokens = Tokens(served.app.settings.data_dir)
    vera = await logged_in(served, tokens.add("vera", "viewer", "tester"))
    walt = await logged_in(served, tokens.add("walt", "viewer", "tester"))
    boss = await logged_in(served)
    of_vera = (await vera.client.get("/v1/me")).json()["login"]
    of_walt = (await walt.client.get("/v1/me")).json()["login"]
    assert [each["id"] for each in (await vera.client.get("/v1/logins")).json()] == [of_vera]
    headers = {"Origin": vera.origin}
    assert (await vera.client.delete(f"/v1/logins/{of_walt}", headers=headers)).status_code == 404
    assert len((await boss.client.get("/v1/logins")).json()) == 3
    assert (await boss.client.delete(f"/v1/logins/{of_walt}", headers=headers)).status_code == 204
    assert (await walt.client.get("/v1/me")).status_code == 401


async def test_a_login_outlives_the_server_and_makes_no_other_login(serving: Serve) -> None:
    async with serving() as served:
        page = await logged_in(served)
        assert (await page.post("/v1/logins")).status_code == 403
        value = page.cookie.partition("=")[2]
    async with serving() as served:
        cookie = {"Cookie": f"cloister-{served.port}={value}"}
        client = Page(served).client
        assert (await client.get("/v1/me", headers=cookie)).json()["name"] == "tester"
        twice = {"Cookie": f"cloister-{served.port}={value}; cloister-{served.port}={value}"}
        assert (await client.get("/v1/me", headers=twice)).status_code == 401
