"""The verbs over HTTP keep the promises of every implementation."""

import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from inspect import isclass, isfunction, signature
from pathlib import Path
from pkgutil import iter_modules

import anyio
import pytest
from tests.whole.conformance.suites.verbs import POLICY, PROMISES, Promise
from typing_extensions import is_protocol

from cloister.app import verbs
from cloister.app.settings import read_settings
from cloister.app.tokens import Tokens
from cloister.app.verbs.api import Verbs
from cloister.app.verbs.declare import route_of
from cloister.app.wiring import App, open_app
from cloister.cli.client.http import Server, Transport, check_url, record_of
from cloister.cli.client.remote import RemoteVerbs
from cloister.core.errors import UserError
from cloister.core.events import Event, PromptReceived, RunFinished
from cloister.core.requests import NewRun, Role
from cloister.server.app import asgi_app
from cloister.server.auth import load_token
from cloister.server.serve import bound, listening
from cloister.server.ws import Sockets
from cloister.testing.samples import busybox, layer, layout

pytestmark = pytest.mark.anyio


@dataclass
class RemoteRig:
    app: App
    image: Path | None
    url: str
    secrets: dict[str, str]

    def verbs(self, name: str, role: Role) -> Verbs:
        if name not in self.secrets:
            self.secrets[name] = Tokens(self.app.settings.data_dir).add(name, role, self.app.settings.user)
        return RemoteVerbs(Transport.to(Server(self.url, self.secrets[name])))


@pytest.fixture
async def rig(own_dir: Path, tmp_path: Path) -> AsyncIterator[RemoteRig]:
    (own_dir / "config.toml").write_text(POLICY)
    tools = all(shutil.which(tool) for tool in ("skopeo", "busybox"))
    image = layout(tmp_path / "image", layer(*busybox()), Env=["PATH=/bin"]) if tools else None
    env = {"USER": "tester", "PATH": os.environ["PATH"], "CLOISTER_MODEL": "script:/nowhere.toml"}
    settings, sockets = read_settings(env, own_dir), Sockets()
    token = load_token(own_dir / "token")
    async with open_app(settings, role="embedded") as app:
        with bound(0) as listener:
            port: int = listener.getsockname()[1]
            async with listening(asgi_app(app, token, sockets), listener, sockets):
                yield RemoteRig(app, image, f"http://127.0.0.1:{port}", {})


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_verbs_over_http_keep_the_promise(promise: Promise, rig: RemoteRig) -> None:
    await promise(rig)


def derived_verbs() -> list[tuple[str, str]]:
    """Each verb whose request is declared and whose result is the whole reply, with the name of its type."""
    modules = [import_module(f"{verbs.__name__}.{one.name}") for one in iter_modules(verbs.__path__)]
    return sorted(
        {
            (f"{kind.__name__}.{name}", str(signature(verb).return_annotation))
            for module in modules
            for kind in vars(module).values()
            if isclass(kind) and is_protocol(kind)
            for name, verb in vars(kind).items()
            if isfunction(verb) and (route := route_of(verb)) is not None and route.member is None
        }
    )


def test_the_client_knows_what_every_verb_returns() -> None:
    found = derived_verbs()
    assert len(found) > 40
    for verb, result in found:
        assert result in ("None", "bytes") or record_of(result) is not None, verb


async def test_following_a_run_continues_on_the_server_that_replaces_a_lost_one(rig: RemoteRig) -> None:
    """No event is missed and none comes twice, whatever the new server's address is."""
    token = load_token(rig.app.settings.data_dir / "token")
    run, _ = await rig.app.backbone.admit(NewRun("do it", "/nowhere"), "ada")
    fence = await rig.app.backbone.claim(rig.app.owner, run)
    assert fence is not None
    urls: list[str] = []
    seen: list[int] = []
    two, three, ended = anyio.Event(), anyio.Event(), anyio.Event()

    async def find() -> Server:
        return Server(urls[-1], token)

    async def follow() -> None:
        async with RemoteVerbs(Transport(find)).runs.follow(run) as items:
            async for item in items:
                if isinstance(item, Event):
                    seen.append(item.seq)
                    (two if item.seq == 2 else three if item.seq == 3 else anyio.Event()).set()
        ended.set()

    @asynccontextmanager
    async def served() -> AsyncGenerator[None]:
        sockets = Sockets()
        with bound(0) as listener:
            urls.append(f"http://127.0.0.1:{listener.getsockname()[1]}")
            async with listening(asgi_app(rig.app, token, sockets), listener, sockets):
                yield

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            async with served():
                tasks.start_soon(follow)
                await two.wait()
            await rig.app.backbone.append(fence, [PromptReceived("more", "ada")])
            async with served():
                await three.wait()
                await rig.app.backbone.append(fence, [RunFinished("failed", "no")])
                await ended.wait()
    assert seen == [1, 2, 3, 4]
    assert urls[0] != urls[1]


@pytest.mark.parametrize("url", ["https://host.example/x/", "http://127.0.0.1:7717", "http://[::1]:7717/"])
async def test_an_address_is_https_or_on_loopback(url: str) -> None:
    assert check_url(url) == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        "http://host.example",
        "http://127.0.0.1.host.example",
        "ftp://host",
        "host:1",
        "https://",
        "http://[",
        "",
    ],
)
async def test_any_other_address_is_rejected(url: str) -> None:
    with pytest.raises(UserError) as caught:
        check_url(url)
    assert caught.value.code == "bad_server"
