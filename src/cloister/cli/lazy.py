"""The commands by name. A module is imported only when its command is called or asked for help."""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.models import TyperInfo

from cloister.cli.quick import screen
from cloister.core.errors import UserError

COMMANDS = {
    "run": "run:run",
    "fleet": "run:fleet",
    "ps": "watch:ps",
    "watch": "watch:watch",
    "say": "watch:say",
    "stop": "watch:stop",
    "answer": "watch:answer",
    "interrupt": "watch:interrupt",
    "pause": "watch:pause",
    "resume": "watch:resume",
    "log": "result:log",
    "diff": "result:diff",
    "why": "result:why",
    "verify": "env:verify",
    "apply": "result:apply",
    "pr": "result:pr",
    "tree": "branch:tree",
    "fork": "branch:fork",
    "rebase": "branch:rebase",
    "rewind": "branch:rewind",
    "compare": "result:compare",
    "receipt": "result:receipt",
    "audit": "operate.audit:app",
    "rm": "result:rm",
    "gc": "result:gc",
    "budget": "result:budget",
    "sandbox": "sandbox.sandbox:app",
    "snapshot": "sandbox.snapshot:app",
    "template": "operate.template:app",
    "env": "env:app",
    "init": "env:init",
    "skills": "knowledge:app",
    "model": "operate.model:app",
    "policy": "policy:app",
    "forge": "result:forge",
    "token": "operate.token:app",
    "project": "people:project",
    "share": "people:share",
    "trigger": "operate.trigger:app",
    "webhook": "operate.webhook:app",
    "compat": "operate.compat:app",
    "mcp": "mcp:mcp",
    "tools": "tools:app",
    "serve": "operate.serve:serve",
    "cluster": "operate.cluster:app",
    "open": "operate.serve:open_page",
    "doctor": "doctor:doctor",
}
"""Command → its module below `cli/commands`, and the function or the group of commands there."""


class LazyGroup(TyperGroup):
    """The root command. Its help fits a terminal of 80 by 24."""

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        formatter.write(screen())

    def list_commands(self, ctx: typer.Context) -> list[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return list(COMMANDS)

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, 1)
            hint = f"Did you mean `cloister {near[0]}`?" if near else "`cloister --help` lists them."
            raise UserError("no_command", f"There is no command {args[0]!r}. {hint}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            self.commands[cmd_name] = _loaded(cmd_name)
        return self.commands[cmd_name]


def _loaded(name: str) -> Any:
    module, _, attribute = COMMANDS[name].partition(":")
    found = getattr(import_module(f"cloister.cli.commands.{module}"), attribute)
    if isinstance(found, typer.Typer):
        info = TyperInfo(found, name=name, cls=WholeSentences)
        command = typer.main.get_group_from_info(
            info, pretty_exceptions_short=True, rich_markup_mode=None, suggest_commands=True
        )
    else:
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name)(found)
        command = typer.main.get_command(alone)
    command.name = name
    return command


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
