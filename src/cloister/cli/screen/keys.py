"""Keys from a terminal's bytes, and a line that they edit. Pure."""

import codecs
import re

from rich.cells import cell_len

from cloister.core.text import harmless

ESCAPE = "esc"
_NAMES = {
    "\x03": "ctrl-c",
    "\x1a": "ctrl-z",
    "\x01": "home",
    "\x05": "end",
    "\x02": "left",
    "\x06": "right",
    "\x04": "delete",
    "\x08": "backspace",
    "\x7f": "backspace",
    "\x0b": "ctrl-k",
    "\x0c": "ctrl-l",
    "\x10": "ctrl-p",
    "\t": "tab",
    "\x15": "ctrl-u",
    "\x17": "ctrl-w",
    "\r": "enter",
    "\n": "enter",
}
_FUNCTIONS = {
    **{"C": "right", "D": "left", "H": "home", "F": "end"},
    **{"3~": "delete", "1~": "home", "4~": "end", "7~": "home", "8~": "end"},
}
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])")
_BEGUN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
_PASTE, _PASTED = "\x1b[200~", "\x1b[201~"
PASTE = "\0"
"""Begins a pasted text, so that it is never taken for a key."""
PASTE_CHARS = 65_536


class Keys:
    """Splits input into keys: a character, a name such as `enter`, or a pasted text after `PASTE`."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    @property
    def waits(self) -> bool:
        """True if the input may be the beginning of a sequence. If nothing follows, it was the key Escape."""
        return bool(self._rest) and not self._rest.startswith(_PASTE)

    def feed(self, data: bytes) -> list[str]:
        text, self._rest = self._rest + self._decoder.decode(data), ""
        keys: list[str] = []
        while text:
            if text.startswith(_PASTE):
                pasted, end, after = text[len(_PASTE) :].partition(_PASTED)
                if not end:
                    self._rest = text[: PASTE_CHARS + len(_PASTE)]
                    break
                keys.append(PASTE + " ".join(harmless(pasted[:PASTE_CHARS]).split("\n")))
                text = after
            elif found := _SEQUENCE.match(text):
                keys += [name for name in [_FUNCTIONS.get(found[0][2:])] if name]
                text = text[found.end() :]
            elif _BEGUN.match(text):
                self._rest = text
                break
            else:
                first, text = text[0], text[1:]
                keys.append(ESCAPE if first == "\x1b" else _NAMES.get(first, first))
        return [key for key in keys if len(key) > 1 or key.isprintable()]

    def end(self) -> list[str]:
        """The key Escape, if the input ended with its byte."""
        begun, self._rest = self._rest, ""
        return [ESCAPE] if begun else []


_NAMED = {*_NAMES.values(), ESCAPE}


class Editor:
    """One line of text with a cursor."""

    def __init__(self) -> None:
        self.text = ""
        self._at = 0

    def press(self, key: str) -> None:
        before, after = self.text[: self._at], self.text[self._at :]
        match key:
            case "left":
                self._at = max(0, self._at - 1)
            case "right":
                self._at = min(len(self.text), self._at + 1)
            case "home":
                self._at = 0
            case "end":
                self._at = len(self.text)
            case _ if key in _NAMED:
                self._delete(key, before, after)
            case _:
                self._set(before + key.removeprefix(PASTE), after)

    def _delete(self, key: str, before: str, after: str) -> None:
        match key:
            case "backspace":
                self._set(before[:-1], after)
            case "delete":
                self._set(before, after[1:])
            case "ctrl-k":
                self._set(before, "")
            case "ctrl-u":
                self._set("", after)
            case "ctrl-w":
                kept, gap, _ = before.rstrip().rpartition(" ")
                self._set(kept + gap, after)
            case _:
                pass

    def take(self) -> str:
        """The text; the line is empty afterwards."""
        text = self.text
        self._set("", "")
        return text

    def shown(self, width: int) -> tuple[str, int]:
        """The part of the line that fits, and the column of the cursor in it."""
        start = 0
        while cell_len(self.text[start : self._at]) >= width:
            start += 1
        part = self.text[start:]
        while cell_len(part) > width:
            part = part[:-1]
        return part, cell_len(self.text[start : self._at])

    def _set(self, before: str, after: str) -> None:
        self.text = before + after
        self._at = len(before)
