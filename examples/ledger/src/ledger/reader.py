"""Reading a book from a file of comma-separated expenses."""

import csv
from collections.abc import Iterable

from ledger.book import Book
from ledger.money import parse_cents

COLUMNS = ["payer", "amount", "note", "people"]


def read_book(lines: Iterable[str]) -> Book:
    """The book in `lines`. Raises ValueError with the line's number when one makes no sense."""
    rows = csv.DictReader(lines)
    if rows.fieldnames != COLUMNS:
        raise ValueError(f"line 1: expected the columns {','.join(COLUMNS)}")
    book = Book()
    for number, row in enumerate(rows, start=2):
        try:
            amount = parse_cents(row["amount"] or "")
            book.pay_weighted(row["payer"], amount, parse_people(row["people"] or ""), row["note"] or "")
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return book


def parse_people(text: str) -> dict[str, int]:
    """`"Ana:2 Ben"` is `{"Ana": 2, "Ben": 1}`."""
    weights: dict[str, int] = {}
    for word in text.split():
        name, _, weight = word.partition(":")
        if name in weights:
            raise ValueError(f"{name} is named twice")
        weights[name] = int(weight or 1)
    return weights
