from itertools import product
from pathlib import Path

import anyio
import httpx
import msgspec
import pytest
from tests.server.conftest import Served, serve_app
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from cloister.app.settings import Settings

pytestmark = pytest.mark.anyio


async def test_health_needs_no_token(served: Served) -> None:
    async with httpx.AsyncClient(timeout=30, trust_env=False) as stranger:
        reply = await stranger.get(f"http://127.0.0.1:{served.port}/v1/health")
    assert reply.status_code == 200
    assert reply.json()["ok"] is True
    assert reply.headers["x-content-type-options"] == "nosniff"


async def test_health_tells_whether_signed_heads_arrive_and_not_where(
    settings: Settings, tmp_path: Path
) -> None:
    places = (str(tmp_path / "one" / "heads.jsonl"), str(tmp_path / "two.jsonl"))
    file = msgspec.structs.replace(settings.file, audit_heads=places)

    async def told(settings: Settings) -> object:
        async with serve_app(settings) as served:
            await served.client.post("/v1/runs", json={})
            url = f"http://127.0.0.1:{served.port}/v1/health"
            async with httpx.AsyncClient(trust_env=False) as stranger:
                with anyio.fail_after(30):
                    while (reply := (await stranger.get(url)).json())["audit_export"] == "waiting":
                        pass
            assert reply["ok"] and str(tmp_path) not in str(reply)
            return reply["audit_export"]

    assert await told(settings) is None
    with_places = msgspec.structs.replace(settings, file=file)
    assert await told(with_places) == "failing"
    (tmp_path / "one").mkdir()
    (settings.data_dir / "heads.exported").unlink()
    assert await told(with_places) == "current"


async def test_every_other_route_needs_the_token(served: Served) -> None:
    headers = ["", "Bearer", "Bearer wrong", "Basic {}", "{}", "Bearer {}x", "Bearer x {}"]
    paths = ["/v1/runs", "/v1/sandboxes", "/v1/openapi.json", "/nowhere"]
    for header, path in product(headers, paths):
        reply = await served.client.get(path, headers={"Authorization": header.format(served.token)})
        assert reply.status_code == 401
        assert reply.json()["code"] == "unauthorized"
        assert reply.headers["www-authenticate"] == "Bearer"


async def test_a_token_in_the_query_is_ignored(served: Served) -> None:
    async with httpx.AsyncClient(timeout=30, trust_env=False) as stranger:
        for name in ("token", "access_token", "authorization"):
            url = f"http://127.0.0.1:{served.port}/v1/runs?{name}={served.token}"
            assert (await stranger.get(url)).status_code == 401


async def test_a_host_that_is_not_loopback_is_refused_even_with_the_token(served: Served) -> None:
    hosts = ["evil.example", "evil.example:7717", "127.0.0.1.evil.example", "0.0.0.0", ""]
    for host, path in product(hosts, ("/v1/health", "/v1/runs")):
        reply = await served.client.get(path, headers={"Host": host})
        assert reply.status_code == 421
        assert reply.json()["code"] == "bad_host"


async def test_a_reverse_proxy_may_use_the_names_in_the_settings_and_no_other(settings: Settings) -> None:
    named = msgspec.structs.replace(settings.file, hosts=("cloister.example.org", "other.example:8443"))
    async with serve_app(msgspec.structs.replace(settings, file=named)) as served:

        async def status(host: str, **more: str) -> int:
            return (await served.client.get("/v1/runs", headers={"Host": host, **more})).status_code

        assert await status("Cloister.Example.org") == await status("other.example:8443") == 200
        for host in ("cloister.example.org:1", "other.example", "x.cloister.example.org", "evil.example"):
            assert await status(host) == 421
        assert await status("cloister.example.org", Origin="https://cloister.example.org") == 200
        for origin in ("http://cloister.example.org", "https://evil.example", "null"):
            assert await status("cloister.example.org", Origin=origin) == 403


async def test_every_name_of_the_loopback_is_served(served: Served) -> None:
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:7717"):
        assert (await served.client.get("/v1/runs", headers={"Host": host})).status_code == 200


