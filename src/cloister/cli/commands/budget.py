"""`cloister budget`: what every level may spend and has spent."""

from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import AsJson, complete_run, open_log, settings_of

if TYPE_CHECKING:
    from cloister.app.settings import Settings
    from cloister.core.budget import Account

RunOrNone = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help="A run: show the levels that it draws from, itself and its attempts.",
        autocompletion=complete_run,
    ),
]


def budget(ctx: typer.Context, run: RunOrNone = None, as_json: AsJson = False) -> None:
    """Show limits and what is spent, level by level. Needs no server."""
    accounts = _accounts(settings_of(ctx), run)
    if as_json:
        from cloister.cli.screen.shows import put_json

        for account in accounts:
            put_json(account)
        return
    if not accounts:
        print("Nothing was spent yet.")
        return
    print(f"{'LEVEL':<13} {'NAME':<28} {'PERIOD':<7} SPENT")
    for account in accounts:
        for line in _lines(account):
            print(line)


def _accounts(settings: "Settings", run: str | None) -> "tuple[Account, ...]":
    import time
    from functools import partial

    from cloister.runs.budget import above, accounts, run_accounts

    tree, now = settings.file.budgets, time.time()
    with open_log(settings) as log:
        if run is None:
            return log.totals(partial(accounts, tree, now)) or ()
        found = log.resolve(run)
        outer = log.totals(partial(above, tree, now, found)) or ()
        return (*outer, *run_accounts(log.events(found)))


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
