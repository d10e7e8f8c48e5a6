"""Which passages are about a query, whatever words they use: vectors of an embedding model, kept on disk by content.

A number of a vector is kept as one byte. A query is compared with the signs of all vectors first, and then exactly with the
nearest of these, so that tens of thousands take milliseconds.
"""

import hashlib
import os
import struct
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from operator import mul
from pathlib import Path

import anyio

from cloister.core.system import in_thread
from cloister.core.system.locks import lock

TEXT_CHARS = 6_000
"""What is embedded of one text."""
AT_ONCE = 64
FILL_SECONDS = 30.0
"""How long one search sends texts that have no vector yet; the next goes on."""
_DIGEST_BYTES = 16
_HEAD = struct.Struct(f"!{_DIGEST_BYTES}sH")
_CANDIDATES = 200
_SIGNS = bytes(ord("1") if 0 < byte < 128 else ord("0") for byte in range(256))

Embed = Callable[[Sequence[str]], Awaitable[list[tuple[float, ...]]]]
"""The vectors of at most `AT_ONCE` texts. Raises `CloisterError`."""


@dataclass(slots=True)
class Meanings:
    """The vectors of one model, in one file."""

    embed: Embed
    file: Path
    _known: dict[bytes, bytes] | None = field(init=False, default=None)
    _lock: anyio.Lock = field(init=False, default_factory=anyio.Lock)

    async def nearest(self, query: str, texts: Sequence[str], most: int) -> list[int]:
        """The positions of the texts that are about the query, the nearest first. Raises as `embed`."""
        digests = [_digest(text) for text in texts]
        async with self._lock:
            if self._known is None:
                self._known = await in_thread(_read, self.file)
            await self._fill(self._known, dict(zip(digests, texts, strict=True)))
            known = self._known
        (asked,) = await self.embed([query[:TEXT_CHARS]])
        return await in_thread(_nearest, _small(asked), [known.get(one) for one in digests], most)

    async def _fill(self, known: dict[bytes, bytes], texts: dict[bytes, str]) -> None:
        missing = [one for one in texts if one not in known]
        with anyio.move_on_after(FILL_SECONDS):
            for at in range(0, len(missing), AT_ONCE):
                some = missing[at : at + AT_ONCE]
                made = await self.embed([texts[one][:TEXT_CHARS] for one in some])
                fresh = dict(zip(some, map(_small, made), strict=True))
                await in_thread(_append, self.file, fresh)
                known |= fresh


def _digest(text: str) -> bytes:
    return hashlib.sha256(text[:TEXT_CHARS].encode()).digest()[:_DIGEST_BYTES]


def _small(vector: Sequence[float]) -> bytes:
    """A vector as bytes, each number relative to the largest."""
    most = max(map(abs, vector)) or 1.0
    return array("b", (round(127 * one / most) for one in vector)).tobytes()


def _nearest(asked: bytes, vectors: Sequence[bytes | None], most: int) -> list[int]:
    signs = _signs(asked)
    same = [(at, one) for at, one in enumerate(vectors) if one is not None and len(one) == len(asked)]
    if len(same) > _CANDIDATES:
        same = sorted(same, key=lambda one: (_signs(one[1]) ^ signs).bit_count())[:_CANDIDATES]
    wanted = array("b", asked)
    found = sorted((-_cosine(wanted, array("b", vector)), at) for at, vector in same)
    return [at for _, at in found[:most]]


def _cosine(one: "array[int]", other: "array[int]") -> float:
    """Up to the length of `one`, which is the same for all."""
    length = sum(map(mul, other, other)) ** 0.5
    return sum(map(mul, one, other)) / length if length else 0.0


def _signs(vector: bytes) -> int:
    return int(vector.translate(_SIGNS) or b"0", 2)


def _read(file: Path) -> dict[bytes, bytes]:
    """What the file has; an end that was cut off is removed, so that the next record does not become part of it."""
    found: dict[bytes, bytes] = {}
    if not file.exists():
        return found
    with lock(file, wait=True):
        data, at = file.read_bytes(), 0
        while at + _HEAD.size <= len(data):
            digest, size = _HEAD.unpack_from(data, at)
            end = at + _HEAD.size + size
            if end > len(data):
                break
            found[digest] = data[at + _HEAD.size : end]
            at = end
        if at < len(data):
            os.truncate(file, at)
    return found


def _append(file: Path, vectors: dict[bytes, bytes]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with lock(file, wait=True, create=True), file.open("ab") as out:
        out.write(b"".join(_HEAD.pack(digest, len(one)) + one for digest, one in vectors.items()))
