"""Slack: a mention starts a run, its thread talks with it, buttons answer its questions; nothing in a message acts."""

import hashlib
import hmac
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import anyio
import httpx
import pytest
from tests.server.triggers.slack_server import APP, BOT, Slack, workspace

from cloister.app.settings import read_settings
from cloister.app.triggers import slack as slack_module
from cloister.app.triggers import slack_api, start, threads
from cloister.app.triggers.slack import Said, end_blocks, escaped, heard
from cloister.app.wiring import App, open_app
from cloister.core import events as e
from cloister.core.ids import RunId
from cloister.core.requests import NewRun
from cloister.log.sqlite.inbox import Task
from cloister.server.app import asgi_app
from cloister.server.serve import bound, listening
from cloister.server.ws import Sockets
from cloister.testing.samples import SampleRepo

SECRET = "signing-secret"
pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(threads, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(start, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(slack_api, "FIRST_PAUSE_SECONDS", 0.05)


@asynccontextmanager
async def server(slack: Slack, root: Path, more: str = "") -> AsyncGenerator[tuple[App, httpx.AsyncClient]]:
    """A server with one Slack trigger."""
    data, repo = root / "data", root / "repo"
    data.mkdir(exist_ok=True)
    if not repo.exists():
        work = SampleRepo(repo)
        work.write("cart.py", "total = 1\n")
        work.commit("First")
    (data / "config.toml").write_text(
        f'[[trigger]]\non = "slack"\nname = "chat"\nbot = "env:BOT"\nsigning = "env:SIGNING"\nrepo = "{repo}"\n'
        f'people = ["UANN"]\napi = "{slack.url}"\n{more}'
    )
    known = {
        "CLOISTER_MODEL": "script:/nowhere.toml",
        "USER": "tester",
        "BOT": BOT,
        "APP": APP,
        "SIGNING": SECRET,
    }
    sockets = Sockets()
    async with open_app(read_settings(known, data), role="server") as app:
        with bound(0) as listener:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with (
                listening(asgi_app(app, "t" * 40, sockets), listener, sockets),
                httpx.AsyncClient(base_url=address, timeout=30, trust_env=False, verify=False) as client,
            ):
                yield app, client


def signed(body: bytes, at: float | None = None, secret: str = SECRET) -> dict[str, str]:
    stamp = str(int(time.time() if at is None else at))
    digest = hmac.new(secret.encode(), f"v0:{stamp}:".encode() + body, hashlib.sha256).hexdigest()
    return {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": f"v0={digest}"}


def event(number: int, kind: str, text: str, user: str = "UANN", **more: str) -> dict[str, Any]:
    said = {"type": kind, "user": user, "text": text, "channel": "C1", "ts": f"100.{number}", **more}
    return {"type": "event_callback", "event_id": f"Ev{number}", "event": said}


async def send(client: httpx.AsyncClient, payload: dict[str, Any]) -> httpx.Response:
    body = json.dumps(payload).encode()
    return await client.post("/v1/hooks/chat", content=body, headers=signed(body))


async def until(true: Callable[[], Awaitable[object]]) -> None:
    with anyio.fail_after(20):
        while True:
            if await true():
                return
            await anyio.sleep(0.01)


async def settled(app: App) -> None:
    assert app.hooks is not None
    inbox = app.hooks.inbox

    async def idle() -> bool:
        return not (await inbox.waiting(1) or await inbox.tasks("slack") or await inbox.tasks("thread"))

    await until(idle)


async def test_a_mention_starts_one_run_whose_state_and_end_are_in_its_thread(tmp_path: Path) -> None:
    async with workspace() as slack, server(slack, tmp_path) as (app, client):
        mention = event(1, "app_mention", "<@UBOT> fix the &lt;total&gt;")
        slack.failures.append((429, {}))
        assert [(await send(client, mention)).json()["new"] for _ in range(3)] == [True, False, False]
        await send(client, event(2, "app_mention", "<@UBOT> push to main", "UEVE"))
        await send(client, event(3, "message", "just talking"))
        await settled(app)
        (row,) = await app.backbone.runs(10)
        first = (await app.backbone.read(row.id, limit=1))[0].body
        assert isinstance(first, e.RunAdmitted)
        assert (first.who, first.request.prompt, first.request.origin) == (
            "UANN (Slack)",
            "fix the <total>",
            "user",
        )
        assert {(one["channel"], one["thread_ts"]) for one in slack.messages} == {("C1", "100.1")}
        assert slack.shown()[0] == f"Run {row.id}: {row.outcome}"
        assert slack.shown()[1].startswith(f"Run {row.id} ended: {row.outcome}")
        assert len(slack.messages) == 2


async def test_a_reply_in_the_thread_continues_its_run_once(tmp_path: Path) -> None:
    async with workspace() as slack, server(slack, tmp_path) as (app, client):
        await send(client, event(1, "app_mention", "<@UBOT> fix it", thread_ts="99.1"))
        await send(client, event(2, "message", "<@UBOT> fix it", ts="100.1", thread_ts="99.1"))
        await send(client, event(3, "message", "and the sum", thread_ts="99.1"))
        await send(client, event(4, "app_mention", "<@UBOT> and the sum", ts="100.3", thread_ts="99.1"))
        await send(client, event(5, "message", "not mine", "UEVE", thread_ts="99.1"))
        await settled(app)
        (row,) = await app.backbone.runs(10)
        said = [one.body for one in await app.backbone.read(row.id) if isinstance(one.body, e.PromptReceived)]
        assert [(one.text, one.who) for one in said] == [("and the sum", "UANN (Slack)")]


async def test_a_question_has_buttons_that_only_approvers_and_only_its_own_thread_can_use(
    tmp_path: Path,
) -> None:
    async with (
        workspace() as slack,
        server(slack, tmp_path, 'approvers = ["UBOSS"]\nat_most = 1\n') as (app, client),
    ):
        run = await _asking(app)

        async def asked() -> bool:
            return len(slack.messages) == 2

        await until(asked)
        (actions,) = [one for one in slack.messages[1]["blocks"] if one["type"] == "actions"]
        assert [one["value"] for one in actions["elements"]] == [f"{run} a-1"] * 2

        async def press(number: int, user: str, thread: str) -> None:
            payload = {
                "type": "block_actions",
                "user": {"id": user},
                "container": {"channel_id": "C1"},
                "message": {"thread_ts": thread},
                "actions": [{"action_id": "allow", "value": f"{run} a-1", "action_ts": f"5.{number}"}],
            }
            body = urlencode({"payload": json.dumps(payload)}).encode()
            assert (
                await client.post("/v1/hooks/chat", content=body, headers=signed(body))
            ).status_code == 202

        async def answers() -> list[e.AskAnswered]:
            return [one.body for one in await app.backbone.read(run) if isinstance(one.body, e.AskAnswered)]

        await press(1, "UANN", "100.1")
        await press(2, "UBOSS", "777.7")
        await press(3, "UBOSS", "100.1")
        await until(answers)
        assert [(one.answer, one.who) for one in await answers()] == [("allow", "UBOSS (Slack)")]

        async def closed() -> bool:
            return slack.shown()[1].endswith("the question is answered")

        await until(closed)


async def test_mentions_that_wait_for_room_hide_no_reply_and_stop_stops_the_run(tmp_path: Path) -> None:
    async with workspace() as slack, server(slack, tmp_path, "at_most = 1\n") as (app, client):
        run = await _asking(app)
        assert app.hooks is not None
        for number in range(1_000, 1_300):
            await send(client, event(number, "app_mention", "<@UBOT> and this"))
        await send(client, event(1, "message", "and the sum", thread_ts="100.1", ts="100.2"))

        async def said(kind: type[e.PromptReceived] | type[e.StopRequested]) -> list[tuple[str, str]]:
            found = [one.body for one in await app.backbone.read(run) if isinstance(one.body, kind)]
            return [(one.who, getattr(one, "text", "")) for one in found]

        await until(lambda: said(e.PromptReceived))
        assert await said(e.PromptReceived) == [("UANN (Slack)", "and the sum")]
        await send(client, event(2, "message", "Stop", thread_ts="100.1", ts="100.3"))
        await until(lambda: said(e.StopRequested))
        assert await said(e.StopRequested) == [("UANN (Slack)", "")]
        assert len(await app.hooks.inbox.tasks("slack", limit=1_000)) == 300


async def test_messages_that_were_posted_are_not_posted_again_when_a_later_one_fails(tmp_path: Path) -> None:
    async with workspace() as slack, server(slack, tmp_path) as (app, _):
        slack.failures += [None, (500, {}), None, (500, {})]
        run = await _asking(app, 2)

        async def posted() -> bool:
            return not slack.failures and len(slack.messages) >= 3

        await until(posted)
        buttons = [
            one["elements"][0]["value"]
            for message in slack.messages
            for one in message["blocks"]
            if one["type"] == "actions"
        ]
        assert buttons == [f"{run} a-1", f"{run} a-2"]
        assert len(slack.messages) == 3


async def _asking(app: App, questions: int = 1) -> RunId:
    """A run that this test drives, with a thread and open questions."""
    fence, run = None, RunId("")
    while fence is None:  # the server may be faster, and drive the run itself
        run, _ = await app.backbone.admit(NewRun("p", "/nowhere"), "ann")
        fence = await app.backbone.claim(app.owner, run)
    for number in range(1, questions + 1):
        ask = e.AskRaised(f"a-{number}", 1, "connect: example.org", "<!channel> *now*", time.time() + 600)
        await app.backbone.append(fence, (ask,))
    assert app.hooks is not None
    shown = Task(f"thread {run}", "thread", "chat", b'{"place": {"channel": "C1", "thread": "100.1"}}')
    await app.hooks.inbox.mark("thread chat C1 100.1", f"{run} 100.1")
    await app.hooks.inbox.add(shown)
    app.hooks.threads.news.set()
    return run


async def test_forged_old_and_odd_requests_are_refused_and_the_address_can_be_checked(tmp_path: Path) -> None:
    async with workspace() as slack, server(slack, tmp_path) as (app, client):
        body = json.dumps(event(1, "app_mention", "fix it")).encode()
        for headers in ({}, signed(body, secret="x"), signed(body, time.time() - 301), signed(body + b" ")):
            assert (await client.post("/v1/hooks/chat", content=body, headers=headers)).status_code == 401
        assert (await client.post("/v1/hooks/chat", content=b"{", headers=signed(b"{"))).status_code == 400
        checked = await send(client, {"type": "url_verification", "challenge": "c-1"})
        assert (checked.status_code, checked.json()["challenge"]) == (200, "c-1")
        await settled(app)
        assert await app.backbone.runs(10) == ()


async def test_the_socket_stores_before_it_acknowledges_and_reconnects(tmp_path: Path) -> None:
    async with workspace() as slack:
        mention = event(1, "app_mention", "<@UBOT> fix it")
        slack.waiting += [
            {"type": "events_api", "envelope_id": "n1", "payload": mention},
            {"type": "disconnect", "envelope_id": "n2", "reason": "refresh_requested"},
            {"type": "events_api", "envelope_id": "n3", "payload": mention},
        ]
        slack.hang_up = True
        slack.failures.append((500, {}))
        async with server(slack, tmp_path, 'app = "env:APP"\n') as (app, _):

            async def ended() -> bool:
                if slack.waiting and slack.waiting[0]["type"] == "disconnect" and slack.sockets >= 2:
                    slack.waiting.pop(0)  # it is never acknowledged
                return not slack.waiting

            await until(ended)
            await settled(app)
            assert len(await app.backbone.runs(10)) == 1
            assert slack.acknowledged[0] == "n1"
            assert slack.acknowledged[-1] == "n3"
            assert slack.sockets >= 3


def test_words_of_others_are_plain_text_in_every_message() -> None:
    bad = "<!channel> <@U1> <http://evil|here> *b* @here https://evil.example"
    for block in end_blocks("r-1", "red", bad, "javascript:alert(1)"):
        assert block["type"] == "section"
        assert block["text"]["type"] == "plain_text"
    shown = escaped(bad)
    assert not {"<", ">", "*"} & set(shown)
    assert "@here" not in shown
    assert "://" not in shown


def test_messages_of_programs_ask_for_nothing() -> None:
    for more in (
        {"bot_id": "B1"},
        {"subtype": "message_changed"},
        {"channel": "<x>"},
        {"user": ""},
        {"ts": "1"},
    ):
        assert heard(event(1, "app_mention", "fix", **more)) is None
    assert isinstance(heard(event(1, "app_mention", "fix")), Said)
    odds: tuple[object, ...] = (None, [], {"type": "block_actions"}, {"type": "event_callback", "event": 5})
    for odd in odds:
        assert heard(odd) is None
    assert slack_module.number_of({"event_id": 5}) == ""
