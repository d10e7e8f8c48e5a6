"""The two ways to show a run: the live screen, and JSON lines."""

import json
import re
import sys
from collections.abc import Iterable
from typing import Protocol, TextIO

import msgspec

from cloister.cli.screen.screen import Screen
from cloister.core.events import Delta, Event
from cloister.core.text import ACTS
from cloister.runs.words.lines import Line
from cloister.runs.words.render import Renderer

# Records as JSON, one per line: what `--json` prints.


_ACTS = re.compile(f"[{ACTS}]")
"""What JSON may hold as it is and a terminal would act on. An escape says the same to whoever reads JSON."""


def put_json(record: object) -> None:
    """Print one record as one line, at once: whoever reads the pipe sees it now."""
    line = msgspec.json.encode(record, enc_hook=str).decode("utf-8")
    sys.stdout.write(_ACTS.sub(lambda found: json.dumps(found.group())[1:-1], line) + "\n")
    sys.stdout.flush()


class Show(Protocol):
    """Is given everything a run emits, in order."""

    def feed(self, item: Event | Delta) -> None: ...

    def note(self, text: str) -> None:
        """Something about the watching, not about the run."""
        ...

    def tick(self) -> None: ...

    def close(self) -> None: ...


class LiveShow:
    """Lines for a person."""

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
    """One JSON event per line for a program; deltas are not events."""

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
    """`earlier` is what happened before the first event to show; it is known and not shown."""
    return JsonShow() if as_json else LiveShow(earlier)


# A bar for bytes on their way: moving on a terminal, a line now and then elsewhere.


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
