"""The HTTP requests of one connection in order: each is parsed, decided and relayed on its own."""

import select
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import anyio
import msgspec
from anyio import DelimiterNotFound, EndOfStream, IncompleteRead
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSAttribute, TLSStream

from cloister.core import limits
from cloister.core.ids import SandboxId
from cloister.core.text import one_line
from cloister.egress.credentials import Dressed, Keeper
from cloister.egress.git_push import Repository
from cloister.egress.http.exchange import Exchange
from cloister.egress.http.head import HERE, NOT_A_SERVER, BadHead, Head, parse_head, without_overrides
from cloister.egress.quota import BROKEN, Refused, Spent
from cloister.egress.rules import Gate, Guest, Opened, Visit
from cloister.egress.streams import Inlet, Pace
from cloister.policy.api import Decision

TLS_PORT = 443
"""Only TLS is allowed on this port."""

Handler = Callable[[SandboxId, Head, Inlet], Awaitable[None]]
"""Serves one request on its connection without closing it; the body is still unread."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Services of a proxy beyond relaying."""

    keeper: Keeper = field(default_factory=Keeper)
    repository: Repository | None = None
    """The run's own repository, with its own rules for git."""
    inside: Mapping[str, Handler] = field(default_factory=dict[str, Handler])
    """Virtual hosts that this process serves over plain HTTP; `HERE` for requests to the proxy itself."""


