"""`cloister log`: everything that happened in a run, whole."""

import typer

from cloister.cli.options import After, AsJson, RunName, open_log, settings_of


def log(ctx: typer.Context, run: RunName, after: After = 0, as_json: AsJson = False) -> None:
    """Print a run's log: every event with its number, nothing shortened. Needs no server."""
    with open_log(settings_of(ctx)) as reader:
        events = reader.events(reader.resolve(run), after)
    if as_json:
        from cloister.cli.jsonl import put_json

        for event in events:
            put_json(event)
        return
    from cloister.cli.entries import entry_lines

    for event in events:
        for line in entry_lines(event):
            print(line)
