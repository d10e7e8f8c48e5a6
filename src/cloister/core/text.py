"""Bounded and harmless text for models, events and terminals, and which of many texts fit a query."""

import math
import re
from collections import Counter
from collections.abc import Sequence

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI
    # OSC, DCS, SOS, PM, APC, up to their end on the same line: one without an end must not hide what follows.
    r"|\x1b[\]PX^_][^\x1b\x07\n]*(?:\x1b\\|\x07)"
    r"|\x1b[^\n]?"
)
_C1_AND_DIRECTION = r"\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e0fff"
"""One-character escapes, direction marks, and tag characters."""

_INVISIBLE = (
    r"\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    r"\u2028\u2029"
)
"""Zero-width characters and disguised line ends."""

_JOINERS = r"\u200c\u200d"
ACTS = _C1_AND_DIRECTION + _INVISIBLE + _JOINERS
"""The content of a regular expression's set: valid UTF-8 that a terminal or a reader does not see as text."""

_CONTROLS = re.compile(rf"[\x00-\x08\x0b-\x1f{_C1_AND_DIRECTION}]")
_PICTURE = r"\u2190-\u2bff\U0001f000-\U0001faff"
_HIDDEN = re.compile(
    rf"[{_INVISIBLE}]"
    # Joiners have their place between the parts of one picture and between Arabic letters, and nowhere else.
    rf"|\u200d(?![{_PICTURE}])|(?<![{_PICTURE}\ufe0f])\u200d"
    r"|\u200c(?![\u0600-\u06ff])|(?<![\u0600-\u06ff])\u200c"
)
MARKS = 6
"""Combining marks that one letter may carry; no language needs more."""

_MARK = (
    "[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u06d6-\u06ed\u0e31\u0e34-\u0e3a"
    "\u0e47-\u0e4e\u0eb4-\u0ebc\u0ec8-\u0ece\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ua66f-\ua67d\ua8e0-\ua8f1\ufe20-\ufe2f]"
)
_FLOOD = re.compile(f"({_MARK}{{{MARKS}}})({_MARK}+)")


def decode(data: bytes) -> str:
    """Decode bytes from a guest. Replaces invalid UTF-8, never raises."""
    return data.decode("utf-8", errors="replace")


def whole(text: str) -> str:
    """Return `text` without lone surrogates, which cannot be encoded; joins pairs that belong together."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def inert(text: str) -> str:
    """Remove terminal escapes and make controls visible, for models; newlines and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    plain = _ESCAPES.sub("", text) if "\x1b" in text else text
    return _CONTROLS.sub(_visible, plain.replace("\r\n", "\n").replace("\r", "\n"))


def harmless(text: str) -> str:
    """Make `text` safe to show to a person: inert, nothing hidden, and no floods of combining marks."""
    plain = inert(text)
    if plain.isascii():
        return plain  # nothing in ASCII is hidden, and none of it is a mark
    plain = _HIDDEN.sub(_visible, plain)
    return _FLOOD.sub(lambda found: f"{found[1]}[+{len(found[2])} marks]", plain)


def _visible(found: re.Match[str]) -> str:
    return f"\\x{ord(found.group()):02x}"


def bounded(text: str, limit: int) -> str:
    """Cut `text` to about `limit` characters: keep head and tail, replace the middle by its size."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    cut = text[head : len(text) - tail]
    note = f"\n[… {len(cut)} characters in {cut.count(chr(10)) + 1} lines left out …]\n"
    return text[:head] + note + text[len(text) - tail :]


def lines_of(text: str) -> list[str]:
    """The lines with their ends. Unlike `splitlines`, only a newline ends a line, as git and compilers count."""
    *whole, last = text.split("\n")
    return [f"{line}\n" for line in whole] + ([last] if last else [])


def one_line(text: str, limit: int = 120) -> str:
    """Return `text` as one harmless line, for lists and titles."""
    line = " ".join(harmless(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


# BM25: which texts fit a query best, for tools, documents and skills, which are at most some thousands.


_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_K1, _B = 1.2, 0.75
_TEXT_CHARS = 200_000
"""What is read of one text."""


def words(text: str) -> list[str]:
    """The words of a text, small; `openIssue` and `open_issue` are two words. A plural counts as its singular."""
    found = _WORD.findall(_CAMEL.sub(" ", text[:_TEXT_CHARS]).casefold())
    return [word[:-1] if len(word) > 3 and word.endswith("s") and word[-2] != "s" else word for word in found]


class Ranking:
    """Texts, prepared for many queries."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._counts = [Counter(words(text)) for text in texts]
        self._lengths = [count.total() for count in self._counts]
        self._mean = sum(self._lengths) / len(texts) if any(self._lengths) else 1.0
        self._with: Counter[str] = Counter(word for count in self._counts for word in count)

    def best(self, query: str, most: int) -> list[tuple[int, float]]:
        """The positions of the texts that fit best, with their scores, best first. Without a common word: none."""
        scores = [(self._score(set(words(query)), at), at) for at in range(len(self._counts))]
        found = sorted((one for one in scores if one[0] > 0), key=lambda one: (-one[0], one[1]))
        return [(at, score) for score, at in found[:most]]

    def _score(self, asked: set[str], at: int) -> float:
        count, length = self._counts[at], self._lengths[at]
        norm = _K1 * (1 - _B + _B * length / self._mean)
        return sum(
            self._rarity(word) * count[word] * (_K1 + 1) / (count[word] + norm)
            for word in sorted(asked)
            if word in count
        )

    def _rarity(self, word: str) -> float:
        known = self._with[word]
        return math.log(1 + (len(self._counts) - known + 0.5) / (known + 0.5))
