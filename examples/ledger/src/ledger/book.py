"""The book: every expense of a group, and what follows from them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ledger.split import split_by_weights


@dataclass(frozen=True)
class Expense:
    """Somebody paid `amount` cents for the people in `weights`."""

    payer: str
    amount: int
    weights: Mapping[str, int]
    note: str = ""

    def shares(self) -> dict[str, int]:
        return split_by_weights(self.amount, self.weights)


@dataclass
class Book:
    """Expenses in the order in which they were entered."""

    expenses: list[Expense] = field(default_factory=list)

    def pay(self, payer: str, amount: int, people: Iterable[str], note: str = "") -> Expense:
        """Enter an expense that `people` share evenly."""
        return self.pay_weighted(payer, amount, dict.fromkeys(people, 1), note)

    def pay_weighted(self, payer: str, amount: int, weights: Mapping[str, int], note: str = "") -> Expense:
        """Enter an expense. A negative amount is a refund that the payer received."""
        expense = Expense(payer, amount, dict(weights), note)
        expense.shares()  # refuses what cannot be split, before it is in the book
        self.expenses.append(expense)
        return expense

    def people(self) -> list[str]:
        """Everyone who paid or took part, sorted."""
        names: set[str] = set()
        for expense in self.expenses:
            names |= {expense.payer, *expense.weights}
        return sorted(names)

    def balances(self) -> dict[str, int]:
        """What the group owes to each person, in cents; negative for those who owe the group."""
        balances = dict.fromkeys(self.people(), 0)
        for expense in self.expenses:
            balances[expense.payer] += expense.amount
            for name, share in expense.shares().items():
                balances[name] -= share
        return balances
