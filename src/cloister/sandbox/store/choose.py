"""Which stores this machine can have, the best first. What cannot be had is tried, not guessed."""

from contextlib import suppress
from pathlib import Path
from typing import Literal
from uuid import uuid4

from cloister.core.errors import HostError
from cloister.sandbox.store import btrfs_ioctl
from cloister.sandbox.store.api import Store
from cloister.sandbox.store.btrfs import BtrfsStore
from cloister.sandbox.store.overlay import OverlayStore

StoreChoice = Literal["auto", "btrfs", "btrfs-loop", "reflink", "overlay"]
"""`btrfs` is the data directory's own filesystem, `btrfs-loop` one in a file there."""


async def stores(choice: StoreChoice, data_dir: Path, path: str) -> tuple[Store, ...]:
    """The stores to use, in the order of preference; all of them have been opened once. Raises `HostError`."""
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
    # Counting is the owner's decision on a filesystem that is not ours alone; one in a file has limits always.
    if is_btrfs(data_dir) and btrfs_ioctl.has_quota(data_dir):
        return (BtrfsStore(data_dir, path, native=True), plain)
    own = BtrfsStore(data_dir, path, native=False)
    used = (data_dir / "store.btrfs").exists()
    try:
        await own.snapshots()
    except HostError as error:
        # Sandboxes and snapshots are in it: not to see them would be worse than to stop.
        if used or error.code != "no_btrfs":
            raise
        return (plain,)
    return (own, plain)


def is_btrfs(directory: Path) -> bool:
    """Whether `directory` is on btrfs: only that answers."""
    try:
        return btrfs_ioctl.tree_of(directory) > 0
    except OSError:
        return False


def can_share_blocks(directory: Path) -> bool:
    """Whether two files in `directory` can be one on disk until one is written."""
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
