"""Bounded and harmless text: what a model, an event or a person's terminal may be shown."""

import re

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI
    r"|\x1b[\]PX^_].*?(?:\x1b\\|\x07|$)"  # OSC, DCS, SOS, PM, APC
    r"|\x1b.?",
    re.DOTALL,
)
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)


def decode(data: bytes) -> str:
    """Bytes from a guest as text. Invalid UTF-8 is replaced, never an error."""
    return data.decode("utf-8", errors="replace")


def harmless(text: str) -> str:
    """`text` with terminal escapes removed and other controls made visible; newlines and tabs stay."""
    plain = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROLS.sub(lambda m: f"\\x{ord(m.group()):02x}", plain)


def bounded(text: str, limit: int) -> str:
    """`text` with at most about `limit` characters: head and tail kept, the middle replaced by its size."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    cut = text[head : len(text) - tail]
    note = f"\n[… {len(cut)} characters in {cut.count(chr(10)) + 1} lines left out …]\n"
    return text[:head] + note + text[len(text) - tail :]


def one_line(text: str, limit: int = 120) -> str:
    """The text as one harmless line, for lists and titles."""
    line = " ".join(harmless(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
