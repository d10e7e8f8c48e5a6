"""Logins and calls that change something are entered; the audit and the receipts are there to read."""

import json
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest
from tests.server.conftest import Serve, Served, serve_app
from websockets.exceptions import InvalidStatus

from cloister.app.settings import Settings, read_settings
from cloister.app.tokens import Caller, Tokens
from cloister.app.verbs.local import LocalVerbs
from cloister.core.errors import UserError
from cloister.core.events import RunFinished
from cloister.core.requests import Retention
from cloister.forge.host import bare_repository
from cloister.log.audit.entry import AuditEntry
from cloister.log.audit.keys import KEY_FILE, HostKey
from cloister.log.sqlite.reader import AuditReader
from cloister.server.audit_log import REFUSAL_SECONDS, REFUSALS, Refusals

pytestmark = pytest.mark.anyio


def of_kind(settings: Settings, *kinds: str) -> list[tuple[str, str, dict[str, object]]]:
    with AuditReader(settings.log_path) as audit:
        return [(e.kind, e.who, json.loads(e.detail)) for e in audit.page(limit=100_000) if e.kind in kinds]


async def test_a_call_that_changes_something_is_entered_before_it_is_answered(
    served: Served, settings: Settings
) -> None:
    fence = await served.claimed_run()
    reply = await served.client.post(f"/v1/runs/{fence.run}/say", json={"text": "hello"})
    assert reply.status_code == 200
    route = f"/v1/runs/{fence.run}/say"
    entered = ("ApiCall", "tester", {"method": "POST", "route": route, "status": 200})
    assert of_kind(settings, "ApiCall") == [entered]
    await served.client.delete("/v1/sandboxes/s-none?secret=x")
    refused = ("ApiCall", "tester", {"method": "DELETE", "route": "/v1/sandboxes/s-none", "status": 404})
    assert of_kind(settings, "ApiCall") == [entered, refused]


async def test_reading_is_not_entered_but_the_first_use_of_a_token_is(
    served: Served, settings: Settings
) -> None:
    for _ in range(3):
        await served.client.get("/v1/runs")
    assert of_kind(settings, "ApiCall", "Login") == [
        ("Login", "tester", {"method": "GET", "route": "/v1/runs"})
    ]
    await served.client.get("/v1/health")
    assert len(of_kind(settings, "Login")) == 1


async def test_every_websocket_that_is_opened_is_a_login(served: Served, settings: Settings) -> None:
    fence = await served.claimed_run()
    for _ in range(2):
        async with served.socket(f"/v1/runs/{fence.run}/stream") as socket:
            await socket.recv()
    route = f"/v1/runs/{fence.run}/stream"
    assert of_kind(settings, "Login") == [("Login", "tester", {"method": "WS", "route": route})] * 2


async def test_refused_callers_are_audited_up_to_a_limit(served: Served, settings: Settings) -> None:
    async with httpx.AsyncClient(
        timeout=30, trust_env=False, base_url=f"http://127.0.0.1:{served.port}"
    ) as stranger:
        for _ in range(REFUSALS + 5):
            reply = await stranger.post("/v1/runs", headers={"Authorization": "Bearer guess-s3cret"}, json={})
            assert reply.status_code == 401
    found = of_kind(settings, "LoginRefused", "ApiCall", "Login")
    assert len(found) == REFUSALS
    assert found[0] == (
        "LoginRefused",
        "",
        {"method": "POST", "route": "/v1/runs", "status": 401, "left_out": 0},
    )
    assert "s3cret" not in str(found)


async def test_a_page_of_another_site_is_entered_as_refused(served: Served, settings: Settings) -> None:
    with pytest.raises(InvalidStatus):
        async with served.socket("/v1/runs/x/stream", origin="http://evil.example"):
            pass
    await served.client.post("/v1/runs", headers={"Origin": "http://evil.example"})
    await served.client.get("/v1/runs", headers={"Host": "evil.example"})
    found = of_kind(settings, "LoginRefused", "ApiCall", "Login")
    assert [(kind, detail["status"]) for kind, _, detail in found] == [
        ("LoginRefused", 403),
        ("LoginRefused", 403),
        ("LoginRefused", 421),
    ]


def test_the_next_entry_counts_refusals_left_out() -> None:
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    assert [refusals.enter() for _ in range(REFUSALS + 7)] == [0] * REFUSALS + [None] * 7
    now[0] += REFUSAL_SECONDS
    assert [refusals.enter(), refusals.enter()] == [7, 0]


async def test_the_audit_is_read_in_pages_and_by_run(served: Served) -> None:
    fence = await served.claimed_run()
    other = await served.claimed_run()
    everything = (await served.client.get("/v1/audit")).json()
    assert [entry["number"] for entry in everything] == list(range(1, len(everything) + 1))
    second = (await served.client.get("/v1/audit?after=1&limit=1")).json()
    assert second == [everything[1]]
    of_one = (await served.client.get(f"/v1/audit?run={fence.run}")).json()
    assert {entry["run"] for entry in of_one} == {fence.run}
    assert other.run in {entry["run"] for entry in everything}
    assert (await served.client.get("/v1/audit?run=r-none")).status_code == 404
    assert (await served.client.get("/v1/audit?limit=0")).status_code == 400


