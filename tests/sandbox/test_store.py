import os
import stat
from pathlib import Path

import pytest

from cloister.core.errors import HostError
from cloister.sandbox.store.overlay import OverlayStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def store() -> OverlayStore:
    return OverlayStore("/usr/sbin:/usr/bin:/sbin:/bin")


async def test_a_new_root_is_empty_and_everyone_inside_may_pass_it(
    store: OverlayStore, tmp_path: Path
) -> None:
    old = os.umask(0o077)
    try:
        layers = await store.create(tmp_path / "template", tmp_path / "a")
    finally:
        os.umask(old)
    assert layers.lower == tmp_path / "template"
    assert list(layers.upper.iterdir()) == list(layers.work.iterdir()) == []
    assert stat.S_IMODE(layers.upper.stat().st_mode) == 0o755
    assert layers.upper.parent == layers.work.parent, "an overlay needs both on one mount"


async def test_a_fork_has_everything_and_shares_nothing(store: OverlayStore, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("whiteouts and the overlay's attributes need root")
    parent = await store.create(tmp_path / "template", tmp_path / "a")
    (parent.upper / "file").write_text("before")
    os.chown(parent.upper / "file", 1000, 1000)
    os.utime(parent.upper / "file", (1, 1))
    (parent.upper / "link").symlink_to("/etc/passwd")
    os.link(parent.upper / "file", parent.upper / "same")
    os.mknod(parent.upper / "deleted", 0o600 | stat.S_IFCHR, os.makedev(0, 0))
    (parent.upper / "opaque").mkdir(mode=0o711)
    os.setxattr(parent.upper / "opaque", "trusted.overlay.opaque", b"y")
    os.mkfifo(parent.upper / "pipe")
    (parent.work / "work").mkdir()

    child = await store.fork(parent, tmp_path / "b")

    (parent.upper / "file").write_text("after")
    assert (child.upper / "file").read_text() == "before"
    found = (child.upper / "file").stat()
    assert (found.st_uid, found.st_gid, found.st_mtime, found.st_nlink) == (1000, 1000, 1, 2)
    assert (child.upper / "link").readlink() == Path("/etc/passwd")
    assert (child.upper / "deleted").stat().st_rdev == 0 and (child.upper / "deleted").is_char_device()
    assert os.getxattr(child.upper / "opaque", "trusted.overlay.opaque") == b"y"
    assert stat.S_IMODE((child.upper / "opaque").stat().st_mode) == 0o711
    assert (child.upper / "pipe").is_fifo()
    assert child.lower == parent.lower
    assert list(child.work.iterdir()) == [], "the work directory belongs to one mount"


async def test_a_fork_of_nothing_says_why(store: OverlayStore, tmp_path: Path) -> None:
    parent = await store.create(tmp_path / "template", tmp_path / "a")
    await store.remove(tmp_path / "a")
    with pytest.raises(HostError) as refused:
        await store.fork(parent, tmp_path / "b")
    assert refused.value.code == "fork_failed"


async def test_removing_copes_with_what_a_guest_can_make(store: OverlayStore, tmp_path: Path) -> None:
    layers = await store.create(tmp_path / "template", tmp_path / "a")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (layers.upper / "link").symlink_to(outside)
    here = os.open(layers.upper, os.O_RDONLY)
    for _ in range(3_000):
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    (layers.upper / "-rf").touch()
    (layers.upper / "new\nline").touch()

    await store.remove(tmp_path / "a")
    await store.remove(tmp_path / "a")

    assert not (tmp_path / "a").exists()
    assert (outside / "precious").exists(), "links are removed, not followed"
