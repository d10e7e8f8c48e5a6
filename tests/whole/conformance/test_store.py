"""Every kind of store keeps the promises of a store, on real filesystems."""

import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest
from tests.whole.conformance.suites.store import PROMISES, Promise

from cloister.sandbox.store.btrfs import BtrfsStore
from cloister.sandbox.store.overlay import OverlayStore

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0, reason="stores need root"),
]

PATH = os.environ["PATH"]
KINDS = ("btrfs-loop", "btrfs", "reflink", "overlay")
MIB = 1024**2


@pytest.fixture
def on_btrfs(tmp_path: Path) -> Generator[Path]:
    """A directory on a small btrfs that counts what its subvolumes hold."""
    image, at = tmp_path / "disk", tmp_path / "mounted"
    with image.open("wb") as file:
        file.truncate(1024 * MIB)
    at.mkdir()
    try:
        subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(at)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no btrfs here: {error}")
    try:
        subprocess.run(["btrfs", "quota", "enable", str(at)], check=True, capture_output=True)
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("kind", KINDS)
async def test_the_store_keeps_the_promise(
    kind: str, promise: Promise, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    data_dir = tmp_path / "data"
    if kind in ("btrfs", "reflink"):
        data_dir = request.getfixturevalue("on_btrfs") / "data"
    data_dir.mkdir()
    work = tmp_path / "work"
    work.mkdir()

    def open_store() -> BtrfsStore | OverlayStore:
        match kind:
            case "btrfs-loop":
                return BtrfsStore(data_dir, PATH, native=False)
            case "btrfs":
                return BtrfsStore(data_dir, PATH, native=True)
            case _:
                return OverlayStore(data_dir, PATH, reflink=kind == "reflink")

    assert open_store().kind.split()[0].startswith(kind)
    with anyio.fail_after(120):
        await promise(open_store, work)
