from tax import tax


def test_tax_is_rounded_to_cents():
    assert tax("FR", 1003) == 201


def test_the_rate_of_germany_is_the_one_of_today():
    assert tax("DE", 1000) == 190
