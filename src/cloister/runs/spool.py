"""What a command printed, on disk: both streams in order, found again by offset, the oldest dropped when it is too much.

The offset of a byte is how many were printed before it, both streams together. The files are named by the
offset of their first byte; each holds pieces: u8 stream, u32 length, bytes. One writer, any number of readers.
"""

import os
import struct
from pathlib import Path
from typing import BinaryIO

import msgspec

from cloister.core.commands import Output, Stream

SPOOL_BYTES = 16_777_216
"""What is kept of one command's output."""

_FILES = 8
"""The oldest of so many is dropped as a whole."""

_HEAD = struct.Struct("<BI")
_STREAMS: tuple[Stream, Stream] = ("out", "err")


class Skipped(msgspec.Struct, frozen=True, tag="skipped"):
    """So many bytes were dropped before they were asked for."""

    size: int


class Spool:
    """The output of one command. Blocking: use it in a thread."""

    def __init__(self, directory: Path, limit_bytes: int = SPOOL_BYTES) -> None:
        self._directory = directory
        self._file_bytes = limit_bytes // _FILES
        self._file: BinaryIO | None = None
        self._written = 0
        self._starts = sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())
        self.end = 0
        """The offset of what is printed next."""
        if self._starts:
            with SpoolReader(self, self._starts[-1]) as reader:
                while reader.read(self._file_bytes) is not None:
                    pass
                self.end = reader.offset

    @property
    def begin(self) -> int:
        """The offset of the oldest byte that is kept."""
        return self._starts[0] if self._starts else 0

    @property
    def starts(self) -> tuple[int, ...]:
        """The offsets at which the files begin."""
        return tuple(self._starts)

    def path(self, start: int) -> Path:
        return self._directory / f"{start:020d}"

    def append(self, output: Output) -> None:
        """Raises `OSError`; then what was kept before is still whole."""
        if self._file is None or self._written >= self._file_bytes:
            self.close()
            self._file = self.path(self.end).open("ab", buffering=0)
            self._written = 0
            self._starts.append(self.end)
            while len(self._starts) > _FILES:
                self.path(self._starts[0]).unlink(missing_ok=True)
                del self._starts[0]
        head = _HEAD.pack(_STREAMS.index(output.stream), len(output.data))
        wanted = len(head) + len(output.data)
        if os.writev(self._file.fileno(), [head, output.data]) != wanted:
            # A full disk: half a piece would hide all that follows it.
            os.ftruncate(self._file.fileno(), self._written)
            raise OSError(28, "No space left on device")
        self._written += wanted
        self.end += len(output.data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class SpoolReader:
    """Reads on from an offset, also what is appended later. Blocking: use it in a thread."""

    def __init__(self, spool: Spool, offset: int) -> None:
        self.offset = offset
        self._spool = spool
        self._file: BinaryIO | None = None
        self._start = self._at = 0
        """The offsets of the file's first byte, and of the piece at which it stands."""

    def __enter__(self) -> "SpoolReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self, limit_bytes: int) -> Output | Skipped | None:
        """The next piece, or a part of it; None when there is nothing more now."""
        if self._file is None and not self._open():
            return None
        if self.offset < self._at:
            skipped = Skipped(self._at - self.offset)
            self.offset = self._at
            return skipped
        while (piece := self._piece(limit_bytes)) is None:
            if not any(start > self._start for start in self._spool.starts):
                return None
            # A newer file goes on. Look once more first: the last piece may have come while we looked for it.
            if piece := self._piece(limit_bytes):
                return piece
            self.close()
            if not self._open():
                return None
            if self.offset < self._at:
                return self.read(limit_bytes)
        return piece

    def _open(self) -> bool:
        """The file that holds the offset, or the oldest there is."""
        for _ in range(_FILES):
            starts = self._spool.starts
            if not starts:
                return False
            start = max((each for each in starts if each <= self.offset), default=starts[0])
            try:
                self._file = self._spool.path(start).open("rb", buffering=0)
            except FileNotFoundError:
                continue  # dropped since we looked
            self._start = self._at = start
            return True
        return False

    def _piece(self, limit_bytes: int) -> Output | None:
        while self._file is not None:
            here = self._file.tell()
            head = self._file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                self._file.seek(here)
                return None
            number: int
            size: int
            number, size = _HEAD.unpack(head)
            into = self.offset - self._at
            if into >= size and size > 0:
                self._file.seek(size, os.SEEK_CUR)
                self._at += size
                continue
            self._file.seek(into, os.SEEK_CUR)
            data = self._file.read(min(size - into, limit_bytes))
            if into + len(data) < size:
                self._file.seek(here)  # a part of it: we stand before it still
                if not data:
                    return None
            else:
                self._at += size
            self.offset += len(data)
            return Output(_STREAMS[number & 1], data)
        return None
