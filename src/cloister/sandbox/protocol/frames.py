"""The frames between host and guest: values to bytes and strictly back. Pure; see guest/README.md."""

import struct
from collections.abc import Callable, Iterator
from typing import Generic, Literal, TypeVar, get_args

import msgspec

from cloister.core import limits
from cloister.core.computer import Change, Entry, Stream
from cloister.core.text import decode, one_line

VERSION = 1
FIRST_DIAL = 0x40000000
"""Channels below are commands; from here on, connections in."""
FIRST_RELAY = 0x80000000
"""From here on, connections out, which the guest numbers."""
FAIL_TEXT_BYTES = 200

Kind = Literal["program", "read", "write", "list", "stat", "move", "remove", "mkdir", "watch", "mark"]
FailCode = Literal["not_found", "denied", "not_a_file", "not_a_directory", "too_many", "no_space", "failed"]

_HEADER = struct.Struct("<IBI")
_NOTHING = struct.Struct("")
_FLAG = struct.Struct("<?")
_U8 = struct.Struct("<B")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_EXIT = struct.Struct("<BBBI")
_START = struct.Struct("<BBIIHH")
_SETUP = struct.Struct("<IH")
_WAKE = struct.Struct("<QII32s")
_SIZE = struct.Struct("<HH")
_ENTRY = struct.Struct("<BQIQI")
_CHANGE = struct.Struct("<BI")
_KINDS: tuple[Kind, ...] = get_args(Kind)
_FAILS: tuple[FailCode, ...] = get_args(FailCode)
_ENTRY_KINDS: tuple[Literal["file", "dir", "link", "other"], ...] = ("file", "dir", "link", "other")
_What = Literal["ready", "created", "changed", "removed", "overflow"]
_CHANGES: tuple[_What, ...] = get_args(_What)
_PATH_BYTES = 4_096
_KILLED: tuple[Literal["time", "asked"] | None, ...] = (None, "time", "asked")


class ProtocolBroken(Exception):
    """The peer broke the protocol. The message says how, and never quotes the content."""


class Hello(msgspec.Struct, frozen=True):
    version: int


class Setup(msgspec.Struct, frozen=True):
    ttl_seconds: int
    proxy_port: int
    hostname: str


class Ready(msgspec.Struct, frozen=True):
    pass


class Wake(msgspec.Struct, frozen=True):
    """The new identity of a machine that was saved or forked while it was held. It answers with `Hello`."""

    clock_ns: int
    processes: int
    open_files: int
    machine_id: str
    """32 hexadecimal digits."""
    seed: bytes


class Hold(msgspec.Struct, frozen=True):
    """Stop sending and receiving, or go on. Only `Wake` or the end of the hold may follow a hold."""

    on: bool
    quiet: bool = False
    """Also flush the disk and stop writing to it."""


class Held(msgspec.Struct, frozen=True):
    """All earlier frames have been sent and received."""

    quiet: bool = False
    """The disk of the virtual machine is flushed and not written any more."""


class Live(msgspec.Struct, frozen=True):
    """Another time to live, from now on."""

    ttl_seconds: int


class Start(msgspec.Struct, frozen=True):
    channel: int
    argv: tuple[str, ...]
    kind: Kind = "program"
    cwd: str = "/"
    env: tuple[str, ...] = ()
    pty: bool = False
    root: bool = False
    timeout_ms: int = 0
    grace_ms: int = 0
    rows: int = 0
    columns: int = 0


class Output(msgspec.Struct, frozen=True):
    """Output of a command."""

    channel: int
    stream: Stream
    data: bytes


class Bytes(msgspec.Struct, frozen=True):
    """Input of a command, or either way of a relay."""

    channel: int
    data: bytes


class End(msgspec.Struct, frozen=True):
    channel: int


class Credit(msgspec.Struct, frozen=True):
    channel: int
    size: int


class Signal(msgspec.Struct, frozen=True):
    channel: int
    number: int


class Resize(msgspec.Struct, frozen=True):
    channel: int
    rows: int
    columns: int


class Kill(msgspec.Struct, frozen=True):
    channel: int


class Exit(msgspec.Struct, frozen=True):
    channel: int
    signalled: bool
    value: int
    killed: Literal["time", "asked"] | None
    milliseconds: int


class Fail(msgspec.Struct, frozen=True):
    channel: int
    code: FailCode
    text: str


class Open(msgspec.Struct, frozen=True):
    channel: int


class Close(msgspec.Struct, frozen=True):
    channel: int


class Dial(msgspec.Struct, frozen=True):
    channel: int
    port: int


FromGuest = Hello | Ready | Held | Output | Bytes | End | Credit | Exit | Fail | Open | Close
FromHost = Setup | Wake | Hold | Live | Start | Bytes | End | Credit | Signal | Resize | Kill | Close | Dial
Frame = FromGuest | FromHost


