"""What several commands share: where the data is, how a run is named, and completion. Imports nothing slow."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cloister.app.settings import Settings
    from cloister.core.ids import RunId
    from cloister.log.sqlite.reader import LogReader


def settings_of(ctx: typer.Context) -> "Settings":
    """The settings for the chosen data directory. Raises `UserError` (`bad_config`)."""
    from cloister.app.settings import read_settings

    chosen = ctx.find_root().params.get("data_dir")
    return read_settings(data_dir=Path(chosen) if chosen else None)


def open_log(settings: "Settings") -> "LogReader":
    """The log of the data directory, read-only."""
    from cloister.log.sqlite.reader import LogReader
    from cloister.sandbox.liveness import Owners

    return LogReader(settings.data_dir / "cloister.db", Owners(settings.data_dir / "owners").lives)


def resolve_run(settings: "Settings", name: str) -> "RunId":
    """The run that `name` means: its id, a unique beginning of it, or `last`."""
    with open_log(settings) as log:
        return log.resolve(name)


def _quietly(find: Callable[[], list[str]]) -> list[str]:
    # A shell that completes has no place for an error; it just completes nothing.
    try:
        return find()
    except Exception:
        return []


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    def find() -> list[str]:
        with open_log(settings_of(ctx)) as log:
            names = ["last", *(row.id for row in log.rows(50))]
        return [name for name in names if name.startswith(incomplete)]

    return _quietly(find)


def complete_sandbox(ctx: typer.Context, incomplete: str) -> list[str]:
    def find() -> list[str]:
        from cloister.cli.client.discover import living
        from cloister.cli.client.http import Client

        place = living(settings_of(ctx).data_dir)
        names = [info.id for info in Client(place).sandboxes()] if place else []
        return [name for name in names if name.startswith(incomplete)]

    return _quietly(find)


def complete_snapshot(ctx: typer.Context, incomplete: str) -> list[str]:
    def find() -> list[str]:
        from cloister.cli.client.discover import living
        from cloister.cli.client.http import Client

        place = living(settings_of(ctx).data_dir)
        names = [info.name or info.id for info in Client(place).snapshots()] if place else []
        return [name for name in names if name.startswith(incomplete)]

    return _quietly(find)


RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run: its id, a unique beginning of it, or 'last'.",
        autocompletion=complete_run,
    ),
]
SandboxName = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="A sandbox: its id or a unique beginning of it.",
        autocompletion=complete_sandbox,
    ),
]
TierWish = Annotated[
    str,
    typer.Option(
        "--tier", metavar="TIER", help="How strongly to isolate: auto, container, gvisor or microvm."
    ),
]
MustPass = Annotated[
    list[str] | None,
    typer.Option(
        "--must-pass",
        metavar="TEST",
        help="A test, a file of tests or a check that must be green in the end; repeat for several.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
After = Annotated[int, typer.Option("--after", metavar="SEQ", min=0, help="Only events after this number.")]
AttemptNumber = Annotated[
    int | None, typer.Option("--attempt", metavar="K", min=0, help="Only this attempt of the run.")
]
