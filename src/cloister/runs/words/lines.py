"""The words of a run as data: lines with a style name, fragments of a line, and the status at the bottom. Pure."""

from typing import Literal

import msgspec

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


def counted(number: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def bar(fraction: float, width: int) -> str:
    """A progress bar of `width` characters."""
    share = min(1.0, max(0.0, fraction))
    full = round(share * width)
    return "█" * full + "░" * (width - full) + f" {share * 100:3.0f} %"
