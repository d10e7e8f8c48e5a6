"""Ask the policy by host name, check every resolved address, and dial a checked address."""

import socket
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from threading import BoundedSemaphore, Lock
from typing import Literal, NamedTuple

import anyio
from anyio.abc import ByteStream

from cloister.core import limits
from cloister.core.addresses import is_address, normal_host
from cloister.core.events import ConnectionClosed, ConnectionDecided, RequestDecided
from cloister.core.ids import SandboxId
from cloister.core.requests import DoorBounds
from cloister.core.text import one_line
from cloister.egress.http.head import Head
from cloister.egress.quota import Account, Refused
from cloister.egress.streams import Traffic
from cloister.policy.api import Action, ConnectAction, Decision, RawAction, RequestAction

# Classify addresses that are not public: this machine, its network, cloud metadata, in every encoding.


Kind = Literal[
    "loopback",
    "private",
    "shared",
    "link-local",
    "metadata",
    "multicast",
    "unspecified",
    "disguised",
    "example",
    "reserved",
]

NEIGHBOURS: frozenset[Kind] = frozenset({"loopback", "private", "shared", "example"})
"""Address kinds that a rule with host and port may open. Other kinds need a rule for the literal address."""

_METADATA = frozenset(
    map(
        ip_address,
        (
            "169.254.169.254",
            "169.254.170.2",
            "169.254.170.23",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
        ),
    )
)

_NETWORKS: Mapping[Kind, tuple[str, ...]] = {
    "unspecified": ("0.0.0.0/8", "::/128"),
    "loopback": ("127.0.0.0/8", "::1/128"),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10"),
    "shared": ("100.64.0.0/10",),
    "link-local": ("169.254.0.0/16", "fe80::/10"),
    "multicast": ("224.0.0.0/4", "ff00::/8"),
    # IPv4 in IPv6: compatible, mapped, translated, NAT64 (both prefixes), Teredo, 6to4.
    "disguised": (
        "::/96",
        "::ffff:0:0/96",
        "::ffff:0:0:0/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "2001::/32",
        "2002::/16",
    ),
    # Documentation ranges; some networks use them internally, like private ones.
    "example": (
        "192.0.2.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "2001:db8::/32",
        "3fff::/20",
    ),
    "reserved": ("192.0.0.0/24", "192.88.99.0/24", "240.0.0.0/4"),
}
_KINDS: tuple[tuple[Kind, IPv4Network | IPv6Network], ...] = tuple(
    (kind, ip_network(text)) for kind, texts in _NETWORKS.items() for text in texts
)
_PUBLIC_V6 = IPv6Network("2000::/3")


def forbidden(address: str | IPv4Address | IPv6Address) -> Kind | None:
    """Return why `address` is not public, or None if it is.

    What `ipaddress` does not read as an address is reserved: it is for the resolver to say what a name means.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return "reserved"
    if isinstance(parsed, IPv6Address) and parsed.scope_id is not None:
        return "link-local"
    if parsed in _METADATA:
        return "metadata"
    for kind, network in _KINDS:
        if parsed.version == network.version and parsed in network:
            return kind
    if not parsed.is_global or (isinstance(parsed, IPv6Address) and parsed not in _PUBLIC_V6):
        return "reserved"
    return None


Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host, for a port. Raises `OSError` when there are none."""

Dial = Callable[[str, int], Awaitable[ByteStream]]
"""A connection to exactly this address. Raises `OSError`."""


class Lookups:
    """Threads of the proxy's own for slow lookups: they delay no other work of this process.

    A thread whose caller gave up runs until the resolver's time limit, and takes its place as long.
    """

    def __init__(self, most: int) -> None:
        self._places = BoundedSemaphore(most)

    async def run(self, look: Callable[[], Sequence[str]]) -> Sequence[str]:
        """Call `look` in a thread; wait for a place first."""
        while not self._places.acquire(blocking=False):  # noqa: ASYNC110  (threads give places back)
            await anyio.sleep(_PLACE_SECONDS)
        place = _Place(self._places)
        try:
            return await anyio.to_thread.run_sync(
                place.use, look, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
            )
        finally:
            place.leave()


class _Place:
    """A place that is given back once: by the thread that used it, or by a caller whose thread never began."""

    def __init__(self, places: BoundedSemaphore) -> None:
        self._places = places
        self._begins = Lock()
        self._taken = False

    def use(self, look: Callable[[], Sequence[str]]) -> Sequence[str]:
        if not self._begin():
            return ()
        try:
            return look()
        finally:
            self._places.release()

    def leave(self) -> None:
        if self._begin():
            self._places.release()

    def _begin(self) -> bool:
        """True for the first caller."""
        with self._begins:
            first, self._taken = not self._taken, True
            return first


