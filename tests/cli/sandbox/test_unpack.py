import io
import os
import tarfile
from pathlib import Path

import pytest

from cloister.cli.commands.sandbox.copy import Inside, parse, unpack
from cloister.core.errors import OutsideError, UserError


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, link, len(data), 0o4777
    return info, data


def renamed(name: str, really: str) -> tuple[tarfile.TarInfo, bytes]:
    """A member whose extended header gives it another name than its plain one."""
    info, data = member(name, data=b"x")
    info.pax_headers = {"path": really}
    return info, data


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return io.BytesIO(packed.getvalue())


def below(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def test_files_directories_and_links_inside_come_out(tmp_path: Path) -> None:
    root = tmp_path / "root"
    result = unpack(
        archive(
            member("./", tarfile.DIRTYPE),
            member("./a/b/file", data=b"data"),
            member("./a/link", tarfile.SYMTYPE, "b/file"),
            member("./hard", tarfile.LNKTYPE, "a/b/file"),
        ),
        root,
    )
    assert (result.left_out, result.bytes) == ([], 4)
    assert (root / "a/link").read_bytes() == b"data"
    assert (root / "hard").stat().st_ino == (root / "a/b/file").stat().st_ino
    assert (root / "a/b/file").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "members",
    [
        (member("../outside", data=b"x"),),
        (member("/absolute", data=b"x"),),
        (member("a/../../outside", data=b"x"),),
        (member("out", tarfile.SYMTYPE, ".."), member("out/outside", data=b"x")),
        (member("out", tarfile.SYMTYPE, "/"), member("out/tmp/outside", data=b"x")),
        (member("a", tarfile.SYMTYPE, "."), member("a/b", tarfile.SYMTYPE, "../outside")),
        (member("out", tarfile.SYMTYPE, "../outside"), member("out", data=b"x")),
        (member("a/b/up", tarfile.SYMTYPE, "../.."), member("to", tarfile.SYMTYPE, "a/b/up/../secret")),
        (member("hard", tarfile.LNKTYPE, "../secret"),),
        (member("hard", tarfile.LNKTYPE, "mine"),),
        (member("mine", data=b"x"),),
        (member("theirs/x", data=b"x"),),
        (member("pipe", tarfile.FIFOTYPE),),
        (member("device", tarfile.CHRTYPE),),
        (member("disk", tarfile.BLKTYPE),),
        (member("a//.//..//../outside", data=b"x"),),
        (member("./" * 1_500 + "../outside", data=b"x"),),
        (member("x" * 5_000, data=b"x"), member("..", tarfile.DIRTYPE)),
        (member("loop", tarfile.SYMTYPE, "loop"), member("loop/outside", data=b"x")),
        (member("soft", tarfile.SYMTYPE, "../secret"), member("hard", tarfile.LNKTYPE, "soft")),
        (member("d", tarfile.DIRTYPE), member("d", tarfile.SYMTYPE, ".."), member("d/outside", data=b"x")),
        (member("f", data=b"x"), member("f", tarfile.SYMTYPE, "../secret"), member("f", data=b"y")),
        (member("sub/up", tarfile.SYMTYPE, "../../secret"), member("sub/up", tarfile.LNKTYPE, "mine")),
        (member("empty", tarfile.SYMTYPE, ""), member("", data=b"x")),
        (renamed("harmless", "../outside"),),
        (renamed("harmless", "/absolute"),),
    ],
)
def test_nothing_leaves_the_directory_or_passes_a_link(
    tmp_path: Path, members: tuple[tuple[tarfile.TarInfo, bytes], ...]
) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "elsewhere").mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / "mine").symlink_to("../secret")
    (root / "theirs").symlink_to("../elsewhere")
    unpack(archive(*members), root)
    assert (tmp_path / "secret").read_text() == "secret"
    assert below(tmp_path / "elsewhere") == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "root", "secret"]
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        assert path.is_symlink() or path.is_dir() or path.is_file(), mode
        if path.is_symlink() and path.name not in ("mine", "theirs"):
            assert path.resolve().is_relative_to(root)
        if path.is_file() and not path.is_symlink():
            assert path.stat().st_nlink == 1


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    result = unpack(archive(member("pipe", tarfile.FIFOTYPE), member("../x"), member("ok")), tmp_path / "r")
    assert (result.left_out, below(tmp_path / "r")) == (["pipe", "../x"], ["ok"])


def test_an_archive_that_is_too_large_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        unpack(archive(member("a", data=bytes(101))), tmp_path / "one", most_bytes=100)
    with pytest.raises(UserError):
        unpack(archive(*(member(str(number)) for number in range(4))), tmp_path / "two", most_members=3)


def test_what_is_no_archive_is_said(tmp_path: Path) -> None:
    with pytest.raises(OutsideError):
        unpack(io.BytesIO(os.urandom(2_000)), tmp_path / "x")
    whole = archive(member("file", data=bytes(100_000))).getvalue()
    with pytest.raises(OutsideError):
        unpack(io.BytesIO(whole[:50_000]), tmp_path / "y")


def test_a_path_inside_has_its_sandbox_before_a_colon() -> None:
    assert parse("s-1:a/b") == Inside("s-1", "a/b")
    assert parse("s-1:") == Inside("s-1", ".")
    assert parse("./s-1:a") == Path("s-1:a")
    assert parse("a") == Path("a")


class Endless(io.RawIOBase):
    """An archive that goes on after `start`, and counts what is read of it."""

    def __init__(self, start: bytes, more: bytes) -> None:
        self._rest, self._more = start, more
        self.count = 0

    def read(self, size: int = -1) -> bytes:
        while len(self._rest) < size:
            self._rest += self._more * (1 + size // len(self._more))
        data, self._rest = self._rest[:size], self._rest[size:]
        self.count += len(data)
        return data


def header(kind: bytes, size: int, name: str = "x") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


LONG = 2**33 - 1
EXTENDED = {"PAX": b"x", "PAX for all": b"g", "a long name of GNU": b"L", "a long link of GNU": b"K"}


@pytest.mark.parametrize("kind", EXTENDED)
def test_an_extended_header_counts_against_the_limit(tmp_path: Path, kind: str) -> None:
    first = archive(member("a", data=b"1")).getvalue()[:1024]
    endless = Endless(first + header(EXTENDED[kind], LONG), b"11 a=123456\n" * 100)
    with pytest.raises(UserError) as caught:
        unpack(endless, tmp_path / "root")  # type: ignore[arg-type]
    assert caught.value.code == "archive_too_large"
    assert endless.count < 1_000_000


@pytest.mark.parametrize("kind", EXTENDED)
def test_extended_headers_without_end_are_refused(tmp_path: Path, kind: str) -> None:
    content = b"12 a=123456\n" if kind.startswith("PAX") else b"name\0"
    one = header(EXTENDED[kind], len(content)) + content.ljust(512, b"\0")
    endless = Endless(b"", one)
    with pytest.raises((UserError, OutsideError)) as caught:
        unpack(endless, tmp_path / "root")  # type: ignore[arg-type]
    assert caught.value.code in ("archive_too_large", "bad_archive")
    assert endless.count < 2_000_000


def test_many_members_with_extended_headers_of_ordinary_size_come_out(tmp_path: Path) -> None:
    name = "/".join(["d" * 200] * 10)
    result = unpack(archive(*(renamed(f"{n}", f"{name}/{n}") for n in range(600))), tmp_path / "root")
    assert result.files == 600
