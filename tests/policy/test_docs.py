"""The page about policies shows a file that is accepted, and its tests hold."""

import re
from pathlib import Path

import pytest

from cloister.cli.screen.policy import verdicts_of
from cloister.policy.api import Sets
from cloister.policy.file import PolicyFile, read_policy
from cloister.policy.pattern import TOOL_NAMES, read_pattern

PAGE = (Path(__file__).parents[2] / "docs/guide/policy.md").read_text(encoding="utf-8")


@pytest.mark.anyio
async def test_the_file_on_the_page_is_accepted_with_every_key_and_its_tests_hold() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    read = read_policy("organisation", block.encode(), "policy.md")

    async def nothing(names: frozenset[str]) -> tuple[Sets, dict[str, str]]:
        return {}, {}

    verdicts = await verdicts_of(read, nothing)
    assert len(verdicts) == 2
    assert all(verdict.ok for verdict in verdicts)
    assert [
        key for key in PolicyFile.__struct_fields__ if not re.search(rf"^(\[+)?{key}\b", block, re.M)
    ] == []


def test_every_kind_of_action_is_on_the_page() -> None:
    for name in TOOL_NAMES:
        assert f"`{name}`" in PAGE
    for kind in ("connect", "request", "credential", "push", "raw", "tier", "model", "mcp"):
        assert f"`{kind}:" in PAGE


def test_the_page_says_that_command_rules_are_not_the_boundary() -> None:
    assert "**Rules about commands are not the boundary.**" in PAGE
    assert read_pattern("bash:git push*") == read_pattern("tool:bash:git push*")
