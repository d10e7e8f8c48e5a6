"""`cloister say`, `stop` and `answer`: send messages to a run, stop it, answer it."""

from typing import Annotated, Literal

import typer

from cloister.cli.options import RunName, settings_of, typed


def say(
    ctx: typer.Context,
    run: RunName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message.")],
) -> None:
    """Send a message to a run, which reads it before its next step; a finished run continues with it."""
    from cloister.cli.client.open import drives_here, perform

    row = perform(ctx, lambda verbs: verbs.runs.row(run), only_log=True)
    finished = row.state == "finished"
    if finished and drives_here(ctx):
        from cloister.forge.host import check_kept

        check_kept(settings_of(ctx).data_dir, row.id)  # before a server starts to drive the next round
    message = typed(text)
    event = perform(ctx, lambda verbs: verbs.runs.say(run, message), serve=finished and bool(message.strip()))
    if finished:
        print(f"{event.run} continues. Watch it: cloister watch {event.run}")
    else:
        print(f"Sent to {event.run} (event {event.seq}).")


def stop(ctx: typer.Context, run: RunName) -> None:
    """Ask a run to stop; its work up to the last save point is kept."""
    from cloister.cli.client.open import perform

    found = perform(ctx, lambda verbs: verbs.runs.stop(run)).run
    print(f"Asked {found} to stop. Watch it end: cloister watch {found}")


def answer(
    ctx: typer.Context,
    run: RunName,
    ask: Annotated[
        str, typer.Argument(metavar="ASK", help="The approval request, as the run's screen names it.")
    ],
    verdict: Annotated[Literal["allow", "deny"], typer.Argument(metavar="allow|deny", help="The answer.")],
) -> None:
    """Answer an approval request of a run. After its deadline the default answer applies."""
    from cloister.cli.client.open import perform

    found = perform(ctx, lambda verbs: verbs.runs.answer(run, ask, verdict)).run
    print(f"Answered {ask} of {found}: {verdict}.")
