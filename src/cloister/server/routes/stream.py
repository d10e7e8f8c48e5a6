"""A run, live: `WS /v1/runs/{run}/stream` replays its log after a `seq`, then follows it, and takes words back."""

from typing import TYPE_CHECKING

import msgspec
from litestar import websocket
from litestar.di import NamedDependency

from cloister.core.errors import CloisterError, UserError, describe
from cloister.core.events import Event
from cloister.core.ids import RunId
from cloister.server.auth import Caller
from cloister.server.errors import problem
from cloister.server.routes.runs import SEQ_MAX, Answer, Run
from cloister.server.ws import NORMAL, Ending, Part, Socket, Sockets, Wire, converse

if TYPE_CHECKING:
    from cloister.app.wiring import App


class ClientMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client may say: exactly one of these."""

    say: str | None = None
    stop: bool | None = None
    answer: Answer | None = None


_decode = msgspec.json.Decoder(ClientMessage).decode


@websocket("/v1/runs/{run:str}/stream")
async def stream(
    socket: Socket,
    app: NamedDependency["App"],
    sockets: NamedDependency[Sockets],
    caller: NamedDependency[Caller],
    run: Run,
) -> None:
    async def parts(wire: Wire) -> tuple[Part, ...]:
        found = await app.backbone.resolve(run)
        row = await app.backbone.row(found)
        after = read_after(socket.query_params.get("after", "0"), row.last_seq)

        async def follow() -> Ending:
            return await _follow(wire, app, found, after, caller)

        async def listen() -> Ending:
            return await _listen(wire, app, found, caller)

        return follow, listen

    await converse(socket, sockets, parts)


async def _follow(wire: Wire, app: "App", run: RunId, after: int, caller: Caller) -> Ending:
    async with app.backbone.follow(run, after) as items:
        async for item in items:
            caller.must_be("viewer")  # a token may be taken away while its holder watches
            if isinstance(item, Event):
                await wire.send_record(event=item)
            else:
                await wire.send_record(delta=item)
    return Ending(NORMAL, "The run is finished.")


async def _listen(wire: Wire, app: "App", run: RunId, caller: Caller) -> Ending:
    """Takes what the client says until it hangs up, which `receive` raises; a bad message costs nothing."""
    while True:
        message = await wire.receive()
        try:
            await _take(app, run, read_message(message), caller)
        except CloisterError as error:
            await wire.send_record(error=problem(error)[1])


async def _take(app: "App", run: RunId, message: ClientMessage, caller: Caller) -> None:
    caller.must_be("operator")
    who = caller.name
    if message.say is not None:
        await app.say(run, message.say, who)
    elif message.answer is not None:
        await app.answer(run, message.answer.ask, message.answer.answer, who, caller.role)
    else:
        await app.stop(run, who)


def read_message(message: bytes | str) -> ClientMessage:
    """The message as a record. Raises `UserError` (`bad_message`)."""
    try:
        decoded = _decode(message)
    except msgspec.MsgspecError as error:
        raise UserError("bad_message", describe(error)) from None
    except (UnicodeDecodeError, RecursionError):
        raise UserError("bad_message", "The message is not JSON in UTF-8.") from None
    given = [decoded.say is not None, decoded.stop is True, decoded.answer is not None]
    if sum(given) != 1 or decoded.stop is False:
        raise UserError("bad_message", 'Send one of {"say": TEXT}, {"stop": true} and {"answer": {…}}.')
    return decoded


def read_after(text: str, last_seq: int) -> int:
    """The cursor a client comes back with. Raises `UserError` (`bad_after`)."""
    if not text.isascii() or not text.isdigit() or len(text) > len(str(SEQ_MAX)):
        raise UserError("bad_after", "after must be the seq of an event: a whole number, 0 for all.")
    if int(text) > last_seq:
        raise UserError("bad_after", f"after is beyond the log, which ends at {last_seq}: ask with after=0.")
    return int(text)


ROUTES = (stream,)
