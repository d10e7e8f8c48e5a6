from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sandbox.protocol.guest_frames import decode_from_host, encode_change, encode_entry
from tests.sandbox.protocol.strategies import changes, from_guest, from_host, u8, u32

from cloister.core import limits
from cloister.core.computer import Change, Entry
from cloister.sandbox.protocol import frames
from cloister.sandbox.protocol.frames import (
    Decoder,
    ProtocolBroken,
    decode_from_guest,
    encode,
)

T = TypeVar("T")


def cut(one: Callable[[int, int, memoryview], T], stream: bytes, step: int) -> list[T]:
    decoder = Decoder(one)
    found: list[T] = []
    for at in range(0, len(stream), step):
        found += decoder.feed(stream[at : at + step])
    return found


@given(st.lists(from_guest, max_size=8), st.integers(1, 400))
def test_frames_of_the_guest_decode_the_same_however_the_stream_is_cut(
    said: list[frames.FromGuest], step: int
) -> None:
    assert cut(decode_from_guest, b"".join(map(encode, said)), step) == said


@given(st.lists(from_host, max_size=8), st.integers(1, 400))
def test_frames_of_the_host_decode_the_same_however_the_stream_is_cut(
    said: list[frames.FromHost], step: int
) -> None:
    assert cut(decode_from_host, b"".join(map(encode, said)), step) == said


@given(st.binary(max_size=600), st.sampled_from([decode_from_guest, decode_from_host]))
def test_arbitrary_bytes_break_the_protocol_and_nothing_else(
    stream: bytes, one: Callable[[int, int, memoryview], object]
) -> None:
    with suppress(ProtocolBroken):
        cut(one, stream, 64)


@given(u8, u32, st.binary(max_size=64), st.sampled_from([decode_from_guest, decode_from_host]))
def test_an_arbitrary_frame_breaks_the_protocol_and_nothing_else(
    kind: int, channel: int, payload: bytes, one: Callable[[int, int, memoryview], object]
) -> None:
    with suppress(ProtocolBroken):
        one(kind, channel, memoryview(payload))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_listing_or_break_the_protocol(stream: bytes) -> None:
    with suppress(ProtocolBroken):
        frames.decode_entries(stream)


@given(st.lists(changes, max_size=8), st.integers(1, 100))
def test_changes_arrive_as_reported_however_they_are_cut(told: list[Change | None], step: int) -> None:
    stream, decoder = b"".join(map(encode_change, told)), frames.Changes()
    found: list[Change | None] = []
    for at in range(0, len(stream), step):
        found += decoder.feed(stream[at : at + step])
    assert found == told


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_changes_or_break_the_protocol(stream: bytes) -> None:
    with suppress(ProtocolBroken):
        frames.Changes().feed(stream)


def test_a_listing_arrives_sorted() -> None:
    b = Entry("b", "file", 7, 0o644, 1234.5)
    a = Entry("a", "link", 2**40, 0o777, 0.0)
    assert frames.decode_entries(encode_entry(b) + encode_entry(a)) == (a, b)


def test_a_name_that_is_not_utf8_is_shown_with_its_bytes_replaced() -> None:
    record = encode_entry(Entry("xy", "file", 0, 0o644, 0.0))
    (entry,) = frames.decode_entries(record.replace(b"xy", b"x\xff"))
    assert entry.name == "x\ufffd"


@pytest.mark.parametrize(
    "stream",
    [
        (limits.FRAME_BYTES + 1).to_bytes(4, "little") + b"\x11\1\0\0\0",
        encode(frames.Start(1, ("true",))),
        encode(frames.Hello(1)).replace(b"\1\0\0\0\0", b"\1\1\0\0\0"),
        encode(frames.Exit(1, True, 65, None, 0)),
        encode(frames.Fail(1, "failed", "x" * 201)),
        encode(frames.Open(7)),
        encode(frames.Bytes(3, b"\3no such stream")),
        encode(frames.Bytes(3, b"")),
    ],
    ids=["oversize", "start", "hello", "signal 65", "long text", "open", "stream 3", "no stream"],
)
def test_frames_that_no_guest_may_send_break_the_protocol(stream: bytes) -> None:
    with pytest.raises(ProtocolBroken):
        list(Decoder(decode_from_guest).feed(stream))


def test_a_frame_that_is_too_large_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="too large"):
        encode(frames.Bytes(1, bytes(limits.FRAME_BYTES + 1)))


def test_the_text_of_a_failure_is_harmless() -> None:
    (fail,) = Decoder(decode_from_guest).feed(encode(frames.Fail(1, "failed", "a\x1b[31mb\nc")))
    assert fail == frames.Fail(1, "failed", "ab c")
