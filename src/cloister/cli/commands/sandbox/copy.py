"""`cloister sandbox cp` and `files`: copy files between this machine and a sandbox, list a directory."""

import os
import posixpath
import shutil
import stat
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal, NamedTuple, cast

import typer

from cloister.cli.client.open import perform
from cloister.cli.options import AsJson, SandboxName, put, put_json
from cloister.core.errors import HostError, OutsideError, UserError
from cloister.core.text import one_line

if TYPE_CHECKING:
    import tarfile

    from cloister.app.verbs.api import Verbs
    from cloister.core.computer import Sink

# Unpacking an archive from a sandbox. Nothing in it is trusted: files are created only below the given directory, never
# through a link; links are created last, when nothing is written any more; devices, pipes and special modes are skipped.

MEMBERS = 1_000_000
BYTES = 68_719_476_736
"""Limits of one archive: names, and bytes when unpacked."""

_NAME_BYTES = 4_096
_HEADER_BYTES = 262_144
"""Headers of one member, with those that extend it: names and attributes that `tarfile` keeps in memory."""


class Unpacked:
    """The result of unpacking."""

    def __init__(self) -> None:
        self.files = 0
        self.bytes = 0
        self.left_out: list[str] = []
        """Names that were skipped."""


class _Bounded:
    """An archive of which no more can be read than the members so far and the next one's headers need."""

    def __init__(self, archive: IO[bytes]) -> None:
        self._archive = archive
        self._left = _HEADER_BYTES

    def allow(self, member: "tarfile.TarInfo") -> None:
        self._left = member.size + _HEADER_BYTES

    def read(self, size: int) -> bytes:
        if self._left <= 0:
            raise UserError(
                "archive_too_large", "It has names or attributes that are too long: copy a part of it."
            )
        data = self._archive.read(size)
        self._left -= len(data)
        return data


def unpack(
    archive: IO[bytes], root: Path, *, most_members: int = MEMBERS, most_bytes: int = BYTES
) -> Unpacked:
    """Unpack a tar stream below `root`, which is created. Raises `UserError` (`archive_too_large`), `OutsideError`."""
    import tarfile

    result = Unpacked()
    links: list[tuple[Path, tarfile.TarInfo]] = []
    try:
        root.mkdir(parents=True, exist_ok=True)
        bounded = _Bounded(archive)
        with tarfile.open(fileobj=cast("IO[bytes]", bounded), mode="r|") as tar:
            for number, member in enumerate(tar):
                result.bytes += max(0, member.size)
                if number >= most_members or result.bytes > most_bytes or member.size < 0:
                    raise UserError(
                        "archive_too_large",
                        f"It has more than {most_members:,} names or {most_bytes:,} bytes: copy a part of it.",
                    )
                bounded.allow(member)
                path = _place(root, member.name)
                if path is None or not _make(tar, root, path, member, links):
                    result.left_out.append(member.name)
                else:
                    result.files += 1
    except (tarfile.TarError, RecursionError) as error:
        raise OutsideError("bad_archive", f"The sandbox sent an incomplete tar archive ({error}).") from None
    except OSError as error:
        raise HostError("copy_failed", f"{error.filename or root}: {error.strerror or error}.") from None
    for path, member in links:
        if not _link(root, path, member):
            result.left_out.append(member.name)
    return result


