import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.server.conftest import Serve, Served
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from cloister.app.settings import Settings, read_settings
from cloister.app.verbs.records import Terminal
from cloister.core.errors import UserError
from cloister.server.routes.process import STDIN_BYTES, Said, read_said

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(data_dir: Path) -> Settings:
    return read_settings({"USER": "tester"}, data_dir)


@pytest.fixture
async def sandbox(served: Served) -> AsyncIterator[str]:
    reply = await served.client.post("/v1/sandboxes", json={"ttl_seconds": 300})
    yield f"/v1/sandboxes/{reply.json()['id']}"


@asynccontextmanager
async def started(served: Served, sandbox: str, **start: Any) -> AsyncGenerator[ClientConnection]:
    async with served.socket(f"{sandbox}/process", max_size=None) as socket:
        with suppress(ConnectionClosed):  # a refusal may be faster
            await socket.send(json.dumps({"start": start}))
        yield socket


def shell(served: Served, sandbox: str) -> Any:
    pty = {"rows": 33, "columns": 101}
    return started(served, sandbox, argv=["/bin/bash", "-l"], env={"TERM": "xterm"}, pty=pty)


async def until(socket: ClientConnection, wanted: bytes) -> bytes:
    """What is printed up to `wanted`."""
    seen = b""
    with anyio.fail_after(20):
        while wanted not in seen:
            message = await socket.recv()
            assert isinstance(message, bytes), message
            seen += message[1:]
    return seen


async def record(socket: ClientConnection) -> dict[str, Any]:
    """The next text message; what is printed meanwhile is left out."""
    with anyio.fail_after(20):
        while isinstance(message := await socket.recv(), bytes):
            pass
    return json.loads(message)


async def rest(socket: ClientConnection) -> tuple[bytes, bytes, dict[str, Any]]:
    """Everything on stdout and stderr, and the end."""
    seen = {1: bytearray(), 2: bytearray()}
    with anyio.fail_after(30):
        while True:
            message = await socket.recv()
            if isinstance(message, bytes):
                seen[message[0]] += message[1:]
            elif "exited" in (said := json.loads(message)):
                return bytes(seen[1]), bytes(seen[2]), said["exited"]


async def until_ended(served: Served, sandbox: str, program: str) -> None:
    with anyio.fail_after(20):
        while True:
            reply = await served.client.post(f"{sandbox}/exec", json={"command": "cat /proc/*/comm"})
            if program not in reply.json()["stdout"]:
                break


async def standstill(served: Served, sandbox: str) -> int:
    """The number in the file `written` once it stays the same for a while."""
    seen: list[str] = []
    with anyio.fail_after(60):
        while len(seen) < 8 or len(set(seen[-8:])) > 1:
            reply = await served.client.post(f"{sandbox}/exec", json={"command": "cat written || true"})
            if found := reply.json()["stdout"].strip():
                seen.append(found)
    return int(seen[-1])


async def test_output_and_input_are_bytes_on_their_own_streams(served: Served, sandbox: str) -> None:
    data = bytes(range(256)) * 1_000
    async with started(served, sandbox, command="echo oops >&2; cat; exit 3") as socket:
        await socket.send(data)
        await socket.send(json.dumps({"eof": True}))
        out, err, exited = await rest(socket)
        assert (out == data, err) == (True, b"oops\n")
        assert (exited["exit_code"], exited["signal"], exited["killed"]) == (3, None, None)
        await socket.wait_closed()
        assert socket.close_code == 1000


async def test_output_comes_as_it_is_printed_and_input_is_taken_meanwhile(
    served: Served, sandbox: str
) -> None:
    async with started(served, sandbox, command="while read line; do echo got $line; done") as socket:
        for word in (b"one", b"two"):
            await socket.send(word + b"\n")
            assert await until(socket, b"\n") == b"got " + word + b"\n"
        await socket.send(json.dumps({"eof": True}))
        assert (await rest(socket))[2]["exit_code"] == 0


async def test_more_input_than_the_window_goes_in_as_it_is_taken(served: Served, sandbox: str) -> None:
    size, sent, window = 5 * STDIN_BYTES, 0, STDIN_BYTES
    async with started(served, sandbox, command="sleep 0.2; wc -c") as socket:
        while sent < size:
            while window >= 262_144 and sent < size:
                await socket.send(bytes(262_144))
                sent, window = sent + 262_144, window - 262_144
            if sent < size:
                window += (await record(socket))["taken"]
        await socket.send(json.dumps({"eof": True}))
        assert (await rest(socket))[0] == f"{size}\n".encode()


async def test_signals_and_kill_reach_the_command(served: Served, sandbox: str) -> None:
    line = "trap 'echo caught; exit 4' USR1; echo up; while :; do sleep 0.05; done"
    async with started(served, sandbox, command=line) as socket:
        await until(socket, b"up\n")
        await socket.send(json.dumps({"signal": 10}))
        out, _, exited = await rest(socket)
        assert (out, exited["exit_code"]) == (b"caught\n", 4)
    async with started(served, sandbox, command="(setsid sleep 600 &); echo up; sleep 600") as socket:
        await until(socket, b"up\n")
        await socket.send(json.dumps({"kill": True}))
        assert (await rest(socket))[2]["killed"] == "cancelled"
    await until_ended(served, sandbox, "sleep")


