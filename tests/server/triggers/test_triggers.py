"""Triggers: a label, a mention, a webhook or the clock starts one run, and its end is posted where it was asked for."""

import hashlib
import hmac
import json
import sqlite3
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.forge.pulls.wires import TOKEN, WIRES, Forge, Reply, Request, served

from cloister.app.settings import read_settings
from cloister.app.triggers import start
from cloister.app.wiring import App, open_app
from cloister.core.events import RunAdmitted
from cloister.core.ids import RunId
from cloister.core.requests import NewRun
from cloister.forge.pulls.marks import looks_marked
from cloister.log.sqlite.inbox import Task, open_inbox
from cloister.server.app import asgi_app
from cloister.server.serve import bound, listening
from cloister.server.ws import Sockets
from cloister.testing.samples import SampleRepo

SECRET = "hook-secret-0123456789"
pytestmark = pytest.mark.anyio
TOLD = "<!-- cloister -->"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(start, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(start, "FIRST_PAUSE_SECONDS", 0.05)


@contextmanager
def forge_with_repository(kind: str, root: Path) -> Generator[Forge]:
    work = SampleRepo(root / "work")
    work.write("cart.py", "total = 1\n")
    work.commit("First")
    bare = root / "forge" / "team" / "shop.git"
    bare.parent.mkdir(parents=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(root / "work"), str(bare)], check=True)
    with served(kind, root / "forge") as forge:
        yield forge


@asynccontextmanager
async def server(
    forge: Forge, data: Path, triggers: str
) -> AsyncGenerator[tuple[App, httpx.AsyncClient, Callable[..., Any]]]:
    """A server with these triggers whose runs fail at once, a client without a token, and how the forge delivers."""
    host = forge.url.removeprefix("http://")
    data.mkdir(exist_ok=True)  # noqa: ASYNC240
    (data / "config.toml").write_text(
        f'follow_seconds = 0\n[[forge]]\nhost = "{host}"\nkind = "{forge.kind}"\nfrom = "env:FORGE"\nhook = "env:HOOK"\n'
        f'api = "{forge.url}{WIRES[forge.kind][0]}"\ngit = "{forge.url}"\n{triggers.replace("HOST", host)}'
    )
    known = {"CLOISTER_MODEL": "script:/nowhere.toml", "USER": "tester", "FORGE": TOKEN, "HOOK": SECRET}
    sockets = Sockets()
    async with open_app(read_settings(known, data), role="server") as app:
        with bound(0) as listener:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with (
                listening(asgi_app(app, "t" * 40, sockets), listener, sockets),
                httpx.AsyncClient(base_url=address, timeout=30, trust_env=False, verify=False) as client,
            ):

                async def deliver(event: str, body: dict[str, Any]) -> httpx.Response:
                    content = json.dumps({"repository": {"full_name": "team/shop"}, **body}).encode()
                    return await client.post(
                        f"/v1/hooks/{host}", content=content, headers=signed(content, event)
                    )

                yield app, client, deliver


def signed(body: bytes, event: str = "", secret: str = SECRET) -> dict[str, str]:
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {"X-Hub-Signature-256": f"sha256={digest}", "X-GitHub-Event": event}


ISSUE = {"number": 4, "title": "Totals", "body": "They are wrong.", "updated_at": "1"}
LABEL = '[[trigger]]\non = "label"\nname = "fix"\nlabel = "agent"\nrepos = ["HOST/team/*"]\nbudget = { steps = 7 }\n'
MENTION = '[[trigger]]\non = "mention"\nname = "ask"\nmention = "bot"\nrepos = ["HOST/*"]\nkind = "chore"\n'
HOOK = '[[trigger]]\non = "hook"\nname = "alert"\nfrom = "env:HOOK"\nrepo = "http://HOST/team/shop"\nprompt = "Fix {{alert.name}} of {{alert.hosts.0}}"\n'


def labeled(who: str = "ann", at: str = "1", name: str = "agent") -> dict[str, Any]:
    issue = {**ISSUE, "updated_at": at}
    return {"action": "labeled", "label": {"name": name}, "issue": issue, "sender": {"login": who}}


