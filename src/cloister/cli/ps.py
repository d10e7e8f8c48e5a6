"""`cloister ps`: the runs on this machine, newest first."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import AsJson, open_log, settings_of

if TYPE_CHECKING:
    from cloister.runs.api import RunRow


def ps(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many runs to show.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first. Needs no server."""
    with open_log(settings_of(ctx)) as log:
        rows = log.rows(limit)
    if as_json:
        from cloister.cli.jsonl import put_json

        for row in rows:
            put_json(row)
        return
    if not rows:
        print('No runs yet. Start one: cloister run "fix the failing test" --repo .')
        return
    now = time.time()
    print(f"{'RUN':<15} {'STATE':<12} {'AGE':<11} PROMPT")
    for row in rows:
        print(_line(row, now))


def state(row: "RunRow") -> str:
    """One word for where a run is."""
    if row.state == "finished":
        return row.outcome or "finished"
    if row.state == "running" and not row.owner_lives:
        return "interrupted"
    return row.state


def _line(row: "RunRow", now: float) -> str:
    from cloister.core.text import one_line

    return f"{row.id:<15} {state(row):<12} {_age(now - row.created_at):<11} {one_line(row.prompt, 72)}"


def _age(seconds: float) -> str:
    for size, word in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {word} ago"
    return f"{max(0, int(seconds))} s ago"
