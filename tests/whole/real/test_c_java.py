"""Bugs that others had in their C and Java, and what becomes of a fix and of the ways around one."""

from pathlib import Path

import pytest
from tests.whole.real.bugs import Case, each
from tests.whole.real.conftest import RunIt
from tests.whole.real.trials import a_fix_is_proven, no_cheat_is_green

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("case", each("c", "java")),
]


async def test_after_a_wrong_one_the_right_fix_ends_green_with_proof(
    case: Case, tmp_path: Path, run_it: RunIt
) -> None:
    await a_fix_is_proven(case, tmp_path, run_it)


async def test_deleting_bending_and_skipping_the_test_end_red(
    case: Case, tmp_path: Path, run_it: RunIt
) -> None:
    await no_cheat_is_green(case, tmp_path, run_it)