_PLACE_SECONDS = 0.05
_LOOKUPS = Lookups(limits.DOOR_LOOKUPS_AT_ONCE)


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a name, each once."""
    return list(dict.fromkeys(await _LOOKUPS.run(lambda: _look_up(host, port))))


def _look_up(host: str, port: int) -> list[str]:
    name = host.encode("idna").decode("ascii")
    return [str(address[0]) for *_, address in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)]


_FRESH_SECONDS = 30.0
"""Addresses of a name are used this long. Package clients open a connection for each of hundreds of files."""
_NAMES = 1_024


class Answer:
    """The last answer for one name. Its lock is held during a lookup."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.at = float("-inf")
        self.addresses: Sequence[str] = ()
        self.failure: str | None = None


class Resolver:
    """Looks up each name once at a time and keeps its addresses briefly. They are judged for each connection again.

    A failure is shared by all who waited for it, and the next connection looks the name up again.
    """

    def __init__(self, look_up: Resolve = resolve, now: Callable[[], float] = anyio.current_time) -> None:
        self._look_up = look_up
        self._now = now
        self._answers: OrderedDict[str, Answer] = OrderedDict()

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        asked = self._now()
        answer = self._answers.pop(host, None) or Answer()
        self._answers[host] = answer
        while len(self._answers) > _NAMES:
            self._answers.popitem(last=False)
        async with answer.lock:
            oldest = asked - _FRESH_SECONDS if answer.addresses else asked
            if answer.at < oldest:
                answer.addresses, answer.failure = (), None
                try:
                    answer.addresses = await self._look_up(host, port)
                except (OSError, UnicodeError) as error:
                    answer.failure = str(error)
                answer.at = self._now()
            if answer.failure is not None:
                raise OSError(answer.failure)
            return answer.addresses


