"""A run as a server streams it: the log after a number, then live, and again after a lost connection."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from cloister.cli.client.attend import Watch
from cloister.cli.client.discover import Place, living
from cloister.cli.client.http import failure
from cloister.core.errors import HostError
from cloister.core.events import Delta, Event
from cloister.core.ids import RunId

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

MESSAGE_BYTES = 16_777_216
RECONNECT_SECONDS = 30.0
_LOOK_SECONDS = 0.3
_REFUSED = 4000
"""Close codes from here are this number plus an HTTP status."""


class _Message(msgspec.Struct, frozen=True):
    event: Event | None = None
    delta: Delta | None = None


_decode = msgspec.json.Decoder(_Message).decode


@asynccontextmanager
async def dial(place: Place, path: str, *, patient: bool = False) -> AsyncGenerator["ClientConnection"]:
    """A WebSocket to the server. Raises what the server refused with, or `HostError` (`server_gone`).

    A `patient` one is not given up while we ourselves do not read.
    """
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidHandshake, InvalidStatus

    connection = connect(
        f"ws://127.0.0.1:{place.port}{path}",
        additional_headers={"Authorization": f"Bearer {place.token()}"},
        max_size=MESSAGE_BYTES,
        open_timeout=10,
        close_timeout=2,
        ping_interval=None if patient else 20,
        # Loopback never goes through a proxy, whatever the environment says.
        proxy=None,
    )
    try:
        socket = await connection
    except InvalidStatus as error:
        raise failure(error.response.status_code, bytes(error.response.body or b"")) from None
    except (OSError, InvalidHandshake, TimeoutError):
        raise HostError("server_gone", f"The server at {place.url} cannot be reached.") from None
    try:
        yield socket
    finally:
        with anyio.move_on_after(3, shield=True):
            await socket.close()


def check_close(code: int | None, reason: str) -> None:
    """Raises what the server ended the conversation with, when it was a refusal."""
    if code is not None and code >= _REFUSED:
        raise failure(code - _REFUSED, msgspec.json.encode({"code": "refused", "message": reason}))


class RemoteRun:
    """One run on whatever server holds the data directory."""

    def __init__(self, data_dir: Path, run: RunId, watch: Watch) -> None:
        self._data_dir = data_dir
        self._run = run
        self._watch = watch

    async def follow(self) -> None:
        """Feed the watch until the run has finished. Raises `HostError` (`server_gone`)."""
        while self._watch.outcome is None:
            place = await self._server()
            try:
                async with dial(place, f"/v1/runs/{self._run}/stream?after={self._watch.last_seq}") as socket:
                    if await self._stream(socket):
                        return
            except HostError as error:
                if error.code != "server_gone":
                    raise
                await anyio.sleep(_LOOK_SECONDS)

    async def _stream(self, socket: "ClientConnection") -> bool:
        """Whether it ended because there is nothing more; a lost connection is not the end."""
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                message = _decode(await socket.recv())
                if item := message.event or message.delta:
                    self._watch.feed(item)
        except ConnectionClosed:
            check_close(socket.close_code, socket.close_reason or "")
            return socket.close_code == 1000

    async def _server(self) -> Place:
        with anyio.move_on_after(RECONNECT_SECONDS):
            while True:
                if place := living(self._data_dir):
                    return place
                await anyio.sleep(_LOOK_SECONDS)
        raise HostError(
            "server_gone",
            "The server went away. The run is kept: `cloister serve --background` goes on with it, "
            f"then `cloister watch {self._run}`.",
        )