async def test_a_command_over_its_time_is_killed_with_a_reason(served: Served, sandbox: str) -> None:
    async with started(served, sandbox, argv=["sleep", "600"], seconds=0.2) as socket:
        assert (await rest(socket))[2]["killed"] == "time"


async def test_a_client_that_does_not_read_stops_the_command_and_misses_nothing(
    serving: Serve,
) -> None:
    size, pieces = 30_000_000, 300
    piece = f"head -c {size // pieces} /dev/zero; echo $i > written"
    command = f"for i in $(seq {pieces}); do {piece}; done; touch done"
    # However short the patience for messages that must be read at once: this is not one of them.
    async with serving(send_seconds=0.05) as served:
        made = await served.client.post("/v1/sandboxes", json={"ttl_seconds": 300})
        at = f"/v1/sandboxes/{made.json()['id']}"
        async with started(served, at, command=command) as socket:
            assert 0 < await standstill(served, at) < pieces
            names = [entry["name"] for entry in (await served.client.get(f"{at}/files/list")).json()]
            assert names == ["written"]
            out, _, exited = await rest(socket)
            assert (len(out), exited["exit_code"]) == (size, 0)


async def test_a_terminal_has_the_asked_size_and_is_resized(served: Served, sandbox: str) -> None:
    async with shell(served, sandbox) as socket:
        await socket.send(b"stty size; tty | tr a-z A-Z; echo $TERM\n")
        shown = await until(socket, b"xterm\r\n")
        assert b"33 101\r\n" in shown
        assert b"/DEV/PTS/" in shown
        await socket.send('{"resize": {"rows": 50, "columns": 120}}')
        await socket.send(b"stty size\n")
        await until(socket, b"50 120\r\n")
        await socket.send(b"exit 7\n")
        assert (await rest(socket))[2]["exit_code"] == 7


async def test_a_bad_message_is_answered_and_the_command_goes_on(served: Served, sandbox: str) -> None:
    bad = ("", "{}", "ls\n", '{"resize": {"rows": 0}}', '{"eof": true, "kill": true}', '{"eof": false}')
    async with started(served, sandbox, argv=["cat"]) as socket:
        for message in (*bad, '{"signal": 65}', "[" * 100_000):
            await socket.send(message)
            assert (await record(socket))["error"]["code"] == "bad_message"
        await socket.send('{"resize": {}}')
        assert (await record(socket))["error"]["code"] == "no_terminal"
        await socket.send(b"still here")
        await until(socket, b"still here")


async def test_hanging_up_ends_the_command_and_what_it_started(served: Served, sandbox: str) -> None:
    async with started(served, sandbox, command="(setsid sleep 600 &) ; echo up; sleep 600") as socket:
        await until(socket, b"up\n")
    await until_ended(served, sandbox, "sleep")


async def test_a_program_that_does_not_read_does_not_hide_that_the_client_left(
    served: Served, sandbox: str
) -> None:
    async with started(served, sandbox, command="echo up; sleep 600") as socket:
        await until(socket, b"up\n")
        for _ in range(20):
            await socket.send(b"x" * 32_768)
    await until_ended(served, sandbox, "sleep")


async def test_input_beyond_what_may_be_sent_ends_the_conversation(served: Served, sandbox: str) -> None:
    async with started(served, sandbox, command="echo up; sleep 600") as socket:
        await until(socket, b"up\n")
        with pytest.raises(ConnectionClosed), anyio.fail_after(20):
            while True:
                await socket.send(b"x" * 262_144)
        assert socket.close_code == 1013


async def test_destroying_the_sandbox_closes_the_command_with_4410(served: Served, sandbox: str) -> None:
    async with started(served, sandbox, command="echo up; sleep 600") as socket:
        await until(socket, b"up\n")
        await served.client.delete(sandbox)
        with anyio.fail_after(20):
            await socket.wait_closed()
        assert socket.close_code == 4410


async def test_a_command_that_cannot_start_closes_with_its_status(served: Served, sandbox: str) -> None:
    cases: tuple[tuple[str, dict[str, Any], int], ...] = (
        ("/v1/sandboxes/s-nosuchsandbox", {"argv": ["true"]}, 4404),
        (sandbox, {"argv": ["no-such-program"]}, 4404),
        (sandbox, {}, 4400),
        (sandbox, {"argv": []}, 4400),
        (sandbox, {"argv": ["true"], "command": "true"}, 4400),
        (sandbox, {"argv": ["true"], "pty": {"rows": 0}}, 4400),
        (sandbox, {"argv": ["true"], "pty": {"columns": 1001}}, 4400),
        (sandbox, {"argv": ["true"], "stdin": "x"}, 4400),
        (sandbox, {"argv": ["true"], "seconds": -1}, 4400),
        (sandbox, {"argv": ["true"], "cwd": "/nowhere"}, 4404),
    )
    for at, start, code in cases:
        async with started(served, at, **start) as socket:
            with anyio.fail_after(20):
                await socket.wait_closed()
            assert (socket.close_code, start) == (code, start)
    async with served.socket(f"{sandbox}/process") as socket:
        await socket.send(b"\xff not json")
        with anyio.fail_after(20):
            await socket.wait_closed()
        assert socket.close_code == 4400


def test_a_message_holds_exactly_one_request() -> None:
    assert read_said('{"resize": {"rows": 24, "columns": 80}}') == Said(resize=Terminal(24, 80))
    for message in ("{}", '{"signal": 0}', '{"kill": false}', '{"eof": true, "signal": 1}'):
        with pytest.raises(UserError):
            read_said(message)
