"""The verbs over HTTP. `cloister.app.verbs.api` declares the request of most of them."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import anyio
import msgspec

from cloister.app.verbs import api
from cloister.app.verbs.declare import SLOW_SECONDS
from cloister.cli.client.http import Group, Transport, address, bad_reply, check_close, decoded, over_http
from cloister.core.errors import HostError
from cloister.core.events import Delta, Event
from cloister.core.requests import attachment

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from websockets.asyncio.client import ClientConnection

    from cloister.app.overview import OverviewItem
    from cloister.app.verbs.knowledge import KnowledgeVerbs
    from cloister.app.verbs.tools import ToolVerbs
    from cloister.app.verbs.webhooks import WebhookVerbs
    from cloister.cli.client.remote_sandboxes import RemoteFiles, RemoteSandboxes
    from cloister.core.ids import RunId
    from cloister.core.requests import Attachment
    from cloister.log.hub import Direct
    from cloister.sandbox.api import SnapshotInfo

EVENTS_PAGE = 10_000
RECONNECT_SECONDS = 30.0
_LOOK_SECONDS = 0.3


class RemoteRuns(Group, api.RunVerbs):
    """`RunVerbs` over HTTP."""

    async def events(
        self,
        run: str,
        after: int = 0,
        limit: int | None = None,
        attempt: int | None = None,
        before: int | None = None,
    ) -> tuple[Event, ...]:
        found: tuple[Event, ...] = ()
        if before is not None and limit is not None:
            path = address("runs", run, "events", after=after, limit=limit, attempt=attempt, before=before)
            return await self.http.get(tuple[Event, ...], path, SLOW_SECONDS)
        while limit is None or len(found) < limit:
            most = min(EVENTS_PAGE, EVENTS_PAGE if limit is None else limit - len(found))
            path = address("runs", run, "events", after=after, limit=most, attempt=attempt, before=before)
            page = await self.http.get(tuple[Event, ...], path, SLOW_SECONDS)
            order = [after, *(event.seq for event in page)]
            if len(page) > most or order != sorted(set(order)):
                raise bad_reply("the events are not in order")
            found += page
            if len(page) < most:
                break
            after = page[-1].seq
        return found

    async def attach(self, name: str, data: bytes) -> Attachment:
        made = attachment(name, data)
        async with self.http.sending(address("attachments", name=made.name)) as sink:
            await sink.send(data)
        return made

    async def attachment(self, run: str, sha256: str) -> bytes:
        return await self.http.ask("GET", address("runs", run, "attachments", sha256))

    @asynccontextmanager
    async def follow(
        self, run: str, after: int = 0, *, deltas: bool = True, direct: Direct | None = None
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

    @asynccontextmanager
    async def overview(
        self, after: int | None = None, last: int = 200
    ) -> AsyncGenerator[AsyncIterator[OverviewItem]]:
        from cloister.app.overview import OverviewItem

        query = urlencode({"last": last} if after is None else {"last": last, "after": after})

        async def items(socket: ClientConnection) -> AsyncGenerator[OverviewItem]:
            async for data in _received(socket):
                yield decoded(OverviewItem, data)  # pyright: ignore[reportArgumentType] (a union of records)

        async with self.http.dial(f"/v1/stream?{query}") as socket, aclosing(items(socket)) as found:
            yield found


class _Message(msgspec.Struct, frozen=True):
    event: Event | None = None
    delta: Delta | None = None


async def _messages(socket: ClientConnection) -> AsyncGenerator[Event | Delta]:
    """The items of one connection until it closes. Raises the server's refusal."""
    async for data in _received(socket):
        message = decoded(_Message, data)
        if item := message.event or message.delta:
            yield item


async def _received(socket: ClientConnection) -> AsyncGenerator[str | bytes]:
    from websockets.exceptions import ConnectionClosed

    try:
        while True:
            yield await socket.recv()
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
        self.triggers = over_http(api.TriggerVerbs, transport)
        self.environments = over_http(api.EnvironmentVerbs, transport)
        self.machine = over_http(api.MachineVerbs, transport)
        self.people = over_http(api.PeopleVerbs, transport)

    @property
    def tools(self) -> ToolVerbs:
        from cloister.app.verbs.tools import ToolVerbs

        return over_http(ToolVerbs, self.http)

    @property
    def knowledge(self) -> KnowledgeVerbs:
        from cloister.app.verbs.knowledge import KnowledgeVerbs

        return over_http(KnowledgeVerbs, self.http)

    @property
    def webhooks(self) -> WebhookVerbs:
        from cloister.app.verbs.webhooks import WebhookVerbs

        return over_http(WebhookVerbs, self.http)

    @property
    def sandboxes(self) -> RemoteSandboxes:
        from cloister.cli.client.remote_sandboxes import RemoteSandboxes

        return over_http(RemoteSandboxes, self.http)

    @property
    def files(self) -> RemoteFiles:
        from cloister.cli.client.remote_sandboxes import RemoteFiles

        return over_http(RemoteFiles, self.http)
