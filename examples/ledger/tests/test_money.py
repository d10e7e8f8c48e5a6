import pytest

from ledger import format_cents, parse_cents


@pytest.mark.parametrize(
    ("text", "cents"), [("12.50", 1250), ("12.5", 1250), ("12", 1200), ("-0.05", -5), (" +3.00 ", 300)]
)
def test_amounts_are_read_as_cents(text, cents):
    assert parse_cents(text) == cents


@pytest.mark.parametrize("text", ["", "12,50", "1.234", "1e3", "--1"])
def test_what_is_not_an_amount_is_refused(text):
    with pytest.raises(ValueError, match="not an amount"):
        parse_cents(text)


def test_amounts_are_written_with_two_digits():
    assert [format_cents(n) for n in (0, 5, 1250, -7)] == ["0.00", "0.05", "12.50", "-0.07"]
    assert format_cents(1250, sign=True) == "+12.50"
