"""`cloister log`: everything that happened in a run, whole."""

import typer

from cloister.cli.options import After, AsJson, AttemptNumber, RunName, open_log, settings_of


def log(
    ctx: typer.Context,
    run: RunName,
    after: After = 0,
    attempt: AttemptNumber = None,
    as_json: AsJson = False,
) -> None:
    """Print a run's log: every event with its number, nothing shortened. Needs no server."""
    with open_log(settings_of(ctx)) as reader:
        found = reader.resolve(run)
        events = reader.events(found, after if attempt is None else 0)
    if attempt is not None:
        from cloister.runs.result import attempt_log

        events = tuple(event for event in attempt_log(events, attempt) if event.seq > after)
    if as_json:
        from cloister.cli.jsonl import put_json

        for event in events:
            put_json(event)
        return
    from cloister.cli.entries import entry_lines

    for event in events:
        for line in entry_lines(event):
            print(line)
