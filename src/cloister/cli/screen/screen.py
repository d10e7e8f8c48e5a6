"""Write a run to a terminal or a pipe: a live screen without an alternate buffer, or JSON lines; and progress."""

import re
import sys
import time
from collections.abc import Iterable
from typing import Protocol, TextIO, assert_never

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from cloister.cli.options import put, put_json
from cloister.core.events import Delta, Event
from cloister.core.text import one_line
from cloister.runs.event_text.lines import IDLE, Fragment, Line, Piece, Status, Style, bar, seconds
from cloister.runs.event_text.render import Renderer

_PARTS = re.compile(r"\n|[^\S\n]+|\S+")


class Flow:
    """Wraps streamed text at word boundaries: holds back the last word until it is complete."""

    def __init__(self, width: int) -> None:
        self.width = max(20, width)
        self._column = 0
        self._gap = ""
        self._word = ""

    def feed(self, text: str) -> str:
        """The text that can be written now."""
        out: list[str] = []
        for part in _PARTS.findall(text):
            if part == "\n":
                out.append(self.flush() + "\n")
                self._column, self._gap = 0, ""
            elif part.isspace():
                out.append(self.flush())
                self._gap += part
            else:
                self._word += part
        return "".join(out)

    def flush(self) -> str:
        """The held-back word, after its gap or line break."""
        word, self._word = self._word, ""
        if not word:
            return ""
        size = cell_len(self._gap) + cell_len(word)
        gap, self._gap = self._gap, ""
        if self._column and gap and self._column + size > self.width:
            self._column = cell_len(word)
            return "\n" + word
        self._column += size
        return gap + word

    @property
    def mid_line(self) -> bool:
        return self._column > 0 or bool(self._word)

    def restart(self) -> None:
        """The cursor is at the start of a new line."""
        self._column, self._gap, self._word = 0, "", ""


_STYLES: dict[Style, str] = {
    "plain": "",
    "head": "bold",
    "dim": "dim",
    "good": "green",
    "bad": "red",
    "warn": "yellow",
    "said": "",
}
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_BAR_WIDTH = 30
_CLEAR = "\r\x1b[2K"


class Screen:
    """Writes pieces in order; on a terminal an animated status line stays below them."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file or sys.stdout
        self._console = Console(
            file=self._file, highlight=False, markup=False, emoji=False, soft_wrap=True, legacy_windows=False
        )
        self._moves = self._console.is_terminal and not self._console.is_dumb_terminal
        self._status = IDLE
        self._since = time.monotonic()
        self._drawn = False
        self._flow = Flow(self._console.width if self._moves else 1_000_000)

    @property
    def width(self) -> int:
        return self._console.width if self._console.is_terminal else 120

    def put(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            match piece:
                case Line():
                    self._line(piece)
                case Fragment():
                    self._fragment(piece)
                case Status():
                    if piece != self._status:
                        self._status = piece
                        self._since = time.monotonic()
                case _:
                    assert_never(piece)
        self.tick()
        self._file.flush()

    def tick(self) -> None:
        """Redraw the status line."""
        if not self._moves or self._flow.mid_line:
            return
        self._clear()
        self._flow.width = self._console.width
        if self._status.text:
            text = Text(self._status_text(), style="dim", no_wrap=True)
            text.truncate(max(10, self._console.width - 1), overflow="ellipsis")
            self._console.print(text, end="")
            self._drawn = True
        self._file.flush()

    def close(self) -> None:
        """Remove the status line and leave the cursor on a new line."""
        self._status = IDLE
        self._clear()
        self._end_line()
        self._file.flush()

    def _line(self, line: Line) -> None:
        self._clear()
        self._end_line()
        text = line.text
        if line.style == "said" and self._moves:
            text = self._flow.feed(text) + self._flow.flush()
            self._flow.restart()
        self._console.print(Text(text, style=_STYLES[line.style]))

    def _fragment(self, fragment: Fragment) -> None:
        self._clear()
        self._console.print(Text(self._flow.feed(fragment.text), style=_STYLES[fragment.style]), end="")

    def _end_line(self) -> None:
        if self._flow.mid_line:
            self._file.write(self._flow.flush() + "\n")
        self._flow.restart()

    def _clear(self) -> None:
        if self._drawn:
            self._file.write(_CLEAR)
            self._drawn = False

    def _status_text(self) -> str:
        elapsed = time.monotonic() - self._since
        if self._status.fraction is not None:
            return f"{bar(self._status.fraction, _BAR_WIDTH)}  {self._status.text}"
        frame = _SPINNER[int(elapsed * 10) % len(_SPINNER)]
        return f"{frame} {self._status.text}  {seconds(elapsed)}"


class Show(Protocol):
    """Receives everything a run emits, in order."""

    def feed(self, item: Event | Delta) -> None: ...

    def note(self, text: str) -> None:
        """A message of the command, not of the run."""
        ...

    def tick(self) -> None: ...

    def close(self) -> None: ...


class LiveShow:
    """The live screen."""

    def __init__(self, earlier: Iterable[Event]) -> None:
        self._screen = Screen()
        self._renderer = Renderer(self._screen.width)
        for event in earlier:
            self._renderer.feed(event)

    def feed(self, item: Event | Delta) -> None:
        self._screen.put(self._renderer.feed(item))

    def note(self, text: str) -> None:
        self._screen.put([Line(text, "warn")])

    def tick(self) -> None:
        self._screen.tick()

    def close(self) -> None:
        self._screen.close()


class JsonShow:
    """One JSON event per line; deltas are left out."""

    def feed(self, item: Event | Delta) -> None:
        if isinstance(item, Event):
            put_json(item)

    def note(self, text: str) -> None:
        put(text, file=sys.stderr)

    def tick(self) -> None:
        pass

    def close(self) -> None:
        pass


def open_show(as_json: bool, earlier: Iterable[Event] = ()) -> Show:
    """`earlier`: events before the first one to show. They set the state of the screen and are not printed."""
    return JsonShow() if as_json else LiveShow(earlier)


class Progress:
    """Progress on stderr: one changing line on a terminal, one line per step elsewhere."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, fraction: float | None, note: str) -> None:
        live = sys.stderr.isatty()
        # Whole steps of ten percent are enough for a log file.
        shown = fraction if fraction is None or live else int(fraction * 10) / 10
        line = f"{'     ' if shown is None else f'{shown:4.0%} '} {one_line(note, 70)}"
        if live:
            print(f"\r\x1b[2K{line}", end="\n" if fraction == 1.0 else "", file=sys.stderr, flush=True)
        elif line != self._last:
            print(line, file=sys.stderr, flush=True)
        self._last = line
