"""A bar for bytes on their way: moving on a terminal, a line now and then elsewhere."""

from typing import TextIO

_WIDTH = 30


class Bar:
    """How far a file is."""

    def __init__(self, name: str, out: TextIO) -> None:
        self._name = name
        self._out = out
        self._live = out.isatty()
        self._last = -1

    def show(self, done: int, total: int) -> None:
        percent = done * 100 // max(1, total)
        # One line in ten percent is enough for a log file.
        mark = percent if self._live else percent // 10
        if mark == self._last:
            return
        self._last = mark
        filled = percent * _WIDTH // 100
        bar = "█" * filled + "░" * (_WIDTH - filled)
        line = f"{self._name}  {bar} {percent:3d} %  {done / 1e6:,.0f} of {total / 1e6:,.0f} MB"
        self._out.write(f"\r{line}" if self._live else f"{line}\n")
        self._out.flush()

    def close(self) -> None:
        if self._live and self._last >= 0:
            self._out.write("\n")
