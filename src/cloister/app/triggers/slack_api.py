"""Slack's own wires: its Web API, and the socket that it sends events through."""

import ipaddress
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import msgspec

from cloister.app.triggers.slack import Blocks, Place, escaped
from cloister.core.errors import OutsideError
from cloister.core.text import one_line

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
_MESSAGE_BYTES = 1_048_576
_REFUSED = ("invalid_auth", "not_authed", "token_revoked", "account_inactive", "missing_scope")
_GONE = ("channel_not_found", "message_not_found", "is_archived", "not_in_channel", "thread_not_found")
Token = Callable[[], Awaitable[str]]


class _Reply(msgspec.Struct):
    ok: bool = False
    error: str = ""
    ts: str = ""
    url: str = ""


class Slack:
    """The calls of one app. Each raises `OutsideError` (`slack_denied`, `slack_gone`, `slack_unreachable`)."""

    def __init__(self, client: httpx2.AsyncClient, api: str, token: Token) -> None:
        self._client, self._api, self._token = client, api.rstrip("/"), token

    async def post(self, place: Place, text: str, blocks: Blocks) -> str:
        """Write into a thread; returns the number of the message."""
        return (await self._call("chat.postMessage", self._message(place, text, blocks))).ts

    async def change(self, place: Place, ts: str, text: str, blocks: Blocks) -> None:
        """Replace a message."""
        await self._call("chat.update", {**self._message(place, text, blocks), "ts": ts})

    async def socket(self) -> str:
        """The address of a new socket."""
        found = urlsplit((await self._call("apps.connections.open", {})).url)
        if found.scheme != "wss" and not (found.scheme == "ws" and _is_here(found.hostname)):
            raise OutsideError("slack_denied", "Slack named an address that is not encrypted.")
        return found.geturl()

    def _message(self, place: Place, text: str, blocks: Blocks) -> dict[str, Any]:
        return {
            "channel": place.channel,
            "thread_ts": place.thread,
            "text": escaped(text),
            "blocks": blocks,
            "parse": "none",
            "mrkdwn": False,
            "link_names": False,
            "unfurl_links": False,
            "unfurl_media": False,
        }

    async def _call(self, method: str, body: dict[str, Any]) -> _Reply:
        headers = {
            "Authorization": f"Bearer {await self._token()}",
            "Content-Type": "application/json; charset=utf-8",
        }
        try:
            reply = await self._client.post(
                f"{self._api}/{method}", content=msgspec.json.encode(body), headers=headers
            )
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            why = one_line(str(error), 160) or type(error).__name__
            raise _unreachable(why) from None
        if reply.status_code == 429 or reply.status_code >= 500:
            raise _unreachable(f"it answered with status {reply.status_code}")
        try:
            found = msgspec.json.decode(reply.content, type=_Reply)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise _unreachable("its reply cannot be read") from None
        if found.ok:
            return found
        why = one_line(found.error, 80)
        if found.error in _GONE:
            raise OutsideError("slack_gone", f"Slack has no such place: {why}.")
        if found.error in _REFUSED:
            raise OutsideError("slack_denied", f"Slack does not accept the token: {why}.")
        raise _unreachable(why)


def _unreachable(why: str) -> OutsideError:
    return OutsideError("slack_unreachable", f"Slack did not do it: {why}.", retryable=True)


def _is_here(host: str | None) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


Store = Callable[[bytes], Awaitable[object]]
"""Keeps a payload; durable when it returns."""


async def listen(open_slack: Callable[[httpx2.AsyncClient], Slack], store: Store) -> None:
    """Receive events through a socket, each stored before it is acknowledged. Reconnects; never returns."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            async with httpx2.AsyncClient(timeout=30, follow_redirects=False) as client:
                address = await open_slack(client).socket()
            if await _one_socket(address, store):
                pause = FIRST_PAUSE_SECONDS
                continue
        except Exception as error:
            logger.warning("Slack's socket is closed: %s", one_line(str(error) or type(error).__name__, 200))
        await anyio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


class _Envelope(msgspec.Struct):
    type: str = ""
    envelope_id: str = ""
    payload: msgspec.Raw = msgspec.Raw(b"{}")


async def _one_socket(address: str, store: Store) -> bool:
    """Serve one connection to its end. True if something arrived."""
    from websockets.asyncio.client import connect  # noqa: PLC0415  (few servers have a socket)
    from websockets.exceptions import ConnectionClosed  # noqa: PLC0415

    arrived = False
    async with connect(address, max_size=_MESSAGE_BYTES, open_timeout=30, proxy=None) as socket:
        try:
            while True:
                message = await socket.recv(decode=False)
                try:
                    envelope = msgspec.json.decode(message, type=_Envelope)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    continue
                arrived = True
                if envelope.type == "disconnect":
                    return True
                if envelope.envelope_id:
                    if envelope.type in ("events_api", "interactive"):
                        await store(bytes(envelope.payload))
                    await socket.send(msgspec.json.encode({"envelope_id": envelope.envelope_id}).decode())
        except ConnectionClosed:
            return arrived
