"""`cloister budget`: limits and spending of every level."""

from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import AsJson, complete_run, put_json

if TYPE_CHECKING:
    from cloister.core.budget import Account

RunOrNone = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help="A run: show the levels it draws from, the run itself and its attempts.",
        autocompletion=complete_run,
    ),
]


def budget(ctx: typer.Context, run: RunOrNone = None, as_json: AsJson = False) -> None:
    """Show limits and spending, level by level."""
    from cloister.cli.client.open import perform

    accounts = perform(ctx, lambda verbs: verbs.runs.budget(run), only_log=True).accounts
    if as_json:
        put_json(*accounts)
    elif not accounts:
        print("No spending yet.")
    else:
        print(f"{'LEVEL':<13} {'NAME':<28} {'PERIOD':<7} SPENT")
        for account in accounts:
            for line in _lines(account):
                print(line)


def _lines(account: "Account") -> "list[str]":
    from cloister.core.budget import RESOURCES, amount
    from cloister.core.text import one_line

    name = one_line(account.name, 28)
    head = f"{account.level:<13} {name:<28} {account.period or '':<7} "
    parts: list[str] = []
    for what in RESOURCES:
        limit, spent = account.limit(what), account.spent.of(what)
        if limit is not None:
            percent = f" ({spent / limit:.0%})" if limit else ""
            parts.append(f"{amount(what, spent)} of {amount(what, limit)}{percent}")
        elif spent:
            parts.append(amount(what, spent))
    if account.spent.unpriced:
        parts.append(f"{account.spent.unpriced:,} tokens without a known price")
    return [
        (head if number == 0 else " " * len(head)) + part for number, part in enumerate(parts or ["nothing"])
    ]
