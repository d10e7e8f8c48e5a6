import pytest

from depot.rates import postage


@pytest.mark.parametrize(
    ("grams", "country", "cents"),
    [(200, "DE", 390), (499, "FR", 790), (501, "DE", 490), (3_000, "AT", 1_490), (9_000, "US", 5_990)],
)
def test_postage_depends_on_weight_and_zone(grams, country, cents):
    assert postage(grams, country) == cents


def test_a_band_ends_with_its_limit():
    assert [postage(limit, "NL") for limit in (500, 2_000, 5_000)] == [790, 1_090, 1_490]


def test_unknown_countries_are_far_away():
    assert postage(600, "NZ") == 2_490


def test_too_heavy_parcels_are_refused():
    with pytest.raises(ValueError, match="no parcel of 10001 g"):
        postage(10_001, "DE")
