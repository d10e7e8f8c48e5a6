"""`cloister trigger`: what starts runs from outside."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.client.open import perform
from cloister.cli.options import AsJson, complete_trigger, put, put_json, put_list
from cloister.core.errors import UserError
from cloister.core.text import one_line

if TYPE_CHECKING:
    from cloister.app.verbs.records import TriggerInfo

app = typer.Typer(
    help="What starts runs from outside: ls, show, run, pause, resume.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A trigger of the settings.", autocompletion=complete_trigger),
]


def _time(at: float | None) -> str:
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _state(one: "TriggerInfo") -> str:
    return (
        "paused"
        if one.paused
        else f"{one.running} running" + (f", {one.waiting} wait" if one.waiting else "")
    )


@app.command("ls")
def ls(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the triggers of the settings."""

    def line(one: "TriggerInfo") -> str:
        due = f"next {_time(one.next_at)}" if one.next_at else f"last {_time(one.last_at)}"
        return f"{one.name:<20} {one.on:<9} {one_line(one.what, 28):<29} {_state(one):<18} {due}"

    found = perform(ctx, lambda verbs: verbs.triggers.list())
    none = "No triggers. Declare one in a [[trigger]] table of the settings (docs/guide/triggers.md)."
    put_list(found, as_json, f"{'NAME':<20} {'ON':<9} {'WHAT':<29} {'STATE':<18} WHEN", line, none)


@app.command("show")
def show(ctx: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """Show one trigger and its last run."""
    found = perform(ctx, lambda verbs: verbs.triggers.get(name))
    if as_json:
        put_json(found)
        return
    put(f"{found.name}: {found.on} {one_line(found.what, 200)}")
    put(f"repositories  {one_line(', '.join(found.repos), 400)}")
    put(f"state         {_state(found)}")
    put(f"last run      {found.last_run or '-'} {_time(found.last_at) if found.last_at else ''}".rstrip())
    if found.next_at:
        put(f"next run      {_time(found.next_at)}")


@app.command("run")
def run(
    ctx: typer.Context,
    name: Name,
    repo: Annotated[
        str | None,
        typer.Option("--repo", metavar="URL", help="The repository, if the trigger serves several."),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option("--field", metavar="NAME=VALUE", help="A value for its prompt; repeat for several."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start its run now, on a server."""
    pairs = [one.partition("=") for one in field or ()]
    if any(not equals for _, equals, _ in pairs):
        raise UserError("bad_field", "A field is given as NAME=VALUE.")
    fields = {key: value for key, _, value in pairs}
    found = perform(ctx, lambda verbs: verbs.triggers.run(name, repo, fields), serve=True).id
    if as_json:
        put_json({"run": found})
    else:
        put(found)
        put(f"Watch it: cloister watch {found}", file=sys.stderr)


@app.command("pause")
def pause(ctx: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """Start no more runs from it; those at work go on."""
    _paused(ctx, name, paused=True, as_json=as_json)


@app.command("resume")
def resume(ctx: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """Start runs from it again; what was asked meanwhile is not made up for."""
    _paused(ctx, name, paused=False, as_json=as_json)


def _paused(ctx: typer.Context, name: str, *, paused: bool, as_json: bool) -> None:
    found = perform(ctx, lambda verbs: verbs.triggers.pause(name, paused=paused))
    if as_json:
        put_json(found)
    else:
        put(f"{found.name} is {'paused' if paused else 'active'}.")
