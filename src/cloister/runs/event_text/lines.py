"""The words of a run as data: lines with a style name, fragments of a line, and the status at the bottom. Pure."""

import json
import time
from collections.abc import Iterator, Sequence
from typing import Literal, cast

import msgspec

from cloister.core.events import Event
from cloister.core.text import harmless

Style = Literal["plain", "head", "dim", "good", "bad", "warn", "said"]


class Line(msgspec.Struct, frozen=True):
    """One finished line."""

    text: str
    style: Style = "plain"


class Fragment(msgspec.Struct, frozen=True):
    """Continues where the last fragment ended; may hold newlines. A `Line` after it starts a new line."""

    text: str
    style: Style = "said"


class Status(msgspec.Struct, frozen=True):
    """The current activity; replaces the last status. Shown on terminals only, below the lines."""

    text: str
    fraction: float | None = None
    output: tuple[str, ...] = ()
    """The newest lines of a running command."""


Piece = Line | Fragment | Status


class EventWords(msgspec.Struct, frozen=True):
    """One event in words; without lines if it says nothing new to a person."""

    seq: int
    at: float
    """Unix seconds."""
    lines: tuple[Line, ...]


IDLE = Status("")


def seconds(value: float) -> str:
    """A duration for people: `4.2 s`, `3 min 05 s`."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def moment(at: float) -> str:
    """A time in Unix seconds for people: `2026-05-01 09:30 UTC`."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))


def counted(number: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def bar(fraction: float, width: int) -> str:
    """A progress bar of `width` characters."""
    share = min(1.0, max(0.0, fraction))
    full = round(share * width)
    return "█" * full + "░" * (width - full) + f" {share * 100:3.0f} %"


# One event of the log as text with all its fields. Pure; all text comes out harmless.


_SHORT = 60


def entry_lines(event: Event) -> list[str]:
    """A head line with number, time, kind and short fields; then each long field, indented."""
    fields = cast("dict[str, object]", msgspec.to_builtins(event.body))
    kind = fields.pop("type")
    short: list[str] = []
    blocks: list[str] = []
    for name, value in fields.items():
        if value is None or value in ((), [], {}, ""):
            continue
        text = _text(value)
        if len(text) <= _SHORT and "\n" not in text:
            short.append(f"{name}={text}")
        else:
            blocks += [f"      {name}:", *(f"        {line}" for line in text.split("\n"))]
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
    return [f"{event.seq:>5} {stamp}  {kind}  {'  '.join(short)}".rstrip(), *blocks]


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, str):
        return harmless(value).rstrip("\n")
    if isinstance(value, dict | list | tuple):
        return "\n".join(_nested(cast(object, value), ""))
    return json.dumps(value)


def _nested(value: object, indent: str) -> Iterator[str]:
    """Records inside an event, one field per line; texts keep their lines."""
    if isinstance(value, dict):
        for name, inner in cast("dict[object, object]", value).items():
            yield from _named(f"{indent}{harmless(str(name))}", inner, indent)
    elif isinstance(value, list | tuple):
        for inner in cast("Sequence[object]", value):
            yield from _named(f"{indent}-", inner, indent)


def _named(label: str, inner: object, indent: str) -> Iterator[str]:
    if inner is None or inner in ((), [], {}, ""):
        return
    if isinstance(inner, dict | list | tuple):
        yield label
        yield from _nested(cast(object, inner), indent + "  ")
        return
    first, *rest = (harmless(inner) if isinstance(inner, str) else json.dumps(inner)).split("\n")
    yield f"{label} {first}"
    yield from (f"{indent}  {line}" for line in rest)
