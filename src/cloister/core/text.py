"""Bounded and harmless text for models, events and terminals."""

import re

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


def one_line(text: str, limit: int = 120) -> str:
    """Return `text` as one harmless line, for lists and titles."""
    line = " ".join(harmless(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
