from till import change, total


def test_nothing_costs_nothing():
    assert total([]) == 0


def test_one_thing_costs_its_price():
    assert total([250]) == 250


def test_several_things_cost_their_sum():
    assert total([250, 100, 75]) == 425


def test_change_is_what_was_paid_too_much():
    assert change([250, 100], 500) == 150
