import os
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process

from cloister.core import limits
from cloister.core.computer import Entry
from cloister.core.errors import UserError
from cloister.sandbox.protocol.link import Link

pytestmark = pytest.mark.anyio

OpenGuest = Callable[..., AbstractAsyncContextManager[tuple[Link, Process]]]
SELF = "--no-user-switch"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="switching users needs root")


async def code_of(wait: Callable[[], object]) -> str:
    with anyio.fail_after(20), pytest.raises(UserError) as caught:
        await wait()  # type: ignore[misc]
    return caught.value.code


async def test_written_files_are_read_back_whole_or_in_part(open_guest: OpenGuest, tmp_path: Path) -> None:
    data = os.urandom(1_500_000)
    path = f"{tmp_path}/new/deep/file"
    async with open_guest(SELF) as (link, _):
        await link.write(path, data, mode=0o750)
        assert await link.read(path) == data
        assert await link.read(path, offset=1_000_000, limit_bytes=17) == data[1_000_000:1_000_017]
        assert await link.read(path, offset=2_000_000) == b""
        assert await link.read(path, limit_bytes=0) == b""
        await link.write(path, b"")
        assert await link.read(path) == b""
    assert [name.name for name in (tmp_path / "new/deep").iterdir()] == ["file"]


async def test_the_mode_of_a_file_is_the_one_asked_for(open_guest: OpenGuest, tmp_path: Path) -> None:
    async with open_guest(SELF) as (link, _):
        await link.write(f"{tmp_path}/program", b"x", mode=0o755)
        await link.write(f"{tmp_path}/secret", b"x", mode=0o600)
        entries = await link.list(str(tmp_path))
    assert [(entry.name, entry.mode) for entry in entries] == [("program", 0o755), ("secret", 0o600)]


async def test_writing_through_a_link_keeps_the_link(open_guest: OpenGuest, tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    async with open_guest(SELF) as (link, _):
        await link.write(f"{tmp_path}/link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


async def test_a_directory_listing_has_the_kind_of_each_name(open_guest: OpenGuest, tmp_path: Path) -> None:
    (tmp_path / "b").write_text("four")
    (tmp_path / "b").chmod(0o640)
    os.utime(tmp_path / "b", (1, 1_700_000_000.25))
    (tmp_path / "a").mkdir(mode=0o700)
    (tmp_path / "c").symlink_to("nowhere")
    os.mkfifo(tmp_path / "d")
    async with open_guest(SELF) as (link, _):
        entries = await link.list(str(tmp_path))
        assert await link.list(f"{tmp_path}/a") == ()
    assert [(entry.name, entry.kind) for entry in entries] == [
        ("a", "dir"),
        ("b", "file"),
        ("c", "link"),
        ("d", "other"),
    ]
    assert entries[1] == Entry("b", "file", 4, 0o640, 1_700_000_000.25)


async def test_ten_thousand_names_are_listed(open_guest: OpenGuest, tmp_path: Path) -> None:
    for number in range(10_000):
        (tmp_path / f"name-{number:05}").touch()
    async with open_guest(SELF) as (link, _):
        entries = await link.list(str(tmp_path))
    assert [entry.name for entry in entries] == [f"name-{number:05}" for number in range(10_000)]


async def test_a_missing_file_is_not_found(open_guest: OpenGuest, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with open_guest(SELF) as (link, _):
        assert await code_of(lambda: link.read(f"{tmp_path}/none")) == "not_found"
        assert await code_of(lambda: link.read(f"{tmp_path}/file/below")) == "not_found"
        assert await code_of(lambda: link.list(f"{tmp_path}/none")) == "not_found"
        assert await code_of(lambda: link.read("")) == "not_found"
        assert await code_of(lambda: link.read("x" * 5_000)) == "not_found"


async def test_an_irregular_file_is_refused_and_nothing_hangs(open_guest: OpenGuest, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        async with open_guest(SELF) as (link, _):
            for name in (str(tmp_path), f"{tmp_path}/pipe", f"{tmp_path}/socket", "/dev/zero"):
                assert await code_of(lambda name=name: link.read(name)) == "not_a_file"
                assert await code_of(lambda name=name: link.write(name, b"x")) == "not_a_file"
            assert await code_of(lambda: link.write(f"{tmp_path}/new/", b"x")) == "not_a_file"
            assert await code_of(lambda: link.list(f"{tmp_path}/pipe")) == "not_a_directory"


async def test_a_file_in_the_way_of_a_directory_is_said_so(open_guest: OpenGuest, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with open_guest(SELF) as (link, _):
        assert await code_of(lambda: link.write(f"{tmp_path}/file/below", b"x")) == "file_failed"
        assert await code_of(lambda: link.list(f"{tmp_path}/file")) == "not_a_directory"


async def test_a_range_that_cannot_be_is_a_user_error(open_guest: OpenGuest) -> None:
    async with open_guest(SELF) as (link, _):
        assert await code_of(lambda: link.read("/etc/passwd", offset=-1)) == "file_failed"
        assert (
            await code_of(lambda: link.read("/etc/passwd", limit_bytes=limits.FILE_BYTES + 1))
            == "file_failed"
        )


@needs_root
async def test_files_are_touched_with_the_rights_of_the_agent(open_guest: OpenGuest) -> None:
    async with open_guest() as (link, _):
        assert await code_of(lambda: link.read("/etc/shadow")) == "denied"
        assert await code_of(lambda: link.write("/etc/hosts", b"x")) == "denied"
        assert await code_of(lambda: link.write("/etc/new-file", b"x")) == "denied"
        assert await code_of(lambda: link.list("/root")) == "denied"


@needs_root
async def test_a_full_disk_is_said_and_leaves_the_old_file(open_guest: OpenGuest, tmp_path: Path) -> None:
    small = f'mount -t tmpfs -o size=64k none {tmp_path} && exec "$0" "$@"'
    async with open_guest(SELF, within=("unshare", "-m", "/bin/sh", "-c", small)) as (link, _):
        await link.write(f"{tmp_path}/file", b"old")
        assert await code_of(lambda: link.write(f"{tmp_path}/file", bytes(1_000_000))) == "file_failed"
        assert await link.read(f"{tmp_path}/file") == b"old"
        assert [entry.name for entry in await link.list(str(tmp_path))] == ["file"]


async def test_a_write_that_is_cancelled_leaves_the_old_file_and_nothing_else(
    open_guest: OpenGuest, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("old")
    async with open_guest(SELF) as (link, _):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await link.write(f"{tmp_path}/file", bytes(2_000_000))
        assert [entry.name for entry in await link.list(str(tmp_path))] == ["file"]
        assert await link.read(f"{tmp_path}/file") == b"old"
