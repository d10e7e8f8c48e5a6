"""`cloister watch`: a run's live screen, from its beginning or from an event on."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import After, AsJson, RunName, open_log, settings_of

if TYPE_CHECKING:
    from cloister.app.settings import Settings
    from cloister.cli.client.attend import Watch
    from cloister.core.ids import RunId
if TYPE_CHECKING:
    from cloister.log.api import RunRow


def watch(ctx: typer.Context, run: RunName, after: After = 0, as_json: AsJson = False) -> None:
    """Watch a run until it has finished. Ctrl-C ends the watching, never the run."""
    import anyio

    from cloister.cli.client.attend import Watch
    from cloister.cli.screen.shows import open_show

    settings = settings_of(ctx)
    with open_log(settings) as log:
        found = log.resolve(run)
        # Beyond the end there is nothing to wait for; the end itself is where a live one goes on.
        after = min(after, log.row(found).last_seq)
        earlier = log.events(found, 0, after) if after else ()
    seen = Watch(open_show(as_json, earlier), after)
    anyio.run(follow_anyhow, settings, found, seen)
    if seen.interrupts and seen.outcome is None:
        from cloister.cli.commands.run import going_on

        going_on(found)
    raise typer.Exit(seen.exit_code)


async def follow_anyhow(settings: "Settings", run: "RunId", seen: "Watch") -> None:
    """Through the server when there is one, else straight from the log."""
    from cloister.cli.client.attend import follow_log
    from cloister.cli.client.discover import living
    from cloister.cli.client.stream import RemoteRun

    if living(settings.data_dir):
        await seen.until_end(RemoteRun(settings.data_dir, run, seen).follow)
        return
    with open_log(settings) as log:

        async def from_log() -> None:
            await follow_log(log, run, seen)

        await seen.until_end(from_log)


# `cloister ps`: the runs on this machine, newest first.


def ps(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many runs to show.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first. Needs no server."""
    with open_log(settings_of(ctx)) as log:
        rows = log.rows(limit)
    if as_json:
        from cloister.cli.screen.shows import put_json

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
