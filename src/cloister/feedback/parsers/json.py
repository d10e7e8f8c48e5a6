"""Decodes untrusted JSON into closed records, bounded in size."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import wraps
from typing import TypeVar

import msgspec

from cloister.core import limits
from cloister.core.diagnosis import Diagnostic, TestResult
from cloister.feedback.api import CheckOutput, Found, Parser

T = TypeVar("T")
_BROKEN = (msgspec.DecodeError, RecursionError, UnicodeError)


def document(
    needle: bytes, kind: type[T]
) -> Callable[[Callable[[T], Iterable[Diagnostic | TestResult]]], Parser]:
    """Make a parser of a function that reads one document of `kind`. `needle` is a text of every such document."""

    def decorate(read: Callable[[T], Iterable[Diagnostic | TestResult]]) -> Parser:
        @wraps(read)
        def parser(output: CheckOutput) -> Found | None:
            first = next(whole(output, needle, kind), None)
            return None if first is None else _found(read(first))

        return parser

    return decorate


def each_row(needle: bytes, kind: type[T]) -> Callable[[Callable[[T], Iterable[Diagnostic]]], Parser]:
    """The same for a function that reads one of many documents, each on a line of its own."""

    def decorate(read: Callable[[T], Iterable[Diagnostic]]) -> Parser:
        @wraps(read)
        def parser(output: CheckOutput) -> Found | None:
            return Found.of(diagnostics=(one for row in rows(output, needle, kind) for one in read(row)))

        return parser

    return decorate


def _found(items: Iterable[Diagnostic | TestResult]) -> Found:
    every = list(items)
    return Found(
        tuple(one for one in every if isinstance(one, TestResult)),
        tuple(one for one in every if isinstance(one, Diagnostic)),
    )


def whole(output: CheckOutput, needle: bytes, kind: type[T]) -> Iterator[T]:
    """Each source that is one document of `kind`; skips text above and below it, as `npm` prints."""
    for source in _sources(output, needle):
        document = decoded(source, kind)
        if document is None and (inner := _inner(source)) is not None:
            document = decoded(inner, kind)
        if document is not None:
            yield document


def rows(output: CheckOutput, needle: bytes, kind: type[T]) -> Iterator[T]:
    """Each line that is a document of `kind`."""
    decoder = msgspec.json.Decoder(kind)
    for source in _sources(output, needle):
        for line in source.splitlines():
            if line.startswith((b"{", b"[")):
                with suppress(*_BROKEN):
                    yield decoder.decode(line)


def decoded(data: bytes, kind: type[T]) -> T | None:
    """Decode `data`; None if it is broken or of another shape."""
    try:
        return msgspec.json.decode(data, type=kind)
    except _BROKEN:
        return None


def _sources(output: CheckOutput, needle: bytes) -> Iterator[bytes]:
    return (source for source in output.sources if needle in source and len(source) <= limits.JUNIT_BYTES)


def _inner(source: bytes) -> bytes | None:
    """From the first line that opens an object or a list to the last that closes one."""
    starts = [at for at in (source.find(b"\n{"), source.find(b"\n[")) if at >= 0]
    if source[:1] in (b"{", b"["):
        starts.append(0)
    end = max(source.rfind(b"}"), source.rfind(b"]"))
    if not starts or end <= min(starts):
        return None
    return source[min(starts) : end + 1]
