"""The few source lines around a place, as a model is shown them."""

from cloister.core.text import harmless

_ABOVE, _BELOW = 2, 2
_LINE_CHARS = 160


def around(text: str, line: int) -> str | None:
    """Numbered lines around `line`, which is marked; None when the text has no such line."""
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        return None
    first, last = max(1, line - _ABOVE), min(len(lines), line + _BELOW)
    width = len(str(last))
    shown = [
        f"{'>' if number == line else ' '} {number:>{width}} | {harmless(lines[number - 1][:_LINE_CHARS])}".rstrip()
        for number in range(first, last + 1)
    ]
    return "\n".join(shown)