def comment(number: int, text: str, who: str = "ann") -> dict[str, Any]:
    said = {"id": number, "body": text}
    return {"action": "created", "comment": said, "issue": ISSUE, "sender": {"login": who}}


async def until(true: Callable[[], Awaitable[object]]) -> None:
    with anyio.fail_after(60):
        while True:
            if await true():
                return
            await anyio.sleep(0.01)


async def admitted(app: App) -> list[RunAdmitted]:
    found = [(await app.backbone.read(one.id, limit=1))[0].body for one in await app.backbone.runs(1_000)]
    return [one for one in reversed(found) if isinstance(one, RunAdmitted)]


async def settled(app: App) -> None:
    """Every delivery is processed and every request is answered."""
    assert app.hooks is not None
    inbox = app.hooks.inbox

    async def idle() -> bool:
        return not (await inbox.waiting(1) or await inbox.tasks("ask") or await inbox.tasks("tell"))

    await until(idle)


async def test_a_label_of_a_person_who_may_push_starts_one_run_and_hears_of_its_end(
    tmp_path: Path,
) -> None:
    with forge_with_repository("github", tmp_path) as forge:
        async with server(forge, tmp_path / "data", LABEL) as (app, _, deliver):
            await deliver("issues", labeled("eve"))
            await deliver("issues", labeled(name="other"))
            for _ in range(3):
                assert (await deliver("issues", labeled())).status_code == 202
            await deliver("issues", labeled() | {"organization": {"login": "team"}})  # a second webhook
            await settled(app)
            (run,) = await admitted(app)
            assert (run.who, run.request.origin, run.request.budget.steps) == ("ann (trigger)", "issue", 7)
            assert (run.request.prompt, run.request.issue) == ("Totals\n\nThey are wrong.", 4)
            (row,) = await app.backbone.runs(10)
            said = [text for spot, who, text, _, _ in forge.comments if (spot, who) == (4, "cloister")]
            assert [f"Run `{row.id}` has started" in said[0], f"Run `{row.id}` ended" in said[1]] == [
                True,
                True,
            ]
            assert len(said) == 2
            assert all(looks_marked(text) for text in said)
            notes = [one for one in await app.backbone.audit() if one.kind == "TriggerStarted"]
            assert [json.loads(one.detail)["trigger"] for one in notes] == ["fix"]


async def test_a_mention_starts_a_run_and_our_own_comments_never_do(tmp_path: Path) -> None:
    with forge_with_repository("github", tmp_path) as forge:
        async with server(forge, tmp_path / "data", MENTION) as (app, _, deliver):
            await deliver("issue_comment", comment(1, f"{TOLD}\n@bot fix it"))
            await deliver("issue_comment", comment(2, "nothing for you"))
            await deliver("issue_comment", comment(3, "@bot fix it", "eve"))
            await deliver("issue_comment", comment(4, "@bot fix it " + "x" * 1_000_000))
            await settled(app)
            (run,) = await admitted(app)
            assert run.request.kind == "chore"
            assert "@bot fix it" in run.request.prompt
            assert len(run.request.prompt) < 30_000


async def test_a_mention_whose_author_the_token_may_not_ask_about_is_refused_in_words(tmp_path: Path) -> None:
    with forge_with_repository("bitbucket", tmp_path) as forge:
        async with server(forge, tmp_path / "data", MENTION) as (app, client, _):
            host, forge.discreet = forge.url.removeprefix("http://"), True
            body = json.dumps(
                {
                    "repository": {"full_name": "team/shop"},
                    "actor": {"uuid": "{ann}", "nickname": "ann"},
                    "comment": {"id": 8, "content": {"raw": "@{bot} fix it"}},
                    "issue": {"id": 4, "title": "Totals"},
                }
            ).encode()
            signature = signed(body)["X-Hub-Signature-256"]
            headers = {"X-Hub-Signature": signature, "X-Event-Key": "issue:comment_created"}
            assert (await client.post(f"/v1/hooks/{host}", content=body, headers=headers)).status_code == 202
            await settled(app)
            assert await admitted(app) == []
            ((_, _, said, _, _),) = forge.comments
            assert "repository:admin" in said
            assert "TriggerRefused" in [one.kind for one in await app.backbone.audit()]


