"""Sandboxes for canaries: one for the tests of each file."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.conftest import borrowing
from tests.feedback.experiments.planting import Field, opened
from tests.whole.real.conftest import TEMPLATE, real_templates

__all__ = ["real_templates"]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def field(warm_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Field]:
    """A sandbox with Python only."""
    root = tmp_path_factory.mktemp("canaries")
    async with opened(borrowing(warm_dir, root / "data"), root) as one:
        yield one


@pytest.fixture(scope="module")
async def wide_field(
    warm_dir: Path, real_templates: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Field]:
    """A sandbox with the runners of other languages."""
    root = tmp_path_factory.mktemp("canaries")
    directory = root / "data"
    directory.mkdir(mode=0o700)
    for name in ("programs", "runtimes.json", "store.btrfs"):
        if (warm_dir / name).exists():
            (directory / name).symlink_to(warm_dir / name)
    (directory / "templates").symlink_to(real_templates)
    async with opened(directory, root, TEMPLATE) as one:
        yield one
