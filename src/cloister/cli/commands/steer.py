"""`cloister say`, `stop` and `answer`: steer an active run."""

from typing import Annotated, Literal

import typer

from cloister.cli.options import RunName, typed


def say(
    ctx: typer.Context,
    run: RunName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message.")],
) -> None:
    """Send a message to a run, which reads it before its next step."""
    from cloister.cli.client.open import perform

    event = perform(ctx, lambda verbs: verbs.runs.say(run, typed(text)))
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
