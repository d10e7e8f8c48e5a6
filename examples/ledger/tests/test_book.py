import pytest

from ledger import Book


def test_whoever_pays_for_others_is_owed_their_shares():
    book = Book()
    book.pay("Ana", 3000, ["Ana", "Ben", "Chiara"], "dinner")
    assert book.balances() == {"Ana": 2000, "Ben": -1000, "Chiara": -1000}


def test_paying_for_oneself_changes_nothing():
    book = Book()
    book.pay("Ana", 1299, ["Ana"])
    assert book.balances() == {"Ana": 0}


def test_balances_always_sum_to_zero():
    book = Book()
    book.pay("Ana", 1000, ["Ana", "Ben", "Chiara"])
    book.pay("Ben", 700, ["Ana", "Ben", "Chiara"])
    book.pay_weighted("Chiara", 2501, {"Ana": 2, "Ben": 1, "Chiara": 1})
    assert sum(book.balances().values()) == 0


def test_an_expense_that_cannot_be_split_is_not_entered():
    book = Book()
    with pytest.raises(ValueError, match="nobody"):
        book.pay("Ana", 1000, [])
    assert book.expenses == []
