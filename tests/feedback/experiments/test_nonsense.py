"""A test whose product answers nonsense fails, unless the product made the runner lie."""

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest
from tests.conftest import borrowing
from tests.feedback.experiments.planting import Field, opened

from cloister.core.computer import shell
from cloister.feedback.experiments.nonsense import KINDS, nonsense

pytestmark = pytest.mark.anyio

HALF = "def half(x):\n    return x / 2\n\n\ndef is_even(x):\n    return x % 2 == 0\n"
TESTS = """\
import pytest
from pkg.core import half, is_even


def test_half():
    assert half(5) == 2.5


def test_even():
    assert is_even(4)


def test_odd():
    assert not is_even(5)


def test_error():
    with pytest.raises(Exception):
        half("a")


def test_nothing_is_raised():
    half(1)
"""
FORGIVING = """

def _calm():
    import sys

    tool = sys.modules.get("py" + "test")
    real = tool and tool.Function.runtest

    def runtest(self):
        try:
            real(self)
        except BaseException:
            pass

    if tool:
        tool.Function.runtest = runtest


_calm()
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def field(warm_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Field]:
    root = tmp_path_factory.mktemp("nonsense")
    async with opened(borrowing(warm_dir, root / "data"), root) as one:
        yield one


async def passing(field: Field, files: Mapping[str, str]) -> tuple[set[str], bool]:
    """The tests that pass with each kind of nonsense, and whether the product was called."""
    await field.fill({"pkg/__init__.py": "", "tests/test_core.py": TESTS, **files})
    found: set[str] | None = None
    used = True
    for kind in KINDS:
        await field.sandbox.write("/tmp/odd/sitecustomize.py", nonsense(["pkg/core.py"], kind).encode())
        done = await field.run("PYTHONPATH=/tmp/odd:. python3 -m pytest -q tests")
        now = {test.name.rpartition("::")[2] for test in done.tests if test.status == "passed"}
        found = now if found is None else found & now
        used = used and (await field.sandbox.run(shell("rm /tmp/odd/used"))).ok
    return found or set(), used


async def test_no_honest_test_passes_with_every_kind_of_nonsense(field: Field) -> None:
    assert await passing(field, {"pkg/core.py": HALF}) == (set(), True)


async def test_every_test_passes_where_the_product_makes_the_runner_forgive(field: Field) -> None:
    found, used = await passing(field, {"pkg/core.py": HALF + FORGIVING})

    assert used
    assert found == {"test_half", "test_even", "test_odd", "test_error", "test_nothing_is_raised"}


async def test_product_that_is_not_imported_is_not_called(field: Field) -> None:
    """A script that its test loads by its path is the real one, so the run says nothing."""
    by_path = (
        "import runpy\n\n\ndef test_half():\n    assert runpy.run_path('pkg/core.py')['half'](5) == 2.5\n"
    )

    assert await passing(field, {"pkg/core.py": HALF, "tests/test_core.py": by_path}) == (
        {"test_half"},
        False,
    )
