"""Discounts on the articles of an order, not on its postage."""

STEPS = ((50, 12), (20, 7), (10, 3))
"""From this many pieces on, per cent."""


def percent(pieces):
    for at_least, off in STEPS:
        if pieces >= at_least:
            return off
    return 0


def discount(cents, pieces):
    """The discount in cents, rounded down."""
    return cents * percent(pieces) // 100
