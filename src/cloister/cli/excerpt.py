"""The beginning and the end of an output that may be endless. Pure."""

from collections import deque

from cloister.core.text import harmless

HEAD_LINES = 6
TAIL_LINES = 3
LINE_CHARS = 200


class Excerpt:
    """The first lines as they arrive; later ones are counted, and the last of them shown at the end."""

    def __init__(self, head: int = HEAD_LINES, tail: int = TAIL_LINES) -> None:
        self._room = head
        self._hidden = 0
        self._last: deque[str] = deque(maxlen=tail)
        self._partial = ""

    def feed(self, text: str) -> list[str]:
        """The lines that can be shown now."""
        *whole, rest = harmless(self._partial + text).split("\n")
        # A line without an end is cut here: memory stays bounded whatever a command prints.
        self._partial = rest[:LINE_CHARS]
        return [line for line in map(self._take, whole) if line is not None]

    def end(self) -> list[str]:
        """What is shown when nothing more comes."""
        shown = self.feed("\n") if self._partial else []
        left_out = self._hidden - len(self._last)
        note = [f"… {left_out:,} more {'line' if left_out == 1 else 'lines'} …"] if left_out else []
        return [*shown, *note, *self._last]

    def _take(self, line: str) -> str | None:
        line = line if len(line) <= LINE_CHARS else line[: LINE_CHARS - 1] + "…"
        if self._room > 0:
            self._room -= 1
            return line
        self._hidden += 1
        self._last.append(line)
        return None


def excerpt(text: str, head: int = HEAD_LINES) -> list[str]:
    """The beginning and the end of a text that is already complete."""
    part = Excerpt(head)
    return [*part.feed(text), *part.end()]
