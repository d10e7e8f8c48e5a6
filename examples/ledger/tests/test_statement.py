import pytest

from ledger.reader import parse_people, read_book
from ledger.statement import statement

TRIP = """\
payer,amount,note,people
Ana,120.00,cabin,Ana Ben Chiara
Ben,31.50,fuel,Ana:2 Ben
Ben,18.00,groceries,Ana Ben Chiara
Chiara,12.75,breakfast,Ana Ben Chiara
"""


def test_the_statement_of_a_trip():
    assert statement(read_book(TRIP.splitlines())) == (
        "Ana     +48.75\nBen     -11.25\nChiara  -37.50\n\nChiara pays Ana 37.50\nBen pays Ana 11.25"
    )


def test_weights_follow_names():
    assert parse_people("Ana:2 Ben") == {"Ana": 2, "Ben": 1}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("Ana,ten,cabin,Ana", "line 2: not an amount"),
        ("Ana,10.00,cabin,", "line 2: nobody"),
        ("Ana,10.00,cabin,Ben Ben", "line 2: Ben is named twice"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(line, reason):
    with pytest.raises(ValueError, match=reason):
        read_book(["payer,amount,note,people", line])
