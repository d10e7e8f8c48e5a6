"""The reference page names every command and every option there is."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from cloister.cli.entry import app
from cloister.cli.lazy import COMMANDS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
ROOT: Any = typer.main.get_command(app)


def options(command: object) -> set[str]:
    parameters: list[Any] = getattr(command, "params")  # noqa: B009  (its class is not public)
    names = (name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts))
    return {name for name in names if name.startswith("--")}


def commands(command: object) -> dict[str, object]:
    if command is ROOT:  # loads each when it is asked for
        return {name: ROOT.get_command(None, name) for name in COMMANDS}
    return dict(getattr(command, "commands", {}))


def sections() -> dict[str, str]:
    """Command → its part of the page."""
    parts = re.split(r"^## cloister (\w+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_command_has_a_section_and_no_section_is_stale() -> None:
    assert set(sections()) == set(commands(ROOT))


def test_every_global_option_is_on_the_page() -> None:
    head = PAGE.partition("\n## ")[0]
    assert [name for name in sorted(options(ROOT)) if f"`{name}" not in head] == []


@pytest.mark.parametrize("name", sorted(commands(ROOT)))
def test_every_option_is_in_its_commands_section_and_no_other(name: str) -> None:
    command = commands(ROOT)[name]
    below = commands(command)
    there = options(command).union(*(options(inner) for inner in below.values())) - {"--help"}
    named = set(re.findall(r"--[a-z][a-z0-9-]*", sections()[name]))
    assert named - there - {"--background"} == set()
    assert there - named == set()
    for inner in below:
        assert f"`cloister {name} {inner}" in sections()[name]


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 5, 70, 130])
def test_every_exit_code_is_explained(code: int) -> None:
    assert f"| {code} | " in PAGE
