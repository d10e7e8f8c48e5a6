"""The wires of other services against hostile or broken clients. That they work is in tests/whole/clients."""

import base64
import gzip
import json
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import anyio
import httpx
import pytest
from tests.server.conftest import Served

from cloister.app.settings import Settings, read_settings
from cloister.app.tokens import Tokens
from cloister.core.computer import Entry
from cloister.core.errors import UserError
from cloister.server.compat.e2b.filesystem import Watcher, Watchers

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(data_dir: Path) -> Settings:
    return read_settings({"USER": "tester"}, data_dir)


@dataclass
class E2b:
    served: Served
    sandbox: str
    token: str

    def headers(self, **more: str) -> dict[str, str]:
        return {
            "X-Access-Token": self.token,
            "E2b-Sandbox-Id": self.sandbox,
            "Content-Type": "application/connect+json",
        } | {name.replace("_", "-"): value for name, value in more.items()}


@pytest.fixture
async def stranger(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    """A client that sends no token of its own."""
    async with httpx.AsyncClient(base_url=served.client.base_url, trust_env=False, timeout=60) as client:
        yield client


async def made(served: Served, stranger: httpx.AsyncClient, **body: Any) -> E2b:
    reply = await stranger.post(
        "/compat/e2b/v2/sandboxes", json={"templateID": "base"} | body, headers={"X-API-KEY": served.token}
    )
    assert reply.status_code == 201, reply.text
    return E2b(served, reply.json()["sandboxID"], reply.json()["envdAccessToken"])


def frame(message: object) -> bytes:
    data = json.dumps(message).encode()
    return struct.pack(">BI", 0, len(data)) + data


def frames(data: bytes) -> list[Any]:
    found: list[Any] = []
    while data:
        (size,) = struct.unpack(">I", data[1:5])
        found.append(json.loads(data[5 : 5 + size]))
        data = data[5 + size :]
    return found


START = "/compat/e2b/process.Process/Start"
LIST = "/compat/e2b/filesystem.Filesystem/ListDir"


async def test_the_token_of_a_sandbox_reaches_no_other_and_no_part_of_the_control_plane(
    served: Served, stranger: httpx.AsyncClient
) -> None:
    one, other = await made(served, stranger), await made(served, stranger)
    for headers in (one.headers(E2b_Sandbox_Id=other.sandbox), one.headers(X_Access_Token="wrong" * 8)):
        for path in ("filesystem.Filesystem/ListDir", "filesystem.Filesystem/Remove", "process.Process/List"):
            reply = await stranger.post(f"/compat/e2b/{path}", content=b'{"path":"/work"}', headers=headers)
            assert reply.status_code in (403, 502), (path, reply.text)
        ran = await stranger.post(START, content=frame({"process": {"cmd": "true"}}), headers=headers)
        assert ran.status_code == 502 or frames(ran.content)[-1]["error"]["code"] == "permission_denied"
        for method, at in (
            ("GET", "files?path=/etc/passwd"),
            ("POST", "files?path=/work/x"),
            ("GET", "health"),
        ):
            assert (await stranger.request(method, f"/compat/e2b/{at}", headers=headers)).status_code in (
                403,
                502,
            )
    for method, at in (
        ("GET", "v2/sandboxes"),
        ("POST", "v2/sandboxes"),
        ("GET", f"sandboxes/{other.sandbox}"),
        ("DELETE", f"sandboxes/{one.sandbox}"),
        ("POST", f"sandboxes/{one.sandbox}/fork"),
        ("POST", f"sandboxes/{one.sandbox}/timeout"),
        ("POST", f"v2/sandboxes/{one.sandbox}/connect"),
        ("GET", "snapshots"),
    ):
        reply = await stranger.request(
            method, f"/compat/e2b/{at}", headers={"X-API-KEY": one.token}, json={"timeout": 9}
        )
        assert (reply.status_code, reply.json()["code"]) == (403, 403), at
    nothing = await stranger.get("/compat/e2b/v2/sandboxes")
    assert (nothing.status_code, nothing.json()["code"]) == (401, 401)
    elsewhere = await stranger.get("/v1/sandboxes", headers={"X-API-KEY": served.token})
    assert elsewhere.status_code == 401, "the header counts below its own base path only"


async def test_a_role_that_is_too_low_opens_nothing(
    served: Served, stranger: httpx.AsyncClient, data_dir: Path
) -> None:
    viewer = {"X-API-KEY": Tokens(data_dir).add("vera", "viewer", "tester")}
    assert (await stranger.get("/compat/e2b/v2/sandboxes", headers=viewer)).json() == []
    reply = await stranger.post("/compat/e2b/v2/sandboxes", json={}, headers=viewer)
    assert (reply.status_code, reply.json()["code"]) == (403, 403)
    assert served.app.sandboxes.list() == ()


async def test_broken_and_huge_messages_are_refused_at_once(
    served: Served, stranger: httpx.AsyncClient
) -> None:
    box = await made(served, stranger)

    async def endless() -> AsyncIterator[bytes]:
        yield struct.pack(">BI", 0, 1_073_741_824)
        while True:
            yield b"x" * 65_536
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(60):
        try:
            reply = await stranger.post(START, content=endless(), headers=box.headers())
            assert frames(reply.content)[-1]["error"]["code"] == "resource_exhausted"
        except httpx.TransportError:
            pass  # the connection was closed while it still sent
        for content, code in (
            (struct.pack(">BI", 0, 1_073_741_824), "resource_exhausted"),
            (struct.pack(">BI", 1, 2) + b"{}", "invalid_argument"),
            (b"", "invalid_argument"),
            (b"\0\0", "invalid_argument"),
            (struct.pack(">BI", 0, 100) + b"{}", "invalid_argument"),
            (frame([]), "invalid_argument"),
            (frame({"process": {"cmd": 7}}), "invalid_argument"),
            (struct.pack(">BI", 0, 3) + b"\xff\xfe{", "invalid_argument"),
            (struct.pack(">BI", 0, 100_000) + b"[" * 100_000, "invalid_argument"),
            (frame({"process": {"cmd": ""}}), "invalid_argument"),
        ):
            reply = await stranger.post(START, content=content, headers=box.headers())
            assert frames(reply.content)[-1]["error"]["code"] == code, content[:40]
        for content in (b"x" * 2_000_000, b"[" * 100_000, b"\xff", b'{"path": 7}', b'{"path": ""}'):
            reply = await stranger.post(LIST, content=content, headers=box.headers())
            assert reply.status_code in (400, 413) and isinstance(reply.json()["code"], str)
        assert (await stranger.get("/compat/e2b/health", headers=box.headers())).status_code == 204


async def test_a_packed_file_is_whole_or_refused(served: Served, stranger: httpx.AsyncClient) -> None:
    box = await made(served, stranger)
    big = bytes(range(256)) * 4_000 + b"\0" * 1_000_000
    packed = gzip.compress(big)
    for content, status in (
        (packed, 200),
        (gzip.compress(big[:5]) + gzip.compress(big[5:]), 200),
        (packed[:-1], 400),
        (packed[: len(packed) // 2], 400),
        (packed + b"x" * 1_000_000, 400),
        (b"", 400),
        (big, 400),
    ):
        at = f"/compat/e2b/files?path=/work/{len(content)}"
        headers = box.headers(Content_Encoding="gzip", Content_Type="application/octet-stream")
        reply = await stranger.post(at, content=content, headers=headers)
        assert reply.status_code == status, (len(content), reply.text)
        there = await stranger.get(at, headers=box.headers())
        assert (there.status_code, there.content == big) == ((200, True) if status == 200 else (404, False))


async def test_a_path_never_leaves_the_root_of_the_sandbox(
    served: Served, stranger: httpx.AsyncClient
) -> None:
    box = await made(served, stranger)
    assert (
        await served.client.post(
            f"/v1/sandboxes/{box.sandbox}/exec",
            json={"command": "ln -s / /work/root; ln -s /etc/shadow /work/shadow"},
        )
    ).status_code == 200
    for path in (
        "../../../../etc/shadow",
        "/work/../../etc/shadow",
        "/work/shadow",
        "/work/root/root/x",
        "/proc/1/mem",
    ):
        reply = await stranger.get("/compat/e2b/files", params={"path": path}, headers=box.headers())
        assert reply.status_code in (400, 403, 404), (path, reply.content[:100])
    inside = await stranger.get(
        "/compat/e2b/files", params={"path": "../../etc/passwd"}, headers=box.headers()
    )
    assert b"agent:x:" in inside.content, "the sandbox's own"
    assert (await stranger.get("/compat/e2b/files", headers=box.headers())).status_code == 400


async def test_a_client_that_leaves_does_not_end_its_command_and_the_command_is_found_again(
    served: Served, stranger: httpx.AsyncClient
) -> None:
    box = await made(served, stranger)
    line = "echo begun; until [ -e /tmp/go ]; do sleep 0.02; done; echo ended > /tmp/ended"
    wish = frame({"process": {"cmd": "/bin/bash", "args": ["-c", line]}})
    async with stranger.stream("POST", START, content=wish, headers=box.headers()) as reply:
        async for data in reply.aiter_bytes():
            if base64.b64encode(b"begun\n") in data:
                break
    listed = await stranger.post("/compat/e2b/process.Process/List", content=b"{}", headers=box.headers())
    (one,) = listed.json()["processes"]
    await served.client.put(f"/v1/sandboxes/{box.sandbox}/files", params={"path": "/tmp/go"})
    again = frame({"process": {"pid": one["pid"]}})
    reply = await stranger.post("/compat/e2b/process.Process/Connect", content=again, headers=box.headers())
    found = frames(reply.content)
    assert found[-1] == {} or found[-1]["error"]["code"] == "not_found", "it may have ended before"
    with anyio.fail_after(60):
        while (
            await stranger.get("/compat/e2b/files?path=/tmp/ended", headers=box.headers())
        ).status_code != 200:
            await anyio.lowlevel.checkpoint()


async def test_times_to_live_hold_and_the_audit_knows_who_did_what(
    served: Served, stranger: httpx.AsyncClient
) -> None:
    box = await made(served, stranger, timeout=1)
    with anyio.fail_after(60):
        while served.app.sandboxes.list():
            await anyio.lowlevel.checkpoint()
    gone = await stranger.get("/compat/e2b/health", headers=box.headers())
    assert (gone.status_code, "was not found" in gone.json()["message"]) == (502, True)
    too_long = await stranger.post(
        "/compat/e2b/v2/sandboxes", json={"timeout": 10_000_000}, headers={"X-API-KEY": served.token}
    )
    assert too_long.status_code == 400, too_long.text
    entries = await served.app.backbone.audit(0, 10_000)
    assert {"SandboxCreated", "SandboxTokenMade", "ApiCall"} <= {entry.kind for entry in entries}
    assert all(entry.who == "tester" for entry in entries if entry.kind == "SandboxCreated")
    assert box.token not in "".join(f"{entry.detail}" for entry in entries)


async def test_the_address_of_a_modbox_sandbox_is_a_secret_for_that_sandbox_only(
    served: Served, stranger: httpx.AsyncClient
) -> None:
    bearer = {"Authorization": f"Bearer {served.token}"}
    addresses: list[str] = []
    for task in ("a", "b"):
        made = await stranger.post(
            "/compat/modbox/sandboxes/provision", json={"task_id": task}, headers=bearer
        )
        assert made.status_code == 201, made.text
        addresses.append(made.json()["sandbox_url"])
    assert addresses[0] != addresses[1]
    for address, name in zip(addresses, "ab", strict=True):
        told = await stranger.post(
            f"{address}/execute", json={"code": f"x = globals().get('x', '') + '{name}'; x"}
        )
        assert told.json()["result"] == f"'{name}'", "each has its own state"
    secret = addresses[0].rpartition("/")[2]
    guessed = addresses[0].replace(secret, "0" * len(secret))
    assert (await stranger.post(f"{guessed}/execute", json={"code": "1"})).status_code == 401
    joined_badly = addresses[0].replace("/compat/modbox/box/", "//compat/modbox//box/")
    assert (await stranger.post(f"{joined_badly}/execute", json={"code": "1"})).status_code == 401
    for misspelled in ("/compat/modbox/Box/", "/compat/modbox/", "/", "/compat/modbox/box/../"):
        address = addresses[0].replace("/compat/modbox/box/", misspelled)
        assert (
            await stranger.post(f"{address}/execute", json={"code": "1"}, headers=bearer)
        ).status_code in (404, 405)
        assert (await stranger.post(f"{address}/execute", json={"code": "1"})).status_code == 401
    one, other = [info.id for info in served.app.sandboxes.list()]
    for method, at, headers in (
        ("GET", f"/v1/sandboxes/{other}", {"Authorization": f"Bearer {secret}"}),
        ("DELETE", f"/compat/modbox/sandboxes/{one}", {"Authorization": f"Bearer {secret}"}),
        ("GET", "/compat/modbox/sandboxes", {"Authorization": f"Bearer {secret}"}),
    ):
        refused = await stranger.request(method, at, headers=headers)
        assert refused.status_code == 403, at
    for body in (b"", b"[]", b"{", b'{"code": 7}', b'{"code": "1", "language": "cobol"}', b"x" * 2_000_000):
        bad = await stranger.post(f"{addresses[0]}/execute", content=body)
        assert bad.status_code in (400, 413) and "message" in bad.json()["error"], body[:20]
    await served.client.delete(f"/v1/sandboxes/{one}")
    assert (await stranger.post(f"{addresses[0]}/execute", json={"code": "1"})).status_code == 401
    entries = await served.app.backbone.audit(0, 10_000)
    said = "".join(f"{entry.kind}{entry.detail}" for entry in entries)
    assert "/compat/modbox/box/…/execute" in said and secret not in said


async def test_the_task_of_a_modbox_sandbox_is_that_of_its_maker_and_its_state_is_true(
    served: Served, stranger: httpx.AsyncClient
) -> None:
    bearer, at = {"Authorization": f"Bearer {served.token}"}, "/compat/modbox/sandboxes"
    forged = await served.client.post("/v1/sandboxes", json={"metadata": {"modbox-task": "t"}})
    assert (await stranger.get(f"{at}/t", headers=bearer)).status_code == 404, "a text that anyone may write"
    made = await stranger.post(f"{at}/provision", json={"task_id": "t"}, headers=bearer)
    box = made.json()["sandbox_id"]
    fork = (await served.client.post(f"/v1/sandboxes/{box}/fork", json={})).json()[0]
    await served.client.delete(f"/v1/sandboxes/{forged.json()['id']}")
    assert (await stranger.get(f"{at}/t", headers=bearer)).json()["id"] == box
    assert (await stranger.get(f"{at}/{fork['id']}", headers=bearer)).json()["name"] == fork["id"]
    paused = await served.client.patch(f"/v1/sandboxes/{box}", json={"paused": True})
    assert paused.status_code == 200, paused.text
    assert (await stranger.get(f"{at}/t", headers=bearer)).json()["status"] == "paused"
    waited = await stranger.post(f"{at}/wait", json={"task_id": "t"}, headers=bearer)
    for told in (waited, await stranger.get(f"{at}/t/status", headers=bearer)):
        assert (told.json()["ready"], told.json()["status"]) == (False, "paused")
    await stranger.post(f"{at}/destroy", json={"task_id": "t"}, headers=bearer)
    assert (await stranger.get(f"{at}/t", headers=bearer)).status_code == 404, "a fork is another"


async def test_builds_of_one_name_do_not_disturb_each_other_and_leave_no_sandbox(
    served: Served, stranger: httpx.AsyncClient, data_dir: Path
) -> None:
    name, other = f"tools-{token_hex(4)}", Tokens(data_dir).add("eve", "admin", "tester")
    begun: dict[str, Any] = {}
    for who, key in (("first", served.token), ("eve", other), ("second", served.token)):
        if who == "second":
            link = f"/compat/e2b/templates/{name}/files/{'0' * 64}"
            assert (await stranger.get(link, headers={"X-API-KEY": served.token})).status_code == 201
            assert len(served.app.sandboxes.list()) == 1
        new = await stranger.post("/compat/e2b/v3/templates", json={"name": name}, headers={"X-API-KEY": key})
        begun[who] = new.json()["buildID"]

    async def told(who: str, key: str) -> tuple[int, str]:
        at = f"/compat/e2b/templates/{name}/builds/{begun[who]}/status"
        reply = await stranger.get(at, headers={"X-API-KEY": key})
        return reply.status_code, reply.json().get("status", "")

    assert await told("first", served.token) == (200, "error"), "the second took its place"
    assert served.app.sandboxes.list() == (), "and its sandbox is gone"
    assert await told("second", served.token) == await told("eve", other) == (200, "waiting")
    assert (await told("eve", served.token))[0] == 404


async def test_metadata_is_bounded_on_every_wire_and_looking_again_makes_no_token(
    served: Served, stranger: httpx.AsyncClient
) -> None:
    bearer = {"Authorization": f"Bearer {served.token}", "X-API-KEY": served.token}
    for at in ("e2b/v2/sandboxes", "pandastack/v1/sandboxes"):
        for wrong in ({"k" * 129: "v"}, {"k": "v" * 1_025}, {str(key): "v" for key in range(65)}):
            reply = await stranger.post(f"/compat/{at}", json={"metadata": wrong}, headers=bearer)
            assert reply.status_code == 400, (at, reply.text)
    box = await made(served, stranger)
    forked = {"count": 1, "metadata": {"k": "v" * 1_025}}
    at = f"/compat/pandastack/v1/sandboxes/{box.sandbox}/fork"
    assert (await stranger.post(at, json=forked, headers=bearer)).status_code == 400
    before = [entry.kind for entry in await served.app.backbone.audit(0, 10_000)].count("SandboxTokenMade")
    open_now = len(served.app.sandboxes.list())
    for _ in range(3):
        assert (await stranger.get("/compat/modbox/sandboxes", headers=bearer)).status_code == 200
    after = [entry.kind for entry in await served.app.backbone.audit(0, 10_000)].count("SandboxTokenMade")
    assert after - before == open_now - 1, "one for each sandbox that has none"


async def test_a_build_that_cannot_be_kept_leaves_the_template_of_its_name(
    served: Served, stranger: httpx.AsyncClient
) -> None:
    key, name = {"X-API-KEY": served.token}, f"tools-{token_hex(4)}"
    box = await made(served, stranger)
    kept = await served.client.post(f"/v1/sandboxes/{box.sandbox}/snapshots", json={"name": name})
    assert kept.status_code == 201, kept.text
    begun = (await stranger.post("/compat/e2b/v3/templates", json={"name": name}, headers=key)).json()
    at = f"/compat/e2b/v2/templates/{name}/builds/{begun['buildID']}"
    started = await stranger.post(at, json={"steps": [{"type": "RUN", "args": ["true"]}]}, headers=key)
    assert started.status_code == 202, started.text
    (sandbox,) = [info.id for info in served.app.sandboxes.list() if info.id != box.sandbox]
    with anyio.fail_after(60):
        while (await served.client.get(f"/v1/sandboxes/{sandbox}/commands")).json()[0]["state"] == "running":
            await anyio.lowlevel.checkpoint()
    await served.client.delete(f"/v1/sandboxes/{sandbox}")
    told = await stranger.get(
        f"/compat/e2b/templates/{name}/builds/{begun['buildID']}/status?logsOffset=\u00b2", headers=key
    )
    assert (told.status_code, told.json()["status"]) == (200, "error"), told.text
    there = await served.client.get(f"/v1/snapshots/{name}")
    assert (there.status_code, there.json().get("id")) == (200, kept.json()["id"])
    await served.client.delete(f"/v1/snapshots/{name}")


async def test_odd_queries_and_odd_times_of_files_are_no_mistake_of_the_server(
    served: Served, stranger: httpx.AsyncClient
) -> None:
    box = await made(served, stranger)
    key = {"X-API-KEY": served.token}
    for query, status in (
        ({"limit": "\u00b2"}, 200),
        ({"limit": "9" * 5_000}, 200),
        ({"metadata": "&".join(f"k{number}=v" for number in range(65))}, 400),
    ):
        reply = await stranger.get("/compat/e2b/v2/sandboxes", params=query, headers=key)
        assert reply.status_code == status, reply.text
    odd = "touch -d @99999999999999 /work/late; touch -d @-99999999999999 /work/early; touch /work/now"
    await served.client.post(f"/v1/sandboxes/{box.sandbox}/exec", json={"command": odd})
    listed = await stranger.post(LIST, json={"path": "/work"}, headers=box.headers())
    assert listed.status_code == 200, listed.text
    assert {"early", "late", "now"} <= {one["name"] for one in listed.json()["entries"]}
    at = f"/compat/pandastack/v1/sandboxes/{box.sandbox}/fs/dir"
    bearer = {"Authorization": f"Bearer {served.token}"}
    assert (await stranger.get(at, params={"path": "/work"}, headers=bearer)).status_code == 200


def test_watchers_remember_so_many_names_together_and_the_oldest_goes() -> None:
    def watcher(names: int) -> Watcher:
        entry = Entry("x", "file", 1, 0o644, 0.0)
        return Watcher("s-a", "/work", 1, {str(number): entry for number in range(names)}, 0.0)

    watchers = Watchers(10)
    first, second = watchers.add(watcher(4)), watchers.add(watcher(4))
    third = watchers.add(watcher(4))
    with pytest.raises(UserError, match="no such watcher"):
        watchers.get("s-a", first)
    watchers.saw(watchers.get("s-a", second), watcher(8).seen)
    with pytest.raises(UserError, match="no such watcher"):
        watchers.get("s-a", third)
    assert len(watchers.get("s-a", second).seen) == 8


BUILDS = "/compat/pandastack/v1/templates/builds"


async def test_pandastack_refuses_in_the_shape_that_its_client_reads(
    served: Served, stranger: httpx.AsyncClient
) -> None:
    at, bearer = "/compat/pandastack/v1/sandboxes", {"Authorization": f"Bearer {served.token}"}
    for reply, status in (
        (await stranger.get(at), 401),
        (await stranger.get(f"{at}/s-nothing", headers=bearer), 404),
        (await stranger.post(at, content=b"{", headers=bearer), 400),
        (await stranger.post(at, json={"ttl_seconds": -1}, headers=bearer), 400),
        (await stranger.post(at, json={"template": "no-such"}, headers=bearer), 400),
        (await stranger.post(at, json={"volumes": [{"name": "data"}]}, headers=bearer), 400),
        (
            await stranger.post(f"{BUILDS[:-1]}", data={"name": "x", "dockerfile": "FROM x"}, headers=bearer),
            400,
        ),
        (await stranger.get(f"{BUILDS}/b-1", headers=bearer), 404),
        (await stranger.get(f"{BUILDS}/b-1/logs", headers=bearer), 404),
        (await stranger.get("/compat/pandastack/v1/nothing", headers=bearer), 404),
    ):
        assert (reply.status_code, type(reply.json()["error"])) == (status, str), reply.text
