from ledger import Book, Transfer, settle
from ledger.settle import apply


def test_nobody_owes_anything_when_all_are_even():
    assert settle({"Ana": 0, "Ben": 0}) == []


def test_one_debtor_pays_one_creditor():
    assert settle({"Ana": 1500, "Ben": -1500}) == [Transfer("Ben", "Ana", 1500)]


def test_the_largest_debtor_pays_first():
    balances = {"Ana": 5000, "Ben": -1000, "Chiara": -4000}
    assert settle(balances) == [Transfer("Chiara", "Ana", 4000), Transfer("Ben", "Ana", 1000)]


def test_there_are_fewer_transfers_than_people():
    balances = {"Ana": 700, "Ben": -300, "Chiara": 500, "Dan": -850, "Eve": -50}
    transfers = settle(balances)
    assert len(transfers) < len(balances)
    assert set(apply(balances, transfers).values()) == {0}


def test_after_a_trip_every_cent_is_settled():
    book = Book()
    book.pay("Ana", 1000, ["Ana", "Ben", "Chiara"], "breakfast")
    book.pay("Ben", 1000, ["Ana", "Ben", "Chiara"], "lunch")
    book.pay("Chiara", 1000, ["Ana", "Ben", "Chiara"], "dinner")
    balances = book.balances()
    assert set(apply(balances, settle(balances)).values()) == {0}