def _place(root: Path, name: str) -> Path | None:
    """The path of a member; None if it is not below `root` or is behind a link."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name or len(name) > _NAME_BYTES or name.startswith("/"):
        return None
    path = root
    for part in parts[:-1]:
        path = path / part
        if path.is_symlink():
            return None
    return root.joinpath(*parts)


def _make(
    tar: "tarfile.TarFile",
    root: Path,
    path: Path,
    member: "tarfile.TarInfo",
    links: "list[tuple[Path, tarfile.TarInfo]]",
) -> bool:
    if member.issym() or member.islnk():
        links.append((path, member))
        return True
    if member.isdir():
        return _make_directory(root, path, member)
    source = tar.extractfile(member) if member.isreg() else None
    if source is None:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    if path == root or (path.is_dir() and not path.is_symlink()):
        return False
    path.unlink(missing_ok=True)
    # Not "wb": O_EXCL and O_NOFOLLOW ensure that the file is new.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        while data := source.read(1_048_576):
            file.write(data)
        os.fchmod(file.fileno(), 0o755 if member.mode & 0o100 else 0o644)
    os.utime(path, (max(0, member.mtime), max(0, member.mtime)), follow_symlinks=False)
    return True


def _make_directory(root: Path, path: Path, member: "tarfile.TarInfo") -> bool:
    if path != root:
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            return False
        path.mkdir(parents=True, exist_ok=True)
    return True


def _stays(depth: int, target: str) -> bool:
    """True if a link in a directory `depth` below the root points below the root.

    `..` is allowed at the beginning only: after a name it would start wherever that name, a link perhaps, points.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = 0
    while up < len(parts) and parts[up] == "..":
        up += 1
    return up <= depth and ".." not in parts[up:] and bool(target) and not target.startswith("/")


def _link(root: Path, path: Path, member: "tarfile.TarInfo") -> bool:
    """Create a link, if it stays below `root`."""
    parent = _place(root, path.relative_to(root).as_posix())
    if parent is None or path == root or (path.is_dir() and not path.is_symlink()):
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if member.islnk():
            target = _place(root, member.linkname)
            if target is None or not stat.S_ISREG(target.lstat().st_mode):
                return False
            path.unlink(missing_ok=True)
            os.link(target, path, follow_symlinks=False)
            return True
        if not _stays(len(path.relative_to(root).parts) - 1, member.linkname):
            return False
        path.unlink(missing_ok=True)
        path.symlink_to(member.linkname)
    except (OSError, ValueError):
        return False
    return True


_PIECE = 1_048_576


class Inside(NamedTuple):
    """A path in a sandbox."""

    sandbox: str
    path: str


def cp(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SRC", help="A local path, or ID:PATH in a sandbox.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="A local path, or ID:PATH in a sandbox.")],
) -> None:
    """Copy a file or a directory into or out of a sandbox."""
    match parse(source), parse(target):
        case Path() as here, Inside() as there:
            _put(ctx, here, there)
        case Inside() as there, Path() as here:
            _get(ctx, there, here)
        case _:
            raise UserError(
                "bad_usage", "Give one ID:PATH and one local path; write ./a:b for a name with a colon."
            )


def files(
    ctx: typer.Context,
    sandbox: SandboxName,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A directory in the sandbox.")] = ".",
    as_json: AsJson = False,
) -> None:
    """List a directory in a sandbox."""
    from cloister.core.computer import Entry

    async def work(verbs: "Verbs") -> tuple[Entry, ...]:
        return await verbs.files.list((await verbs.sandboxes.resolve(sandbox)).id, path)

    found = perform(ctx, work)
    if as_json:
        put_json(*found)
        return
    for entry in found:
        stamp = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.modified))
        name = one_line(entry.name, 200) + ("/" if entry.kind == "dir" else "")
        put(f"{entry.kind:<5} {entry.mode:04o} {entry.size:>14,} {stamp} {name}")


def parse(text: str) -> "Inside | Path":
    """`ID:PATH` in a sandbox, or a local path. A slash before the colon makes it a local path."""
    head, colon, path = text.partition(":")
    return Inside(head, path or ".") if colon and head and "/" not in head else Path(text)


