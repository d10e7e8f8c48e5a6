"""`cloister say`: talk to a run while it works."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cloister.cli.options import RunName, open_log, resolve_run, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cloister.core.events import Event


def say(
    ctx: typer.Context,
    run: RunName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the run should know or do.")],
) -> None:
    """Tell a run something before its next step; a finished run continues with it."""
    from cloister.cli.client.speak import add, not_empty, typed
    from cloister.core.events import PromptReceived

    settings = settings_of(ctx)
    with open_log(settings) as log:
        found = log.resolve(run)
        finished = log.row(found).state == "finished"
    said = PromptReceived(not_empty(typed(text)), settings.user)
    if not finished:
        print(f"Said to {found} (event {add(settings, found, said).seq}).")
        return
    from cloister.cli.client.background import ensure
    from cloister.runs.delivery import check_kept

    check_kept(settings.data_dir, found)
    ensure(settings)  # a server, started if necessary, drives the next round
    add(settings, found, said)
    print(f"{found} continues. Watch it: cloister watch {found}")


# `cloister stop`: end a run; what it has done so far is kept.


def stop(ctx: typer.Context, run: RunName) -> None:
    """Ask a run to stop; what it did up to its last save point is kept."""
    from cloister.cli.client.speak import add
    from cloister.core.events import StopRequested

    settings = settings_of(ctx)
    found = resolve_run(settings, run)
    add(settings, found, StopRequested(settings.user))
    print(f"Asked {found} to stop. See it end: cloister watch {found}")


# `cloister answer`: allow or deny what a run asks for.


def answer(
    ctx: typer.Context,
    run: RunName,
    ask: Annotated[str, typer.Argument(metavar="ASK", help="The question, as the run's screen shows it.")],
    verdict: Annotated[Literal["allow", "deny"], typer.Argument(metavar="allow|deny", help="Your answer.")],
) -> None:
    """Answer a question that a rule raised; after its deadline the default is the answer."""
    from cloister.cli.client.speak import add
    from cloister.core.events import AskAnswered

    settings = settings_of(ctx)
    with open_log(settings) as log:
        found = log.resolve(run)
        check_open(ask, log.events(found))
    add(settings, found, AskAnswered(ask, verdict, settings.user))
    print(f"Answered {ask} of {found}: {verdict}.")


def check_open(ask: str, events: "Iterable[Event]") -> None:
    """Raises `UserError` (`no_such_ask`, `ask_answered`) unless `ask` waits for an answer."""
    from cloister.core.errors import UserError
    from cloister.core.events import AskAnswered, AskRaised

    raised: dict[str, str | None] = {}
    for event in events:
        match event.body:
            case AskRaised() as body:
                raised[body.ask] = None
            case AskAnswered() as body if body.ask in raised:
                raised[body.ask] = body.answer
            case _:
                pass
    if ask not in raised:
        waiting = [name for name, given in raised.items() if given is None]
        open_now = f"it waits for {', '.join(waiting)}" if waiting else "it waits for no answer"
        raise UserError("no_such_ask", f"This run never asked {ask[:64]!r}: {open_now}.")
    if raised[ask] is not None:
        raise UserError("ask_answered", f"{ask} is answered already: {raised[ask]}.")
