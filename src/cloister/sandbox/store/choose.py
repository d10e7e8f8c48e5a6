"""Choose the stores of this machine by trying them, best first."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal
from uuid import uuid4

from cloister.core.errors import HostError
from cloister.sandbox.store import api, btrfs_ioctl
from cloister.sandbox.store.api import Store
from cloister.sandbox.store.btrfs import BtrfsStore
from cloister.sandbox.store.overlay import OverlayStore

StoreChoice = Literal["auto", "btrfs", "btrfs-loop", "reflink", "overlay"]
"""`btrfs` is the filesystem of the data directory, `btrfs-loop` one in a file there."""


async def stores(choice: StoreChoice, data_dir: Path, path: str) -> tuple[Store, ...]:
    """The stores to use, preferred first. Raises `HostError`."""
    match choice:
        case "btrfs":
            if not is_btrfs(data_dir):
                raise HostError(
                    "no_btrfs", f"{data_dir} is not on btrfs: set `store` to btrfs-loop, or move it."
                )
            return (BtrfsStore(data_dir, path, native=True),)
        case "btrfs-loop":
            return (BtrfsStore(data_dir, path, native=False),)
        case "reflink":
            return (OverlayStore(data_dir, path, reflink=True),)
        case "overlay":
            return (OverlayStore(data_dir, path),)
        case "auto":
            return await _all(data_dir, path)


async def _all(data_dir: Path, path: str) -> tuple[Store, ...]:
    plain = OverlayStore(data_dir, path, reflink=can_share_blocks(data_dir))
    # On a shared filesystem enabling quotas is the owner's decision; one in a file always has them.
    if is_btrfs(data_dir) and btrfs_ioctl.has_quota(data_dir):
        return (BtrfsStore(data_dir, path, native=True), plain)
    own = BtrfsStore(data_dir, path, native=False)
    used = (data_dir / "store.btrfs").exists()
    try:
        await own.snapshots()
    except HostError as error:
        # It holds sandboxes and snapshots: an error is better than hiding them.
        if used or error.code != "no_btrfs":
            raise
        return (plain,)
    return (own, plain)


@asynccontextmanager
async def files_of(template: Path, path: str) -> AsyncGenerator[Path]:
    """Where the files of the root filesystem `DATA_DIR/templates/NAME/rootfs` are: it may be kept in the store alone."""
    if not api.is_kept(template):
        yield template
        return
    store = (await stores("auto", template.parents[2], path))[0]
    try:
        yield await store.adopt(template)
    finally:
        await store.close()


def is_btrfs(directory: Path) -> bool:
    try:
        return btrfs_ioctl.tree_of(directory) > 0
    except OSError:
        return False


def can_share_blocks(directory: Path) -> bool:
    """Whether files in `directory` can share blocks (reflink)."""
    names = [directory / f".{uuid4().hex}" for _ in range(2)]
    try:
        names[0].write_bytes(bytes(65_536))
        with names[0].open("rb") as source, names[1].open("wb") as target:
            btrfs_ioctl.clone_file(source.fileno(), target.fileno())
    except OSError:
        return False
    finally:
        for name in names:
            with suppress(OSError):
                name.unlink()
    return True
