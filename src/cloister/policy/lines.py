"""Line numbers of the values in a TOML text; `tomllib` does not report them."""

import re
import tomllib
from bisect import bisect_right

Path = tuple[str | int, ...]
"""Keys, and within arrays indexes from 0."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"[ \t]*")
_GAP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_PLAIN = re.compile(r"[^,\]}#\r\n]*")
_STRINGS = {
    '"""': re.compile(r'"""(?:\\.|[^\\])*?"{3,5}', re.DOTALL),
    "'''": re.compile(r"'''.*?'{3,5}", re.DOTALL),
    '"': re.compile(r'"(?:\\.|[^"\\])*"'),
    "'": re.compile(r"'[^']*'"),
}


def lines(text: str) -> dict[Path, int]:
    """Return the line, from 1, of every key, table and item of `text`, which must be valid TOML."""
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._found: dict[Path, int] = {}
        self._counts: dict[Path, int] = {}
        """The number of tables found so far in each array of tables."""
        self._starts = [match.end() for match in re.finditer("\n", text)]

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip(_GAP) < len(self._text):
            table = self._header() if self._text[self._at] == "[" else self._pair(table) or table
        return self._found

    def _skip(self, what: re.Pattern[str]) -> int:
        match = what.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._at

    def _line(self) -> int:
        return bisect_right(self._starts, self._at) + 1

    def _note(self, path: Path, line: int) -> None:
        self._found.setdefault(path, line)

    def _header(self) -> Path:
        line = self._line()
        several = self._text.startswith("[[", self._at)
        self._at += 2 if several else 1
        keys = self._keys()
        self._skip(_SPACE)
        self._at += 2 if several else 1
        path: Path = ()
        for number, key in enumerate(keys):
            path = (*path, key)
            self._note(path, line)
            last = number == len(keys) - 1
            if last and several:
                self._counts[path] = self._counts.get(path, 0) + 1
            if path in self._counts:
                path = (*path, self._counts[path] - 1)
                self._note(path, line)
        return path

    def _keys(self) -> list[str]:
        keys: list[str] = []
        while True:
            self._skip(_SPACE)
            start = self._at
            if self._text[start] in "\"'":
                self._skip(_STRINGS[self._text[start]])
                keys.append(str(tomllib.loads(f"k = {self._text[start : self._at]}")["k"]))
            else:
                keys.append(self._text[start : self._skip(_BARE)])
            self._skip(_SPACE)
            if not self._text.startswith(".", self._at):
                return keys
            self._at += 1

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = table
        for key in self._keys():
            path = (*path, key)
            self._note(path, line)
        self._at += 1  # the equals sign
        self._value(path)

    def _value(self, path: Path) -> None:
        self._skip(_SPACE)
        opening = self._text[self._at]
        if opening == "[":
            self._items(path)
        elif opening == "{":
            self._inline(path)
        else:
            quote = next((q for q in _STRINGS if self._text.startswith(q, self._at)), None)
            self._skip(_STRINGS[quote] if quote else _PLAIN)

    def _items(self, path: Path) -> None:
        self._at += 1
        number = 0
        while self._text[self._skip(_GAP)] != "]":
            if self._text[self._at] == ",":
                self._at += 1
                continue
            self._note((*path, number), self._line())
            self._value((*path, number))
            number += 1
        self._at += 1

    def _inline(self, path: Path) -> None:
        self._at += 1
        while self._text[self._skip(_GAP)] != "}":
            if self._text[self._at] == ",":
                self._at += 1
                continue
            self._pair(path)
        self._at += 1
