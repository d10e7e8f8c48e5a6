"""Quotas of the proxy per sandbox, and refusals: a status and one sentence."""

from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

import anyio
from anyio import BrokenResourceError, CapacityLimiter, ClosedResourceError, EndOfStream
from anyio.abc import ByteStream
from anyio.lowlevel import RunVar

from cloister.core import limits
from cloister.core.ids import SandboxId
from cloister.core.requests import DoorBounds

BROKEN = (BrokenResourceError, ClosedResourceError, OSError)
"""Errors that mean the peer is gone."""

_limiters = RunVar[dict[str, CapacityLimiter]]("cloister.egress.limiters")


def shared_limiter(name: str, total: int) -> CapacityLimiter:
    """A limiter of worker threads for all sandboxes of this process."""
    try:
        found = _limiters.get()
    except LookupError:
        _limiters.set(found := {})
    return found.setdefault(name, CapacityLimiter(total))


_LINGER_SECONDS = 1.0
_LINGER_BYTES = 262_144
_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    411: "Length Required",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    503: "Service Unavailable",
}


class Refused(Exception):
    """The client is answered with a status and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


async def answer(client: ByteStream, status: int, sentence: str) -> None:
    """Send a complete reply, then drain the client briefly, so that a reset does not lose the reply."""
    body = f"{sentence}\n".encode()
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with anyio.move_on_after(_LINGER_SECONDS), suppress(EndOfStream, *BROKEN):
        await client.send(head.encode("ascii") + body)
        with suppress(NotImplementedError):  # TLS has no half-close
            await client.send_eof()
        left = _LINGER_BYTES
        while left > 0:
            left -= len(await client.receive())


_PATIENCE_SECONDS = 2.0
"""A request over the rate waits up to this long before it is refused."""


class Spent(Exception):
    """The byte quota of the sandbox is spent."""


class Account:
    """The use of one sandbox."""

    def __init__(self, bounds: DoorBounds, now: Callable[[], float] = anyio.current_time) -> None:
        self._bounds = bounds
        self._now = now
        self._tokens = float(bounds.requests_at_once)
        self._filled = now()
        self.connections = 0
        self.lookups = CapacityLimiter(limits.DOOR_LOOKUPS)
        """Name lookups that are waited for."""
        self.moved_bytes = 0
        self.recorded = 0
        self.decisions = 0

    def moved(self, count: int) -> None:
        """Count bytes. Raises `Spent` over the quota."""
        self.moved_bytes += count
        if self.moved_bytes > self._bounds.bytes:
            raise Spent

    @contextmanager
    def connection(self) -> Generator[None]:
        """Hold a connection. Raises `Refused` over the limit of connections or bytes."""
        if self.connections >= self._bounds.connections:
            raise Refused(503, f"A sandbox has at most {self._bounds.connections} connections at a time.")
        if self.moved_bytes > self._bounds.bytes:
            raise Refused(503, f"The sandbox has used its quota of {self._bounds.bytes:,} bytes.")
        self.connections += 1
        try:
            yield
        finally:
            self.connections -= 1

    async def request(self) -> None:
        """Count one request, waiting briefly over the rate. Raises `Refused`."""
        now = self._now()
        rate = self._bounds.requests_per_second
        self._tokens = min(self._bounds.requests_at_once, self._tokens + (now - self._filled) * rate)
        self._filled = now
        if self._tokens <= 1 - _PATIENCE_SECONDS * rate:
            raise Refused(429, f"A sandbox makes at most {rate:g} requests per second.")
        self._tokens -= 1
        if self._tokens < 0:
            await anyio.sleep(-self._tokens / rate)

    def decision(self) -> None:
        """Count one decision about a connection. Raises `Refused` when the log has no room for another."""
        if self.decisions >= limits.DOOR_DECISIONS:
            raise Refused(
                503, f"A sandbox opens at most {limits.DOOR_DECISIONS:,} connections in its lifetime."
            )
        self.decisions += 1

    def may_record(self) -> bool:
        """True if one more request may be recorded as an event."""
        self.recorded += 1
        return self.recorded <= limits.DOOR_REQUESTS_RECORDED


class Accounts:
    """Accounts of all sandboxes of one proxy. The least recently used without connections are dropped."""

    def __init__(self, bounds: DoorBounds) -> None:
        self._bounds = bounds
        self._accounts: OrderedDict[SandboxId, Account] = OrderedDict()

    def of(self, sandbox: SandboxId) -> Account:
        account = self._accounts.pop(sandbox, None) or Account(self._bounds)
        self._accounts[sandbox] = account
        while len(self._accounts) > limits.DOOR_SANDBOXES:
            oldest = next(iter(self._accounts))
            if self._accounts[oldest].connections:
                break
            del self._accounts[oldest]
        return account