async def test_gitea_which_lists_labels_starts_a_run_when_the_label_is_new(tmp_path: Path) -> None:
    def listed(at: int, *names: str) -> dict[str, Any]:
        labels = [{"name": one} for one in names]
        issue = {**ISSUE, "updated_at": str(at), "labels": labels}
        return {"action": "label_updated", "issue": issue, "sender": {"login": "ann"}}

    with forge_with_repository("gitea", tmp_path) as forge:
        async with server(forge, tmp_path / "data", LABEL) as (app, _, deliver):
            for at, names in enumerate((("agent",), ("agent", "more"), ("more",), ("agent",))):
                await deliver("issues", listed(at, *names))
                await settled(app)
            assert len(await admitted(app)) == 2


async def test_a_request_waits_while_the_forge_is_down_or_the_token_is_revoked(tmp_path: Path) -> None:
    with forge_with_repository("github", tmp_path) as forge:
        async with server(forge, tmp_path / "data", LABEL) as (app, _, deliver):
            limited: Reply = (403, {"message": "API rate limit exceeded"}, {"x-ratelimit-remaining": "0"})
            answers: list[Reply] = [(401, {"message": "Bad credentials"}), (500, {}), limited]

            def fault(asked: Request) -> Reply | None:
                return answers.pop() if answers and "collaborators" in asked.path else None

            forge.faults.append(fault)
            forge.lost.add("POST")  # the first comment arrives, and its reply does not
            await deliver("issues", labeled())
            await settled(app)
            assert not answers
            assert len(await admitted(app)) == 1
            assert len([one for one in forge.comments if "has started" in one[2]]) == 1


async def test_what_was_asked_survives_a_restart_and_starts_once(tmp_path: Path) -> None:
    with forge_with_repository("github", tmp_path) as forge:
        down: list[Callable[[Request], Reply | None]] = [lambda asked: (503, {})]
        forge.faults += down
        async with server(forge, tmp_path / "data", LABEL) as (app, _, deliver):
            await deliver("issues", labeled())
            assert app.hooks is not None
            inbox = app.hooks.inbox
            await until(lambda: inbox.tasks("ask"))
        forge.faults.clear()
        async with server(forge, tmp_path / "data", LABEL) as (app, _, deliver):
            assert not (await deliver("issues", labeled())).json()["new"]
            await settled(app)
            assert len(await admitted(app)) == 1


async def test_a_webhook_of_any_sender_fills_a_prompt_and_is_refused_if_forged_or_repeated(
    tmp_path: Path,
) -> None:
    with forge_with_repository("github", tmp_path) as forge:
        async with server(forge, tmp_path / "data", HOOK) as (app, client, _):
            body = json.dumps({"alert": {"name": "disk\u202e {{alert.hosts.0}}", "hosts": ["db1"]}}).encode()
            sent = [
                await client.post("/v1/hooks/alert", content=content, headers=headers)
                for content, headers in (
                    (body, {}),
                    (body, signed(body, secret="other")),
                    (body, {"X-Hook-Token": SECRET + "x"}),
                    (
                        body,
                        {b"webhook-id": b"1", b"webhook-timestamp": b"\xb2", b"webhook-signature": b"v1,x"},
                    ),
                    (b"not json", signed(b"not json")),
                    (body, signed(body)),
                    (body, signed(body)),
                    (body, {"X-Hook-Token": SECRET, "Idempotency-Key": "2"}),
                )
            ]
            assert [one.status_code for one in sent] == [401, 401, 401, 401, 400, 202, 202, 202]
            assert [one.json().get("new") for one in sent[5:]] == [True, False, True]
            await settled(app)
            runs = await admitted(app)
            assert len(runs) == 2
            assert runs[0].request.prompt == "Fix disk\\x202e {{alert.hosts.0}} of db1"
            assert (runs[0].request.origin, runs[0].who) == ("web", "trigger alert")


