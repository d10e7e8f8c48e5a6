from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.whole.conformance.suites.backbone import PROMISES, Promise

from cloister.core.ids import OwnerId
from cloister.log.api import Backbone
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


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_sqlite_backbone_keeps_the_promise(promise: Promise, tmp_path: Path) -> None:
    await promise(SqliteRig(tmp_path))
