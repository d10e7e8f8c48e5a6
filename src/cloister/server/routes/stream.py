"""A run and the overview of all, live, as WebSocket and as server-sent events.

`/v1/runs/{run}/stream` sends the log, then follows it; over the WebSocket the client also steers the run.
`/v1/stream` sends the rows of all runs and the sandboxes as they change. `/mcp` is the MCP server.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import anyio
from litestar import Request, Response, asgi, get, websocket
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.handlers import ASGIRouteHandler
from litestar.params import HeaderParameter, QueryParameter
from litestar.types import Receive, Scope
from litestar.types import Send as ToClient

from cloister.app.overview import OverviewItem, Synced
from cloister.app.tokens import Caller
from cloister.app.verbs.api import RunVerbs
from cloister.app.verbs.local import LocalVerbs
from cloister.core.errors import CloisterError, UserError
from cloister.core.events import Event
from cloister.log.api import RunRow
from cloister.server.auth import REVOKED, caller_of
from cloister.server.errors import problem
from cloister.server.messages import (
    SEQ_MAX,
    DeltaMessage,
    Failed,
    Pace,
    Watchers,
    encode,
    id_of,
    read_message,
    stream_schema,
    take,
)
from cloister.server.routes import Given, of
from cloister.server.routes.runs import After, Run
from cloister.server.sse import EventStream, Message
from cloister.server.ws import MESSAGE_BYTES, NORMAL, Ending, Part, Socket, Sockets, Wire, converse

if TYPE_CHECKING:
    from cloister.app.wiring import App

REFUSED = 1_000
"""Messages of one connection that are refused one by one; one more closes it."""
TOO_MANY = 4429
LAST_MOST = 1_000
WATCHERS_SECONDS = 0.2
"""Shortest time between two messages about who watches."""

Shared = NamedDependency[Sockets]
Calling = NamedDependency[Caller]
LastId = Annotated[
    str | None,
    HeaderParameter(name="Last-Event-ID", description="Where to resume, as `EventSource` sends it."),
]
Send = Callable[[Message], Awaitable[None]]


def _over(wire: Wire) -> Send:
    async def send(message: Message) -> None:
        await wire.send(message.text)

    return send


class _To(NamedTuple):
    """Where a stream goes: by the messages of its task, and where possible in one write without it."""

    send: Send
    wire: Wire | None = None


async def _follow(verbs: Given, sockets: Sockets, caller: Caller, row: RunRow, after: int, to: _To) -> Ending:
    send, direct = to.send, to.wire and partial(_push, sockets, caller, to.wire)
    async with verbs.runs.follow(row.id, after, direct=direct) as items:
        async for item in items:
            if not caller.holds():  # a token may be removed while its holder watches
                return Ending(REVOKED, "The token was removed.")
            if isinstance(item, Event):
                await send(Message(sockets.texts.of(item), item.seq))
            else:
                await send(Message(encode(DeltaMessage(item)).decode()))
    return Ending(NORMAL, "The run is finished.")


def _push(sockets: Sockets, caller: Caller, wire: Wire, event: Event) -> bool:
    """Send an event to one of many in the turn in which it became durable, with the bytes that all of them get."""
    try:
        return caller.holds() and wire.push(sockets.texts.frame(event))
    except CloisterError:  # the file of tokens is broken: the stream ends with that
        return False


async def _tell_watchers(sockets: Sockets, caller: Caller, row: RunRow, send: Send) -> Ending:
    told: tuple[str, ...] = ()
    with sockets.audience.joined(row.id, caller.name):
        while True:
            names = sockets.audience.names(row.id)
            if names != told:
                told = names
                await send(Message(encode(Watchers(names)).decode()))
            await sockets.audience.changed(row.id)
            await anyio.sleep(WATCHERS_SECONDS)


async def _listen(verbs: Given, row: RunRow, wire: Wire) -> Ending:
    """Ends when the client hangs up, which `receive` raises. A rejected message changes nothing else."""
    pace, refused = Pace(), 0
    while refused <= REFUSED:
        data, key = await wire.receive(), None
        try:
            pace.check()
            if len(data) > MESSAGE_BYTES:
                raise UserError("too_large", f"A message has at most {MESSAGE_BYTES:,} bytes.")
            key = id_of(data)
            await wire.send(encode(await take(verbs, row.id, read_message(data))).decode())
        except CloisterError as error:
            refused += 1
            await wire.send(encode(Failed(problem(error)[1], key)).decode())
    return Ending(TOO_MANY, f"More than {REFUSED:,} messages were refused: come back and send fewer.")


@websocket("/v1/runs/{run:str}/stream", **of(RunVerbs.follow))
async def stream(socket: Socket, verbs: Given, sockets: Shared, caller: Calling, run: Run) -> None:
    async def parts(wire: Wire) -> tuple[Part, ...]:
        row = await verbs.runs.row(run, told=False)
        asked = socket.query_params
        after = begin(asked.get("after"), asked.get("last"), row.last_seq)
        send = _over(wire)
        return (
            partial(_follow, verbs, sockets, caller, row, after, _To(send, wire)),
            partial(_tell_watchers, sockets, caller, row, send),
            partial(_listen, verbs, row, wire),
        )

    await converse(socket, sockets, parts)


@get(
    "/v1/runs/{run:str}/stream",
    **of(RunVerbs.follow, "A run, live, as server-sent events", "streamRun"),
    media_type="text/event-stream",
)
async def stream_events(  # noqa: PLR0913  (each is a parameter of the request)
    run: Run,
    verbs: Given,
    sockets: Shared,
    caller: Calling,
    after: After = 0,
    last: Annotated[
        int | None, QueryParameter(ge=0, le=SEQ_MAX, description="Begin so far from the end.")
    ] = None,
    last_id: LastId = None,
) -> Response[bytes]:
    row = await verbs.runs.row(run, told=False)
    since = begin(last_id or str(after), None if last is None else str(last), row.last_seq)
    if last_id and row.state == "finished" and since >= row.last_seq:
        return Response(b"", status_code=204)  # an `EventSource` does not come back after that

    def parts(send: Send) -> tuple[Part, ...]:
        return (
            partial(_follow, verbs, sockets, caller, row, since, _To(send)),
            partial(_tell_watchers, sockets, caller, row, send),
        )

    return EventStream(parts, sockets)


def begin(after: str | None, last: str | None, last_seq: int) -> int:
    """The event after which a stream begins. Raises `UserError` (`bad_after`)."""
    if last is not None and after in (None, "0"):
        return max(0, last_seq - _number("last", last))
    number = _number("after", after if after is not None else "0")
    if number > last_seq:
        raise UserError("bad_after", f"after is beyond the log, which ends at {last_seq}: ask with after=0.")
    return number


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > len(str(SEQ_MAX)):
        raise UserError("bad_after", f"{name} must be a whole number, such as the seq of an event.")
    return int(text)


# All runs.


async def _show_all(
    caller: Caller, opened: AbstractAsyncContextManager[AsyncIterator[OverviewItem]], send: Send
) -> Ending:
    async with opened as items:
        async for item in items:
            if not caller.holds():
                return Ending(REVOKED, "The token was removed.")
            cursor = item.cursor if isinstance(item, Synced) else None
            await send(Message(encode(item).decode(), cursor))
    return Ending(NORMAL, "The overview has ended.")


def _overview(verbs: Given, after: str | None, last: str | None) -> Any:
    most = _number("last", last if last is not None else "200")
    if most > LAST_MOST:
        raise UserError("bad_after", f"last is at most {LAST_MOST:,}: `GET /v1/runs` lists more.")
    return verbs.runs.overview(None if after is None else _number("after", after), most)


async def _ignore(wire: Wire) -> Ending:
    """Notices when the client hangs up. It has nothing to say here."""
    pace, refused = Pace(), 0
    while refused <= REFUSED:
        data = await wire.receive()
        refused += 1
        try:
            pace.check()
            raise UserError("bad_message", "This stream takes no messages: send them to that of a run.")
        except CloisterError as error:
            await wire.send(encode(Failed(problem(error)[1], id_of(data))).decode())
    return Ending(TOO_MANY, f"More than {REFUSED:,} messages were refused.")


@websocket("/v1/stream", **of(RunVerbs.overview))
async def overview(socket: Socket, verbs: Given, sockets: Shared, caller: Calling) -> None:
    async def parts(wire: Wire) -> tuple[Part, ...]:
        asked = socket.query_params
        opened = _overview(verbs, asked.get("after"), asked.get("last"))
        return partial(_show_all, caller, opened, _over(wire)), partial(_ignore, wire)

    await converse(socket, sockets, parts)


@get(
    "/v1/stream",
    **of(RunVerbs.overview, "All runs and sandboxes, live, as server-sent events", "streamAll"),
    media_type="text/event-stream",
)
async def overview_events(
    request: Request[Any, Any, State], verbs: Given, sockets: Shared, caller: Calling, last_id: LastId = None
) -> Response[bytes]:
    asked = request.query_params
    opened = _overview(verbs, last_id or asked.get("after"), asked.get("last"))
    return EventStream(lambda send: (partial(_show_all, caller, opened, send),), sockets)


@get(
    "/v1/stream/schema",
    **of(RunVerbs.follow, "The JSON Schema of the messages of streams", "getStreamSchema"),
)
async def get_schema() -> dict[str, Any]:
    return stream_schema()


# MCP, with the tokens and the roles of the API.

_NO_STREAM = b'{"error": "bad_method", "message": "This server has no sessions: send a POST."}'


def mcp_route(app: "App") -> ASGIRouteHandler:
    """The route. The verbs check the role of the caller, and enter into the audit what it does."""

    @asgi("/mcp", opt={"role": "viewer", "reads": True}, copy_scope=True)
    async def serve(scope: Scope, receive: Receive, send: ToClient) -> None:
        if scope["method"] != "POST":  # type: ignore[typeddict-item]
            await _refuse(send)
            return
        from cloister.app.mcp.serve import serve_request  # noqa: PLC0415  (the SDK takes half a second)

        await serve_request(LocalVerbs(app, caller_of(scope)), scope, receive, send)

    return serve


async def _refuse(send: ToClient) -> None:
    headers = [(b"content-type", b"application/json"), (b"allow", b"POST")]
    await send({"type": "http.response.start", "status": 405, "headers": headers})
    await send({"type": "http.response.body", "body": _NO_STREAM, "more_body": False})