class Conversation:
    """One client. With an `origin` it speaks (terminated) TLS to that host and port; without, it speaks to a proxy."""

    def __init__(
        self,
        gate: Gate,
        offer: Offer,
        guest: Guest,
        client: Inlet,
        origin: tuple[str, int] | None = None,
    ) -> None:
        self._gate = gate
        self._offer = offer
        self._guest = guest
        self._client = client
        self._origin = origin
        self._bounds = gate.bounds
        self._ends = anyio.current_time() + self._bounds.connection_seconds
        self._where: tuple[str, int] | None = None
        """The host and port that were allowed last: a later refusal there is one of a request."""
        self._opened: Opened | None = None
        self._stream: Inlet | None = None
        self._stack = AsyncExitStack()

    async def run(self, head: Head | None = None) -> None:
        """Serve until the end. `head` is the first request's if it was already read. Raises `Refused`."""
        async with self._stack:
            head = head or await self._next()
            while head is not None:
                if not await self._serve(head):
                    return
                head = await self._next()

    async def _next(self) -> Head | None:
        left = self._ends - anyio.current_time()
        try:
            await self._client.peek(min(self._bounds.idle_seconds, left))
            with anyio.move_on_after(min(self._bounds.head_seconds, left)):
                head = await read_head(self._client, self._origin)
                await self._guest.account.request()
                if head.tunnel:
                    raise Refused(400, "CONNECT must be the first request of a connection.")
                return head
        except EndOfStream:
            pass
        return None

    async def _serve(self, head: Head) -> bool:
        """Serve one request. Return True if another may follow."""
        handler = self._offer.inside.get(head.host)
        if handler is not None and self._origin is None:
            await handler(self._guest.sandbox, head, self._client)
            return False
        visit, decision = await self._judge(head)
        if self._origin is None and head.port == TLS_PORT and not self._gate.raw(visit):
            raise Refused(400, f"Port {TLS_PORT} carries TLS: ask for https://{head.host}/ by CONNECT.")
        if self._origin is not None or self._gate.inspects(visit):
            head = msgspec.structs.replace(head, headers=without_overrides(head.headers))
        dressed = await self._dress(visit, head)
        body = None
        if self._offer.repository and self._origin:
            body = await self._offer.repository.admit(self._gate, visit, head, self._client)
        await self._note(visit, head, decision, dressed)
        for attempt in range(2):
            opened, stream, fresh = await self._server(visit, decision)
            pace = Pace(self._bounds.idle_seconds, self._ends)
            exchange = Exchange(self._client, stream, opened.traffic, pace, dressed.redactor)
            try:
                kept = await exchange.run(head, head.forward_with(dressed.headers), body)
            except (Refused, *BROKEN, Spent):
                # A server may close an idle connection just when it is reused: retry once.
                if fresh or attempt or exchange.began or head.body:
                    raise
                await self._drop()
                continue
            if exchange.status == 401:
                self._offer.keeper.doubt(dressed.names)
            if not kept.server:
                await self._drop()
            return kept.client
        raise Refused(502, f"{visit.host} does not answer.")

    async def _judge(self, head: Head) -> tuple[Visit, Decision]:
        if head.host == HERE:
            raise Refused(400, NOT_A_SERVER)
        gate, opened, where = self._gate, self._opened, (head.host, head.port)
        if opened is not None and (opened.visit.host, opened.visit.port) == where:
            visit = opened.visit
        else:
            await self._drop()
            visit = Visit(self._guest, head.host, head.port, gate.record)
        if self._origin is None and where != self._where:
            decision = await gate.request(visit, head)
            self._where = where
            return visit, decision
        await gate.name(visit)
        decision = gate.of_request(visit, head)
        if decision.effect != "allow":
            await self._deny(visit, head, decision.rule)
        return visit, decision

    async def _deny(self, visit: Visit, head: Head, rule: str) -> None:
        await visit.request(head, "deny", rule)
        where = f"{visit.host}:{visit.port}"
        path = one_line(head.path, 100)
        raise Refused(403, f"{head.method} {path} of {where} is denied: {one_line(rule, 300)}.")

    async def _dress(self, visit: Visit, head: Head) -> Dressed:
        if self._origin is None:
            return Dressed(head.headers)
        return await self._offer.keeper.dress(self._gate, visit, head)

    async def _note(self, visit: Visit, head: Head, decision: Decision, dressed: Dressed) -> None:
        """Record the request if the proxy could read it or a request rule allowed it."""
        visit.credentials.update(dict.fromkeys(dressed.names))
        telling = self._origin is not None or decision.rule.startswith("allow request:")
        if telling:
            await visit.request(head, "allow", decision.rule, ",".join(dressed.names) or None)

    async def _server(self, visit: Visit, decision: Decision) -> tuple[Opened, Inlet, bool]:
        if self._opened is not None and self._stream is not None and self._opened.visit is visit:
            if _is_silent(self._stream):
                return self._opened, self._stream, False
            await self._drop()
        server = await self._gate.open(visit, decision)
        opened = await self._stack.enter_async_context(Opened(visit, server))
        secure = server if self._origin is None else await self._secure(visit, server)
        self._opened, self._stream = opened, Inlet(secure)
        return opened, self._stream, True

    async def _secure(self, visit: Visit, server: ByteStream) -> ByteStream:
        try:
            with anyio.fail_after(self._bounds.dial_seconds):
                return await TLSStream.wrap(
                    server, hostname=visit.host, ssl_context=self._gate.trust, standard_compatible=False
                )
        except ssl.SSLCertVerificationError as error:
            why = one_line(error.verify_message, 120)
            raise Refused(502, f"The certificate of {visit.host} is not trusted: {why}.") from None
        except (ssl.SSLError, EndOfStream, *BROKEN):
            raise Refused(502, f"{visit.host} does not speak TLS on port {visit.port}.") from None

    async def _drop(self) -> None:
        self._opened = self._stream = None
        await self._stack.aclose()


def _is_silent(server: ByteStream) -> bool:
    """False if an idle server has closed the connection or sent bytes: they would answer the next request."""
    secure = server.extra(TLSAttribute.ssl_object, None)  # noqa: S610
    if secure is not None:
        try:
            secure.read(1)
        except ssl.SSLWantReadError:
            pass  # no record has arrived that is not read yet
        else:
            return False
    raw = server.extra(SocketAttribute.raw_socket, None)  # noqa: S610
    if raw is None:
        return True
    waiting = select.poll()
    waiting.register(raw, select.POLLIN)
    return not waiting.poll(0)


async def read_head(client: Inlet, origin: tuple[str, int] | None = None, *, plain: bool = False) -> Head:
    """Read the next head. Raises `Refused`, and `EndOfStream` at the end."""
    try:
        data = await client.receive_until(b"\r\n\r\n", limits.DOOR_HEAD_BYTES)
        return parse_head(data + b"\r\n\r\n", origin, plain=plain)
    except DelimiterNotFound:
        raise Refused(431, f"A request head has at most {limits.DOOR_HEAD_BYTES:,} bytes.") from None
    except IncompleteRead:
        raise EndOfStream from None
    except BadHead as error:
        raise Refused(error.status, error.message) from None
