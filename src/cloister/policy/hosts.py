"""One spelling per host: names in lower case and ASCII, addresses in their canonical form."""

import ipaddress
import re

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NAME_CHARS = 253


def normal_host(text: str) -> str:
    """`text` as rules and connections spell it. Raises `ValueError` with the reason.

    An address is accepted only as `ipaddress` writes it: `127.1`, `0x7f.1` or `2130706433`, which resolvers
    also take for addresses, are neither a name nor an address here. IPv6 may stand in brackets.
    """
    if address := _address(text):
        return address
    try:
        name = text if text.isascii() else text.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError("it is not a valid internationalised name") from None
    name = name.lower().removesuffix(".")
    if not name or len(name) > _NAME_CHARS:
        raise ValueError(f"a host name has 1 to {_NAME_CHARS} characters")
    labels = name.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("it is not a DNS name")
    if _NUMERIC.fullmatch(labels[-1]):
        raise ValueError("it is a number that resolvers would take for an address")
    return name


def is_address(host: str) -> bool:
    """Whether a normal host is an IP address."""
    return _address(host) is not None


def _address(text: str) -> str | None:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if "%" in bare or not bare.isascii():
        return None
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return None
    if address.version == 4 and bare != text:
        return None
    return str(address)
