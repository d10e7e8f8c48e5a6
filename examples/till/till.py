"""The till of a small shop. All amounts are whole cents."""


def total(prices):
    """What a customer has to pay for everything."""
    result = 0
    for price in prices:
        result = price
    return result


def change(prices, paid):
    """What a customer who paid gets back."""
    return paid - total(prices)
