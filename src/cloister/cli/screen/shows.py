"""Show a run as a live screen or as JSON lines, and the progress of a build or a download."""

import sys
from collections.abc import Iterable
from typing import Protocol

from cloister.cli.options import put_json
from cloister.cli.screen.screen import Screen
from cloister.core.events import Delta, Event
from cloister.core.text import one_line
from cloister.runs.event_text.lines import Line
from cloister.runs.event_text.render import Renderer


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
        print(text, file=sys.stderr)

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
