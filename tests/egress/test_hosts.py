"""Host names and addresses, for any input: nothing outside the list is dialled, however it is spelled."""

import ipaddress
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.core.addresses import is_address, normal_host
from cloister.egress.rules import NEIGHBOURS, forbidden
from cloister.policy.api import ConnectAction, Layer, Rule
from cloister.policy.decide import decide

POLICY = (
    Layer(
        "host", (Rule("connect:allowed.test", "allow"), Rule("connect:*.wild.test", "allow")), may_widen=True
    ),
)
LABELS = st.text("abcxyz019-_", min_size=1, max_size=12)
NAMES = st.lists(LABELS, min_size=1, max_size=5).map(".".join)
ODD = st.sampled_from(
    ["\0", "\r\n", " ", "%00", "@", "#", "/", "\\", "\u3002", "\uff0e", "\u2024", ".", "..", "[", "]", ":"]
)


def allowed(host: str, port: int = 443) -> bool:
    return decide(POLICY, ConnectAction(host, port)).effect == "allow"


@settings(deadline=None)
@given(NAMES)
def test_only_the_name_itself_and_names_below_the_wild_card_match(name: str) -> None:
    assert allowed(name) == (name == "allowed.test" or (name.endswith(".wild.test") and _is_name(name)))


def _is_name(name: str) -> bool:
    try:
        return normal_host(name) == name
    except ValueError:
        return False


@settings(deadline=None)
@given(NAMES, ODD, st.booleans(), st.sampled_from(["allowed.test", "x.wild.test"]))
def test_nothing_glued_to_an_allowed_name_is_allowed(more: str, odd: str, before: bool, name: str) -> None:
    glued = f"{more}{odd}{name}" if before else f"{name}{odd}{more}"
    if allowed(glued):
        normal = normal_host(glued)
        assert normal == "allowed.test" or normal.endswith(".wild.test"), glued
        # What is allowed is a plain name: nothing in it can end it early for whoever reads it next.
        assert normal.isascii() and not set(normal) & set("\0\r\n %@#/\\[]:")


@settings(deadline=None)
@given(st.sampled_from(["allowed.test", "x.wild.test"]), st.data())
def test_case_and_a_final_dot_make_no_difference(name: str, data: st.DataObject) -> None:
    spelled = "".join(data.draw(st.sampled_from([char, char.upper()])) for char in name)
    assert allowed(spelled) and allowed(spelled + ".")
    assert not allowed(spelled + "..") and not allowed("." + spelled)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_every_spelling_of_an_address_that_a_resolver_takes_is_that_address_or_refused(number: int) -> None:
    real = str(ipaddress.IPv4Address(number))
    a, b, c, d = real.split(".")
    spellings = (
        str(number),
        hex(number),
        oct(number).replace("0o", "0"),
        f"{int(a):#x}.{b}.{c}.{d}",
        f"0{int(a):o}.{b}.{c}.{d}",
        f"{a}.{int(b) * 65_536 + int(c) * 256 + int(d)}",
        f"{a}.{b}.{int(c) * 256 + int(d)}",
    )
    for spelling in spellings:
        assert socket.inet_aton(spelling) == socket.inet_aton(real)
        try:
            assert normal_host(spelling) == real
        except ValueError:
            continue
        assert is_address(normal_host(spelling))


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_an_ipv4_address_hidden_in_ipv6_is_never_public(number: int) -> None:
    low = number
    for network in ("::", "::ffff:0:0", "::ffff:0:0:0", "64:ff9b::"):
        hidden = ipaddress.IPv6Address(int(ipaddress.IPv6Address(network)) | low)
        assert forbidden(hidden) is not None, hidden
        assert forbidden(hidden) not in NEIGHBOURS or hidden in (ipaddress.IPv6Address("::1"),)
    six = ipaddress.IPv6Address((0x2002 << 112) | (low << 80))
    assert forbidden(six) is not None


@settings(deadline=None)
@given(st.ip_addresses(v=4))
def test_what_is_public_is_public_by_the_book_too(address: ipaddress.IPv4Address) -> None:
    if forbidden(address) is None:
        assert address.is_global and not address.is_multicast


@pytest.mark.parametrize(
    "text",
    [
        "127.1",
        "0x7f.1",
        "0177.0.0.1",
        "2130706433",
        "127.0.0.1.",
        "[127.0.0.1]",
        "::1%lo",
        "1.2.3.4.5",
        "0",
        "1e1",
    ],
)
def test_what_only_looks_like_an_address_is_neither_a_name_nor_an_address(text: str) -> None:
    try:
        assert normal_host(text) not in ("127.0.0.1", "::1")
    except ValueError:
        return
    assert not is_address(text) and not text.rstrip(".").rpartition(".")[2].isdigit()
