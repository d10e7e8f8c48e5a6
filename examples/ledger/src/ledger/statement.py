"""The statement that a group gets at the end: balances, then transfers."""

from ledger.book import Book
from ledger.money import format_cents
from ledger.settle import settle


def statement(book: Book) -> str:
    """One line per person and one line per transfer."""
    balances = book.balances()
    width = max((len(name) for name in balances), default=0)
    lines = [f"{name:<{width}}  {format_cents(balance, sign=True)}" for name, balance in balances.items()]
    transfers = settle(balances)
    if transfers:
        lines.append("")
    lines += [f"{t.debtor} pays {t.creditor} {format_cents(t.amount)}" for t in transfers]
    return "\n".join(lines)