async def test_the_verdict_is_given_over_http(served: Served, settings: Settings) -> None:
    fence = await served.claimed_run()
    await served.app.backbone.append(fence, [RunFinished("failed", "no")])
    key = HostKey(settings.data_dir / KEY_FILE).public()
    verdict = (await served.client.get("/v1/audit/verify", params={"key": key})).json()
    assert (verdict["ok"], verdict["key"]) == (True, key)
    assert (await served.client.get("/v1/audit/verify?key=nonsense")).status_code == 400
    with sqlite3.connect(settings.log_path) as db:
        db.execute("DROP TRIGGER audit_never_changes")
        db.execute("UPDATE audit SET who = 'nobody' WHERE number = 1")
    db.close()
    verdict = (await served.client.get("/v1/audit/verify")).json()
    assert (verdict["ok"], verdict["problems"][0]["number"]) == (False, 1)


async def test_a_receipt_comes_as_json_and_as_a_page(served: Served) -> None:
    fence = await served.claimed_run("do [it](http://evil.example)")
    await served.app.backbone.append(fence, [RunFinished("failed", "no")])
    made = (await served.client.get(f"/v1/runs/{fence.run}/receipt")).json()
    assert (made["run"], made["outcome"], made["prompt"]) == (
        fence.run,
        "failed",
        "do [it](http://evil.example)",
    )
    assert made["seal"]["run"] == fence.run
    text = await served.client.get(f"/v1/runs/{fence.run}/receipt/markdown")
    assert text.headers["content-type"].startswith("text/plain")
    assert "`do [it](http://evil.example)`" in text.text
    assert (await served.client.get("/v1/runs/r-none/receipt")).status_code == 404


async def test_unsigned_entries_are_signed_on_request(serving: Serve, settings: Settings) -> None:
    async with serving() as served:
        await served.client.post("/v1/runs/none/stop")
        await served.app.backbone.sign_audit()
    with AuditReader(settings.log_path) as audit:
        last: AuditEntry = list(audit.page(limit=100_000))[-1]
        assert audit.checkpoints(0, last.number)[-1].number == last.number


async def test_connections_of_a_sandbox_made_by_hand_are_entered_too(data_dir: Path) -> None:
    settings = read_settings({"PATH": os.environ["PATH"], "USER": "tester"}, data_dir)
    line = (
        "exec 3<>/dev/tcp/127.0.0.1/3128; "
        r"printf 'CONNECT nowhere.example:443 HTTP/1.1\r\n\r\n' >&3; head -c 12 <&3"
    )
    async with serve_app(settings) as served:
        made = await served.client.post("/v1/sandboxes", json={}, timeout=120)
        sandbox = made.json()["id"]
        done = await served.client.post(f"/v1/sandboxes/{sandbox}/exec", json={"command": line})
        assert done.json()["stdout"] == "HTTP/1.1 403"
        await served.client.delete(f"/v1/sandboxes/{sandbox}")
    ((_, who, detail),) = of_kind(settings, "ConnectionDecided")
    assert (who, detail["sandbox"], detail["host"], detail["effect"]) == (
        "tester",
        sandbox,
        "nowhere.example",
        "deny",
    )
    routes = [(detail["method"], detail["status"]) for _, _, detail in of_kind(settings, "ApiCall")]
    assert routes == [("POST", 201), ("POST", 200), ("DELETE", 204)]


# Commands and files in sandboxes made by hand.


@pytest.fixture
async def working(data_dir: Path) -> AsyncIterator[tuple[Served, Settings, str]]:
    settings = read_settings({"USER": "tester"}, data_dir)
    async with serve_app(settings) as served:
        made = await served.client.post("/v1/sandboxes", json={"ttl_seconds": 300})
        yield served, settings, made.json()["id"]


def stated(settings: Settings, kind: str, sandbox: str, *fields: str) -> list[tuple[object, ...]]:
    found = [detail for _, _, detail in of_kind(settings, kind) if detail["sandbox"] == sandbox]
    return [tuple(detail.get(name) for name in fields) for detail in found]


