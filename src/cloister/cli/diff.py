"""`cloister diff`: what a run changed, as a unified diff."""

import sys

import typer

from cloister.cli.options import AttemptNumber, RunName, open_log, settings_of


def diff(ctx: typer.Context, run: RunName, attempt: AttemptNumber = None) -> None:
    """Print what a run, or one attempt of it, changed so far as a unified diff. Needs no server."""
    import anyio

    from cloister.core.text import harmless
    from cloister.runs.result import run_diff

    settings = settings_of(ctx)
    with open_log(settings) as log:
        found = log.resolve(run)
        events = log.events(found)
    text = anyio.run(run_diff, settings.data_dir, found, events, attempt)
    if not text:
        print(f"{found} has changed nothing.", file=sys.stderr)
    elif sys.stdout.isatty():
        coloured(harmless(text))
    else:
        # As it is: `cloister diff RUN | git apply` must get the very bytes.
        sys.stdout.write(text)


def coloured(text: str) -> None:
    """A diff on a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    for line in text.splitlines():
        console.print(Text(line, style=line_style(line)))


def line_style(line: str) -> str:
    """The colour of one line of a diff."""
    if line.startswith(
        ("diff ", "index ", "--- ", "+++ ", "new file", "deleted file", "rename ", "similarity ")
    ):
        return "bold"
    if line.startswith("@@"):
        return "cyan"
    return {"+": "green", "-": "red"}.get(line[:1], "")