async def test_pages_of_other_origins_are_refused(served: Served) -> None:
    for origin in ("http://evil.example", "null", f"http://localhost:{served.port}", "https://127.0.0.1", ""):
        reply = await served.client.get("/v1/runs", headers={"Origin": origin})
        assert (reply.status_code, reply.json()["code"]) == (403, "bad_origin")
    own = {"Origin": f"http://127.0.0.1:{served.port}"}
    assert (await served.client.get("/v1/runs", headers=own)).status_code == 200


async def test_a_websocket_without_the_token_is_refused_before_it_opens(served: Served) -> None:
    url = f"ws://127.0.0.1:{served.port}/v1/runs/x/stream"
    offers = [None, [Subprotocol("cloister")], [Subprotocol("cloister"), Subprotocol("wrong")]]
    for offer in [*offers, [Subprotocol(served.token)]]:
        with pytest.raises(InvalidStatus) as caught:
            async with connect(url, subprotocols=offer, proxy=None):
                pass
        assert caught.value.response.status_code == 401
        assert b'"unauthorized"' in (caught.value.response.body or b"")


ORIGINS = {
    "another site": "http://evil.example",
    "a file or a sandboxed frame": "null",
    "nothing at all": "",
    "another port of this machine": "http://127.0.0.1:1",
    "another name of this machine": "http://localhost:{port}",
    "a name that begins like ours": "http://127.0.0.1:{port}.evil.example",
    "a user name that looks like ours": "http://127.0.0.1:{port}@evil.example",
    "another scheme": "https://127.0.0.1:{port}",
    "a socket's scheme": "ws://127.0.0.1:{port}",
    "a path after ours": "http://127.0.0.1:{port}/",
    "two in one": "http://127.0.0.1:{port} http://evil.example",
    "a number for the address": "http://2130706433:{port}",
    "a page of a server in a sandbox": "http://8000-s-abcd.localhost:{port}",
}


async def test_a_websocket_from_another_origin_is_refused(served: Served) -> None:
    fence = await served.claimed_run()
    paths = (f"/v1/runs/{fence.run}/stream", "/v1/sandboxes/s-abcd/process")
    for (who, origin), path in product(ORIGINS.items(), paths):
        with pytest.raises(InvalidStatus) as caught:
            async with served.socket(path, origin=origin.format(port=served.port)):
                pass
        assert caught.value.response.status_code == 403, who


async def test_a_websocket_of_two_origins_or_under_another_name_is_refused(served: Served) -> None:
    fence = await served.claimed_run()
    token = ("Authorization", f"Bearer {served.token}")
    tries = [
        [("Origin", f"http://127.0.0.1:{served.port}"), ("Origin", "http://evil.example")],
        [("Host", "evil.example")],
        [("Host", "127.0.0.1.evil.example")],
        [("Host", "0.0.0.0")],
    ]
    url = f"ws://127.0.0.1:{served.port}/v1/runs/{fence.run}/stream"
    for headers in tries:
        with pytest.raises(InvalidStatus) as caught:
            async with connect(url, additional_headers=[token, *headers], proxy=None):
                pass
        assert caught.value.response.status_code in (400, 421), headers


async def test_a_browser_may_send_the_token_as_a_subprotocol(served: Served) -> None:
    fence = await served.claimed_run()
    url = f"ws://127.0.0.1:{served.port}/v1/runs/{fence.run}/stream"
    offer = [Subprotocol("cloister"), Subprotocol(served.token)]
    async with connect(url, subprotocols=offer, proxy=None) as socket:
        assert socket.subprotocol == "cloister"
        assert "RunAdmitted" in "".join([str(await socket.recv()) for _ in range(2)])  # beside who watches


def _names(metrics: str) -> list[str]:
    """Their values move: each request writes to the log."""
    return [line.partition(" ")[0] for line in metrics.splitlines() if not line.startswith("#")]


async def test_monitors_need_no_token_to_learn_whether_the_server_lives_and_is_ready(served: Served) -> None:
    async with httpx.AsyncClient(timeout=30, trust_env=False) as stranger:
        for path in ("/healthz", "/readyz"):
            reply = await stranger.get(f"http://127.0.0.1:{served.port}{path}")
            assert (reply.status_code, reply.json()["ok"]) == (200, True)
        assert (await stranger.get(f"http://127.0.0.1:{served.port}/metrics")).status_code == 401
    old = await served.client.get("/v1/metrics")
    new = await served.client.get("/metrics")
    assert old.status_code == new.status_code == 200 and _names(old.text) == _names(new.text) != []
