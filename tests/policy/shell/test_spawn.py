"""The shell parser ends with its caller."""

import json
from functools import partial
from pathlib import Path

import pytest
from tests.core.system.cancelled import left_behind

from cloister.policy.shell._spawn import syntax_tree

pytestmark = pytest.mark.anyio


async def test_parser_started_during_a_cancellation_is_killed_and_reaped(
    tmp_path: Path,
) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nsleep 1000 & wait\n")
    slow.chmod(0o755)
    assert await left_behind(partial(syntax_tree, "ls", slow)) == {}


async def test_missing_parser_returns_no_tree(tmp_path: Path) -> None:
    assert await syntax_tree("ls", tmp_path / "none") is None
    tree = await syntax_tree("ls")
    assert tree is not None
    assert json.loads(tree)["Stmts"][0]["Cmd"]["Type"] == "CallExpr"
