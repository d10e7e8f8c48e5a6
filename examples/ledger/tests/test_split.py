import pytest

from ledger import split_by_weights, split_evenly


def test_an_amount_that_divides_evenly_is_split_evenly():
    assert split_evenly(9000, ["Ana", "Ben", "Chiara"]) == {"Ana": 3000, "Ben": 3000, "Chiara": 3000}


def test_weights_are_proportions():
    assert split_by_weights(1000, {"Ana": 3, "Ben": 1}) == {"Ana": 750, "Ben": 250}


def test_a_weight_of_zero_is_a_share_of_nothing():
    assert split_by_weights(1000, {"Ana": 1, "Ben": 0}) == {"Ana": 1000, "Ben": 0}


def test_ten_euros_between_three_people_is_still_ten_euros():
    assert split_evenly(1000, ["Ana", "Ben", "Chiara"]) == {"Ana": 334, "Ben": 333, "Chiara": 333}


@pytest.mark.parametrize("people", [1, 2, 3, 7, 11])
def test_shares_are_at_most_one_cent_apart_when_all_weigh_the_same(people):
    shares = split_evenly(100_003, [f"p{n}" for n in range(people)]).values()
    assert max(shares) - min(shares) <= 1


def test_shares_add_up_to_the_total():
    weights = {"Ana": 5, "Ben": 3, "Chiara": 3, "Dan": 2}
    totals = range(0, 2600, 7)
    assert [sum(split_by_weights(total, weights).values()) for total in totals] == list(totals)


def test_leftover_cents_go_to_those_whose_exact_share_lost_most():
    # Exact shares of 10.00: 142.86, 285.71 and 571.43 cents.
    assert split_by_weights(1000, {"Dan": 1, "Eve": 2, "Finn": 4}) == {"Dan": 143, "Eve": 286, "Finn": 571}
    # Exact shares of 0.10: 4.55, 1.82 and 3.64 cents: two are left over, and Ana's part is the smallest.
    assert split_by_weights(10, {"Ana": 5, "Ben": 2, "Chiara": 4}) == {"Ana": 4, "Ben": 2, "Chiara": 4}


def test_a_refund_is_split_like_a_bill():
    assert split_evenly(-1000, ["Ana", "Ben"]) == {"Ana": -500, "Ben": -500}


@pytest.mark.parametrize("weights", [{}, {"Ana": 0}, {"Ana": 2, "Ben": -1}])
def test_what_cannot_be_split_is_refused(weights):
    with pytest.raises(ValueError, match=r"nobody|positive"):
        split_by_weights(100, weights)
