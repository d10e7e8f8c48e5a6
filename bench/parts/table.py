"""Lines of measurements: ours, beside what other programs need for the same, against a goal."""

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

Unit = Literal["ms", "MB", "MB/s"]


class Goal(msgspec.Struct, frozen=True):
    """What a median is to be: at most so much, in its unit or as a ratio to the other side; or at least."""

    value: float
    of: Literal["most", "least", "ratio"] = "most"

    def met(self, median: float, ratio: float | None) -> bool:
        match self.of:
            case "most":
                return median <= self.value
            case "least":
                return median >= self.value
            case "ratio":
                return ratio is not None and ratio <= self.value

    def text(self, unit: Unit) -> str:
        match self.of:
            case "most":
                return f"≤ {self.value:g} {unit}"
            case "least":
                return f"≥ {self.value:g} {unit}"
            case "ratio":
                return f"≤ {self.value:g}×"


class Line(msgspec.Struct, frozen=True):
    """One measurement; `ours` and `theirs` were taken in turn."""

    what: str
    ours: tuple[float, ...]
    unit: Unit = "ms"
    goal: Goal | None = None
    beside: str = ""
    theirs: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.ours)

    @property
    def ratio(self) -> float | None:
        return self.median / statistics.median(self.theirs) if self.theirs else None

    def cells(self) -> tuple[str, ...]:
        ratio, goal = self.ratio, self.goal
        return (
            self.what,
            f"{self.median:.1f} {self.unit}",
            f"{_p99(self.ours):.1f}",
            f"{self.beside} {statistics.median(self.theirs):.1f}" if self.theirs else "",
            "" if ratio is None else f"{ratio:.2f}×",
            "" if goal is None else goal.text(self.unit),
            "" if goal is None else "yes" if goal.met(self.median, ratio) else "no",
        )


class Table:
    """Lines, each printed when it is known."""

    HEAD = ("what", "p50", "p99", "beside it, p50", "ratio", "goal", "met")
    _WIDTHS = (54, 12, 9, 30, 8, 13, 4)

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.missing: list[str] = []
        self._show(self.HEAD)

    def _show(self, cells: Sequence[str]) -> None:
        print("".join(f"{cell:<{width}}" for cell, width in zip(cells, self._WIDTHS, strict=True)).rstrip())

    def add(self, line: Line) -> None:
        self.lines.append(line)
        self._show(line.cells())

    def not_measured(self, what: str, why: str) -> None:
        self.missing.append(f"{what}: not measured: {why}")
        print(self.missing[-1])

    def markdown(self) -> str:
        """As a document has it."""
        rows = [self.HEAD, ("---",) * len(self.HEAD), *(line.cells() for line in self.lines)]
        return "\n".join(["| " + " | ".join(row) + " |" for row in rows] + ["", *self.missing])


def ms(seconds: Sequence[float]) -> tuple[float, ...]:
    return tuple(second * 1000 for second in seconds)


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[max(0, round(len(values) * 0.99) - 1)]
