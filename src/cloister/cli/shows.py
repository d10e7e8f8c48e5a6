"""The two ways to show a run: the live screen, and JSON lines."""

import sys
from collections.abc import Iterable
from typing import Protocol

from cloister.cli.jsonl import put_json
from cloister.cli.pieces import Line
from cloister.cli.render import Renderer
from cloister.cli.screen import Screen
from cloister.core.events import Delta, Event


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
