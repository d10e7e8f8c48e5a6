"""`cloister rm`: delete what a finished run keeps beside its log."""

import typer

from cloister.cli.options import RunName, open_log, settings_of


def rm(ctx: typer.Context, run: RunName) -> None:
    """Delete a finished run's files: its change, its attempts' diffs and its save points. The log stays."""
    from cloister.runs.kept import remove_files

    settings = settings_of(ctx)
    with open_log(settings) as log:
        found = log.resolve(run)
        state = log.row(found).state
    remove_files(settings.data_dir, found, state, settings.user)
    print(f"Removed the files of {found}. Its log stays: cloister log {found}")
