"""Who paid for what, and who owes whom."""

from ledger.book import Book, Expense
from ledger.money import format_cents, parse_cents
from ledger.settle import Transfer, settle
from ledger.split import split_by_weights, split_evenly

__all__ = [
    "Book",
    "Expense",
    "Transfer",
    "format_cents",
    "parse_cents",
    "settle",
    "split_by_weights",
    "split_evenly",
]
