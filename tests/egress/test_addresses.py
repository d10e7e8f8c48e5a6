"""Which addresses lie inside, in every spelling."""

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.addresses import normal_host
from cloister.egress.rules import forbidden


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("::1", "loopback"),
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "unspecified"),
        ("::", "unspecified"),
        ("10.0.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.168.1.1", "private"),
        ("fd12::1", "private"),
        ("fec0::1", "private"),
        ("100.64.0.1", "shared"),
        ("169.254.1.1", "link-local"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("169.254.169.254", "metadata"),
        ("100.100.100.200", "metadata"),
        ("168.63.129.16", "metadata"),
        ("fd00:ec2::254", "metadata"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("255.255.255.255", "reserved"),
        ("240.0.0.1", "reserved"),
        ("192.0.2.1", "example"),
        ("198.18.0.1", "example"),
        ("2001:db8::1", "example"),
        ("100::1", "reserved"),
        ("5f00::1", "reserved"),
        ("::ffff:8.8.8.8", "disguised"),
        ("::ffff:169.254.169.254", "disguised"),
        ("::7f00:1", "disguised"),
        ("64:ff9b::a9fe:a9fe", "disguised"),
        ("64:ff9b:1::1", "disguised"),
        ("2002:7f00:1::", "disguised"),
        ("2001:0:7f00:1::", "disguised"),
        ("localhost", "reserved"),
        ("", "reserved"),
        ("127.1", "reserved"),
    ],
)
def test_inside_is_forbidden_and_named(address: str, kind: str) -> None:
    assert forbidden(address) == kind


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700::1111", "172.32.0.1"])
def test_public_addresses_are_open(address: str) -> None:
    assert forbidden(address) is None


SPELLINGS = [
    "0xA9FEA9FE",
    "2852039166",
    "0251.0376.0251.0376",
    "169.254.43518",
    "169.16689662",
    "0xa9.0xfe.0xa9.0xfe",
    "127.1",
    "0",
    "0x7f.1",
    "017700000001",
    "127.0.0.1.",
    "0X7F.1",
    "\u2460\u2461\u2466.1",
]


@pytest.mark.parametrize("host", SPELLINGS)
def test_a_number_that_a_resolver_takes_for_an_address_is_no_host(host: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        normal_host(host)


@pytest.mark.parametrize("host", [spelling for spelling in SPELLINGS if spelling.isascii()])
def test_and_what_a_resolver_makes_of_it_is_forbidden(host: str) -> None:
    try:
        found = socket.getaddrinfo(host.removesuffix("."), 80, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return
    assert all(forbidden(str(address[0])) for *_, address in found)


@given(st.ip_addresses(v=4))
def test_no_ipv4_address_gets_through_in_an_ipv6_disguise(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    for prefix in ("::", "::ffff:0:0", "64:ff9b::"):
        assert forbidden(ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) + number)) is not None
    assert forbidden(ipaddress.IPv6Address((0x2002 << 112) + (number << 80))) == "disguised"


@given(st.ip_addresses())
def test_what_is_open_is_global(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if forbidden(address) is None:
        assert address.is_global
        assert not address.is_multicast
    assert forbidden(str(address)) == forbidden(address)


@given(st.text(max_size=50))
def test_any_text_is_judged_without_an_error(text: str) -> None:
    forbidden(text)
