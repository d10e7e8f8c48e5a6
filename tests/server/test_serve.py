import json
import os
import signal
import socket as sockets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest
from websockets.asyncio.client import connect

from cloister.app.settings import Settings
from cloister.app.wiring import open_app
from cloister.core.errors import HostError, UserError
from cloister.core.ids import RunId, new_owner_id
from cloister.core.requests import NewRun
from cloister.log.sqlite.backbone import open_backbone
from cloister.sandbox.liveness import Owners
from cloister.server.serve import bound, serve

pytestmark = pytest.mark.anyio


def test_answers_are_sent_without_waiting_for_an_ack() -> None:
    with bound(0) as listener:
        listener.listen()
        with sockets.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY)


class Running:
    """A server in this process, as the command starts it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.url = ""
        self.listens = anyio.Event()
        self.ended = anyio.Event()

    def ready(self, url: str) -> None:
        self.url = url
        self.listens.set()

    @property
    def token(self) -> str:
        return (self.settings.data_dir / "token").read_text().strip()

    async def run(self) -> None:
        await serve(self.settings, port=0, ready=self.ready)
        self.ended.set()


@asynccontextmanager
async def started(settings: Settings) -> AsyncGenerator[Running]:
    """Leaving the block sends SIGTERM unless the server has ended already."""
    running = Running(settings)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(running.run)
            await running.listens.wait()
            yield running
            if not running.ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)


async def test_a_server_announces_itself_while_it_listens(settings: Settings) -> None:
    announcement = settings.data_dir / "server.json"
    async with started(settings) as running:
        said = json.loads(announcement.read_text())
        assert said == {"pid": os.getpid(), "port": int(running.url.rsplit(":", 1)[1]), "url": running.url}
        async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
            assert (await client.get(f"{running.url}/v1/health")).status_code == 200
            assert (await client.get(f"{running.url}/v1/runs")).status_code == 401
            headers = {"Authorization": f"Bearer {running.token}"}
            assert (await client.get(f"{running.url}/v1/runs", headers=headers)).json() == []
        assert (settings.data_dir / "token").stat().st_mode & 0o777 == 0o600
    assert not announcement.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_closes_websockets_and_leaves_runs_resumable(
    settings: Settings, number: signal.Signals
) -> None:
    settings.data_dir.mkdir(parents=True)
    owner, owners = new_owner_id(), Owners(settings.data_dir / "owners")
    async with open_backbone(settings.data_dir / "cloister.db", owner_lives=owners.lives) as backbone:
        run, _ = await backbone.admit(NewRun(prompt="p", repo="/nowhere"), "me")
        await backbone.claim(owner, run)
        with owners.hold(owner):  # a living process owns it, so the server leaves it alone
            await _watch_and_signal(settings, run, number)
            assert (await backbone.row(run)).state == "running"


async def _watch_and_signal(settings: Settings, run: RunId, number: signal.Signals) -> None:
    async with started(settings) as running:
        url = running.url.replace("http", "ws") + f"/v1/runs/{run}/stream"
        async with connect(
            url, additional_headers={"Authorization": f"Bearer {running.token}"}, proxy=None
        ) as client:
            await client.recv()
            await client.recv()
            os.kill(os.getpid(), number)
            await client.wait_closed()
            assert client.close_code == 1001
        await running.ended.wait()


async def test_a_run_is_driven_to_its_end_and_watched_there(settings: Settings) -> None:
    async with started(settings) as running:
        headers = {"Authorization": f"Bearer {running.token}"}
        async with httpx.AsyncClient(
            timeout=30, trust_env=False, base_url=running.url, headers=headers
        ) as client:
            body = {"prompt": "p", "repo": "https://127.0.0.1:1/nowhere.git"}
            run = (await client.post("/v1/runs", json=body)).json()["id"]
            url = running.url.replace("http", "ws") + f"/v1/runs/{run}/stream"
            async with connect(url, additional_headers=headers, proxy=None) as stream:
                seen = [json.loads(message) async for message in stream]
            last = [message["event"]["body"] for message in seen if "event" in message][-1]
            assert (last["type"], last["outcome"]) == ("RunFinished", "failed")
            view = (await client.get(f"/v1/runs/{run}")).json()
            assert (view["state"], view["outcome"]) == ("finished", "failed")


async def test_a_taken_port_is_an_error_and_leaves_nothing_behind(settings: Settings) -> None:
    with sockets.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port: int = other.getsockname()[1]
        with pytest.raises(HostError) as caught:
            await serve(settings, port=port, ready=lambda url: None)
    assert caught.value.code == "port_taken"
    assert caught.value.message == (
        f"Port {port} is taken: stop what listens there or choose another with `port` in the settings, or `cloister serve --port`."
    )
    assert not (settings.data_dir / "server.json").exists()


async def test_a_port_out_of_range_is_refused(settings: Settings) -> None:
    for port in (-1, 65_536):
        with pytest.raises(UserError) as caught:
            await serve(settings, port=port, ready=lambda url: None)
        assert caught.value.code == "bad_port"


async def test_a_second_server_on_the_same_data_is_refused_whatever_its_port(settings: Settings) -> None:
    async with open_app(settings, role="server"):
        with sockets.socket() as first:
            first.bind(("127.0.0.1", 0))
            first.listen()
            for port in (0, first.getsockname()[1]):
                with pytest.raises(HostError) as caught:
                    await serve(settings, port=port, ready=lambda url: None)
                assert caught.value.code == "server_running"


async def test_a_token_that_others_can_read_stops_the_start(settings: Settings) -> None:
    settings.data_dir.mkdir(parents=True)
    (settings.data_dir / "token").write_text("x" * 43)
    (settings.data_dir / "token").chmod(0o644)
    with pytest.raises(HostError) as caught:
        await serve(settings, port=0, ready=lambda url: None)
    assert caught.value.code == "token_exposed"
