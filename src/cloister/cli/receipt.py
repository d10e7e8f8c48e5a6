"""`cloister receipt`: what a run touched, on one page."""

import typer

from cloister.cli.options import AsJson, RunName, open_log, settings_of


def receipt(ctx: typer.Context, run: RunName, as_json: AsJson = False) -> None:
    """Print what a run touched as one page of Markdown: files, commands, decisions, connections. Needs no server."""
    import anyio

    from cloister.runs.audit.look import run_receipt
    from cloister.runs.audit.page import page

    settings = settings_of(ctx)
    with open_log(settings) as log:
        found = log.resolve(run)
        events = log.events(found)
    made = anyio.run(run_receipt, settings.log_path, found, events)
    if as_json:
        from cloister.cli.jsonl import put_json

        put_json(made)
    else:
        print(page(made), end="")
