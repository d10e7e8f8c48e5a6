"""`cloister watch`: a run's live screen, from its beginning or from an event on."""

from typing import TYPE_CHECKING

import typer

from cloister.cli.options import After, AsJson, RunName, open_log, settings_of

if TYPE_CHECKING:
    from cloister.cli.attend import Watch
    from cloister.core.ids import RunId
    from cloister.settings import Settings


def watch(ctx: typer.Context, run: RunName, after: After = 0, as_json: AsJson = False) -> None:
    """Watch a run until it has finished. Ctrl-C ends the watching, never the run."""
    import anyio

    from cloister.cli.attend import Watch
    from cloister.cli.shows import open_show

    settings = settings_of(ctx)
    with open_log(settings) as log:
        found = log.resolve(run)
        # Beyond the end there is nothing to wait for; the end itself is where a live one goes on.
        after = min(after, log.row(found).last_seq)
        earlier = log.events(found, 0, after) if after else ()
    seen = Watch(open_show(as_json, earlier), after)
    anyio.run(follow_anyhow, settings, found, seen)
    if seen.interrupts and seen.outcome is None:
        from cloister.cli.run import going_on

        going_on(found)
    raise typer.Exit(seen.exit_code)


async def follow_anyhow(settings: "Settings", run: "RunId", seen: "Watch") -> None:
    """Through the server when there is one, else straight from the log."""
    from cloister.cli.living import living
    from cloister.cli.logfile import follow_log
    from cloister.cli.remote import RemoteRun

    if living(settings.data_dir):
        await seen.until_end(RemoteRun(settings.data_dir, run, seen).follow)
        return
    with open_log(settings) as log:

        async def from_log() -> None:
            await follow_log(log, run, seen)

        await seen.until_end(from_log)
