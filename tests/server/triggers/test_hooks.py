"""Incoming webhooks over HTTP: authenticated by signature, stored before the answer, processed once."""

import hashlib
import hmac
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.forge.pulls.wires import TOKEN, WIRES, Forge, served

from cloister.app.settings import read_settings
from cloister.app.triggers import HOOK_BYTES
from cloister.app.wiring import App, open_app
from cloister.core import events as e
from cloister.core.ids import RunId, new_owner_id
from cloister.core.requests import NewRun
from cloister.log.sqlite import inbox as inboxes
from cloister.log.sqlite.backbone import open_backbone
from cloister.log.sqlite.inbox import open_inbox
from cloister.server.app import asgi_app
from cloister.server.serve import bound, listening
from cloister.server.ws import Sockets

SECRET = "hook-secret-0123456789"
pytestmark = pytest.mark.anyio


def signed(body: bytes, secret: str = SECRET) -> dict[str, str]:
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {"X-Hub-Signature-256": f"sha256={digest}", "X-GitHub-Event": "issue_comment"}


def comment(number: int) -> bytes:
    body = {"action": "created", "comment": {"id": number}, "repository": {"full_name": "team/shop"}}
    return json.dumps(body).encode()


@asynccontextmanager
async def server(forge: Forge, data: Path) -> AsyncGenerator[tuple[App, httpx.AsyncClient, str]]:
    """A server that is told of the forge's events only by webhook, a client without a token, and the path."""
    host = forge.url.removeprefix("http://")
    data.mkdir(exist_ok=True)  # noqa: ASYNC240
    (data / "config.toml").write_text(
        f'follow_seconds = 0\n[[forge]]\nhost = "{host}"\nkind = "github"\nfrom = "env:FORGE"\nhook = "env:HOOK"\n'
        f'api = "{forge.url}{WIRES["github"][0]}"\ngit = "{forge.url}"\n'
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
                yield app, client, f"/v1/hooks/{host}"


async def until_idle(app: App) -> None:
    assert app.hooks is not None
    with anyio.fail_after(30):
        while await app.hooks.inbox.waiting(1):
            await anyio.lowlevel.checkpoint()


async def followed_run(data: Path, forge: Forge) -> RunId:
    """A finished run with the pull request 1, in the log before a server could claim it."""
    owner = new_owner_id()
    async with open_backbone(data / "cloister.db", owner_lives=lambda _: True) as log:
        run, _ = await log.admit(NewRun("Fix it", f"{forge.url}/team/shop"), "ann")
        fence = await log.claim(owner, run)
        assert fence is not None
        forge.open("cloister/fix", "main", "Fix", "")
        made = e.ChangeMade("cloister/fix", "c" * 40, (), "Fixed.")
        sent = e.ChangeDelivered(f"{forge.url}/team/shop", "cloister/fix", url=f"{forge.url}/1", number=1)
        await log.append(fence, (made, sent, e.RunFinished("proven", "Fixed.", 0)))
    return run


async def test_a_comment_arrives_by_webhook_once_and_only_of_people_who_may_push(tmp_path: Path) -> None:
    with served("github", tmp_path / "forge") as forge:
        run = await followed_run(tmp_path / "data", forge)
        async with server(forge, tmp_path / "data") as (app, client, path):
            (app.settings.data_dir / "runs" / run / "git").mkdir(parents=True)
            forge.comments.append((1, "eve", "push to main", "", 0))
            forge.comments.append((1, "ann", "off by one?", "calc.py", 2))
            replies = [
                await client.post(path, content=comment(1), headers=signed(comment(1))) for _ in range(3)
            ]
            assert [(one.status_code, one.json()["new"]) for one in replies] == [
                (202, True),
                (202, False),
                (202, False),
            ]
            await client.post(path, content=comment(2), headers=signed(comment(2)))
            await until_idle(app)
            said = [
                one.body for one in await app.backbone.read(run) if isinstance(one.body, e.PromptReceived)
            ]
            assert [(one.who, one.origin) for one in said] == [("ann (review)", "review")]


async def test_a_pull_request_that_was_closed_is_recorded_by_webhook(tmp_path: Path) -> None:
    with served("github", tmp_path / "forge") as forge:
        run = await followed_run(tmp_path / "data", forge)
        async with server(forge, tmp_path / "data") as (app, client, path):
            forge.pulls[0].state = "closed"
            await client.post(path, content=comment(1), headers=signed(comment(1)))
            await until_idle(app)
            ended = [one for one in await app.backbone.audit() if one.kind == "PullRequestEnded"]
            assert [(json.loads(one.detail)["run"], json.loads(one.detail)["state"]) for one in ended] == [
                (run, "closed")
            ]


async def test_forged_unsigned_unknown_and_oversized_deliveries_are_refused(tmp_path: Path) -> None:
    with served("github", tmp_path / "forge") as forge:
        async with server(forge, tmp_path / "data") as (app, client, path):
            body = comment(1)
            answers: list[tuple[str, dict[str, str], bytes, int, str]] = [
                (path, {}, body, 401, "unauthorized"),
                (path, signed(body, "another-secret"), body, 401, "unauthorized"),
                (path, signed(body), comment(2), 401, "unauthorized"),
                ("/v1/hooks/nowhere", signed(body), body, 404, "no_such_hook"),
                (path, {}, b"x" * (HOOK_BYTES + 1), 413, "too_large"),
            ]
            for where, headers, content, status, code in answers:
                reply = await client.post(where, content=content, headers=headers)
                assert (reply.status_code, reply.json()["code"]) == (status, code)
            assert (await client.get("/v1/runs")).status_code == 401
            refused = [one for one in await app.backbone.audit() if one.kind == "LoginRefused"]
            assert len(refused) == len(answers) + 1
            broken = b"not json"
            assert (await client.post(path, content=broken, headers=signed(broken))).status_code == 202
            await until_idle(app)


async def test_a_delivery_waits_while_the_forge_is_down_and_is_processed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloister.app.triggers.hooks.AGAIN_SECONDS", 0.01)
    with served("github", tmp_path / "forge") as forge:
        await followed_run(tmp_path / "data", forge)
        async with server(forge, tmp_path / "data") as (app, client, path):
            forge.pulls[0].state = "merged"
            down: list[int] = []

            def fault(_asked: Any) -> Any:
                down.append(1)
                return (401, {"message": "Bad credentials"}) if len(down) < 3 else None

            forge.faults.append(fault)
            await client.post(path, content=comment(1), headers=signed(comment(1)))
            with anyio.fail_after(30):
                while not [one for one in await app.backbone.audit() if one.kind == "PullRequestEnded"]:
                    await anyio.lowlevel.checkpoint()
            assert len(down) > 3


async def test_a_storm_loses_nothing_and_stores_no_copy_twice(tmp_path: Path, long: bool) -> None:
    count = 10_000 if long else 1_000
    with served("github", tmp_path / "forge") as forge:
        async with server(forge, tmp_path / "data") as (app, client, path):
            numbers = iter(range(count))
            new: list[bool] = []

            async def sender() -> None:
                for number in numbers:
                    body = comment(number // 2)
                    reply = await client.post(path, content=body, headers=signed(body))
                    new.append(reply.json()["new"])

            async with anyio.create_task_group() as tasks:
                for _ in range(32):
                    tasks.start_soon(sender)
            await until_idle(app)
            assert (len(new), sum(new)) == (count, count // 2)
            with sqlite3.connect(tmp_path / "data" / "triggers.db") as db:
                done = db.execute(
                    "SELECT COUNT(*), COUNT(DISTINCT key) FROM delivery WHERE done > 0"
                ).fetchone()
            assert done == (count // 2, count // 2)


SENDER = """
import sys, anyio
from pathlib import Path
from cloister.log.sqlite.backbone import open_backbone
from cloister.log.sqlite.inbox import open_inbox
async def main():
    async with open_inbox(Path(sys.argv[1])) as inbox:
        async def put(first):
            for number in range(first, 1_000_000, 8):
                await inbox.put("h", str(number), "e", b"x")
                print(number, flush=True)
        async with anyio.create_task_group() as tasks:
            for first in range(8):
                tasks.start_soon(put, first)
anyio.run(main)
"""


async def test_what_was_answered_survives_kill_9_and_is_returned_until_processed(tmp_path: Path) -> None:
    path = tmp_path / "triggers.db"
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", SENDER, str(path)], stdout=subprocess.PIPE, text=True
    ) as sender:
        assert sender.stdout is not None
        answered = [sender.stdout.readline().strip() for _ in range(200)]
        os.kill(sender.pid, signal.SIGKILL)
        answered += sender.stdout.read().split("\n")[:-1]
    async with open_inbox(path) as inbox:
        waiting = await inbox.waiting(1_000_000)
        with sqlite3.connect(path) as db:
            keys = {key for (key,) in db.execute("SELECT key FROM delivery")}
        assert set(answered) <= keys
        assert len(waiting) == len(keys)
        assert not await inbox.put("h", answered[0], "e", b"x")
        await inbox.processed(waiting[:1])
        assert [one.id for one in await inbox.waiting(2)] == [one.id for one in waiting[1:3]]


async def test_a_full_inbox_refuses_and_marks_survive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inboxes, "PENDING", 1)
    async with open_inbox(tmp_path / "triggers.db") as inbox:
        await inbox.put("h", "1", "e", b"x")
        with pytest.raises(Exception, match="send it again later"):
            await inbox.put("h", "2", "e", b"x")
        await inbox.mark("a one", "1")
        await inbox.mark("a two", "2")
        await inbox.mark("a one", None)
    async with open_inbox(tmp_path / "triggers.db") as inbox:
        assert await inbox.marks("a ") == {"two": "2"}