async def test_every_command_in_a_sandbox_has_an_entry_with_its_line(
    working: tuple[Served, Settings, str],
) -> None:
    served, settings, sandbox = working
    at = f"/v1/sandboxes/{sandbox}"
    post = served.client.post
    await post(
        f"{at}/exec", json={"argv": ["printf", "%s", "a b"], "env": {"KEY": "s3cret"}, "stdin": "s3cret"}
    )
    await post(f"{at}/exec", json={"command": "echo hi | cat", "user": "root"})
    await post(f"{at}/execute", json={"language": "python", "code": "print(1)"})
    started = (await post(f"{at}/commands", json={"command": "while :; do read x; done"})).json()["id"]
    await served.client.delete(f"{at}/commands/{started}")
    async with served.socket(f"{at}/process") as socket:
        await socket.send(json.dumps({"start": {"argv": ["true"], "pty": {}}}))
        await socket.recv()
    assert stated(settings, "CommandStarted", sandbox, "command", "user", "how") == [
        ("printf %s 'a b'", "agent", "exec"),
        ("echo hi | cat", "root", "exec"),
        ("print(1)", "agent", "python"),
        ("while :; do read x; done", "agent", "background"),
        ("true", "agent", "terminal"),
    ]
    assert stated(settings, "CommandKilled", sandbox, "command") == [(started,)]
    assert "s3cret" not in str(of_kind(settings, "CommandStarted", "CommandKilled", "ApiCall"))
    bad = await post(f"{at}/exec", json={"argv": ["true"], "command": "true"})
    assert bad.status_code == 400
    assert len(stated(settings, "CommandStarted", sandbox)) == 5, "a refused request is no command"


async def test_the_start_the_restart_and_the_end_of_a_context_are_entered(
    working: tuple[Served, Settings, str],
) -> None:
    served, settings, sandbox = working
    at = f"/v1/sandboxes/{sandbox}/contexts"
    made = (await served.client.post(at, json={})).json()["id"]
    assert (await served.client.post(f"{at}/{made}/restart")).status_code == 200
    assert (await served.client.delete(f"{at}/{made}")).status_code == 204
    assert stated(settings, "CommandStarted", sandbox, "command", "how") == [("python3", "context")] * 2
    assert stated(settings, "ContextRemoved", sandbox, "context") == [(made,)]


async def test_what_a_person_lets_remove_is_entered_in_their_name(settings: Settings) -> None:
    file = msgspec.structs.replace(settings.file, retention=Retention(files_days=0))
    async with serve_app(msgspec.structs.replace(settings, file=file)) as served:
        fence = await served.claimed_run()
        await served.app.backbone.append(fence, [RunFinished("failed", "no")])
        bare_repository(settings.data_dir, fence.run).mkdir(parents=True)
        bob = {"Authorization": f"Bearer {Tokens(settings.data_dir).add('bob', 'admin', 'tester')}"}
        done = await served.client.post("/v1/gc", json={}, headers=bob)
    assert [(one["kind"], one["id"]) for one in done.json()] == [("files", fence.run)], done.text
    assert of_kind(settings, "RunRemoved") == [("RunRemoved", "bob", {"run": fence.run})]


async def test_a_command_line_is_entered_within_bounds_and_without_passwords(
    working: tuple[Served, Settings, str],
) -> None:
    served, settings, sandbox = working
    long = "true " + "x" * 50_000
    lines = ["git clone https://ada:s3cret@example.org/x || true", f"{long} https://ada:s3cret@h/ {long}"]
    for line in lines:
        await served.client.post(f"/v1/sandboxes/{sandbox}/exec", json={"command": line})
    first, second = [str(found[0]) for found in stated(settings, "CommandStarted", sandbox, "command")]
    assert first == "git clone https://example.org/x || true"
    assert len(second) < 600 and "s3cret" not in second


async def test_every_change_of_a_file_in_a_sandbox_has_an_entry_with_its_path(
    working: tuple[Served, Settings, str],
) -> None:
    served, settings, sandbox = working
    verbs = LocalVerbs(served.app, Caller("ada", "admin"))
    at = f"/v1/sandboxes/{sandbox}/files"
    assert (await served.client.put(at, params={"path": "a.txt"}, content=b"s3cret")).status_code == 204
    async with verbs.files.write(sandbox, "b.txt") as sink:
        await sink.send(b"s3cret")
    await verbs.files.mkdir(sandbox, "d")
    await verbs.files.move(sandbox, "b.txt", "d/b.txt")
    await verbs.files.remove(sandbox, "d", recursive=True)
    await verbs.files.list(sandbox)
    assert stated(settings, "FileChanged", sandbox, "operation", "path", "to") == [
        ("write", "a.txt", None),
        ("write", "b.txt", None),
        ("mkdir", "d", None),
        ("move", "b.txt", "d/b.txt"),
        ("remove", "d", None),
    ]
    who = [name for _, name, detail in of_kind(settings, "FileChanged") if detail["sandbox"] == sandbox]
    assert who == ["tester", "ada", "ada", "ada", "ada"]
    assert "s3cret" not in str(of_kind(settings, "FileChanged"))
    with pytest.raises(UserError):
        await verbs.files.remove("s-none", "x")
    with pytest.raises(UserError):
        async with LocalVerbs(served.app, Caller("vera", "viewer")).files.write(sandbox, "c.txt"):
            pass
    assert len(stated(settings, "FileChanged", sandbox)) == 5
