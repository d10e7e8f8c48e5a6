import pytest

from depot.parcels import gross, pack


def test_light_pieces_share_a_parcel():
    assert pack([350, 350, 1200]) == [[1200, 350, 350]]


def test_heavy_pieces_get_parcels_of_their_own():
    assert pack([5200, 5200, 350]) == [[5200, 350], [5200]]


def test_a_parcel_may_be_filled_to_the_gram():
    assert pack([5000, 4850]) == [[5000, 4850]]


def test_wrapping_is_weighed():
    assert gross([350]) == 500


def test_what_no_parcel_holds_is_refused():
    with pytest.raises(ValueError, match="9900 g is too heavy"):
        pack([9_900])
