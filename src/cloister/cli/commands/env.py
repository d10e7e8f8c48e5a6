"""`cloister env`: what a repository needs to run its checks, set up as a run would."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.client.open import check_shared_path, perform
from cloister.cli.options import AsJson, put, put_json
from cloister.core.text import one_line

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs
    from cloister.app.verbs.records import EnvironmentInfo

app = typer.Typer(
    help="What a repository needs to run its checks: build, check.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Repo = Annotated[str, typer.Argument(metavar="[PATH|URL]", help="The repository.", show_default=False)]
Ref = Annotated[str | None, typer.Option("--ref", help="Branch, tag or commit.")]
Command = Annotated[
    str, typer.Option("--setup", metavar="auto|CMD", help="Install as detected, or with this command.")
]


@app.command("build")
def build(
    ctx: typer.Context, repo: Repo = ".", ref: Ref = None, setup: Command = "auto", as_json: AsJson = False
) -> None:
    """Set up the environment of a repository; runs on it then start at once."""
    made = _set_up(ctx, repo, ref, setup)
    if as_json:
        put_json(made)
    else:
        _told(made)
    raise typer.Exit(1 if made.problem else 0)


@app.command("check")
def check(
    ctx: typer.Context, repo: Repo = ".", ref: Ref = None, setup: Command = "auto", as_json: AsJson = False
) -> None:
    """Set it up and run the checks once; exit 0 if every check can run, red or green."""
    made = _set_up(ctx, repo, ref, setup)
    if as_json:
        put_json(made)
    else:
        _told(made)
        for line in made.checks or ("no checks: name them in .cloister/config.toml, or with --check",):
            put(one_line(line, 400))
    raise typer.Exit(0 if made.works and made.checks else 1)


def _set_up(ctx: typer.Context, repo: str, ref: str | None, setup: str) -> "EnvironmentInfo":
    from cloister.cli.failures import log_to
    from cloister.cli.request import repository
    from cloister.cli.screen.screen import Progress

    log_to(sys.stderr)
    found = repository(repo)

    async def work(verbs: "Verbs") -> "EnvironmentInfo":
        await check_shared_path(ctx, found)
        return await verbs.templates.set_up(found, ref, setup, Progress())

    return perform(ctx, work)


def _told(made: "EnvironmentInfo") -> None:
    from cloister.runs.event_text.lines import seconds

    for line in made.plan:
        put(one_line(line, 200))
    if made.problem:
        put(f"Set-up failed: {one_line(made.problem, 1_000)}", file=sys.stderr)
    elif made.built:
        put(f"{made.template} is built, in {seconds(made.seconds)}.")
    else:
        put(f"{made.template} is ready.")
