"""Listening beyond plain loopback: the address, the certificate, and which proxies are believed."""

import logging
import re
import ssl
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import NamedTuple, cast

import anyio
from litestar.types import ASGIApp, Receive, Scope, Send

from cloister.app.settings import Settings
from cloister.core.errors import HostError, UserError
from cloister.server.auth import Refusal, answer
from cloister.server.errors import Problem

logger = logging.getLogger(__name__)

RENEWED_SECONDS = 30.0
"""How often the files of the certificate are looked at."""

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_PLACE = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<four>[^:\[\]]+))(?::(?P<port>[0-9]{1,5}))?")


class Place(NamedTuple):
    """Where the server listens for others than the commands of this machine."""

    host: str
    port: int
    cert: Path | None = None
    key: Path | None = None

    @property
    def plain_loopback(self) -> bool:
        """Whether commands of this machine can use it as well."""
        return self.cert is None and ip_address(self.host).version == 4 and ip_address(self.host).is_loopback

    def url(self, port: int) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.cert else ''}://{host}:{port}"


def place_of(settings: Settings, port: int | None = None) -> Place:
    """Where the settings want the server to listen; `port` takes precedence.

    Raises `UserError` (`bad_listen`), and `HostError` (`unsafe_listen`) for an address that others reach without TLS.
    """
    file = settings.file
    host, named = _address(file.listen)
    if port is not None and named not in (None, port):
        raise UserError("bad_listen", f"Two ports are given, {named} with the address and {port}: give one.")
    if (file.tls_cert is None) != (file.tls_key is None):
        raise UserError("bad_listen", "A certificate and its key belong together: give tls_cert and tls_key.")
    near = settings.config_path.parent
    cert, key = (near / Path(one).expanduser() if one else None for one in (file.tls_cert, file.tls_key))
    if cert is None and not ip_address(host).is_loopback and not file.proxies:
        raise HostError(
            "unsafe_listen",
            f"Others could reach {host}, and without TLS tokens would cross the network in clear text: give "
            "--tls-cert and --tls-key, or name the reverse proxy in front of it in the setting `proxies`.",
        )
    return Place(host, next(one for one in (port, named, file.port) if one is not None), cert, key)


def _address(text: str) -> tuple[str, int | None]:
    given = f"[{text}]" if text.count(":") > 1 and not text.startswith("[") else text
    found = _PLACE.fullmatch(given)
    try:
        if found is None:
            raise ValueError
        written = found["six"] or found["four"]
        host = str(ip_address("127.0.0.1" if written.lower() == "localhost" else written))
    except ValueError:
        raise UserError(
            "bad_listen",
            f"{text[:80]!r} is no address to listen on: give an IP address of this machine such as 0.0.0.0 or "
            "[::1], with :PORT if you like.",
        ) from None
    port = int(found["port"]) if found["port"] else None
    if port is not None and port > 65_535:
        raise UserError("bad_listen", f"{port} is no port: choose one from 1 to 65535, or 0 for any.")
    return host, port


# The certificate.


def tls_context(place: Place) -> ssl.SSLContext | None:
    """Read the certificate and its key; None without one. Raises `HostError` (`bad_certificate`)."""
    if place.cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load(context, place)
    return context


def _load(context: ssl.SSLContext, place: Place) -> None:
    try:
        # An encrypted key would make OpenSSL ask at the terminal.
        context.load_cert_chain(cast(Path, place.cert), place.key, password=b"")
    except ssl.SSLError as error:
        why = (error.reason or "not PEM").replace("_", " ").lower()
        raise HostError(
            "bad_certificate",
            f"{place.cert} and {place.key} are not a certificate and its unencrypted key in PEM ({why}).",
        ) from None
    except OSError as error:
        where = f"{place.cert} or {place.key}"
        raise HostError("bad_certificate", f"{where} cannot be read: {error.strerror}.") from None


async def renew(context: ssl.SSLContext, place: Place, seconds: float = RENEWED_SECONDS) -> None:
    """Take up a renewed certificate for new connections; keep the old one while the new is broken. Never returns."""
    seen = _stamps(place)
    while True:
        await anyio.sleep(seconds)
        if (now := _stamps(place)) == seen:
            continue
        seen = now
        try:
            _load(
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), place
            )  # a broken one must not reach the one in use
            _load(context, place)
        except HostError as error:
            logger.warning("the certificate was not renewed: %s", error.message)
        else:
            logger.info("the certificate was renewed")


