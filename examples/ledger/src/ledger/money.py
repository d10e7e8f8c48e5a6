"""Amounts of money: whole cents inside, decimal text outside."""

import re

_AMOUNT = re.compile(r"([+-]?)(\d+)(?:\.(\d{1,2}))?")


def parse_cents(text: str) -> int:
    """`"12.5"` is 1250 cents. Raises ValueError for anything that is not an amount."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"not an amount: {text!r}")
    sign, whole, fraction = found.groups()
    cents = int(whole) * 100 + int((fraction or "0").ljust(2, "0"))
    return -cents if sign == "-" else cents


def format_cents(cents: int, *, sign: bool = False) -> str:
    """`1250` is `"12.50"`; with `sign`, positive amounts get a plus."""
    mark = "-" if cents < 0 else "+" if sign and cents > 0 else ""
    return f"{mark}{abs(cents) // 100}.{abs(cents) % 100:02d}"
