from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from tests.log.jetstream.servers import one_server
from tests.whole.conformance.suites.backbone import PROMISES, Promise

from cloister.core.ids import OwnerId
from cloister.log.api import Backbone
from cloister.log.jetstream import backbone as jetstream
from cloister.log.jetstream.link import Cluster, open_link
from cloister.log.sqlite.backbone import open_backbone

pytestmark = pytest.mark.anyio


class SqliteRig:
    def __init__(self, directory: Path) -> None:
        self._path = directory / "log.db"
        self._dead: set[OwnerId] = set()

    def open(self) -> AbstractAsyncContextManager[Backbone]:
        return open_backbone(self._path, owner_lives=lambda owner: owner not in self._dead)

    def bury(self, owner: OwnerId) -> None:
        self._dead.add(owner)


class JetStreamRig:
    """Each user has a connection and a copy of its own, as another machine would."""

    def __init__(self, directory: Path, cluster: Cluster) -> None:
        self._directory = directory
        self._cluster = cluster
        self._copies = 0
        self._dead: set[OwnerId] = set()

    def open(self) -> AbstractAsyncContextManager[Backbone]:
        self._copies += 1
        return self._opened(self._directory / f"copy{self._copies}.db")

    @asynccontextmanager
    async def _opened(self, path: Path) -> AsyncGenerator[Backbone]:
        async with (
            open_link(self._cluster) as link,
            jetstream.open_backbone(
                link, path, owner_lives=lambda owner: owner not in self._dead
            ) as backbone,
        ):
            yield backbone

    def bury(self, owner: OwnerId) -> None:
        self._dead.add(owner)


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with one_server(tmp_path_factory.mktemp("nats")) as server:
        yield server.url


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_sqlite_backbone_keeps_the_promise(promise: Promise, tmp_path: Path) -> None:
    await promise(SqliteRig(tmp_path))


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_jetstream_backbone_keeps_the_promise(promise: Promise, tmp_path: Path, nats: str) -> None:
    name = f"c{PROMISES.index(promise)}"  # an empty store on the same server
    await promise(JetStreamRig(tmp_path, Cluster((nats,), name)))
