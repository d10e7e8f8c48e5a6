import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.server.conftest import Served
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from cloister.core.errors import UserError
from cloister.server.shell import Resize, read_size
from cloister.settings import Settings, read_settings

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(data_dir: Path) -> Settings:
    return read_settings({"USER": "tester"}, data_dir)


@pytest.fixture
async def sandbox(served: Served) -> AsyncIterator[str]:
    reply = await served.client.post("/v1/sandboxes", json={"ttl_seconds": 300})
    yield f"/v1/sandboxes/{reply.json()['id']}"


async def until(socket: ClientConnection, wanted: bytes) -> bytes:
    """What the terminal shows up to `wanted`."""
    seen = b""
    with anyio.fail_after(20):
        while wanted not in seen:
            message = await socket.recv()
            assert isinstance(message, bytes), message
            seen += message
    return seen


async def record(socket: ClientConnection) -> dict[str, Any]:
    """The next text message; what the terminal shows meanwhile is left out."""
    with anyio.fail_after(20):
        while isinstance(message := await socket.recv(), bytes):
            pass
    return json.loads(message)


async def test_a_shell_is_a_terminal_of_the_asked_size_that_ends_with_its_exit(
    served: Served, sandbox: str
) -> None:
    async with served.socket(f"{sandbox}/shell?rows=33&columns=101") as socket:
        await socket.send(b"stty size; tty | tr a-z A-Z; echo $TERM\n")
        shown = await until(socket, b"xterm-256color\r\n")
        assert b"33 101\r\n" in shown
        assert b"/DEV/PTS/" in shown
        await socket.send('{"resize": {"rows": 50, "columns": 120}}')
        await socket.send(b"stty size\n")
        await until(socket, b"50 120\r\n")
        await socket.send(b"exit 7\n")
        ended = (await record(socket))["exited"]
        assert (ended["exit_code"], ended["signal"], ended["killed"]) == (7, None, None)
        await socket.wait_closed()
        assert socket.close_code == 1000


async def test_keys_reach_the_program_that_runs(served: Served, sandbox: str) -> None:
    async with served.socket(f"{sandbox}/shell") as socket:
        await socket.send(b"echo g''o; cat > typed.bin; echo do''ne\n")
        await until(socket, b"go\r\n")
        await socket.send("ä\n".encode() + b"\x04")
        await until(socket, b"done\r\n")
    got = await served.client.get(f"{sandbox}/files", params={"path": "typed.bin"})
    assert got.content == "ä\n".encode()


async def test_a_bad_message_is_answered_and_the_shell_goes_on(served: Served, sandbox: str) -> None:
    async with served.socket(f"{sandbox}/shell") as socket:
        for bad in ("", "{}", "ls\n", '{"resize": {"rows": 0, "columns": 1}}', '{"resize": {"rows": 1}}'):
            await socket.send(bad)
            assert (await record(socket))["error"]["code"] == "bad_message"
        await socket.send(b"echo st''ill here\n")
        await until(socket, b"still here\r\n")


async def test_hanging_up_ends_the_shell_and_what_runs_in_it(served: Served, sandbox: str) -> None:
    async with served.socket(f"{sandbox}/shell") as socket:
        await socket.send(b"sleep 600 & echo re''ady\n")
        await until(socket, b"ready\r\n")
    with anyio.fail_after(20):
        while True:
            reply = await served.client.post(f"{sandbox}/exec", json={"command": "cat /proc/*/comm"})
            if "sleep" not in reply.json()["stdout"]:
                break


async def test_a_program_that_does_not_read_does_not_hide_that_the_client_left(
    served: Served, sandbox: str
) -> None:
    async with served.socket(f"{sandbox}/shell") as socket:
        await socket.send(b"stty raw -echo; echo re''ady; sleep 600\n")
        await until(socket, b"ready\n")
        for _ in range(20):
            await socket.send(b"x" * 32_768)
    with anyio.fail_after(20):
        while True:
            reply = await served.client.post(f"{sandbox}/exec", json={"command": "cat /proc/*/comm"})
            if "sleep" not in reply.json()["stdout"]:
                break


async def test_more_than_a_program_will_ever_read_ends_the_conversation(served: Served, sandbox: str) -> None:
    async with served.socket(f"{sandbox}/shell") as socket:
        await socket.send(b"stty raw -echo; echo re''ady; sleep 600\n")
        await until(socket, b"ready\n")
        with pytest.raises(ConnectionClosed), anyio.fail_after(20):
            while True:
                await socket.send(b"x" * 262_144)
        assert socket.close_code == 1013


async def test_a_shell_whose_sandbox_is_destroyed_is_told(served: Served, sandbox: str) -> None:
    async with served.socket(f"{sandbox}/shell") as socket:
        await until(socket, b"$")
        await served.client.delete(sandbox)
        with anyio.fail_after(20):
            await socket.wait_closed()
        assert socket.close_code == 4410


async def test_what_cannot_be_opened_closes_with_its_status(served: Served, sandbox: str) -> None:
    for path, code in (
        ("/v1/sandboxes/s-nosuchsandbox/shell", 4404),
        (f"{sandbox}/shell?rows=0", 4400),
        (f"{sandbox}/shell?columns=wide", 4400),
        (f"{sandbox}/shell?columns=1001", 4400),
    ):
        async with served.socket(path) as socket:
            with anyio.fail_after(20):
                await socket.wait_closed()
            assert socket.close_code == code


def test_sizes_are_whole_numbers_in_bounds() -> None:
    assert read_size("24", "80") == Resize(24, 80)
    for rows, columns in (("-1", "80"), ("24", ""), ("1e9", "80"), ("24.5", "80")):
        with pytest.raises(UserError):
            read_size(rows, columns)
