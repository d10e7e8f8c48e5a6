"""Frames of every kind, as hypothesis makes them up."""

from hypothesis import strategies as st

from cloister.core.computer import Change
from cloister.sandbox.protocol import frames

commands = st.integers(1, frames.FIRST_DIAL - 1)
dials = st.integers(frames.FIRST_DIAL, frames.FIRST_RELAY - 1)
relays = st.integers(frames.FIRST_RELAY, 2**32 - 1) | dials
channels = commands | relays
u8, u16, u32 = st.integers(0, 255), st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1)
# What a FAIL says is made harmless and put on one line, so only plain words come back unchanged.
plain = st.text("abcdefghij", max_size=60)
words = st.text(max_size=40)
data = st.binary(max_size=300)

from_guest = st.one_of(
    st.builds(frames.Hello, u16),
    st.just(frames.Ready()),
    st.builds(frames.Held, st.booleans()),
    st.builds(frames.Output, commands, st.sampled_from(["out", "err"]), data),
    st.builds(frames.Bytes, relays, data),
    st.builds(frames.End, relays),
    st.builds(frames.Credit, channels, u32),
    st.builds(frames.Exit, commands, st.just(False), u8, st.sampled_from([None, "time", "asked"]), u32),
    st.builds(frames.Exit, commands, st.just(True), st.integers(1, 64), st.just(None), u32),
    st.builds(frames.Fail, commands | dials, st.sampled_from(["not_found", "too_many", "failed"]), plain),
    st.builds(frames.Open, relays),
    st.builds(frames.Close, relays),
)
starts = st.builds(
    frames.Start,
    commands,
    st.lists(words, max_size=5).map(tuple),
    st.sampled_from(["program", "read", "write", "list", "stat", "move", "remove", "mkdir", "watch", "mark"]),
    words,
    st.lists(words, max_size=5).map(tuple),
    st.booleans(),
    st.booleans(),
    u32,
    u32,
    u16,
    u16,
)
from_host = st.one_of(
    st.builds(frames.Setup, u32, u16, words),
    st.builds(frames.Live, st.integers(0, 2**32 - 1)),
    st.sampled_from([frames.Hold(on=False), frames.Hold(on=True), frames.Hold(on=True, quiet=True)]),
    starts,
    st.builds(frames.Bytes, channels, data),
    st.builds(frames.End, channels),
    st.builds(frames.Credit, channels, u32),
    st.builds(frames.Signal, commands, u8),
    st.builds(frames.Resize, commands, u16, u16),
    st.builds(frames.Kill, commands),
    st.builds(frames.Close, relays),
    st.builds(frames.Dial, dials, u16),
)
changes = st.none() | st.builds(Change, st.sampled_from(["created", "changed", "removed", "overflow"]), words)
