"""The btrfs in a file: as large as the disk allows, and larger when it must be."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from cloister.core.errors import HostError
from cloister.sandbox.store import api
from cloister.sandbox.store.loop_file import LOW_BYTES, Image, Mounted

pytestmark = pytest.mark.anyio

GIB = 1024**3


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store" / "store.btrfs"


@pytest.fixture
def opened() -> Generator[list[Mounted]]:
    """What was mounted is let go of."""
    mounted: list[Mounted] = []
    yield mounted
    for one in mounted:
        one.close()


def size_of(mounted: Mounted) -> int:
    found = os.statvfs(mounted.top)
    return found.f_blocks * found.f_frsize


async def test_a_store_grows_while_it_is_used_once_the_disk_has_room(
    place: Path, opened: list[Mounted], host: object
) -> None:
    del host  # skips where there is no root and no loop device
    room = api.free(place.parent)
    if room < 24 * GIB:
        pytest.skip("a store that grows needs 24 GiB of free disk")
    crowded = Image(place, os.environ["PATH"], floor=room - 4 * GIB)
    mounted = await crowded.open()
    opened.append(mounted)
    small = size_of(mounted)
    assert small <= 5 * GIB
    assert not crowded.needs_growth(mounted)
    kept = mounted.top / "kept"
    kept.write_bytes(b"before it grew" * 100_000)

    roomy = Image(place, os.environ["PATH"], floor=GIB)
    with kept.open("rb") as reading:
        assert roomy.needs_growth(mounted)
        assert await roomy.grow(mounted)
        assert size_of(mounted) >= small + LOW_BYTES // 2
        assert reading.read() == b"before it grew" * 100_000
    assert not roomy.needs_growth(mounted)


async def test_a_full_disk_is_an_error_and_leaves_no_file(place: Path, host: object) -> None:
    del host
    with pytest.raises(HostError, match="GiB are free") as caught:
        await Image(place, os.environ["PATH"], floor=api.free(place.parent)).open()
    assert caught.value.code == "no_disk"
    assert [path.name for path in place.parent.iterdir()] == [".store.btrfs.lock"]
