"""The audit over HTTP; and what is entered of every login and every call that changes something."""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, cast

import anyio
from litestar import MediaType, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from cloister.core.errors import CloisterError
from cloister.log.audit.entry import AuditEntry
from cloister.log.audit.keys import check_public
from cloister.log.audit.verify import Verdict
from cloister.runs.receipt import Receipt, run_receipt
from cloister.runs.receipt_page import page
from cloister.server.auth import OPEN_PATH, caller_of
from cloister.server.port_headers import address
from cloister.server.routes.runs import SEQ_MAX, Run

if TYPE_CHECKING:
    from cloister.app.wiring import App

ROUTE_CHARS = 300
REFUSALS, REFUSAL_SECONDS = 10, 60.0
"""Entries about refused callers per so much time; the others are counted in the next one."""

_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})

logger = logging.getLogger(__name__)

After = Annotated[int, QueryParameter(ge=0, le=SEQ_MAX, description="Only entries with a greater number.")]


class Refusals:
    """How many of the refused callers are entered: some per minute, whatever somebody sends."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since = now()
        self._entered = 0
        self._left_out = 0

    def enter(self) -> int | None:
        """How many were left out since the last entry; None when this one is left out, too."""
        if self._now() - self._since >= REFUSAL_SECONDS:
            self._since, self._entered = self._now(), 0
        if self._entered >= REFUSALS:
            self._left_out += 1
            return None
        self._entered += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


class _Ledger:
    """Enters what was answered, before the answer is out."""

    def __init__(self, app: "App") -> None:
        self._app = app
        self._refusals = Refusals()
        self._seen: set[str] = set()

    async def answered(self, scope: Scope, status: int | None) -> None:
        """`status` is None for a caller who went away first, and 101 for a WebSocket that was opened."""
        try:
            await self._enter(scope, status)
        except CloisterError as error:
            # It was done; not to answer would only add a second mistake.
            logger.error("the audit could not be written: %s", error.message)

    async def _enter(self, scope: Scope, status: int | None) -> None:
        is_socket = scope["type"] == "websocket"
        method = "WS" if is_socket else cast(str, scope["method"])  # type: ignore[typeddict-item]
        detail: dict[str, object] = {"method": method, "route": scope["path"][:ROUTE_CHARS]}
        if "user" not in scope and scope["path"] != OPEN_PATH:
            # No token, or a page of another site: the guard did not let it in, and nobody knows who it was.
            if (left_out := self._refusals.enter()) is not None:
                detail |= {"status": status, "left_out": left_out}
                await self._app.backbone.note("LoginRefused", "", detail)
            return
        if scope["path"] == OPEN_PATH or (status is None and is_socket):
            return
        who = caller_of(scope).name
        inside = _leads_inside(scope)
        if who not in self._seen or (is_socket and not inside):
            self._seen.add(who)
            await self._app.backbone.note("Login", who, detail)
        if method in _CHANGING and not inside:
            await self._app.backbone.note("ApiCall", who, detail | {"status": status})


def _leads_inside(scope: Scope) -> bool:
    """To a server in a sandbox, whose requests are its own affair."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"").lower()
    return address(host, scope["path"], b"/", b"") is not None


def audited(inner: ASGIApp, app: "App") -> ASGIApp:
    """`inner`, and an entry for every login and every call that changes something."""
    ledger = _Ledger(app)

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
    """The answer that a message begins."""
    found = cast("dict[str, object]", message)
    match found:
        case {"type": "http.response.start" | "websocket.http.response.start", "status": int(status)}:
            return status
        case {"type": "websocket.accept"}:
            return 101
        case _:
            return None


@get("/v1/audit", summary="The audit, oldest first", operation_id="listAudit")
async def list_audit(
    app: NamedDependency["App"],
    after: After = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=10_000)] = 1_000,
    run: Annotated[str | None, QueryParameter(description="Of one run alone.")] = None,
) -> tuple[AuditEntry, ...]:
    found = None if run is None else await app.backbone.resolve(run)
    return await app.backbone.audit(after, limit, found)


@get("/v1/audit/verify", summary="Whether the audit is what was written", operation_id="verifyAudit")
async def verify_audit(
    app: NamedDependency["App"],
    key: Annotated[str | None, QueryParameter(description="The public key to trust.")] = None,
) -> Verdict:
    return await app.backbone.verify_audit(None if key is None else check_public(key))


@get("/v1/runs/{run:str}/receipt", summary="What the run touched", operation_id="getReceipt")
async def get_receipt(run: Run, app: NamedDependency["App"]) -> Receipt:
    return await _receipt(run, app)


@get(
    "/v1/runs/{run:str}/receipt/markdown",
    summary="What the run touched, as one page",
    operation_id="getReceiptPage",
    media_type=MediaType.TEXT,
)
async def get_receipt_page(run: Run, app: NamedDependency["App"]) -> str:
    return page(await _receipt(run, app))


async def _receipt(run: str, app: "App") -> Receipt:
    found = await app.backbone.resolve(run)
    return await run_receipt(app.backbone, found, await app.events(found))


ROUTES = (list_audit, verify_audit, get_receipt, get_receipt_page)
