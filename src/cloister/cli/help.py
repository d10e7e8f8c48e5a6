"""The help of the command: one screen of grouped commands, and whole sentences for the commands of a group.

The words are here and not in the commands, so that the list needs none of their modules.
"""

from typing import Any

import typer
from typer.core import TyperGroup

from cloister.cli.lazy import LazyGroup

GROUPS: dict[str, dict[str, str]] = {
    "run": {
        "run": "start a run and watch it",
        "say": "send it a message",
        "answer": "allow or deny a question",
        "interrupt": "stop its current step",
        "stop": "stop it; saved work stays",
        "fork": "continue from a save point",
        "rewind": "go back to a save point",
    },
    "change": {
        "diff": "the change as a diff",
        "apply": "put it into a repository",
        "pr": "open a pull request",
        "compare": "two runs side by side",
        "receipt": "what the run touched",
        "rm": "delete files of old runs",
    },
    "policy": {
        "policy": "test and explain rules",
        "token": "tokens of the server",
        "audit": "the signed record",
    },
    "watch": {
        "ps": "list runs",
        "watch": "show a run live",
        "log": "every event of a run",
        "why": "the turn behind a line",
        "tree": "its attempts, save points",
        "budget": "limits and spending",
    },
    "sandbox": {
        "sandbox": "make and use sandboxes",
        "snapshot": "kept files of sandboxes",
        "template": "what sandboxes start from",
        "env": "a repository's environment",
        "init": "write .cloister/config.toml",
    },
    "operate": {
        "doctor": "can a run start here?",
        "serve": "the server of this machine",
        "model": "local models; switch a run",
        "forge": "check a forge's token",
    },
}
"""Group → command → what it does, in at most 27 characters."""
_LEFT = ("run", "change", "policy")
_NAME, _COLUMN = 12, 40


def _column(names: list[str], there: list[str]) -> list[str]:
    lines: list[str] = []
    for group in names:
        known = {name: words for name, words in GROUPS[group].items() if name in there}
        lines += [group.upper(), *(f"  {name:<{_NAME - 2}}{words}" for name, words in known.items())]
    return lines


class OneScreen(LazyGroup):
    """The root: its help fits a terminal of 80 by 24."""

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        there = self.list_commands(ctx)
        left = _column([name for name in GROUPS if name in _LEFT], there)
        right = _column([name for name in GROUPS if name not in _LEFT], there)
        rows = max(len(left), len(right))
        left, right = (side + [""] * (rows - len(side)) for side in (left, right))
        formatter.write(
            "Give it a prompt and a repository, get a proven change on a branch.\n"
            'Begin in a git repository:  cloister run "fix the failing test"\n'
        )
        for a, b in zip(left, right, strict=True):
            formatter.write(f"{a:<{_COLUMN}}{b}".rstrip() + "\n")
        formatter.write(
            "cloister [--data-dir DIR] [--server URL --token-file FILE] COMMAND …\n"
            "cloister COMMAND -h explains it · --version · --install-completion\n"
        )


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
