import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.server.conftest import Served
from websockets.asyncio.client import ClientConnection

from cloister.app.settings import Settings, read_settings
from cloister.core.errors import UserError
from cloister.server.routes.commands import read_offset

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(data_dir: Path) -> Settings:
    return read_settings({"USER": "tester"}, data_dir)


@pytest.fixture
async def sandbox(served: Served) -> AsyncIterator[str]:
    reply = await served.client.post("/v1/sandboxes", json={"ttl_seconds": 300})
    yield f"/v1/sandboxes/{reply.json()['id']}"


async def start(served: Served, sandbox: str, **body: Any) -> str:
    """The address of a new background command."""
    reply = await served.client.post(f"{sandbox}/commands", json=body)
    assert reply.status_code == 201, reply.text
    return f"{sandbox}/commands/{reply.json()['id']}"


async def over(served: Served, command: str) -> dict[str, Any]:
    with anyio.fail_after(30):
        while (view := (await served.client.get(command)).json())["command"]["state"] == "running":
            pass
    return view


async def until(socket: ClientConnection, wanted: bytes) -> bytes:
    seen = b""
    with anyio.fail_after(20):
        while wanted not in seen:
            message = await socket.recv()
            assert isinstance(message, bytes), message
            seen += message[1:]
    return seen


async def test_a_command_without_a_limit_runs_on_when_its_sandbox_gets_more_time(served: Served) -> None:
    made = await served.client.post("/v1/sandboxes", json={"ttl_seconds": 6})
    sandbox = f"/v1/sandboxes/{made.json()['id']}"
    command = await start(served, sandbox, command="sleep 7; echo done")
    assert (await served.client.patch(sandbox, json={"ttl_seconds": 300})).status_code == 200
    with anyio.fail_after(60):
        async with served.socket(f"{command}/attach") as socket:
            assert await until(socket, b"done\n") == b"done\n"
    assert (await over(served, command))["command"]["killed"] is None


async def test_a_command_outlives_its_clients_and_others_attach_at_an_offset(
    served: Served, sandbox: str
) -> None:
    command = await start(served, sandbox, command="echo one; while read w; do echo got $w; done; exit 6")
    async with served.socket(f"{command}/attach") as socket:
        assert await until(socket, b"one\n") == b"one\n"
    async with served.socket(f"{command}/attach?offset=4") as socket:
        await socket.send(b"two\n")
        assert await until(socket, b"two\n") == b"got two\n"
    async with served.socket(f"{command}/attach") as one, served.socket(f"{command}/attach") as two:
        await one.send('{"eof": true}')
        for socket in (one, two):
            assert await until(socket, b"two\n") == b"one\ngot two\n"
            exited = json.loads(await socket.recv())["exited"]
            assert (exited["exit_code"], exited["killed"]) == (6, None)
            await socket.wait_closed()
            assert socket.close_code == 1000
    (listed,) = (await served.client.get(f"{sandbox}/commands")).json()
    assert (listed["state"], listed["exit_code"], listed["output_end"]) == ("exited", 6, 12)


async def test_output_is_read_in_parts_by_offset(served: Served, sandbox: str) -> None:
    command = await start(served, sandbox, command="printf abc; printf def >&2")
    view = await over(served, command)
    pieces = [(piece["stream"], base64.b64decode(piece["data"])) for piece in view["output"]]
    assert pieces == [("out", b"abc"), ("err", b"def")]
    assert (view["skipped"], view["next_offset"]) == (0, 6)
    part = (await served.client.get(command, params={"offset": 4})).json()
    assert part["output"] == [{"stream": "err", "data": base64.b64encode(b"ef").decode()}]
    beyond = await served.client.get(command, params={"offset": 7})
    assert (beyond.status_code, beyond.json()["code"]) == (400, "bad_offset")


async def test_deleting_ends_the_whole_tree_and_keeps_the_record(served: Served, sandbox: str) -> None:
    stubborn = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; exec sleep 600' &); echo up; sleep 600 & wait"
    command = await start(served, sandbox, command=stubborn)
    async with served.socket(f"{command}/attach") as socket:
        await until(socket, b"up\n")
    ended = (await served.client.delete(command)).json()
    assert (ended["state"], ended["killed"]) == ("exited", "cancelled")
    names = await served.client.post(f"{sandbox}/exec", json={"command": "cat /proc/*/comm"})
    assert "sleep" not in names.json()["stdout"]
    assert (await served.client.delete(command)).json() == ended


async def test_a_command_that_loses_its_sandbox_has_a_reason_and_no_exit_code(
    served: Served, sandbox: str
) -> None:
    command = await start(served, sandbox, command="echo up; sleep 600")
    async with served.socket(f"{command}/attach") as socket:
        await until(socket, b"up\n")
        await served.client.delete(sandbox)
        with anyio.fail_after(20):
            await socket.wait_closed()
        assert socket.close_code == 4410
    view = (await over(served, command))["command"]
    assert (view["state"], view["exit_code"], view["signal"]) == ("lost", None, None)
    assert view["reason"].endswith(".")
    assert (await served.client.get(f"{sandbox}/commands")).json() == [view]
    refused = await served.client.post(f"{sandbox}/commands", json={"argv": ["true"]})
    assert refused.status_code == 404


async def test_a_missing_program_is_recorded_as_failed(served: Served, sandbox: str) -> None:
    view = (await over(served, await start(served, sandbox, argv=["no-such-program"])))["command"]
    assert (view["state"], view["exit_code"]) == ("failed", None)
    assert "no-such-program" in view["reason"]


async def test_what_cannot_be_is_refused(served: Served, sandbox: str) -> None:
    for reply, status in (
        (await served.client.post(f"{sandbox}/commands", json={}), 400),
        (await served.client.post(f"{sandbox}/commands", json={"argv": ["x"], "stdin": ""}), 400),
        (await served.client.get(f"{sandbox}/commands/c-none"), 404),
        (await served.client.delete(f"{sandbox}/commands/c-none"), 404),
        (await served.client.get("/v1/sandboxes/s-none/commands"), 404),
    ):
        assert reply.status_code == status, reply.text
    command = await start(served, sandbox, argv=["true"])
    for path, code in (
        (f"{sandbox}/commands/c-none/attach", 4404),
        (f"{command}/attach?offset=-1", 4400),
        (f"{command}/attach?offset=1000", 4400),
    ):
        async with served.socket(path) as socket:
            with anyio.fail_after(20):
                await socket.wait_closed()
            assert socket.close_code == code
    for text in ("", "x", "1.5", "9" * 400, "٣"):
        with pytest.raises(UserError):
            read_offset(text)
