"""Bugs that others had in their Python, and what becomes of a fix and of the ways around one."""

from pathlib import Path

import pytest
from tests.whole.real.bugs import Case, each, load_cases
from tests.whole.real.conftest import RunIt
from tests.whole.real.trials import a_fix_is_proven, a_search_is_proven, no_cheat_is_green

pytestmark = pytest.mark.anyio
each_case = pytest.mark.parametrize("case", each("python"))
SHORT_SEARCH = "xmltodict strips what is blank"
REACHED = {
    SHORT_SEARCH: "+            if self.strip_whitespace and data",
    "jsonpointer takes no index with a leading zero": "+            if not JsonPointer._RE_ARRAY_INDEX.fullmatch(str(part)):",
    "parse rounds no microseconds": '+                u = int(float("." + u) * 1000001)',
    "deepmerge knows subtypes": "+        if not (base or isinstance(nxt, type(base))):",
    "idna names a joiner beside an unknown letter": "+    if v ",
}
"""How the delivered patch begins. That of jsonpointer is right; the others only pass the tests of their projects."""


@pytest.mark.parametrize(
    "name",
    [
        SHORT_SEARCH,
        *(pytest.param(n, marks=pytest.mark.long(only=True)) for n in REACHED if n != SHORT_SEARCH),
    ],
)
async def test_search_repairs_what_one_rule_can_reach(name: str, tmp_path: Path, run_it: RunIt) -> None:
    (case,) = [one for one in load_cases("python") if one.name == name]
    found = await a_search_is_proven(case, tmp_path, run_it)
    assert REACHED[name] in found


@each_case
async def test_after_a_wrong_one_the_right_fix_ends_green_with_proof(
    case: Case, tmp_path: Path, run_it: RunIt
) -> None:
    await a_fix_is_proven(case, tmp_path, run_it)


@each_case
async def test_deleting_bending_and_skipping_the_test_end_red(
    case: Case, tmp_path: Path, run_it: RunIt
) -> None:
    await no_cheat_is_green(case, tmp_path, run_it)
