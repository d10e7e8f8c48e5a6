"""Parts of a conversation that every wire format has, each written a little differently: texts, pictures, arguments."""

import base64
import binascii
from typing import cast

import msgspec

from cloister.core.records import ToolCall
from cloister.egress.endpoint.api import BadRequest, JsonObject
from cloister.model.api import INVALID_ARGUMENTS, Image

_DATA = "data:"
_KINDS = ("image/png", "image/jpeg", "image/gif", "image/webp")


def arguments(text: str) -> JsonObject:
    """The arguments of a call that the program gives back, as it had them from us."""
    try:
        found: object = msgspec.json.decode(text.encode() or b"{}")
    except (msgspec.DecodeError, RecursionError):
        return {INVALID_ARGUMENTS: text}
    return cast("JsonObject", found) if isinstance(found, dict) else {INVALID_ARGUMENTS: text}


def written(call: ToolCall) -> str:
    """The arguments of a call as a JSON text."""
    return msgspec.json.encode(call.arguments).decode()


def picture(media_type: str, data: str) -> Image:
    """A picture in base64. Raises `BadRequest`."""
    if media_type not in _KINDS:
        raise BadRequest("A picture is PNG, JPEG, GIF or WebP.")
    try:
        return Image(base64.b64decode(data, validate=True), media_type)
    except (binascii.Error, ValueError):
        raise BadRequest("A picture is not valid base64.") from None


def picture_at(url: str) -> Image:
    """A picture in a `data:` URL; others are not fetched. Raises `BadRequest`."""
    head, comma, data = url.partition(",")
    if not head.startswith(_DATA) or not head.endswith(";base64") or not comma:
        raise BadRequest("A picture comes as a data: URL in base64; others are not fetched.")
    return picture(head.removeprefix(_DATA).removesuffix(";base64"), data)