async def _find(verbs: "Verbs", inside: Inside) -> tuple[Inside, Literal["dir", "file"] | None]:
    """The path with its sandbox's full id, and what is there; links are followed."""
    found = Inside((await verbs.sandboxes.resolve(inside.sandbox)).id, inside.path)
    try:
        # A trailing "/." exists only in directories, and behind links to them.
        await verbs.files.stat(found.sandbox, posixpath.join(found.path, "."))
    except UserError:
        pass
    else:
        return found, "dir"
    try:
        await verbs.files.stat(found.sandbox, found.path)
    except UserError as error:
        if error.code == "not_found":
            return found, None
        raise
    return found, "file"


class _Writer:
    """A file object over a sink, for a worker thread."""

    def __init__(self, sink: "Sink") -> None:
        self._sink = sink

    def write(self, data: bytes) -> int:
        from anyio import from_thread

        from_thread.run(self._sink.send, bytes(data))
        return len(data)


class _Reader:
    """A file object over an iterator of bytes, for a worker thread."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._left = b""

    def read(self, size: int = -1) -> bytes:
        from anyio import from_thread

        if not self._left:
            self._left = from_thread.run(self._next)
        data, self._left = (self._left, b"") if size < 0 else (self._left[:size], self._left[size:])
        return data

    async def _next(self) -> bytes:
        return await anext(self._pieces, b"")


def _put(ctx: typer.Context, source: Path, target: Inside) -> None:
    from anyio import to_thread

    if not source.exists():
        raise UserError("not_found", f"There is no {source} here.")
    found, kind = perform(ctx, partial(_find, inside=target))
    if found.path.endswith("/") or kind == "dir":
        found = Inside(found.sandbox, posixpath.join(found.path, source.resolve().name))
    directory, mode = source.is_dir(), source.stat().st_mode & 0o777

    def send(sink: "Sink") -> None:
        import tarfile

        out = cast("IO[bytes]", _Writer(sink))
        if directory:
            with tarfile.open(fileobj=out, mode="w|", bufsize=_PIECE, format=tarfile.PAX_FORMAT) as tar:
                tar.add(source, arcname=".")
        else:
            with source.open("rb") as file:
                shutil.copyfileobj(file, out, _PIECE)

    async def work(verbs: "Verbs") -> None:
        into = (
            verbs.files.upload(found.sandbox, found.path)
            if directory
            else verbs.files.write(found.sandbox, found.path, mode=mode)
        )
        async with into as sink:
            await to_thread.run_sync(send, sink)

    perform(ctx, work)


def _get(ctx: typer.Context, source: Inside, target: Path) -> None:
    found, kind = perform(ctx, partial(_find, inside=source))
    if kind is None:
        raise UserError("not_found", f"There is no {source.path} in the sandbox.")
    if target.is_dir():
        name = posixpath.basename(posixpath.normpath(source.path))
        if name in ("", ".", "..", "/"):
            raise UserError("bad_usage", f"{source.path} has no name: name the copy, too.")
        target = target / name
    perform(ctx, partial(_get_tree if kind == "dir" else _get_file, source=found, target=target))


async def _get_file(verbs: "Verbs", source: Inside, target: Path) -> None:
    # The target is replaced only when the copy is complete.
    import secrets

    from anyio import to_thread

    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")

    def save(pieces: AsyncIterator[bytes]) -> None:
        try:
            with draft.open("xb") as file:
                shutil.copyfileobj(cast("IO[bytes]", _Reader(pieces)), file, _PIECE)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)

    async with verbs.files.read(source.sandbox, source.path) as pieces:
        await to_thread.run_sync(save, pieces)


async def _get_tree(verbs: "Verbs", source: Inside, target: Path) -> None:
    from anyio import to_thread

    async with verbs.files.download(source.sandbox, source.path) as pieces:
        result = await to_thread.run_sync(unpack, cast("IO[bytes]", _Reader(pieces)), target)
    for name in result.left_out[:10]:
        put(
            f"cloister: skipped {one_line(name)}: not a regular file, or it points elsewhere.",
            file=sys.stderr,
        )
    if len(result.left_out) > 10:
        put(f"cloister: skipped {len(result.left_out):,} in all.", file=sys.stderr)