def _stamps(place: Place) -> tuple[tuple[str, int, int], ...]:
    found: list[tuple[str, int, int]] = []
    for path in (place.cert, place.key):
        # A renewal may replace a file at any moment.
        with suppress(OSError):
            if path is not None:
                about = path.stat()
                found.append((str(path), about.st_mtime_ns, about.st_ino))
    return tuple(found)


def names(place: Place, port: int, hosts: Iterable[str]) -> frozenset[str]:
    """The `Host` headers by which this place may be called, beside those of loopback.

    A page of another site cannot have them: its name is in no certificate of ours, and it is no address.
    """
    found = set(hosts)
    direct = set[str]() if place.plain_loopback else {name for name in hosts if ":" not in name}
    if not ip_address(place.host).is_unspecified:
        direct.add(f"[{place.host}]" if ":" in place.host else place.host)
    if place.cert is not None:
        direct |= _certified(place.cert)
    usual = 443 if place.cert else 80
    found |= {f"{name}:{port}" for name in direct}
    return frozenset(found | direct if port == usual else found)


def _certified(cert: Path) -> set[str]:
    from cryptography import x509  # noqa: PLC0415  (only with TLS)

    leaf = x509.load_pem_x509_certificate(cert.read_bytes())
    try:
        other = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    hosts = {name.lower() for name in other.get_values_for_type(x509.DNSName) if "*" not in name}
    addresses = other.get_values_for_type(x509.IPAddress)
    return hosts | {f"[{one}]" if one.version == 6 else str(one) for one in addresses}


# What a reverse proxy says about its client is believed of the proxies in the settings alone.


_TOLD = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-port")
_PLAIN: Refusal = (
    403,
    Problem(
        "tls_needed",
        "Over plain HTTP this server speaks to its proxies only: use https, or the proxy's address.",
    ),
)


def behind(inner: ASGIApp, proxies: Iterable[str]) -> ASGIApp:
    """`inner` sees the client, scheme and host that a trusted proxy tells; what others tell is removed.

    Plain HTTP from another machine is refused unless a trusted proxy sends it.
    """
    trusted = tuple(ip_network(one, strict=False) for one in proxies)

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        peer = _peer(scope)
        told = [(name, value) for name, value in scope["headers"] if name in _TOLD]
        believed = peer is not None and any(peer in network for network in trusted)
        if told:
            kept = [pair for pair in scope["headers"] if pair[0] not in _TOLD]
            cast("dict[str, object]", scope)["headers"] = kept
        if believed:
            _believe(
                scope, dict(told), [value for name, value in told if name == b"x-forwarded-for"], trusted
            )
        elif scope["scheme"] in ("http", "ws") and peer is not None and not peer.is_loopback:
            await answer(scope, send, _PLAIN)
            return
        await inner(scope, receive, send)

    return front


def _peer(scope: Scope) -> Address | None:
    client = scope["client"]
    return _ip(client[0]) if client else None


def _ip(text: str) -> Address | None:
    try:
        found = ip_address(text.strip().strip('"[]'))
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def _believe(
    scope: Scope, told: dict[bytes, bytes], chain: list[bytes], trusted: tuple[Network, ...]
) -> None:
    raw = cast("dict[str, object]", scope)
    scheme = told.get(b"x-forwarded-proto", b"").strip().lower()
    if scheme in (b"http", b"https"):
        secure = "s" if scheme == b"https" else ""
        raw["scheme"] = ("ws" if scope["type"] == "websocket" else "http") + secure
        raw["forwarded"] = True
    if host := told.get(b"x-forwarded-host", b"").strip():
        raw["headers"] = [*(pair for pair in scope["headers"] if pair[0] != b"host"), (b"host", host)]
    # From the right: each proxy adds the address that it saw, and a client can write what it wants before that.
    for text in reversed(b",".join(chain).decode("latin-1").split(",")):
        if (found := _ip(text)) is None:
            break
        raw["client"] = (str(found), 0)
        if not any(found in network for network in trusted):
            break
