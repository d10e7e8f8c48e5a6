"""JSON out of untrusted bytes: decoded straight into closed records, or not at all."""

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from cloister.core import limits
from cloister.feedback.api import CheckOutput

T = TypeVar("T")


def whole(output: CheckOutput, needle: bytes, kind: type[T]) -> Iterator[T]:
    """Each source that is one document of `kind`; text above and below it, as `npm` prints it, is passed over."""
    for source in output.sources:
        if needle not in source or len(source) > limits.JUNIT_BYTES:
            continue
        found = decoded(source, kind)
        if found is None and (inner := _inner(source)) is not None:
            found = decoded(inner, kind)
        if found is not None:
            yield found


def rows(output: CheckOutput, needle: bytes, kind: type[T]) -> Iterator[T]:
    """Each line that is a document of `kind` by itself."""
    for source in output.sources:
        if needle not in source or len(source) > limits.JUNIT_BYTES:
            continue
        decoder = msgspec.json.Decoder(kind)
        for line in source.splitlines():
            if not line.startswith((b"{", b"[")):
                continue
            try:
                yield decoder.decode(line)
            except (msgspec.DecodeError, RecursionError, UnicodeError):
                continue


def decoded(data: bytes, kind: type[T]) -> T | None:
    """`data` as `kind`; None when it is broken or something else."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def _inner(source: bytes) -> bytes | None:
    """From the first line that opens an object or a list to the last that closes one."""
    starts = [at for at in (source.find(b"\n{"), source.find(b"\n[")) if at >= 0]
    if source[:1] in (b"{", b"["):
        starts.append(0)
    end = max(source.rfind(b"}"), source.rfind(b"]"))
    if not starts or end <= min(starts):
        return None
    return source[min(starts) : end + 1]
