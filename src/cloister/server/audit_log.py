"""Audit entries of the server itself: logins, refused callers, and calls that change something.

Verbs enter what they did; these entries say which request it was and how it was answered.
"""

import logging
import time
from collections.abc import Callable
from typing import Protocol, cast

import anyio
from litestar import Litestar
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from cloister.core.errors import CloisterError
from cloister.log.audit.details import Detail
from cloister.server.auth import OPEN_PATHS, caller_of, route_of
from cloister.server.compat import without_secret
from cloister.server.port_headers import address

ROUTE_CHARS = 300
REFUSALS, REFUSAL_SECONDS = 10, 60.0
"""Entries about refused callers per period; the next entry counts those left out."""

_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})

logger = logging.getLogger(__name__)


class Notes(Protocol):
    """Where entries go."""

    async def note(self, kind: str, who: str, detail: Detail | str) -> None: ...


class Refusals:
    """Bounds how many refused callers per minute are entered, so that a stranger cannot flood the audit."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since = now()
        self._entered = 0
        self._left_out = 0

    def enter(self) -> int | None:
        """How many were left out since the last entry; None when this one is left out as well."""
        if self._now() - self._since >= REFUSAL_SECONDS:
            self._since, self._entered = self._now(), 0
        if self._entered >= REFUSALS:
            self._left_out += 1
            return None
        self._entered += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


class _Entries:
    """Enters each call before its answer is sent."""

    def __init__(self, web: Litestar, notes: Notes) -> None:
        self._web = web
        self._notes = notes
        self._refusals = Refusals()
        self._seen: set[str] = set()

    async def answered(self, scope: Scope, status: int | None) -> None:
        """`status` is None when the caller hung up first, and 101 for an opened WebSocket."""
        try:
            await self._enter(scope, status)
        except CloisterError as error:
            # The call is done: the caller still gets its answer.
            logger.error("the audit could not be written: %s", error.message)

    async def _enter(self, scope: Scope, status: int | None) -> None:
        is_socket = scope["type"] == "websocket"
        method = "WS" if is_socket else cast(str, scope["method"])  # type: ignore[typeddict-item]
        detail: dict[str, object] = {"method": method, "route": without_secret(scope["path"])[:ROUTE_CHARS]}
        client = scope["client"]
        if client is not None and not client[0].startswith("127."):
            detail["from"] = client[0]
        if "user" not in scope and status is not None and status < 400:
            return  # health, or a webhook: what follows from it has entries of its own
        if "user" not in scope and scope["path"] not in OPEN_PATHS:
            # No token, or a page of another site: the caller is unknown.
            if (left_out := self._refusals.enter()) is not None:
                detail |= {"status": status, "left_out": left_out}
                await self._notes.note("LoginRefused", "", detail)
            return
        if scope["path"] in OPEN_PATHS or (status is None and is_socket):
            return
        who = caller_of(scope).name
        inside = _leads_inside(scope)
        if who not in self._seen or (is_socket and not inside):
            self._seen.add(who)
            await self._notes.note("Login", who, detail)
        if method in _CHANGING and not inside and not route_of(self._web, scope).get("reads"):
            await self._notes.note("ApiCall", who, detail | {"status": status})


def _leads_inside(scope: Scope) -> bool:
    """Whether the request goes to a server in a sandbox, whose requests are not entered."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"").lower()
    return address(host, scope["path"], b"/", b"") is not None


def audited(inner: ASGIApp, web: Litestar, notes: Notes) -> ASGIApp:
    """`inner`, and an entry for every login and every call that changes something."""
    ledger = _Entries(web, notes)

    async def watch(scope: Scope, receive: Receive, send: Send) -> None:
        answered = False

        async def passing(message: Message) -> None:
            nonlocal answered
            status = _status(message)
            if status is not None and not answered:
                answered = True
                await ledger.answered(scope, status)
            await send(message)

        try:
            await inner(scope, receive, passing)
        finally:
            if not answered and scope["type"] in ("http", "websocket"):
                with anyio.CancelScope(shield=True):  # a write has a deadline of its own
                    await ledger.answered(scope, None)

    return watch


def _status(message: Message) -> int | None:
    """The status that a message carries, if it begins an answer."""
    found = cast("dict[str, object]", message)
    match found:
        case {"type": "http.response.start" | "websocket.http.response.start", "status": int(status)}:
            return status
        case {"type": "websocket.accept"}:
            return 101
        case _:
            return None
