"""The Connect protocol with JSON, as far as clients of e2b use it: unary calls, and streams of framed messages."""

import struct
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from litestar import Request
from litestar.datastructures import State

from cloister.core.errors import UserError, describe
from cloister.server.bodies import body_of
from cloister.server.compat import CODES
from cloister.server.compat.live import Live, Tell
from cloister.server.errors import problem

T = TypeVar("T")

MESSAGE_BYTES = 1_048_576
"""Largest message of a client."""
MEDIA_TYPE = "application/connect+json"
_HEAD = struct.Struct(">BI")
_COMPRESSED, _END = 1, 2


def frame(message: object, flags: int = 0) -> bytes:
    """One message of a stream."""
    data = msgspec.json.encode(message)
    return _HEAD.pack(flags, len(data)) + data


def last_frame(failure: Exception | None) -> bytes:
    """The end of a stream, with the error that ended it."""
    if failure is None:
        return frame({}, _END)
    status, body = problem(failure)
    if status == 410:
        body = msgspec.structs.replace(body, message=f"The sandbox was not found: {body.message}")
    return frame({"error": {"code": CODES.get(status, "internal"), "message": body.message}}, _END)


async def framed(kind: type[T], request: Request[Any, Any, State]) -> T:
    """The only message of a client's stream, as a record.

    Raises `UserError` (`too_large`, `bad_request`). What its head announces is never awaited beyond the limit.
    """
    held = bytearray()
    async for data in body_of(request):
        held += data
        if len(held) >= _HEAD.size:
            flags, size = _HEAD.unpack_from(held)
            if flags & _COMPRESSED:
                raise UserError("bad_request", "Messages are not compressed here: send them as they are.")
            if size > MESSAGE_BYTES:
                raise UserError("too_large", f"A message may have {MESSAGE_BYTES:,} bytes.")
            if len(held) >= _HEAD.size + size:
                return _decoded(kind, bytes(held[_HEAD.size : _HEAD.size + size]))
        if len(held) > MESSAGE_BYTES + _HEAD.size:
            break
    raise UserError("bad_request", "The message ends before the length that its head says.")


async def unary(kind: type[T], request: Request[Any, Any, State]) -> T:
    """The message of a unary call. Raises `UserError` (`too_large`, `bad_request`)."""
    held = bytearray()
    async for data in body_of(request):
        held += data
        if len(held) > MESSAGE_BYTES:
            raise UserError("too_large", f"A message may have {MESSAGE_BYTES:,} bytes.")
    return _decoded(kind, bytes(held) or b"{}")


def _decoded(kind: type[T], data: bytes) -> T:
    try:
        # Protobuf's JSON writes 64-bit numbers as text.
        return msgspec.json.decode(data, type=kind, strict=False)
    except msgspec.MsgspecError as error:
        raise UserError("bad_request", describe(error, kind)) from None
    except (UnicodeDecodeError, RecursionError):
        raise UserError("bad_request", "The message is not JSON in UTF-8.") from None


def record(kind: type[T], **members: object) -> T:
    """A record of ours with what a client sent, within its limits. Raises `UserError` (`bad_request`)."""
    try:
        return msgspec.convert(msgspec.to_builtins(members), kind)
    except msgspec.ValidationError as error:
        raise UserError("bad_request", describe(error, kind)) from None


def stream(produce: Callable[[Tell], Awaitable[None]], beat: object) -> Live:
    """A stream of messages; `beat` is the message that keeps it open."""
    return Live(produce, MEDIA_TYPE, last_frame, frame(beat))


def failing(error: Exception) -> Live:
    """A stream that ends at once with an error."""

    async def produce(tell: Tell) -> None:
        raise error

    return Live(produce, MEDIA_TYPE, last_frame)
