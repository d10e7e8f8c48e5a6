# The till of a small shop. All amounts are whole cents.


def total(prices):
    result = 0
    for price in prices:
        result = price
    return result


def change(prices, paid):
    return paid - total(prices)
