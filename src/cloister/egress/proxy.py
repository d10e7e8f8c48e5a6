"""The proxy: read where each relayed connection wants to go, ask the policy, and relay it."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import anyio
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from cloister.core.addresses import is_address
from cloister.core.ids import SandboxId
from cloister.core.requests import DoorBounds
from cloister.core.text import one_line
from cloister.egress import postgresql, streams
from cloister.egress.http.connection import TLS_PORT, Conversation, Offer, read_head
from cloister.egress.http.head import HTTP_PORT
from cloister.egress.quota import BROKEN, Accounts, Refused, Spent, answer
from cloister.egress.rules import Decide, Gate, Guest, Opened, Outside, Record, Visit
from cloister.egress.streams import Flow, Inlet, Pace
from cloister.egress.tls import NotTls, hides_a_name, receive_hello

if TYPE_CHECKING:
    from cloister.egress.authority import Authority

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Door:
    """The only way out of every sandbox that has it.

    Policy is asked by name before the name is resolved, so a denied name is never looked up. Every address
    that the name resolves to is judged, and exactly a judged address is dialled. A connection is recorded
    before it is made; if that fails, so does the connection, with the same error.
    """

    def __init__(
        self,
        decide: Decide,
        record: Record,
        *,
        outside: Outside | None = None,
        bounds: DoorBounds | None = None,
        offer: Offer | None = None,
    ) -> None:
        self._bounds = bounds or DoorBounds()
        self._accounts = Accounts(self._bounds)
        self._gate = Gate(decide, record, outside or Outside(), self._bounds)
        self._offer = offer or Offer()
        self._authority: Authority | None = None

    async def stand_ins(self) -> dict[str, str]:
        """Environment variables inside the sandbox that hold stand-ins for credentials."""
        return await self._offer.keeper.env()

    @property
    def authority(self) -> Authority:
        """The CA certificate that programs inside must trust where the proxy terminates TLS."""
        if self._authority is None:
            from cloister.egress import authority  # noqa: PLC0415  (few hosts need it, and it takes long to load)

            self._authority = authority.Authority()
        return self._authority

    def connections(self, sandbox: SandboxId) -> int:
        """The number of open connections of a sandbox."""
        return self._accounts.of(sandbox).connections

    async def serve(self, sandbox: SandboxId, client: ByteStream) -> None:
        """Serve one connection from the sandbox until it ends, then close it."""
        async with client:
            account = self._accounts.of(sandbox)
            try:
                with account.connection():
                    await self._serve(Guest(sandbox, account), Inlet(client))
            except Refused as refused:
                await answer(client, refused.status, refused.sentence)
            except (EndOfStream, Spent, BrokenResourceError, ClosedResourceError):
                return

    async def _serve(self, guest: Guest, client: Inlet) -> None:
        try:
            first = await client.peek(self._bounds.idle_seconds)
            if first == postgresql.FIRST_BYTE:
                await self._database(guest, client)
                return
            with anyio.fail_after(self._bounds.head_seconds):
                await guest.account.request()
                if first == streams.VERSION:
                    host, port = await streams.asked(client)
                    head = None
                elif 0x41 <= first <= 0x5A:
                    head = await read_head(client)
                    host, port = head.host, head.port
                else:
                    raise Refused(400, "This proxy speaks HTTP, SOCKS5 and PostgreSQL only.")
        except TimeoutError:
            raise Refused(408, "The request head did not arrive in time.") from None
        except streams.BadSocks as error:
            if error.reply is not None:
                await streams.answer(client, error.reply)
            raise EndOfStream from None
        if head is not None and not head.tunnel:
            await Conversation(self._gate, self._offer, guest, client).run(head)
            return
        visit = Visit(guest, host, port, self._gate.record)
        await self._tunnel(visit, client, by_socks=head is None)

    async def _tunnel(self, visit: Visit, client: Inlet, *, by_socks: bool) -> None:
        try:
            if visit.host in self._offer.inside:
                await self._inside(visit, client, by_socks=by_socks)
                return
            decision = await self._gate.connection(visit)
            if decision.inspect or self._offer.keeper.holds(visit.host, visit.port):
                await self._established(client, by_socks=by_socks)
                await self._read_along(visit, client)
                return
            server = await self._gate.open(visit, decision)
        except Refused as refused:
            if not by_socks:
                raise
            await streams.answer(client, streams.DENIED if refused.status == 403 else streams.UNREACHABLE)
            raise EndOfStream from None
        async with Opened(visit, server) as opened:
            await self._established(client, by_socks=by_socks)
            ends = anyio.current_time() + self._bounds.connection_seconds
            judged = visit.port == TLS_PORT and not self._gate.raw(visit)
            opening = await self._opening(visit, client) if judged else b""
            pace = Pace(self._bounds.idle_seconds, ends)
            await Flow(client, server, opened.traffic, pace).tunnel(opening)

    async def _inside(self, visit: Visit, client: Inlet, *, by_socks: bool) -> None:
        """Serve one request in a tunnel to a virtual host. Some clients tunnel plain HTTP too."""
        if visit.port != HTTP_PORT:
            raise Refused(400, f"{visit.host} is served over plain HTTP: use http://{visit.host}/.")
        await self._established(client, by_socks=by_socks)
        await client.peek(self._bounds.idle_seconds)
        try:
            with anyio.fail_after(self._bounds.head_seconds):
                head = await read_head(client, (visit.host, visit.port), plain=True)
                await visit.guest.account.request()
        except TimeoutError:
            raise Refused(408, "The request head did not arrive in time.") from None
        if head.tunnel:
            raise Refused(400, "CONNECT must be the first request of a connection.")
        await self._offer.inside[visit.host](visit.guest.sandbox, head, client)

    async def _database(self, guest: Guest, client: Inlet) -> None:
        """Log in to a database with the credential that the client names as its user, and relay."""
        try:
            with anyio.fail_after(self._bounds.head_seconds):
                await guest.account.request()
                asked = await postgresql.start_up(client)
            one = self._offer.keeper.database(asked.user)
            if one is None or one.login is None:
                name = one_line(asked.user, 60)
                raise Refused(
                    403, f"There is no credential {name!r} for a database: connect with its name as the user."
                )
            account = postgresql.Account(*one.login, "")
            if asked.database not in (account.database, asked.user):
                raise Refused(403, f"The credential {one.name} is for the database {account.database}.")
            visit = Visit(guest, one.host, one.port, self._gate.record)
            decision = await self._gate.connection(visit)
            if decision.inspect:
                raise await visit.denied("rules about requests hold for this host, and a database has none")
            account = account._replace(password=await self._offer.keeper.password(self._gate, visit, one))
            async with Opened(visit, await self._gate.open(visit, decision)) as opened:
                await self._logged_in(opened, client, account, asked, one.name)
        except Refused as refused:
            await client.send(postgresql.failure(refused.sentence))
        except postgresql.Wrong as wrong:
            await client.send(wrong.reply)

    async def _logged_in(
        self, opened: Opened, client: Inlet, account: postgresql.Account, asked: postgresql.StartUp, name: str
    ) -> None:
        visit, ends = opened.visit, anyio.current_time() + self._bounds.connection_seconds
        try:
            with anyio.fail_after(self._bounds.dial_seconds):
                server, told = await postgresql.log_in(
                    opened.server, visit.host, self._gate.trust, account, asked, raw=self._gate.raw(visit)
                )
        except TimeoutError:
            raise Refused(502, f"{visit.host} did not finish the log-in in time.") from None
        except postgresql.Wrong as wrong:
            if wrong.rejected:
                self._offer.keeper.doubt((name,))
            raise
        await client.send(told)
        await Flow(client, server, opened.traffic, Pace(self._bounds.idle_seconds, ends)).tunnel(b"")

    async def _established(self, client: Inlet, *, by_socks: bool) -> None:
        if by_socks:
            await streams.answer(client, 0)
        else:
            await client.send(_ESTABLISHED)

    async def _opening(self, visit: Visit, client: Inlet) -> bytes:
        """Return the first bytes of a tunnel. On the TLS port the server name must be the allowed host.

        A busy client may be late with its first byte. One that ends without a greeting broke no rule.
        """
        await client.peek(self._bounds.idle_seconds)
        try:
            with anyio.fail_after(self._bounds.head_seconds):
                opening, name = await receive_hello(client)
        except NotTls:
            await visit.decided("deny", f"port {visit.port} carries TLS, and this is not")
            raise EndOfStream from None
        except TimeoutError:
            await visit.decided("deny", f"no TLS greeting in {self._bounds.head_seconds:g} seconds")
            raise EndOfStream from None
        asked = visit.host if name is None and is_address(visit.host) else (name or "").lower()
        if asked != visit.host:
            await visit.decided("deny", f"the TLS name {one_line(asked, 100)!r} is not the host")
            raise EndOfStream
        if hides_a_name(opening):
            await visit.decided("deny", "a second name is hidden in the TLS greeting (ECH)")
            raise EndOfStream
        return opening

    async def _read_along(self, visit: Visit, client: Inlet) -> None:
        """Terminate TLS towards the client, so that the policy sees each request."""
        client.unread(await self._opening(visit, client))
        context = self.authority.context(visit.host)
        try:
            with anyio.fail_after(self._bounds.idle_seconds):
                secure = await TLSStream.wrap(
                    client, server_side=True, ssl_context=context, standard_compatible=False
                )
        except (ssl.SSLError, TimeoutError, *BROKEN):
            # Usually the client does not trust our CA.
            raise EndOfStream from None
        inner = Inlet(secure)
        try:
            origin = (visit.host, visit.port)
            await Conversation(self._gate, self._offer, visit.guest, inner, origin).run()
        except Refused as refused:
            await answer(secure, refused.status, refused.sentence)
