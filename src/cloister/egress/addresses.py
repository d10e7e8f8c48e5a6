"""Classify addresses that are not public: this machine, its network, cloud metadata, in every encoding."""

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Literal

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