def is_own(address: str) -> bool:
    """True if this machine has the address: then a connection to it would also come from it. Nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return probe.getsockname()[0] == address
    except OSError:
        return False


async def dial(address: str, port: int) -> ByteStream:
    return await anyio.connect_tcp(address, port)


@cache
def _machine_trust() -> ssl.SSLContext:
    """Read when a proxy first speaks TLS: it takes longer than to open a proxy, and most never do."""
    return ssl.create_default_context()


@dataclass(frozen=True, slots=True)
class Outside:
    """How this machine resolves names and dials addresses."""

    resolve: Resolve = field(default_factory=Resolver)
    dial: Dial = dial
    trust: ssl.SSLContext | None = None
    """CAs for servers to which the proxy itself speaks TLS; without them, those of this machine."""
    is_own: Callable[[str], bool] = is_own


Decide = Callable[[Action], Decision]
DoorEvent = ConnectionDecided | ConnectionClosed | RequestDecided
Record = Callable[[SandboxId, DoorEvent], Awaitable[None]]

_PATH_CHARS = 200
_RULE_CHARS = 300


class Guest(NamedTuple):
    """A sandbox and its account."""

    sandbox: SandboxId
    account: Account


class Visit:
    """A connection from one sandbox to one host, with its records."""

    def __init__(self, guest: Guest, host: str, port: int, record: Record) -> None:
        self.guest = guest
        self.sandbox = guest.sandbox
        self.host = host
        self.port = port
        self.credentials: dict[str, None] = {}
        """Names of the credentials used."""
        self.account = guest.account
        self._record = record

    @property
    def remedy(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"only a rule for connect:{host}:{self.port} can allow it"

    @property
    def _credential(self) -> str | None:
        return ",".join(self.credentials) or None

    async def decided(self, effect: Literal["allow", "deny"], rule: str) -> None:
        self.account.decision()
        body = ConnectionDecided(self.sandbox, self.host, self.port, effect, rule, self._credential)
        await self._record(self.sandbox, body)

    async def denied(self, rule: str) -> Refused:
        await self.decided("deny", rule)
        return Refused(403, f"{self.host}:{self.port} is denied: {one_line(rule, _RULE_CHARS)}.")

    async def request(
        self, head: Head, effect: Literal["allow", "deny"], rule: str, credential: str | None = None
    ) -> None:
        """Record one request, up to the limit per sandbox."""
        if not self.account.may_record():
            return
        path = one_line(head.path, _PATH_CHARS)
        event = RequestDecided(
            self.sandbox, self.host, self.port, head.method, path, effect, rule, credential
        )
        await self._record(self.sandbox, event)

    async def closed(self, traffic: Traffic, seconds: float) -> None:
        await self._record(
            self.sandbox,
            ConnectionClosed(
                self.sandbox,
                self.host,
                self.port,
                traffic.sent_bytes,
                traffic.received_bytes,
                seconds,
                self._credential,
            ),
        )


class Gate:
    """Applies the policy and dials."""

    def __init__(self, decide: Decide, record: Record, outside: Outside, bounds: DoorBounds) -> None:
        self._decide = decide
        self.record = record
        self._resolve = outside.resolve
        self._dial = outside.dial
        self._is_own = outside.is_own
        self._trust = outside.trust
        self.bounds = bounds

    @property
    def trust(self) -> ssl.SSLContext:
        return self._trust or _machine_trust()

    async def connection(self, visit: Visit) -> Decision:
        """Decide the connection as a whole. Raises `Refused` unless it is allowed."""
        await self.name(visit)
        return await self._allowed(visit, self.of(ConnectAction(visit.host, visit.port)))

    async def request(self, visit: Visit, head: Head) -> Decision:
        """Decide one request. A refusal is recorded as a refusal of the connection."""
        await self.name(visit)
        return await self._allowed(visit, self.of_request(visit, head))

    def of_request(self, visit: Visit, head: Head) -> Decision:
        path = head.target.partition(b"?")[0].decode("ascii")
        return self.of(RequestAction(visit.host, visit.port, head.method, path))

    def inspects(self, visit: Visit) -> bool:
        """True if rules about requests to this host exist."""
        decision = self.of(ConnectAction(visit.host, visit.port))
        return decision.inspect or decision.effect != "allow"

    def raw(self, visit: Visit) -> bool:
        """True if any protocol is allowed on the TLS port of this host."""
        return self.of(RawAction(visit.host)).effect == "allow"

    def of(self, action: Action) -> Decision:
        """Decide an action that cannot wait: `ask` means deny."""
        decision = self._decide(action)
        if decision.effect != "ask":
            return decision
        return Decision("deny", f"{decision.rule}: a connection cannot wait for a person")

    async def name(self, visit: Visit) -> None:
        """Normalise the host name. Raises `Refused` if it is invalid."""
        try:
            visit.host = normal_host(visit.host)
        except ValueError as error:
            raise await visit.denied(f"it is not a host: {error}") from None

    async def _allowed(self, visit: Visit, decision: Decision) -> Decision:
        if decision.effect != "allow":
            raise await visit.denied(decision.rule)
        return decision

    async def open(self, visit: Visit, decision: Decision) -> ByteStream:
        """Connect to a checked address, recorded before dialling. Raises `Refused`."""
        literal = is_address(visit.host)
        addresses = [visit.host] if literal else await self._addresses(visit, decision)
        for address in addresses:
            kind: str | None = forbidden(address)
            if kind is None and not decision.exact and self._is_own(address):
                kind = "this machine's"
            if kind is None or (decision.exact and (literal or kind in NEIGHBOURS)):
                continue
            raise await visit.denied(f"its address {one_line(address, 50)} is {kind}; {visit.remedy}")
        await visit.decided("allow", decision.rule)
        try:
            return await self._connect(visit, addresses)
        except BaseException:
            with anyio.move_on_after(RECORD_SECONDS, shield=True):
                await visit.closed(Traffic(), 0.0)
            raise

    async def _addresses(self, visit: Visit, decision: Decision) -> Sequence[str]:
        try:
            with anyio.fail_after(self.bounds.dial_seconds):
                async with visit.account.lookups:
                    addresses = await self._resolve(visit.host, visit.port)
        except (OSError, UnicodeError):
            addresses = ()
        if not addresses:
            await visit.decided("allow", decision.rule)
            await visit.closed(Traffic(), 0.0)
            raise Refused(502, f"{visit.host} cannot be resolved.")
        return addresses

    async def _connect(self, visit: Visit, addresses: Sequence[str]) -> ByteStream:
        with anyio.move_on_after(self.bounds.dial_seconds):
            for address in addresses:
                with suppress(OSError):
                    return await self._dial(address, visit.port)
        raise Refused(502, f"{visit.host} does not answer on port {visit.port}.")


RECORD_SECONDS = 5.0
"""The time limit for recording the end of a connection."""


class Opened:
    """An open connection to a server; its end is recorded on exit."""

    def __init__(self, visit: Visit, server: ByteStream) -> None:
        self.visit = visit
        self.server = server
        self.traffic = Traffic(visit.account.moved)
        self._start = anyio.current_time()

    async def __aenter__(self) -> "Opened":
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.move_on_after(RECORD_SECONDS, shield=True):
            try:
                await self.server.aclose()
            finally:
                await self.visit.closed(self.traffic, anyio.current_time() - self._start)
