"""The help of the command in Typer: one screen of grouped commands, and whole sentences for the commands of a group."""

from typing import Any

import typer
from typer.core import TyperGroup

from cloister.cli.lazy import LazyGroup
from cloister.cli.quick import screen


class OneScreen(LazyGroup):
    """The root: its help fits a terminal of 80 by 24."""

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        formatter.write(screen())


class WholeSentences(TyperGroup):
    """A group of commands: their descriptions are not cut."""

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        rows: list[tuple[str, str]] = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, (command.help or "").strip().partition("\n\n")[0]))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
