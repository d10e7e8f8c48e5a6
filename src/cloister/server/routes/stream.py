"""A run, live: `WS /v1/runs/{run}/stream` replays its log after a `seq`, then follows it, and takes messages."""

import msgspec
from litestar import websocket
from litestar.di import NamedDependency

from cloister.app.tokens import Caller
from cloister.app.verbs.api import RunVerbs, Verbs
from cloister.core.errors import CloisterError, UserError, describe
from cloister.core.events import Event
from cloister.core.ids import RunId
from cloister.server.auth import REVOKED
from cloister.server.errors import problem
from cloister.server.routes import Given, of
from cloister.server.routes.runs import SEQ_MAX, Answer, Run
from cloister.server.ws import NORMAL, Ending, Part, Socket, Sockets, Wire, converse


class ClientMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message of a client: exactly one of these."""

    say: str | None = None
    stop: bool | None = None
    interrupt: bool | None = None
    answer: Answer | None = None


_decode = msgspec.json.Decoder(ClientMessage).decode


@websocket("/v1/runs/{run:str}/stream", **of(RunVerbs.follow))
async def stream(
    socket: Socket,
    verbs: Given,
    sockets: NamedDependency[Sockets],
    caller: NamedDependency[Caller],
    run: Run,
) -> None:
    async def parts(wire: Wire) -> tuple[Part, ...]:
        row = await verbs.runs.row(run)
        after = read_after(socket.query_params.get("after", "0"), row.last_seq)

        async def follow() -> Ending:
            async with verbs.runs.follow(row.id, after) as items:
                async for item in items:
                    if not caller.holds():  # a token may be removed while its holder watches
                        return Ending(REVOKED, "The token was removed.")
                    await wire.send_record(**{"event" if isinstance(item, Event) else "delta": item})
            return Ending(NORMAL, "The run is finished.")

        async def listen() -> Ending:
            # Ends when the client hangs up, which `receive` raises. A rejected message changes nothing else.
            while True:
                message = await wire.receive()
                try:
                    await _take(verbs, row.id, read_message(message))
                except CloisterError as error:
                    await wire.send_record(error=problem(error)[1])

        return follow, listen

    await converse(socket, sockets, parts)


async def _take(verbs: Verbs, run: RunId, message: ClientMessage) -> None:
    if message.say is not None:
        await verbs.runs.say(run, message.say)
    elif message.answer is not None:
        await verbs.runs.answer(run, message.answer.ask, message.answer.answer)
    elif message.interrupt:
        await verbs.runs.interrupt(run)
    else:
        await verbs.runs.stop(run)


def read_message(message: bytes | str) -> ClientMessage:
    """The message as a record. Raises `UserError` (`bad_message`)."""
    try:
        decoded = _decode(message)
    except msgspec.MsgspecError as error:
        raise UserError("bad_message", describe(error, ClientMessage)) from None
    except (UnicodeDecodeError, RecursionError):
        raise UserError("bad_message", "The message is not JSON in UTF-8.") from None
    given = (decoded.say, decoded.stop, decoded.interrupt, decoded.answer)
    if sum(each is not None for each in given) != 1 or False in given:
        raise UserError(
            "bad_message",
            'Send one of {"say": TEXT}, {"stop": true}, {"interrupt": true} and {"answer": {…}}.',
        )
    return decoded


def read_after(text: str, last_seq: int) -> int:
    """The cursor of a returning client. Raises `UserError` (`bad_after`)."""
    if not text.isascii() or not text.isdigit() or len(text) > len(str(SEQ_MAX)):
        raise UserError("bad_after", "after must be the seq of an event: a whole number, 0 for all.")
    if int(text) > last_seq:
        raise UserError("bad_after", f"after is beyond the log, which ends at {last_seq}: ask with after=0.")
    return int(text)
