"""The excerpt shown when the text to replace is not in the file, and the numbers of lines."""

from pathlib import Path

import pytest
from tests.agent.loop_bench import open_bench

from cloister.agent.tools.files import READ, nearest

TILL = '''\
"""The till."""


def total(prices):
    """What a customer has to pay."""
    result = 0
    for price in prices:
        result = price
    return result


def change(prices, paid):
    return paid - total(prices)
'''


@pytest.mark.parametrize(
    "meant",
    [
        "def total(prices):\n    result = 0\n    for price in prices:\n        result = price\n    return result",
        "  def total(prices):\n      result = 1\n      for price in prices:\n",
        "for price in prices:\n    result = price",
    ],
    ids=["a line left out", "wrong indentation", "no indentation"],
)
def test_excerpt_shows_the_intended_place(meant: str) -> None:
    shown = nearest(meant, TILL)
    assert "    for price in prices:\n        result = price\n" in shown
    assert shown in TILL


def test_excerpt_is_empty_without_a_similar_line() -> None:
    assert nearest("def tax(amount):\n\n\n", TILL) == ""
    assert nearest("x", "") == ""


def test_excerpt_is_short_and_fast_for_large_files() -> None:
    same = "x = 1\n" * 200_000
    assert len(nearest("x = 1\ny = 2\n" * 2_000, same)) < 2_500


@pytest.mark.anyio
async def test_lines_are_numbered_as_compilers_and_git_count_them(tmp_path: Path) -> None:
    bench = await open_bench(tmp_path, {"odd.py": "one\r\n\x0ctwo\u2028two\x85two\nthree\n"})
    shown = await READ.run(bench.computer, READ.args(path="odd.py"), lambda stream, data: None)
    assert [line[:7] for line in shown.text.split("\n")] == ["     1\t", "     2\t", "     3\t"]
    assert shown.text.endswith("\tthree")
