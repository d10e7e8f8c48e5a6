"""The entry point: the list of commands, and one sentence and exit code for every error."""

import sys
from typing import Annotated

import typer

from cloister import __version__
from cloister.cli.lazy import LazyGroup

app = typer.Typer(
    name="cloister",
    help="A self-hosted background coding agent: give it a prompt and a repository, get a proven change.",
    cls=LazyGroup,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"cloister {__version__}")
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    ctx: typer.Context,
    data_dir: Annotated[
        str | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="The directory of runs, templates and the log. Default: CLOISTER_DATA_DIR, else "
            "/var/lib/cloister for root and ~/.local/share/cloister for others.",
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="URL",
            help="Send the command to this server instead of using the data directory. Default: CLOISTER_SERVER.",
        ),
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="The file with the token for --server. Default: the token in CLOISTER_TOKEN.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        from cloister.cli.commands import doctor

        doctor.begin(ctx)


def enter() -> None:
    """Run the command and end the process."""
    try:
        # Typer itself handles usage errors (2), Ctrl-C (130) and a closed pipe (1, silently).
        app(prog_name="cloister")
    except (Exception, BaseExceptionGroup) as error:
        from cloister.cli.failures import explain

        sys.exit(explain(error, sys.argv[1:]))
