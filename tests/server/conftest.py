"""A real server on a free port, over a real App in a directory of its own."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from cloister.app.settings import Settings, read_settings
from cloister.app.wiring import App, open_app
from cloister.core.requests import NewRun
from cloister.log.api import Fence
from cloister.server.app import asgi_app
from cloister.server.auth import load_token
from cloister.server.serve import Deadlines, bound, listening
from cloister.server.ws import Sockets


@dataclass(frozen=True)
class Served:
    """A server that listens, and a client that may speak to it."""

    app: App
    port: int
    token: str
    client: httpx.AsyncClient
    sockets: Sockets

    def socket(
        self, path: str, token: str | None = None, **more: object
    ) -> AbstractAsyncContextManager[ClientConnection]:
        headers = {"Authorization": f"Bearer {token or self.token}"}
        return connect(f"ws://127.0.0.1:{self.port}{path}", additional_headers=headers, proxy=None, **more)  # type: ignore[arg-type]

    async def claimed_run(self, prompt: str = "do it") -> Fence:
        """A run that belongs to the test: nothing else drives it."""
        run, _ = await self.app.backbone.admit(NewRun(prompt=prompt, repo="/nowhere"), "somebody")
        fence = await self.app.backbone.claim(self.app.owner, run)
        assert fence is not None
        return fence


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return read_settings({"CLOISTER_MODEL": "script:/nowhere.toml", "USER": "tester"}, tmp_path / "data")


@asynccontextmanager
async def serve_app(
    settings: Settings,
    send_seconds: float = 10.0,
    close_seconds: float = 10.0,
    deadlines: Deadlines | None = None,
) -> AsyncGenerator[Served]:
    token = load_token(settings.data_dir / "token")
    sockets = Sockets(send_seconds, close_seconds)
    async with open_app(settings, role="embedded") as app:
        with bound(0) as listener:
            port: int = listener.getsockname()[1]
            async with (
                listening(asgi_app(app, token, sockets), listener, sockets, deadlines),
                httpx.AsyncClient(
                    base_url=f"http://127.0.0.1:{port}",
                    headers={"Authorization": f"Bearer {token}"},
                    timeout=30,
                    trust_env=False,
                    verify=False,  # plain HTTP: reading the certificates of this machine takes longer than most tests
                ) as client,
            ):
                yield Served(app, port, token, client, sockets)


@pytest.fixture
def serving(settings: Settings) -> Serve:
    """`async with serving() as served`: the App is embedded, so runs made by a test stay its own."""
    return partial(serve_app, settings)


@pytest.fixture
async def served(serving: Serve) -> AsyncIterator[Served]:
    async with serving() as running:
        yield running
