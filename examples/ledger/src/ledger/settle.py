"""Settling up: the transfers that bring every balance to zero."""

from collections.abc import Mapping
from dataclasses import dataclass

ROUNDING_CENTS = 2
"""Balances this close to zero come from rounding and are not worth a transfer."""


@dataclass(frozen=True)
class Transfer:
    """`debtor` gives `amount` cents to `creditor`."""

    debtor: str
    creditor: str
    amount: int


def settle(balances: Mapping[str, int]) -> list[Transfer]:
    """Who pays whom. The largest debtor pays the largest creditor until nobody owes anything."""
    rest = {name: balance for name, balance in balances.items() if abs(balance) > ROUNDING_CENTS}
    transfers: list[Transfer] = []
    while rest:
        debtor = min(rest, key=lambda name: (rest[name], name))
        creditor = max(rest, key=lambda name: (rest[name], name))
        amount = min(-rest[debtor], rest[creditor])
        if amount <= 0:
            break
        transfers.append(Transfer(debtor, creditor, amount))
        rest[debtor] += amount
        rest[creditor] -= amount
        rest = {name: balance for name, balance in rest.items() if abs(balance) > ROUNDING_CENTS}
    return transfers


def apply(balances: Mapping[str, int], transfers: list[Transfer]) -> dict[str, int]:
    """The balances after the transfers were made."""
    after = dict(balances)
    for transfer in transfers:
        after[transfer.debtor] += transfer.amount
        after[transfer.creditor] -= transfer.amount
    return after
