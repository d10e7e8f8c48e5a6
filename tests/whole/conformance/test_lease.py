import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.log.jetstream.servers import NatsServer, one_server
from tests.log.jetstream.test_leases import TERMS, WAIT_SECONDS, holder
from tests.whole.conformance.suites.forge import (
    LEASE_PROMISES,
    REPOSITORIES_PROMISES,
    LeasePromise,
    RepositoriesPromise,
)

from cloister.core.ids import Lease, OwnerId
from cloister.forge.api import RunRepositories
from cloister.forge.host import LocalRepositories, ensure_bare
from cloister.log.jetstream.leases import open_leases
from cloister.log.jetstream.link import Cluster, open_link
from cloister.log.jetstream.objects import Objects, open_objects
from cloister.log.jetstream.run_files import SharedRepositories
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


class StreamRig:
    """Users with a connection of their own; a killed process holds its owner until its lease has run out."""

    def __init__(self, server: NatsServer, opened: ExitStack) -> None:
        self._server = server
        self._opened = opened

    def open(self) -> Lease:
        return self._opened.enter_context(open_leases(Cluster((self._server.url,)), TERMS))

    @contextmanager
    def held_elsewhere(self, owner: OwnerId) -> Generator[Callable[[], None]]:
        watcher = self.open()
        with holder(self._server.url, owner) as other:

            def kill() -> None:
                other.process.kill()
                other.process.wait(10)
                deadline = time.monotonic() + WAIT_SECONDS
                while watcher.lives(owner) and time.monotonic() < deadline:
                    time.sleep(0.05)

            yield kill


class LocalRig:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self) -> RunRepositories:
        return LocalRepositories(self._directory)


class SharedRig:
    """Two users on one machine of a cluster."""

    def __init__(self, directory: Path, objects: Objects) -> None:
        self._directory = directory
        self._objects = objects

    def open(self) -> RunRepositories:
        local = LocalRepositories(self._directory)
        return SharedRepositories(local, self._directory / "runs", self._objects, ensure_bare)


@pytest.mark.parametrize("promise", LEASE_PROMISES, ids=lambda promise: promise.__name__)
def test_owners_keep_the_promise(promise: LeasePromise, tmp_path: Path) -> None:
    promise(OwnersRig(tmp_path))


@pytest.mark.parametrize("promise", LEASE_PROMISES, ids=lambda promise: promise.__name__)
def test_leases_of_a_cluster_keep_the_promise(promise: LeasePromise, tmp_path: Path) -> None:
    with one_server(tmp_path / "nats") as server, ExitStack() as opened:
        promise(StreamRig(server, opened))


@pytest.mark.parametrize("promise", REPOSITORIES_PROMISES, ids=lambda promise: promise.__name__)
async def test_local_repositories_keep_the_promise(promise: RepositoriesPromise, tmp_path: Path) -> None:
    await promise(LocalRig(tmp_path))


@pytest.mark.parametrize("promise", REPOSITORIES_PROMISES, ids=lambda promise: promise.__name__)
async def test_shared_repositories_keep_the_promise(promise: RepositoriesPromise, tmp_path: Path) -> None:
    with one_server(tmp_path / "nats") as server:
        async with AsyncExitStack() as opened:
            link = await opened.enter_async_context(open_link(Cluster((server.url,))))
            await promise(SharedRig(tmp_path / "data", await open_objects(link)))
