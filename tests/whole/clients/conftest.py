"""One server, as `cloister serve --background` starts it, for the tests of a module."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import borrowing
from tests.whole.e2e.conftest import Cloister

from cloister import Client


@pytest.fixture(scope="module")
def command(warm_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloister]:
    cwd = tmp_path_factory.mktemp("client")
    made = Cloister(borrowing(warm_dir, cwd / "data"), cwd)
    (made.data_dir / "config.toml").write_text("port = 0\n")
    made("serve", "--background")
    yield made
    made("serve", "--stop")


@pytest.fixture
def client(command: Cloister) -> Client:
    return Client(data_dir=command.data_dir)
