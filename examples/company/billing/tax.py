"""Taxes on sales."""

RATES = {"DE": 16, "FR": 20}
"""Country → percent."""


def tax(country: str, cents: int) -> int:
    """The tax on a net amount, in cents."""
    return (cents * RATES[country] + 50) // 100