async def test_a_delivery_starts_a_run_also_after_the_file_of_deliveries_was_lost(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with forge_with_repository("github", tmp_path) as forge:
        for number in range(2):
            body = json.dumps({"number": number}).encode()
            async with server(forge, data, HOOK) as (app, client, _):
                answer = await client.post("/v1/hooks/alert", content=body, headers=signed(body))
                assert answer.json()["new"]
                await settled(app)
                assert len(await admitted(app)) == number + 1
            for file in data.glob("triggers.db*"):
                file.unlink()


async def test_a_file_of_deliveries_without_random_names_is_read(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "triggers.db")) as db:
        db.execute(
            """CREATE TABLE delivery (id INTEGER PRIMARY KEY, hook TEXT NOT NULL, key TEXT NOT NULL,
            event TEXT NOT NULL, body BLOB NOT NULL, at REAL NOT NULL, done REAL, UNIQUE (hook, key)) STRICT"""
        )
        db.execute("INSERT INTO delivery VALUES (7, 'alert', 'k', '', x'', 1.0, NULL)")
        db.commit()
    async with open_inbox(tmp_path / "triggers.db") as inbox:
        assert await inbox.put("alert", "other", "", b"")
        assert not await inbox.put("alert", "k", "", b"")
        old, new = [one.name for one in await inbox.waiting()]
        assert (old, new[:2], len(new)) == ("7", "8-", 18)


async def test_an_unknown_webhook_is_refused_before_its_body_arrives(tmp_path: Path) -> None:
    with forge_with_repository("github", tmp_path) as forge:
        async with server(forge, tmp_path / "data", HOOK) as (_, client, _):
            head = "POST /v1/hooks/nobody HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
            async with await anyio.connect_tcp("127.0.0.1", client.base_url.port or 0) as stream:
                with anyio.fail_after(60):
                    await stream.send(head.encode())
                    assert (await stream.receive()).startswith(b"HTTP/1.1 404")


async def test_a_caller_cannot_take_the_key_of_a_trigger(tmp_path: Path) -> None:
    admin = {"Authorization": f"Bearer {'t' * 40}"}
    with forge_with_repository("github", tmp_path) as forge:
        async with server(forge, tmp_path / "data", HOOK) as (_, client, _):
            wish = {"prompt": "p", "repo": str(tmp_path / "work")}
            key = "trigger alert 1"
            answers = [
                await client.post("/v1/runs", json={**wish, "key": key}, headers=admin),
                await client.post("/v1/runs", json=wish, headers={**admin, "Idempotency-Key": key}),
            ]
            assert [(one.status_code, one.json()["code"]) for one in answers] == [(400, "bad_request")] * 2


async def test_only_as_many_runs_as_the_trigger_allows_are_unfinished(tmp_path: Path) -> None:
    with forge_with_repository("github", tmp_path) as forge:
        async with server(forge, tmp_path / "data", HOOK + "at_most = 1\n") as (app, client, _):
            most = 0
            for number in range(5):
                body = json.dumps({"number": number}).encode()
                await client.post("/v1/hooks/alert", content=body, headers=signed(body))
            assert app.hooks is not None

            async def all_started() -> bool:
                nonlocal most
                rows = await app.backbone.runs(10)
                most = max(most, sum(one.state != "finished" for one in rows))
                return len(rows) == 5

            await until(all_started)
            assert most == 1


async def test_requests_of_a_trigger_that_is_full_do_not_hold_up_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_BATCH", 1)
    other = HOOK.replace('"alert"', '"other"')
    with forge_with_repository("github", tmp_path) as forge:
        async with server(forge, tmp_path / "data", f"{HOOK}at_most = 1\n{other}") as (app, client, _):
            assert app.hooks is not None
            fence, run = None, RunId("")
            while fence is None:  # a run that does not end; the server may be faster, and drive it itself
                run, _ = await app.backbone.admit(NewRun("p", "/nowhere"), "ann")
                fence = await app.backbone.claim(app.owner, run)
            await app.hooks.inbox.add(Task(f"tell {run}", "tell", "alert", b'{"repo": "/nowhere"}'))
            for number in range(10):
                body = json.dumps({"number": number}).encode()
                await client.post("/v1/hooks/alert", content=body, headers=signed(body))
            await client.post("/v1/hooks/other", content=b"{}", headers=signed(b"{}"))

            async def started() -> bool:
                return "trigger other" in [one.who for one in await admitted(app)]

            await until(started)
            assert "trigger alert" not in [one.who for one in await admitted(app)]


