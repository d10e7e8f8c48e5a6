"""One app for the real bugs of a file, and one template for all of them, which is kept between test sessions."""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from tests.conftest import PATH
from tests.whole.real.sources import CACHE

from cloister.app.settings import read_settings
from cloister.app.tokens import Caller
from cloister.app.verbs.local import LocalVerbs
from cloister.app.wiring import open_app
from cloister.core.errors import HostError
from cloister.core.events import Event
from cloister.core.requests import NewRun
from cloister.sandbox.templates.catalog import Templates
from cloister.sandbox.templates.recipes import Packages

pytest.register_assert_rewrite("tests.real.trials")

TEMPLATE = "tools"
PACKAGES = (
    *("python3", "python3-pytest", "git", "ripgrep", "nodejs", "node-tape", "gcc", "libc6-dev"),
    *("openjdk-17-jdk-headless", "junit5", "libcommons-lang3-java"),
    *("node-typescript", "ts-node", "mocha", "chai", "jest"),
    *("make", "golang-go", "rustc", "cargo", "cmake", "ava", "python3-pytest-rerunfailures"),
)

RunIt = Callable[[NewRun], Awaitable[tuple[Event, ...]]]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def build_template() -> Path:
    """The directory with a template that has the tools of all test runners. Raises `HostError`."""
    templates = Templates(CACHE / "templates", PATH)

    async def prepare() -> None:
        templates.keep_recipe(TEMPLATE, Packages(PACKAGES))
        await templates.prepare(TEMPLATE, lambda fraction, note: None)

    anyio.run(prepare)
    return CACHE / "templates"


@pytest.fixture(scope="session")
def real_templates() -> Path:
    """The directory with a template that has what the projects' tests need."""
    try:
        return build_template()
    except HostError as error:
        pytest.skip(f"no template for the real bugs ({error.code}): {error.message}")


@pytest.fixture(scope="module")
async def run_it(
    warm_dir: Path, real_templates: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[RunIt]:
    """Hands a run in, as the command does, and gives everything that was logged of it."""
    directory = tmp_path_factory.mktemp("real") / "data"
    directory.mkdir(mode=0o700)
    for name in ("programs", "runtimes.json", "store.btrfs"):
        if (warm_dir / name).exists():
            (directory / name).symlink_to(warm_dir / name)
    (directory / "templates").symlink_to(real_templates)
    settings = read_settings({**os.environ, "CLOISTER_MODEL": ""}, data_dir=directory)
    async with open_app(settings, role="embedded") as app:

        async def run(new: NewRun) -> tuple[Event, ...]:
            number = (await LocalVerbs(app, Caller("tester", "admin")).runs.submit(new)).id
            with anyio.fail_after(300):
                async with app.backbone.follow(number) as items:
                    return tuple([item async for item in items if isinstance(item, Event)])

        yield run
