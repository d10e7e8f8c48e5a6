import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.whole.conformance.suites.forge import (
    LEASE_PROMISES,
    REPOSITORIES_PROMISES,
    LeasePromise,
    RepositoriesPromise,
)

from cloister.core.ids import Lease, OwnerId
from cloister.forge.api import RunRepositories
from cloister.forge.host import LocalRepositories
from cloister.sandbox.liveness import Owners

pytestmark = pytest.mark.anyio

HOLDER = """
import sys
from pathlib import Path
from cloister.core.ids import OwnerId
from cloister.sandbox.liveness import Owners

with Owners(Path(sys.argv[1])).hold(OwnerId(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""


class OwnersRig:
    def __init__(self, directory: Path) -> None:
        self._directory = directory / "owners"

    def open(self) -> Lease:
        return Owners(self._directory, patience_seconds=0.01)

    @contextmanager
    def held_elsewhere(self, owner: OwnerId) -> Generator[Callable[[], None]]:
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(self._directory), owner],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"

            def kill() -> None:
                holder.kill()
                holder.wait(10)

            yield kill


class LocalRig:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self) -> RunRepositories:
        return LocalRepositories(self._directory)


@pytest.mark.parametrize("promise", LEASE_PROMISES, ids=lambda promise: promise.__name__)
def test_owners_keep_the_promise(promise: LeasePromise, tmp_path: Path) -> None:
    promise(OwnersRig(tmp_path))


@pytest.mark.parametrize("promise", REPOSITORIES_PROMISES, ids=lambda promise: promise.__name__)
async def test_local_repositories_keep_the_promise(promise: RepositoriesPromise, tmp_path: Path) -> None:
    await promise(LocalRig(tmp_path))
