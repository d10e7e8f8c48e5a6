"""Reads the header of a GGUF file: what the model calls itself, and where the file must end.

A file may come from anywhere, so every length is bounded and nothing is kept but a few short values.
"""

import struct
from pathlib import Path
from typing import BinaryIO

import msgspec

MAGIC = b"GGUF"
HEADER_BYTES = 268_435_456
_TEXT_BYTES = 16_777_216
_ENTRIES = 1_000_000
_DEPTH = 4
_SHOWN_CHARS = 120

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9

_BLOCKS = {
    **{0: (1, 4), 1: (1, 2), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 30: (1, 2)},
    **{2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36), 20: (32, 18)},
    **{10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292)},
    **{16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 21: (256, 110), 22: (256, 82)},
    **{23: (256, 136), 29: (256, 56), 34: (256, 54), 35: (256, 66), 39: (32, 17)},
}
"""Type of a tensor → how many numbers a block holds, and its bytes. An unknown type counts as one byte."""


class Header(msgspec.Struct, frozen=True):
    """What the header of a file says."""

    title: str | None
    license: str | None
    window: int | None
    """Longest conversation, in tokens."""
    bytes: int
    """The least size of the whole file."""


def problem_of(path: Path) -> str | None:
    """Why the file cannot be a model, as the end of a sentence; None if it can."""
    try:
        header = read_header(path)
    except ValueError as error:
        return str(error)
    if (size := path.stat().st_size) < header.bytes:
        return f"it is cut off: it has {size:,} bytes and its header describes {header.bytes:,}"
    return None


def read_header(path: Path) -> Header:
    """Raises `ValueError` with the reason if the file is not a complete GGUF header of one whole model."""
    with path.open("rb") as stream:
        reader = _Reader(stream)
        try:
            return _header(reader)
        except EOFError:
            raise ValueError("it is cut off within its header") from None


def _header(reader: "_Reader") -> Header:
    if reader.take(4) != MAGIC:
        raise ValueError("it is not a GGUF file")
    version, tensors, entries = reader.unpack("IQQ")
    if version not in (2, 3):
        raise ValueError(f"it has version {version} of GGUF, and 2 and 3 can be read")
    if tensors > _ENTRIES or entries > _ENTRIES:
        raise ValueError("its header is not valid")
    facts = {reader.text(): reader.value() for _ in range(entries)}
    if isinstance(parts := facts.get("split.count"), int) and parts > 1:
        raise ValueError(f"it is one of {parts} parts: join them into one file first")
    ends = [reader.tensor_end() for _ in range(tensors)]
    if not ends:
        raise ValueError("it holds no weights")
    alignment = facts.get("general.alignment")
    step = alignment if isinstance(alignment, int) and 0 < alignment <= 1_048_576 else 32
    window = facts.get(f"{facts.get('general.architecture')}.context_length")
    return Header(
        _shown(facts.get("general.name")),
        _shown(facts.get("general.license")),
        window if isinstance(window, int) and window > 0 else None,
        -(-reader.at // step) * step + max(ends),
    )


def _shown(value: object) -> str | None:
    """A text of the file, fit for a table."""
    text = " ".join(value.split()) if isinstance(value, str) else ""
    return "".join(letter for letter in text if letter.isprintable())[:_SHOWN_CHARS] or None


class _Reader:
    """Reads values in order and never further than a header may reach."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.at = 0

    def take(self, count: int) -> bytes:
        self._advance(count)
        data = self._stream.read(count)
        if len(data) < count:
            raise EOFError
        return data

    def unpack(self, form: str) -> tuple[int, ...]:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))

    def text(self) -> str:
        (length,) = self.unpack("Q")
        if length > _TEXT_BYTES:
            raise ValueError("its header is not valid")
        return self.take(length).decode("utf-8", errors="replace")

    def value(self) -> object:
        (kind,) = self.unpack("I")
        if kind == _TEXT:
            return self.text()
        if kind == _LIST:
            return self._skip_list(_DEPTH)
        if kind not in _NUMBERS:
            raise ValueError("its header is not valid")
        return self.unpack(_NUMBERS[kind])[0]

    def tensor_end(self) -> int:
        """Where a tensor ends, from the first byte of all of them."""
        self.text()
        (sides,) = self.unpack("I")
        if sides > 8:
            raise ValueError("its header is not valid")
        count = 1
        for side in self.unpack("Q" * sides):
            count *= side
        kind, offset = self.unpack("IQ")
        block, size = _BLOCKS.get(kind, (max(count, 1), 1))
        return offset + -(-count // block) * size

    def _skip_list(self, depth: int) -> None:
        kind, count = self.unpack("IQ")
        if kind in _NUMBERS:
            size = struct.calcsize("<" + _NUMBERS[kind]) * count
            self._advance(size)
            self._stream.seek(size, 1)
        elif kind == _TEXT:
            for _ in range(count):
                self.text()
        elif kind == _LIST and depth:
            for _ in range(count):
                self._skip_list(depth - 1)
        else:
            raise ValueError("its header is not valid")

    def _advance(self, count: int) -> None:
        self.at += count
        if self.at > HEADER_BYTES:
            raise ValueError("its header is not valid")
