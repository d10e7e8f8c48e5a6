"""`cloister ps`, `watch`, `say`, `stop` and `answer`: look at runs and steer them."""

import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cloister.cli.client.open import drives_here, open_verbs, perform
from cloister.cli.options import Accept, After, AsJson, RunName, put, put_json, settings_of, typed
from cloister.core.text import one_line

if TYPE_CHECKING:
    from cloister.cli.client.attend import Watch
    from cloister.core.ids import RunId
    from cloister.log.api import RunRow


def watch(
    ctx: typer.Context, run: RunName, after: After = 0, accept: Accept = "proven", as_json: AsJson = False
) -> None:
    """Show a run until it finishes. Ctrl-C stops watching, not the run."""
    import anyio

    found, seen = anyio.run(_watch, ctx, run, after, accept, as_json)
    if seen.interrupts and seen.outcome is None:
        from cloister.cli.commands.run import still_running

        still_running(found)
    raise typer.Exit(seen.exit_code)


async def _watch(
    ctx: typer.Context, run: str, after: int, accept: Accept, as_json: bool
) -> "tuple[RunId, Watch]":
    from cloister.cli.client.attend import Watch
    from cloister.cli.screen.screen import open_show

    async with open_verbs(ctx) as verbs:
        row = await verbs.runs.row(run)
        after = min(after, row.last_seq)
        earlier = await verbs.runs.events(row.id, limit=after) if after else ()
        seen = Watch(open_show(as_json, earlier), after, accept)

        async def follow() -> None:
            async with verbs.runs.follow(row.id, after) as items:
                async for item in items:
                    seen.feed(item)
            if seen.outcome is None:
                # The last event was before `--after`.
                seen.outcome = (await verbs.runs.row(row.id)).outcome

        await seen.until_end(follow)
    return row.id, seen


def ps(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The number of runs to list.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first."""
    rows = perform(ctx, lambda verbs: verbs.runs.list(limit), only_log=True)
    if as_json:
        put_json(*rows)
    elif not rows:
        put('No runs yet. Start one: cloister run "fix the failing test" --repo .')
    else:
        now = time.time()
        put(f"{'RUN':<15} {'STATE':<12} {'AGE':<11} PROMPT")
        for row in rows:
            put(_line(row, now))


def state(row: "RunRow") -> str:
    """The state of a run in one word."""
    if row.state == "finished":
        return row.outcome or "finished"
    if row.state in ("running", "paused") and row.owner is not None and not row.owner_lives:
        return "interrupted"
    return row.state


def _line(row: "RunRow", now: float) -> str:
    text = f"{row.id:<15} {state(row):<12} {_age(now - row.created_at):<11} {one_line(row.prompt, 72)}"
    return f"{text}\n{'':<15} {one_line(row.reason, 200)}" if row.state == "paused" and row.reason else text


def _age(seconds: float) -> str:
    for size, word in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {word} ago"
    return f"{max(0, int(seconds))} s ago"


def say(
    ctx: typer.Context,
    run: RunName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message.")],
) -> None:
    """Send a message to a run, which reads it before its next step; a finished run continues with it."""
    row = perform(ctx, lambda verbs: verbs.runs.row(run), only_log=True)
    finished = row.state == "finished"
    if finished and drives_here(ctx):
        from cloister.forge.host import check_kept

        check_kept(settings_of(ctx).data_dir, row.id)  # before a server starts to drive the next round
    message = typed(text)
    event = perform(ctx, lambda verbs: verbs.runs.say(run, message), serve=finished and bool(message.strip()))
    if finished:
        put(f"{event.run} continues. Watch it: cloister watch {event.run}")
    else:
        put(f"Sent to {event.run} (event {event.seq}).")


def stop(ctx: typer.Context, run: RunName) -> None:
    """Ask a run to stop; its work up to the last save point is kept."""
    found = perform(ctx, lambda verbs: verbs.runs.stop(run)).run
    put(f"Asked {found} to stop. Watch it end: cloister watch {found}")


def answer(
    ctx: typer.Context,
    run: RunName,
    ask: Annotated[
        str, typer.Argument(metavar="ASK", help="The approval request, as the run's screen names it.")
    ],
    verdict: Annotated[Literal["allow", "deny"], typer.Argument(metavar="allow|deny", help="The answer.")],
) -> None:
    """Answer an approval request of a run. After its deadline the default answer applies."""
    found = perform(ctx, lambda verbs: verbs.runs.answer(run, ask, verdict)).run
    put(f"Answered {ask} of {found}: {verdict}.")
