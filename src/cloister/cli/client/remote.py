"""The verbs over HTTP. `cloister.app.verbs.api` declares the request of most of them."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import msgspec

from cloister.app.verbs import api
from cloister.app.verbs.api import SLOW_SECONDS
from cloister.cli.client.http import Group, Transport, address, bad_reply, check_close, decoded, over_http
from cloister.core.errors import HostError
from cloister.core.events import Delta, Event

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from websockets.asyncio.client import ClientConnection

    from cloister.cli.client.remote_sandboxes import RemoteFiles, RemoteSandboxes
    from cloister.core.ids import RunId
    from cloister.sandbox.api import SnapshotInfo

EVENTS_PAGE = 10_000
RECONNECT_SECONDS = 30.0
_LOOK_SECONDS = 0.3


class RemoteRuns(Group, api.RunVerbs):
    """`RunVerbs` over HTTP."""

    async def events(
        self, run: str, after: int = 0, limit: int | None = None, attempt: int | None = None
    ) -> tuple[Event, ...]:
        found: tuple[Event, ...] = ()
        while limit is None or len(found) < limit:
            most = min(EVENTS_PAGE, EVENTS_PAGE if limit is None else limit - len(found))
            path = address("runs", run, "events", after=after, limit=most, attempt=attempt)
            page = await self.http.get(tuple[Event, ...], path, SLOW_SECONDS)
            order = [after, *(event.seq for event in page)]
            if len(page) > most or order != sorted(set(order)):
                raise bad_reply("the events are not in order")
            found += page
            if len(page) < most:
                break
            after = page[-1].seq
        return found

    @asynccontextmanager
    async def follow(
        self, run: str, after: int = 0, *, deltas: bool = True
    ) -> AsyncGenerator[AsyncIterator[Event | Delta]]:
        found = (await self.row(run)).id
        async with aclosing(self._follow(found, after, deltas)) as items:
            yield items

    async def _follow(self, run: RunId, after: int, deltas: bool) -> AsyncGenerator[Event | Delta]:
        deadline = anyio.current_time() + RECONNECT_SECONDS
        while True:
            try:
                async with self.http.dial(address("runs", run, "stream", after=after)) as socket:
                    async with aclosing(_messages(socket)) as messages:
                        async for item in messages:
                            deadline = anyio.current_time() + RECONNECT_SECONDS
                            if isinstance(item, Event):
                                after = item.seq
                            if deltas or isinstance(item, Event):
                                yield item
                    if socket.close_code == 1000:
                        return
            except HostError as error:
                if error.code != "server_gone":
                    raise
            if anyio.current_time() > deadline:
                raise HostError(
                    "server_gone",
                    "The server is gone. Its runs resume when it starts again (`cloister serve --background`); "
                    f"then `cloister watch {run}`.",
                )
            await anyio.sleep(_LOOK_SECONDS)


class _Message(msgspec.Struct, frozen=True):
    event: Event | None = None
    delta: Delta | None = None


async def _messages(socket: ClientConnection) -> AsyncGenerator[Event | Delta]:
    """The items of one connection until it closes. Raises the server's refusal."""
    from websockets.exceptions import ConnectionClosed

    try:
        while True:
            message = decoded(_Message, await socket.recv())
            if item := message.event or message.delta:
                yield item
    except ConnectionClosed:
        check_close(socket)


class RemoteSnapshots(Group, api.SnapshotVerbs):
    """`SnapshotVerbs` over HTTP."""

    async def list(self, sandbox: str | None = None) -> tuple[SnapshotInfo, ...]:
        from cloister.sandbox.api import SnapshotInfo

        path = address("snapshots") if sandbox is None else address("sandboxes", sandbox, "snapshots")
        return await self.http.get(tuple[SnapshotInfo, ...], path)


class RemoteVerbs:
    """`Verbs` over HTTP."""

    def __init__(self, transport: Transport) -> None:
        self.http = transport
        self.runs = over_http(RemoteRuns, transport)
        self.audit = over_http(api.AuditVerbs, transport)
        self.tokens = over_http(api.TokenVerbs, transport)
        self.templates = over_http(api.TemplateVerbs, transport)
        self.snapshots = over_http(RemoteSnapshots, transport)
        self.models = over_http(api.ModelVerbs, transport)
        self.policy = over_http(api.PolicyVerbs, transport)
        self.environments = over_http(api.EnvironmentVerbs, transport)

    @property
    def sandboxes(self) -> RemoteSandboxes:
        from cloister.cli.client.remote_sandboxes import RemoteSandboxes

        return over_http(RemoteSandboxes, self.http)

    @property
    def files(self) -> RemoteFiles:
        from cloister.cli.client.remote_sandboxes import RemoteFiles

        return over_http(RemoteFiles, self.http)