def _string(text: str) -> bytes:
    data = text.encode("utf-8")
    return _U32.pack(len(data)) + data


def _strings(texts: tuple[str, ...]) -> bytes:
    return _U16.pack(len(texts)) + b"".join(map(_string, texts))


def _start(start: Start) -> bytes:
    head = _START.pack(
        _KINDS.index(start.kind),
        start.pty | start.root << 1,
        start.timeout_ms,
        start.grace_ms,
        start.rows,
        start.columns,
    )
    return head + _string(start.cwd) + _strings(start.env) + _strings(start.argv)


_PLAIN: dict[type, tuple[int, struct.Struct]] = {
    Hello: (0x01, _U16),
    Ready: (0x03, _NOTHING),
    Held: (0x06, _FLAG),
    Live: (0x07, _U32),
    End: (0x12, _NOTHING),
    Credit: (0x13, _U32),
    Signal: (0x14, _U8),
    Resize: (0x15, _SIZE),
    Kill: (0x16, _NOTHING),
    Open: (0x20, _NOTHING),
    Close: (0x21, _NOTHING),
    Dial: (0x22, _U16),
}
"""Frames whose payload is their fields after the channel, packed; greetings have channel 0."""


def _parts(frame: Frame) -> tuple[int, int, bytes]:
    match frame:
        case Setup(ttl, port, hostname):
            return 0x02, 0, _SETUP.pack(ttl, port) + _string(hostname)
        case Wake(clock, processes, files, machine, seed):
            head = _WAKE.pack(clock, processes, files, machine.encode("ascii"))
            return 0x04, 0, head + _U32.pack(len(seed)) + seed
        case Hold(on, quiet):
            return 0x05, 0, bytes((on + (on and quiet),))
        case Start(channel):
            return 0x10, channel, _start(frame)
        case Output(channel, stream, data):
            return 0x11, channel, (b"\1" if stream == "out" else b"\2") + data
        case Bytes(channel, data):
            return 0x11, channel, data
        case Exit(channel, signalled, value, killed, milliseconds):
            return 0x17, channel, _EXIT.pack(signalled, value, _KILLED.index(killed), milliseconds)
        case Fail(channel, code, text):
            return 0x18, channel, bytes((1 + _FAILS.index(code),)) + text.encode("utf-8")
        case _:
            kind, shape = _PLAIN[type(frame)]
            values = msgspec.structs.astuple(frame)
            channel, values = (0, values) if kind < 0x10 else (values[0], values[1:])
            return kind, channel, shape.pack(*values)


def encode(frame: Frame) -> bytes:
    """`frame` as bytes. Raises `ValueError` when its payload is over the limit of one frame."""
    kind, channel, payload = _parts(frame)
    if len(payload) > limits.FRAME_BYTES:
        raise ValueError(f"A frame of {len(payload)} bytes is too large.")
    return _HEADER.pack(len(payload), kind, channel) + payload


def encode_data(channel: int, data: memoryview) -> bytes:
    """Like `encode(Bytes(...))`, but copies a part of a larger buffer only once."""
    return _HEADER.pack(len(data), 0x11, channel) + data


def _exactly(payload: memoryview, size: int) -> memoryview:
    if len(payload) != size:
        raise ProtocolBroken(f"a payload of {len(payload)} bytes where {size} belong")
    return payload


def _is_command(channel: int) -> bool:
    return 0 < channel < FIRST_DIAL


def _decode_exit(channel: int, payload: memoryview) -> Exit:
    record: tuple[int, ...] = _EXIT.unpack(_exactly(payload, _EXIT.size))
    how, value, killed, milliseconds = record
    if how > 1 or killed > 2 or (how == 1 and not 1 <= value <= 64):
        raise ProtocolBroken("an exit that cannot be")
    return Exit(channel, how == 1, value, _KILLED[killed], milliseconds)


def _decode_fail(channel: int, payload: memoryview) -> Fail:
    if not 1 <= len(payload) <= 1 + FAIL_TEXT_BYTES or not 1 <= payload[0] <= len(_FAILS):
        raise ProtocolBroken("a failure that cannot be")
    text = one_line(decode(bytes(payload[1:])), FAIL_TEXT_BYTES)
    return Fail(channel, _FAILS[payload[0] - 1], text)


def _decode_output(channel: int, payload: memoryview) -> Output:
    if not payload or payload[0] not in (1, 2):
        raise ProtocolBroken("output of no stream")
    return Output(channel, "out" if payload[0] == 1 else "err", bytes(payload[1:]))


