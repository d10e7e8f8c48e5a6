"""Write a run to a terminal or a pipe: a live screen without an alternate buffer, or JSON lines; and progress."""

import io
import re
import sys
import time
from collections.abc import Iterable
from textwrap import wrap
from typing import Protocol, TextIO, assert_never

from rich.cells import cell_len, set_cell_size
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


class Foot(Protocol):
    """The lines below the status: what the keyboard does."""

    def lines(self, width: int) -> tuple[list[Line], int]:
        """The lines, and the column of the cursor in the last one."""
        ...


class Screen:
    """Writes pieces in order; on a terminal a status, the newest output and the keyboard's lines stay below them."""

    def __init__(self, file: TextIO | None = None, *, plain: bool = False) -> None:
        self._file = file or sys.stdout
        self._console = Console(
            file=self._file, highlight=False, markup=False, emoji=False, soft_wrap=True, legacy_windows=False
        )
        self._moves = self._console.is_terminal and not self._console.is_dumb_terminal and not plain
        self._status = IDLE
        self._since = time.monotonic()
        self._drawn: list[str] = []
        """The lines at the bottom that are replaced at each change."""
        self._column = 0
        """Where the cursor is in the last of them; 0 is its end."""
        self._flow = Flow(self._console.width - 1 if self._moves else 1_000_000)
        self._open = ""
        """The last line of streamed text, which may grow."""
        self.foot: Foot | None = None
        self.usual = ""
        """How long the phase at work usually takes."""
        self._hidden = False

    @property
    def moves(self) -> bool:
        return self._moves

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
                    if piece.text != self._status.text:
                        self._since = time.monotonic()
                    self._status = piece
                case _:
                    assert_never(piece)
        self.tick()
        self._file.flush()

    def tick(self) -> None:
        """Redraw the lines at the bottom, if they changed."""
        if not self._moves or self._hidden:
            return
        self._flow.width = max(20, self._console.width - 1)
        lines, column = self._bottom()
        texts = [line.text for line in lines]
        if (texts, column) == (self._drawn, self._column):
            return
        self._clear()
        with self._console.capture() as drawn:
            for number, line in enumerate(lines):
                end = "" if number == len(lines) - 1 else "\n"
                self._console.print(Text(line.text, style=_STYLES[line.style]), end=end)
        # The cursor is at the end of the last line, which the foot may want elsewhere.
        move = f"\r\x1b[{column}C" if self.foot is not None and column else ""
        self._file.write(drawn.get() + move)
        self._drawn, self._column = texts, column
        self._file.flush()

    def hide(self) -> None:
        """Remove the lines at the bottom until `redraw`: the terminal belongs to another program."""
        self._clear()
        self._hidden = True
        self._file.flush()

    def redraw(self) -> None:
        """Draw the bottom again, after another program used the terminal."""
        self._drawn, self._hidden = [], False
        self.tick()

    def close(self) -> None:
        """Remove the lines at the bottom and leave the cursor on a new line."""
        self._status, self.foot = IDLE, None
        self._clear()
        self._end_line()
        self._file.flush()

    def _bottom(self) -> tuple[list[Line], int]:
        width = max(20, self._console.width - 1)
        opened = [self._open[at : at + width] for at in range(0, len(self._open), width)]
        lines = [Line(part, "said") for part in opened]
        foot, column = self.foot.lines(width) if self.foot is not None else ([], 0)
        if self._status.text and (foot or not lines):
            *pane, last = self._status.output or ("",)
            room = max(0, self._console.height - len(lines) - len(foot) - 3)
            lines += [
                Line(_cut(f"  │ {line}", width), "dim") for line in pane[len(pane) - min(len(pane), room) :]
            ]
            lines.append(Line(_cut(self._status_text(last), width), "dim"))
        return [*lines, *(Line(_cut(line.text, width), line.style) for line in foot)], column

    def _line(self, line: Line) -> None:
        self._clear()
        self._end_line()
        text = line.text
        if line.style == "said" and self._moves:
            text = self._flow.feed(text) + self._flow.flush()
            self._flow.restart()
        elif self._moves and cell_len(text) >= self._console.width:
            text = _wrapped(text, self._console.width - 1)
        self._console.print(Text(text, style=_STYLES[line.style]))

    def _fragment(self, fragment: Fragment) -> None:
        self._clear()
        text = self._flow.feed(fragment.text)
        if self._moves:
            # Whole lines scroll away; the last one stays at the bottom until it is complete.
            whole, newline, self._open = (self._open + text).rpartition("\n")
            text = whole + newline
        self._console.print(Text(text, style=_STYLES[fragment.style]), end="")

    def _end_line(self) -> None:
        if self._flow.mid_line:
            self._file.write(self._open + self._flow.flush() + "\n")
        self._open = ""
        self._flow.restart()

    def _clear(self) -> None:
        if not self._drawn:
            return
        # A narrower terminal has wrapped the lines that it shows.
        width = max(1, self._console.width)
        above = sum(max(1, -(-cell_len(line) // width)) for line in self._drawn[:-1])
        above += (self._column or max(0, cell_len(self._drawn[-1]) - 1)) // width
        self._file.write((f"\x1b[{above}A" if above else "") + "\r\x1b[J")
        self._drawn = []

    def _status_text(self, last: str) -> str:
        elapsed = time.monotonic() - self._since
        if self._status.fraction is not None:
            return f"{bar(self._status.fraction, _BAR_WIDTH)}  {self._status.text}"
        frame = _SPINNER[int(elapsed * 10) % len(_SPINNER)]
        usual = f"  ({self.usual})" if self.usual else ""
        return f"{frame} {self._status.text}  {seconds(elapsed)}{usual}" + (f"  │ {last}" if last else "")


def _cut(text: str, width: int) -> str:
    """`text` in at most `width` cells of a terminal."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def _wrapped(text: str, width: int) -> str:
    """`text` in lines that are not cut inside a word, each with the indent of the first."""
    indent = text[: len(text) - len(text.lstrip())]
    return "\n".join(
        wrap(
            text,
            width,
            subsequent_indent=indent + "  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


class Show(Protocol):
    """Receives everything a run emits, in order."""

    def feed(self, item: Event | Delta) -> None: ...

    def note(self, text: str) -> None:
        """A message of the command, not of the run."""
        ...

    def usual(self, text: str) -> None:
        """How long the phase at work usually takes; empty if that is not known."""
        ...

    def tick(self) -> None: ...

    def close(self) -> None: ...


class LiveShow:
    """The live screen."""

    def __init__(self, earlier: Iterable[Event], *, plain: bool = False) -> None:
        self.screen = self._screen = Screen(plain=plain)
        self._renderer = Renderer(self._screen.width - self._screen.moves)
        for event in earlier:
            self._renderer.feed(event)

    def feed(self, item: Event | Delta) -> None:
        self._renderer.resize(self._screen.width - self._screen.moves)
        self._screen.put(self._renderer.feed(item))

    def note(self, text: str) -> None:
        self._screen.put([Line(text, "warn")])

    def usual(self, text: str) -> None:
        self._screen.usual = text

    def tick(self) -> None:
        self._screen.tick()

    def close(self) -> None:
        self._screen.close()


class NoteFile(io.TextIOBase):
    """A file whose lines appear above the status."""

    def __init__(self, show: Show) -> None:
        self._show = show

    def write(self, text: str, /) -> int:
        if text.strip():
            self._show.note(text.rstrip("\n"))
        return len(text)


class JsonShow:
    """One JSON event per line; deltas are left out."""

    def feed(self, item: Event | Delta) -> None:
        if isinstance(item, Event):
            put_json(item)

    def note(self, text: str) -> None:
        put(text, file=sys.stderr)

    def usual(self, text: str) -> None:
        pass

    def tick(self) -> None:
        pass

    def close(self) -> None:
        pass


def open_show(as_json: bool, earlier: Iterable[Event] = (), *, plain: bool = False) -> Show:
    """`earlier`: events before the first one to show. They set the state of the screen and are not printed."""
    return JsonShow() if as_json else LiveShow(earlier, plain=plain)


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
