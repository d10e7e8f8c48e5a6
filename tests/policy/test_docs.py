"""The page about policies shows a file that is accepted, and its tests hold."""

import re
from pathlib import Path

import pytest

from cloister.app.settings import read_settings
from cloister.app.verbs.local import local_verbs
from cloister.policy.file import PolicyFile
from cloister.policy.pattern import TOOL_NAMES, read_pattern

PAGE = (Path(__file__).parents[2] / "docs/guide/policy.md").read_text(encoding="utf-8")


@pytest.mark.anyio
async def test_the_file_on_the_page_is_accepted_with_every_key_and_its_tests_hold(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    verbs = local_verbs(read_settings({}, tmp_path))
    verdicts = await verbs.policy.test(block, "policy.md")
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
