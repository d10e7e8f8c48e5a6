"""Streamed text broken at words instead of in the middle of them, as it arrives."""

import re

from rich.cells import cell_len

_PARTS = re.compile(r"\n|[^\S\n]+|\S+")


class Flow:
    """Knows the column; holds back the last word until it is whole."""

    def __init__(self, width: int) -> None:
        self.width = max(20, width)
        self._column = 0
        self._gap = ""
        self._word = ""

    def feed(self, text: str) -> str:
        """What can be written now."""
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
        """The word that was held back, with the gap or the line break before it."""
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
        """The cursor is at the beginning of a fresh line."""
        self._column, self._gap, self._word = 0, "", ""