async def test_a_pause_outlives_a_restart_and_its_webhook_says_so(tmp_path: Path) -> None:
    admin = {"Authorization": f"Bearer {'t' * 40}"}
    body = b"{}"
    with forge_with_repository("github", tmp_path) as forge:
        async with server(forge, tmp_path / "data", HOOK) as (_, client, _):
            paused = await client.post("/v1/triggers/alert/pause", json={}, headers=admin)
            assert paused.json()["paused"] is True
        async with server(forge, tmp_path / "data", HOOK) as (app, client, _):
            refused = await client.post("/v1/hooks/alert", content=body, headers=signed(body))
            assert (refused.status_code, refused.json()["code"]) == (409, "trigger_paused")
            await client.post("/v1/triggers/alert/pause", json={"paused": False}, headers=admin)
            await client.post("/v1/hooks/alert", content=body, headers=signed(body))
            await settled(app)
            (found,) = (await client.get("/v1/triggers", headers=admin)).json()
            (row,) = await app.backbone.runs(10)
            assert (found["last_run"], found["running"], found["on"]) == (row.id, 0, "hook")
            by_hand = await client.post(
                "/v1/triggers/alert/run", json={"fields": {"alert.name": "x"}}, headers=admin
            )
            assert by_hand.status_code == 201
            assert [one.request.prompt for one in await admitted(app)][-1] == "Fix x of (none)"


async def test_a_schedule_that_was_missed_runs_once_and_a_new_one_waits_for_its_time(tmp_path: Path) -> None:
    every = '[[trigger]]\non = "schedule"\nname = "nightly"\ncron = "* * * * *"\nrepo = "http://HOST/team/shop"\nprompt = "Update {{x}}"\n'
    with forge_with_repository("github", tmp_path) as forge:
        async with server(forge, tmp_path / "data", every) as (app, _, _):
            assert app.hooks is not None
            inbox = app.hooks.inbox
            await until(lambda: inbox.marks("tick "))
            before = await admitted(app)
            assert all(one.who == "trigger nightly" for one in before)
            await inbox.mark("tick nightly", str(app.hooks.now() - 7_300))  # two hours ago
        async with server(forge, tmp_path / "data", every) as (app, _, _):

            async def more() -> bool:
                return len(await admitted(app)) > len(before)

            await until(more)
            await settled(app)
            runs = (await admitted(app))[len(before) :]
            assert len(runs) == 1
            assert (runs[0].request.origin, runs[0].request.prompt) == ("user", "Update {{x}}")


async def test_a_storm_of_webhooks_loses_no_request_and_makes_none_twice(tmp_path: Path, long: bool) -> None:
    count = 10_000 if long else 400
    with forge_with_repository("github", tmp_path) as forge:
        async with server(forge, tmp_path / "data", HOOK + "at_most = 1\n") as (app, client, _):
            numbers = iter(range(2 * count))

            async def sender() -> None:
                for number in numbers:
                    body = json.dumps({"number": number // 2}).encode()
                    reply = await client.post("/v1/hooks/alert", content=body, headers=signed(body))
                    assert reply.status_code == 202

            async with anyio.create_task_group() as tasks:
                for _ in range(32):
                    tasks.start_soon(sender)
            assert app.hooks is not None
            inbox = app.hooks.inbox

            async def processed() -> bool:
                return not await inbox.waiting(1)

            await until(processed)
            waiting = [f"trigger {one.name}" for one in await inbox.tasks("ask", limit=2 * count)]
            runs = [one.request.key for one in await admitted(app)]
            assert (len(set(waiting) | set(runs)), len(runs)) == (count, len(set(runs)))
