"""The guest's half of the frames: what the host sends, decoded, and the records that a guest sends, encoded."""

import struct
from typing import get_args

from cloister.core.computer import Change, Entry
from cloister.sandbox.protocol.frames import (
    FIRST_DIAL,
    FIRST_RELAY,
    Bytes,
    Close,
    Credit,
    Dial,
    End,
    FromHost,
    Hold,
    Kill,
    Kind,
    Live,
    ProtocolBroken,
    Resize,
    Setup,
    Signal,
    Start,
    Wake,
)

_U16, _U32 = struct.Struct("<H"), struct.Struct("<I")
_START = struct.Struct("<BBIIHH")
_SETUP = struct.Struct("<IH")
_WAKE = struct.Struct("<QII32s")
_SIZE = struct.Struct("<HH")
_ENTRY = struct.Struct("<BQIQI")
_CHANGE = struct.Struct("<BI")
_KINDS: tuple[Kind, ...] = get_args(Kind)
_ENTRY_KINDS = ("file", "dir", "link", "other")
_CHANGES = ("ready", "created", "changed", "removed", "overflow")


class _Cursor:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, shape: struct.Struct) -> tuple[int, ...]:
        return shape.unpack(self.bytes(shape.size))

    def bytes(self, size: int) -> bytes:
        found = bytes(self._data[self._at : self._at + size])
        if len(found) != size:
            raise ProtocolBroken("a payload that is too short")
        self._at += size
        return found

    def string(self) -> str:
        try:
            return self.bytes(self.take(_U32)[0]).decode("utf-8")
        except UnicodeDecodeError:
            raise ProtocolBroken("a string that is not UTF-8") from None

    def strings(self) -> tuple[str, ...]:
        return tuple(self.string() for _ in range(self.take(_U16)[0]))

    def end(self) -> None:
        if self._at < len(self._data):
            raise ProtocolBroken("a payload that is too long")


def _exactly(payload: memoryview, size: int) -> memoryview:
    if len(payload) != size:
        raise ProtocolBroken(f"a payload of {len(payload)} bytes where {size} belong")
    return payload


def _is_command(channel: int) -> bool:
    return 0 < channel < FIRST_DIAL


def _decode_start(channel: int, payload: memoryview) -> Start:
    cursor = _Cursor(payload)
    kind, flags, timeout_ms, grace_ms, rows, columns = cursor.take(_START)
    cwd, env, argv = cursor.string(), cursor.strings(), cursor.strings()
    cursor.end()
    if kind >= len(_KINDS) or flags > 3:
        raise ProtocolBroken("a start that cannot be")
    pty, root = flags & 1 == 1, flags & 2 == 2
    return Start(channel, argv, _KINDS[kind], cwd, env, pty, root, timeout_ms, grace_ms, rows, columns)


def _decode_setup(payload: memoryview) -> Setup:
    cursor = _Cursor(payload)
    ttl, port = cursor.take(_SETUP)
    hostname = cursor.string()
    cursor.end()
    return Setup(ttl, port, hostname)


def _decode_wake(payload: memoryview) -> Wake:
    cursor = _Cursor(payload)
    head = _WAKE.unpack(cursor.bytes(_WAKE.size))
    clock, processes, files, machine = head
    seed = cursor.bytes(cursor.take(_U32)[0])
    cursor.end()
    return Wake(clock, processes, files, machine.decode("ascii"), seed)


def _decode_greeting(kind: int, payload: memoryview) -> FromHost:
    match kind:
        case 0x02:
            return _decode_setup(payload)
        case 0x04:
            return _decode_wake(payload)
        case 0x05:
            how = _exactly(payload, 1)[0]
            return Hold(how > 0, how == 2)
        case 0x07:
            return Live(_U32.unpack(_exactly(payload, 4))[0])
        case _:
            raise ProtocolBroken(f"a greeting of type {kind:#04x}")


def decode_from_host(kind: int, channel: int, payload: memoryview) -> FromHost:
    """Decode one frame of the host."""
    if channel == 0:
        return _decode_greeting(kind, payload)
    if channel > 0 and kind == 0x11:
        return Bytes(channel, bytes(payload))
    if channel > 0 and kind == 0x13:
        return Credit(channel, _U32.unpack(_exactly(payload, 4))[0])
    if _is_command(channel) and kind == 0x10:
        return _decode_start(channel, payload)
    if _is_command(channel) and kind == 0x14:
        return Signal(channel, _exactly(payload, 1)[0])
    if _is_command(channel) and kind == 0x15:
        return Resize(channel, *_SIZE.unpack(_exactly(payload, 4)))
    if FIRST_DIAL <= channel < FIRST_RELAY and kind == 0x22:
        return Dial(channel, _U16.unpack(_exactly(payload, 2))[0])
    plain = {0x12: End, 0x16: Kill} if _is_command(channel) else {0x12: End, 0x21: Close}
    if channel > 0 and kind in plain:
        _exactly(payload, 0)
        return plain[kind](channel)
    raise ProtocolBroken(f"a frame of type {kind:#04x} where none belongs")


def encode_change(change: Change | None) -> bytes:
    """One record of a watch."""
    name = b"" if change is None else change.path.encode("utf-8")
    return _CHANGE.pack(0 if change is None else _CHANGES.index(change.kind), len(name)) + name


def encode_entry(entry: Entry) -> bytes:
    """One record of a directory listing."""
    name = entry.name.encode("utf-8")
    kind = _ENTRY_KINDS.index(entry.kind)
    modified = round(entry.modified * 1000)
    return _ENTRY.pack(kind, entry.size, entry.mode, modified, len(name)) + name
