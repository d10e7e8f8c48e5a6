"""`cloister answer`: allow or deny what a run asks for."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cloister.cli.options import RunName, open_log, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cloister.core.events import Event


def answer(
    ctx: typer.Context,
    run: RunName,
    ask: Annotated[str, typer.Argument(metavar="ASK", help="The question, as the run's screen shows it.")],
    verdict: Annotated[Literal["allow", "deny"], typer.Argument(metavar="allow|deny", help="Your answer.")],
) -> None:
    """Answer a question that a rule raised; after its deadline the default is the answer."""
    from cloister.cli.speak import add
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