def decode_from_guest(kind: int, channel: int, payload: memoryview) -> FromGuest:
    """Decode one frame of the guest. Raises `ProtocolBroken` for anything that is not exactly right."""
    if kind == 0x11 and channel >= FIRST_DIAL:
        return Bytes(channel, bytes(payload))
    if kind == 0x13 and channel > 0:
        return Credit(channel, _U32.unpack(_exactly(payload, 4))[0])
    if _is_command(channel) and kind in (0x11, 0x17, 0x18):
        return {0x11: _decode_output, 0x17: _decode_exit, 0x18: _decode_fail}[kind](channel, payload)
    if FIRST_DIAL <= channel < FIRST_RELAY and kind == 0x18:
        return _decode_fail(channel, payload)
    if channel >= FIRST_DIAL and kind in (0x12, 0x20, 0x21):
        _exactly(payload, 0)
        return {0x12: End, 0x20: Open, 0x21: Close}[kind](channel)
    if channel == 0 and kind == 0x01:
        return Hello(_U16.unpack(_exactly(payload, 2))[0])
    if channel == 0 and kind == 0x03:
        _exactly(payload, 0)
        return Ready()
    if channel == 0 and kind == 0x06:
        if (quiet := _exactly(payload, 1)[0]) > 1:
            raise ProtocolBroken("a flag that is neither 0 nor 1")
        return Held(quiet == 1)
    raise ProtocolBroken(f"a frame of type {kind:#04x} where none belongs")


F = TypeVar("F")


class Decoder(Generic[F]):
    """Cuts a byte stream into frames. Buffers at most one incomplete frame."""

    def __init__(self, one: Callable[[int, int, memoryview], F]) -> None:
        self._one = one
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[F]:
        """The frames that `data` completes, each decoded when it is asked for; take all of them before the next call.

        Raises `ProtocolBroken`; the stream is unusable after that.
        """
        view, at = memoryview(data), 0
        if self._rest:
            at = self._complete(view)
            if self._missing == 0:
                whole, self._rest = self._rest, bytearray()
                yield self._one(*_header(whole)[1:], memoryview(whole)[_HEADER.size :])
        while len(view) - at >= _HEADER.size:
            size, kind, channel = _header(view, at)
            if len(view) - at - _HEADER.size < size:
                break
            at += _HEADER.size + size
            yield self._one(kind, channel, view[at - size : at])
        # Only the beginning of an incomplete frame is copied; complete frames are decoded in place.
        self._rest += view[at:]

    @property
    def _missing(self) -> int:
        """Bytes that the incomplete frame lacks, as far as is known."""
        known = len(self._rest) >= _HEADER.size
        return _HEADER.size + (_header(self._rest)[0] if known else 0) - len(self._rest)

    def _complete(self, view: memoryview) -> int:
        """Add missing bytes to the incomplete frame; return how many were used."""
        used = 0
        while self._missing > 0 and used < len(view):
            more = view[used : used + self._missing]
            self._rest += more
            used += len(more)
        return used


def _header(data: memoryview | bytearray, at: int = 0) -> tuple[int, int, int]:
    size, kind, channel = _HEADER.unpack_from(data, at)
    if size > limits.FRAME_BYTES:
        raise ProtocolBroken(f"a frame of {size} bytes")
    return size, kind, channel


class Changes:
    """Cuts the output of a watch into changes. Buffers at most one incomplete change."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Change | None]:
        """The changes that `data` completes; None means that the watch has begun. Raises `ProtocolBroken`."""
        data = self._rest + data
        found: list[Change | None] = []
        at = 0
        while len(data) - at >= _CHANGE.size:
            kind, length = _CHANGE.unpack_from(data, at)
            if kind >= len(_CHANGES) or length > _PATH_BYTES:
                raise ProtocolBroken("a change that cannot be")
            end = at + _CHANGE.size + length
            if end > len(data):
                break
            what = _CHANGES[kind]
            found.append(None if what == "ready" else Change(what, decode(data[at + _CHANGE.size : end])))
            at = end
        self._rest = data[at:]
        return found


def decode_entries(data: bytes) -> tuple[Entry, ...]:
    """A directory listing, sorted by name. Raises `ProtocolBroken`."""
    entries: list[Entry] = []
    at = 0
    while at < len(data):
        if len(data) - at < _ENTRY.size:
            raise ProtocolBroken("a payload that is too short")
        record: tuple[int, ...] = _ENTRY.unpack_from(data, at)
        kind, size, mode, modified, length = record
        at += _ENTRY.size + length
        if kind >= len(_ENTRY_KINDS) or mode > 0o7777 or not 1 <= length <= 255 or at > len(data):
            raise ProtocolBroken("a directory entry that cannot be")
        name = decode(data[at - length : at])
        entries.append(Entry(name, _ENTRY_KINDS[kind], size, mode, modified / 1000))
    return tuple(sorted(entries, key=lambda entry: entry.name))
