"""`cloister webhook`: where notices go that a run ended, asks or is stuck."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cloister.cli.client.open import perform
from cloister.cli.options import AsJson, put, put_json, put_list
from cloister.core.errors import UserError

if TYPE_CHECKING:
    from cloister.app.verbs.webhooks import DeadDelivery, WebhookInfo

app = typer.Typer(
    help="Webhooks and e-mail about runs: add, ls, rm, test, dead, replay.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The webhook's name.")]


@app.command("add")
def add(
    ctx: typer.Context,
    name: Name,
    address: Annotated[
        str, typer.Argument(metavar="URL", help="An https:// address, or mailto:NAME@HOST for e-mail.")
    ],
    form: Annotated[
        Literal["json", "slack"] | None,
        typer.Option(
            "--format", help="json is signed; slack is for Slack, Mattermost and Rocket.Chat. Default: json."
        ),
    ] = None,
    on: Annotated[
        list[str] | None,
        typer.Option("--on", metavar="KIND", help="ended, asks or stuck; repeat for several. Default: all."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send notices about runs to an address, and print the secret that signs them once."""
    from cloister.app.verbs.webhooks import ALL, NewWebhook, Noticed

    wanted: set[str] = {*(on or ALL)}
    kinds: tuple[Noticed, ...] = tuple([one for one in ALL if one in wanted])
    if len(kinds) != len(wanted):
        raise UserError("bad_webhook", "Give --on ended, --on asks or --on stuck.")
    made = perform(ctx, lambda verbs: verbs.webhooks.add(NewWebhook(name, address, form, kinds)))
    if as_json:
        put_json(made)
        return
    if made.secret:
        put(made.secret)
        put(f"This secret signs what {name} receives. It is not shown again.", file=sys.stderr)
    put(f"Added {name}. Try it: cloister webhook test {name}", file=sys.stderr)


@app.command("ls")
def ls(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the webhooks, without the paths of their addresses."""

    def line(one: "WebhookInfo") -> str:
        what = ",".join(one.kinds)
        return f"{one.name:<20} {one.format:<6} {what:<17} {one.waiting:>7} {one.dead:>5}  {one.address}"

    found = perform(ctx, lambda verbs: verbs.webhooks.list())
    head = f"{'NAME':<20} {'FORMAT':<6} {'ON':<17} {'WAITING':>7} {'DEAD':>5}  ADDRESS"
    put_list(found, as_json, head, line, "No webhooks. Add one: cloister webhook add NAME URL")


@app.command("rm")
def rm(ctx: typer.Context, name: Name) -> None:
    """Remove a webhook; what waits for it is dropped."""
    perform(ctx, lambda verbs: verbs.webhooks.remove(name))
    put(f"Removed {name}.")


@app.command("test")
def test(ctx: typer.Context, name: Name) -> None:
    """Send a notice that says it is a test. A server sends it."""
    perform(ctx, lambda verbs: verbs.webhooks.test(name))
    put(f"A test for {name} is on its way; `cloister webhook ls` shows whether it waits.")


@app.command("dead")
def dead(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the deliveries that were given up, the newest first."""

    def line(one: "DeadDelivery") -> str:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.made_at))
        return (
            f"{one.id:>6} {one.webhook:<20} {one.kind:<6} {one.run:<16} {made} {one.tries:>5}  {one.problem}"
        )

    found = perform(ctx, lambda verbs: verbs.webhooks.dead())
    head = f"{'ID':>6} {'WEBHOOK':<20} {'KIND':<6} {'RUN':<16} {'SINCE':<16} TRIES  PROBLEM"
    put_list(found, as_json, head, line, "No dead deliveries.")


@app.command("replay")
def replay(
    ctx: typer.Context,
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="[ID]...", help="As `webhook dead` lists them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every dead delivery.")] = False,
) -> None:
    """Try dead deliveries again."""
    if bool(ids) == everything:
        raise UserError("bad_options", "Name deliveries, or give --all.")
    count = perform(ctx, lambda verbs: verbs.webhooks.replay(tuple(ids or ())))
    put(f"Tried again: {count}")
