"""Names, streams, changes and archives, through a real guest."""

import io
import os
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process

from cloister.core.computer import Change, shell
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


async def whole(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_a_name_is_looked_at_and_a_link_is_not_followed(open_guest: OpenGuest, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    async with open_guest(SELF) as (link, _):
        entry = await link.stat(f"{tmp_path}/file")
        assert (entry.name, entry.kind, entry.size, entry.mode) == ("file", "file", 5, 0o644)
        assert entry.modified == pytest.approx((tmp_path / "file").stat().st_mtime, abs=0.01)  # type: ignore[reportUnknownMemberType]
        kinds = [(await link.stat(f"{tmp_path}/{name}")).kind for name in ("link", "pipe", ".")]
        assert kinds == ["link", "other", "dir"]
        assert (await link.stat("/")).kind == "dir"
        assert await code_of(lambda: link.stat(f"{tmp_path}/none")) == "not_found"
        assert await code_of(lambda: link.stat("x" * 5_000)) == "not_found"


async def test_directories_are_made_with_their_parents(open_guest: OpenGuest, tmp_path: Path) -> None:
    async with open_guest(SELF) as (link, _):
        await link.mkdir(f"{tmp_path}/a/b/c", mode=0o700)
        await link.mkdir(f"{tmp_path}/a/b/c")
        assert (tmp_path / "a/b/c").stat().st_mode & 0o777 == 0o700
        (tmp_path / "file").touch()
        assert await code_of(lambda: link.mkdir(f"{tmp_path}/file")) == "not_a_directory"
        assert await code_of(lambda: link.mkdir(f"{tmp_path}/file/below")) == "file_failed"


async def test_moving_gives_another_name_and_makes_directories(open_guest: OpenGuest, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")
    (tmp_path / "two").write_text("2")
    (tmp_path / "dir" / "full").mkdir(parents=True)
    async with open_guest(SELF) as (link, _):
        await link.move(f"{tmp_path}/one", f"{tmp_path}/new/place/one")
        await link.move(f"{tmp_path}/two", f"{tmp_path}/new/place/one")
        assert (tmp_path / "new/place/one").read_text() == "2"
        await link.move(f"{tmp_path}/new", f"{tmp_path}/newer")
        assert names(tmp_path) == ["dir", "newer"]
        assert await code_of(lambda: link.move(f"{tmp_path}/none", f"{tmp_path}/x")) == "not_found"
        assert await code_of(lambda: link.move(f"{tmp_path}/newer", f"{tmp_path}/dir")) == "file_failed"
        assert await code_of(lambda: link.move(f"{tmp_path}/dir", f"{tmp_path}/dir/full/x")) == "file_failed"


@needs_root
async def test_moving_to_another_file_system_copies(open_guest: OpenGuest, tmp_path: Path) -> None:
    (tmp_path / "tree" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "below" / "file").write_text("kept")
    (tmp_path / "other").mkdir()
    other = f'mount -t tmpfs none {tmp_path}/other && exec "$0" "$@"'
    async with open_guest(SELF, within=("unshare", "-m", "/bin/sh", "-c", other)) as (link, _):
        await link.move(f"{tmp_path}/tree", f"{tmp_path}/other/tree")
        assert await link.read(f"{tmp_path}/other/tree/below/file") == b"kept"
        assert [entry.name for entry in await link.list(str(tmp_path))] == ["other"]


async def test_removing_takes_the_named_path_and_follows_no_link(
    open_guest: OpenGuest, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    (tmp_path / "tree" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "below" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "tree" / "file").touch()
    os.mkfifo(tmp_path / "tree" / "pipe")
    (tmp_path / "link").symlink_to("outside")
    async with open_guest(SELF) as (link, _):
        assert await code_of(lambda: link.remove(f"{tmp_path}/tree")) == "file_failed"
        await link.remove(f"{tmp_path}/tree", recursive=True)
        await link.remove(f"{tmp_path}/link", recursive=True)
        assert names(tmp_path) == ["outside"]
        assert names(tmp_path / "outside") == ["kept"]
        assert await code_of(lambda: link.remove(f"{tmp_path}/tree", recursive=True)) == "not_found"


async def test_no_depth_is_too_great_to_be_removed(open_guest: OpenGuest, tmp_path: Path) -> None:
    async with open_guest(SELF) as (link, _):
        deep = "for i in $(seq 400); do mkdir a_directory_with_a_name && cd a_directory_with_a_name; done"
        assert (await link.run(shell(deep, cwd=str(tmp_path)))).ok
        await link.remove(f"{tmp_path}/a_directory_with_a_name", recursive=True)
    assert names(tmp_path) == []


@needs_root
async def test_the_agents_rights_hold_for_names_too(open_guest: OpenGuest) -> None:
    async with open_guest() as (link, _):
        assert await code_of(lambda: link.remove("/etc/passwd")) == "denied"
        assert await code_of(lambda: link.remove("/root", recursive=True)) == "denied"
        assert await code_of(lambda: link.mkdir("/etc/new")) == "denied"
        assert await code_of(lambda: link.move("/etc/passwd", "/tmp/taken-away")) == "denied"
        assert await code_of(lambda: open_watch(link, "/root")) == "denied"


async def test_a_stream_is_read_as_it_is_taken(open_guest: OpenGuest, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(data)
    (tmp_path / "empty").touch()
    async with open_guest(SELF) as (link, _):
        async with link.read_stream(f"{tmp_path}/file") as pieces:
            assert await whole(pieces) == data
        async with link.read_stream(f"{tmp_path}/file", offset=7, limit_bytes=9) as pieces:
            assert await whole(pieces) == data[7:16]
        async with link.read_stream(f"{tmp_path}/empty") as pieces:
            assert await whole(pieces) == b""
        async with link.read_stream(f"{tmp_path}/file") as pieces:
            assert data.startswith(await anext(pieces))
        # Left in the middle: nothing of it holds up what comes next.
        assert await link.read(f"{tmp_path}/empty") == b""


async def open_read(link: Link, path: str) -> None:
    async with link.read_stream(path):
        raise AssertionError("it was opened")


async def open_watch(link: Link, path: str) -> None:
    async with link.watch(path):
        raise AssertionError("it was opened")


async def test_a_stream_that_cannot_be_read_says_so_before_it_begins(
    open_guest: OpenGuest, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    async with open_guest(SELF) as (link, _):
        assert await code_of(lambda: open_read(link, f"{tmp_path}/none")) == "not_found"
        for path in (f"{tmp_path}/pipe", str(tmp_path), "/dev/zero"):
            assert await code_of(lambda path=path: open_read(link, path)) == "not_a_file"


async def test_a_stream_is_a_file_when_the_block_ends_well(open_guest: OpenGuest, tmp_path: Path) -> None:
    piece = os.urandom(500_000)
    path = f"{tmp_path}/new/file"
    async with open_guest(SELF) as (link, _), link.write_stream(path, mode=0o600) as sink:
        for _ in range(4):
            await sink.send(piece)
        assert not (tmp_path / "new/file").exists()
    assert (tmp_path / "new/file").read_bytes() == piece * 4
    assert (tmp_path / "new/file").stat().st_mode & 0o777 == 0o600


async def test_a_stream_that_breaks_off_leaves_the_old_file_and_nothing_else(
    open_guest: OpenGuest, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("old")
    async with open_guest(SELF) as (link, _):
        with pytest.raises(KeyError):
            async with link.write_stream(f"{tmp_path}/file") as sink:
                await sink.send(b"half of it")
                raise KeyError
        assert (tmp_path / "file").read_text() == "old"
        assert names(tmp_path) == ["file"]


async def write_on(link: Link, path: str) -> None:
    async with link.write_stream(path) as sink:
        for _ in range(1_000):
            await sink.send(bytes(100_000))


async def test_a_stream_that_cannot_be_written_says_so_while_it_is_sent(
    open_guest: OpenGuest, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    async with open_guest(SELF) as (link, _):
        assert await code_of(lambda: write_on(link, f"{tmp_path}/file/below")) == "file_failed"
        assert await code_of(lambda: write_on(link, "/dev/null")) == "not_a_file"


async def told(changes: AsyncIterator[Change], wanted: Change) -> list[Change]:
    seen: list[Change] = []
    with anyio.fail_after(20):
        while wanted not in seen:
            seen.append(await anext(changes))
    return seen


async def test_changes_below_a_directory_are_reported(open_guest: OpenGuest, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    async with open_guest(SELF) as (link, _), link.watch(str(tmp_path)) as changes:
        (tmp_path / "file").write_text("1")
        assert (await told(changes, Change("changed", "file")))[0] == Change("created", "file")
        (tmp_path / "old" / "below").touch()
        await told(changes, Change("created", "old/below"))
        (tmp_path / "new" / "deep").mkdir(parents=True)
        await told(changes, Change("created", "new/deep"))
        (tmp_path / "new" / "deep" / "file").touch()
        await told(changes, Change("created", "new/deep/file"))
        (tmp_path / "new").rename(tmp_path / "newer")
        await told(changes, Change("removed", "new"))
        await told(changes, Change("created", "newer"))
        (tmp_path / "newer" / "deep" / "more").touch()
        await told(changes, Change("created", "newer/deep/more"))
        (tmp_path / "file").unlink()
        await told(changes, Change("removed", "file"))


async def test_a_watch_ends_with_its_directory(open_guest: OpenGuest, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()
    async with open_guest(SELF) as (link, _):
        async with link.watch(f"{tmp_path}/dir") as changes:
            (tmp_path / "dir").rmdir()
            with anyio.fail_after(20):
                assert [change async for change in changes] == []
        assert await code_of(lambda: open_watch(link, f"{tmp_path}/dir")) == "not_found"
        assert await code_of(lambda: open_watch(link, f"{tmp_path}/file")) == "not_a_directory"


async def test_a_slow_watcher_gets_an_overflow(open_guest: OpenGuest, tmp_path: Path) -> None:
    flood = "import os\nfor i in range(60000):\n open('x%07d' % i, 'w').close(); os.unlink('x%07d' % i)"
    async with open_guest(SELF) as (link, _), link.watch(str(tmp_path)) as changes:
        with anyio.fail_after(60):
            assert (await link.run(shell(f'python3 -c "{flood}"', cwd=str(tmp_path)))).ok
            while await anext(changes) != Change("overflow", ""):
                pass


def archive(*members: tarfile.TarInfo) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(bytes(member.size)) if member.isreg() else None)
    return packed.getvalue()


async def test_a_tree_goes_out_and_comes_in_again(open_guest: OpenGuest, tmp_path: Path) -> None:
    (tmp_path / "tree" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "below" / "file").write_bytes(os.urandom(1_000_000))
    (tmp_path / "tree" / "below" / "file").chmod(0o755)
    (tmp_path / "tree" / "link").symlink_to("below/file")
    async with open_guest(SELF) as (link, _):
        async with link.download(f"{tmp_path}/tree") as pieces:
            packed = await whole(pieces)
        async with link.upload(f"{tmp_path}/again/here") as sink:
            for at in range(0, len(packed), 100_000):
                await sink.send(packed[at : at + 100_000])
    again = tmp_path / "again" / "here"
    assert (again / "below/file").read_bytes() == (tmp_path / "tree/below/file").read_bytes()
    assert (again / "below/file").stat().st_mode & 0o777 == 0o755
    assert (again / "link").readlink() == Path("below/file")


async def pack(link: Link, path: str) -> None:
    async with link.download(path) as pieces:
        await whole(pieces)


async def unpack(link: Link, path: str, data: bytes) -> None:
    async with link.upload(path) as sink:
        await sink.send(data)


async def test_a_wrong_directory_or_archive_is_an_error(open_guest: OpenGuest, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with open_guest(SELF) as (link, _):
        assert await code_of(lambda: pack(link, f"{tmp_path}/none")) == "not_found"
        assert await code_of(lambda: pack(link, f"{tmp_path}/file")) == "not_a_directory"
        assert await code_of(lambda: unpack(link, f"{tmp_path}/new", b"no tar" * 1_000)) == "bad_archive"
        assert await code_of(lambda: unpack(link, f"{tmp_path}/file", b"")) == "not_a_directory"
        half = archive(tarfile.TarInfo("a"))[:700]
        assert await code_of(lambda: unpack(link, f"{tmp_path}/half", half[:300])) == "bad_archive"


async def test_members_that_point_elsewhere_are_not_unpacked_there(
    open_guest: OpenGuest, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    outside = tarfile.TarInfo("../outside")
    outside.size = 10
    absolute = tarfile.TarInfo(f"{tmp_path}/absolute")
    absolute.size = 10
    async with open_guest(SELF) as (link, _):
        for member in (outside, absolute):
            try:
                await unpack(link, f"{tmp_path}/in", archive(member))
            except UserError as error:
                assert error.code == "bad_archive"
    assert names(tmp_path) == ["in"]
