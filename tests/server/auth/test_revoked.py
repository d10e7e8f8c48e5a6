"""A removed token ends what its caller has under way: requests, commands and connections to ports."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.server.conftest import Served
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from cloister.app.settings import Settings, read_settings
from cloister.app.tokens import Caller, Tokens
from cloister.core.errors import UserError
from cloister.server.auth import REVOKED
from cloister.server.errors import problem

pytestmark = pytest.mark.anyio

# Sends what never ends, a part at a time.
DRIP = r"""
import socket, time
listener = socket.create_server(("127.0.0.1", 8080))
print("listening", flush=True)
while True:
    connection, _ = listener.accept()
    try:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"drip\n")
            time.sleep(0.05)
    except OSError:
        print("gone", flush=True)
"""


@pytest.fixture
def settings(data_dir: Path) -> Settings:
    return read_settings({"USER": "tester"}, data_dir)


@pytest.fixture
async def sandbox(served: Served) -> AsyncIterator[str]:
    reply = await served.client.post("/v1/sandboxes", json={"ttl_seconds": 300})
    yield f"/v1/sandboxes/{reply.json()['id']}"


@pytest.fixture
def token(served: Served) -> str:
    return Tokens(served.app.settings.data_dir).add("ann", "admin", "tester")


def revoke(served: Served) -> None:
    Tokens(served.app.settings.data_dir).remove("ann")


async def runs(served: Served, sandbox: str, word: str) -> bool:
    """Whether a process with this word in its command line runs in the sandbox."""
    look = f"cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -q '[{word[0]}]{word[1:]}'"
    done = await served.client.post(f"{sandbox}/exec", json={"command": look})
    return done.json()["exit_code"] == 0


async def until(what: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(30):
        while not await what():
            pass


async def is_closed(socket: ClientConnection) -> None:
    with anyio.fail_after(60), pytest.raises(ConnectionClosed) as closed:
        while True:
            await socket.recv()
    assert closed.value.rcvd is not None and closed.value.rcvd.code == REVOKED


async def is_gone(served: Served, sandbox: str, word: str) -> None:
    async def ended() -> bool:
        return not await runs(served, sandbox, word)

    await until(ended)


async def test_a_command_that_a_request_waits_for_is_killed(served: Served, sandbox: str, token: str) -> None:
    answers: list[httpx.Response] = []

    async def ask() -> None:
        body = {"command": "sleep 301", "seconds": 300}
        headers = {"Authorization": f"Bearer {token}"}
        answers.append(await served.client.post(f"{sandbox}/exec", json=body, headers=headers))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await until(lambda: runs(served, sandbox, "sleep 301"))
            revoke(served)
    assert (answers[0].status_code, answers[0].json()["code"]) == (401, "unauthorized")
    await is_gone(served, sandbox, "sleep 301")


async def test_an_interactive_command_is_killed(served: Served, sandbox: str, token: str) -> None:
    async with served.socket(f"{sandbox}/process", token=token) as socket:
        await socket.send(json.dumps({"start": {"argv": ["sleep", "302"]}}))
        await until(lambda: runs(served, sandbox, "sleep 302"))
        revoke(served)
        await is_closed(socket)
    await is_gone(served, sandbox, "sleep 302")


async def test_an_attached_background_command_keeps_running_without_its_client(
    served: Served, sandbox: str, token: str
) -> None:
    reply = await served.client.post(f"{sandbox}/commands", json={"command": "echo one; sleep 303"})
    command = f"{sandbox}/commands/{reply.json()['id']}"
    async with served.socket(f"{command}/attach", token=token) as socket:
        assert (await socket.recv())[1:] == b"one\n"
        revoke(served)
        await is_closed(socket)
    assert (await served.client.get(command)).json()["command"]["state"] == "running"
    assert await runs(served, sandbox, "sleep 303")


async def dripping(served: Served, sandbox: str) -> str:
    """Start a server inside that sends without end; returns the address of its command."""
    body = {"argv": ["python3", "-c", DRIP]}
    reply = await served.client.post(f"{sandbox}/commands", json=body)
    command = f"{sandbox}/commands/{reply.json()['id']}"

    async def listens() -> bool:
        return b"listening" in await output(served, command)

    await until(listens)
    return command


async def output(served: Served, command: str) -> bytes:
    async with served.socket(f"{command}/attach") as socket:
        shown = b""
        with anyio.move_on_after(0.5):
            while True:
                message: Any = await socket.recv()
                shown += message[1:]
    return shown


async def test_a_connection_to_a_port_is_closed_on_both_sides(
    served: Served, sandbox: str, token: str
) -> None:
    command = await dripping(served, sandbox)
    async with served.socket(f"{sandbox}/dial/8080", token=token) as socket:
        assert json.loads(await socket.recv()) == {"connected": 8080}
        await socket.recv()
        revoke(served)
        await is_closed(socket)

    async def gone() -> bool:
        return b"gone" in await output(served, command)

    await until(gone)


async def test_a_request_to_a_port_is_cut_off(served: Served, sandbox: str, token: str) -> None:
    command = await dripping(served, sandbox)
    headers = {"Authorization": f"Bearer {token}"}
    with anyio.fail_after(30), pytest.raises(httpx.RemoteProtocolError):
        async with served.client.stream("GET", f"{sandbox}/ports/8080/", headers=headers) as answer:
            assert answer.status_code == 200
            async for _ in answer.aiter_raw():
                if (await served.client.get("/v1/tokens")).json():
                    revoke(served)

    async def gone() -> bool:
        return b"gone" in await output(served, command)

    await until(gone)


def test_a_verb_that_notices_the_removal_first_does_not_blame_the_role() -> None:
    with pytest.raises(UserError) as raised:
        Caller("ann", "admin", holds=lambda: False).must_be("viewer")
    status, body = problem(raised.value)
    assert (status, body.code) == (401, "unauthorized")
    assert 4000 + status == REVOKED
    assert body.message == "The token of ann was removed."
