"""`cloister sandbox cp` and `files`: files between this machine and a sandbox."""

import os
import posixpath
import secrets
import shutil
import stat
import sys
import tarfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import urlencode

import msgspec
import typer

from cloister.cli.options import AsJson, SandboxName, settings_of
from cloister.core.errors import HostError, OutsideError, UserError

if TYPE_CHECKING:
    from cloister.cli.client.http import Client


# Unpack an archive that a sandbox made, on this machine. Nothing in it is trusted.
#
# Files go only below the given directory: no name leads out of it, nothing is written through a link, whoever made it,
# and links are made last, when nothing is written any more. Devices, pipes and special modes are left out.


MEMBERS = 1_000_000
BYTES = 68_719_476_736
"""What one archive may hold, in names and when unpacked."""

_NAME_BYTES = 4_096


class Unpacked:
    """What came of it."""

    def __init__(self) -> None:
        self.files = 0
        self.bytes = 0
        self.left_out: list[str] = []
        """Names that were not made."""


def unpack(
    archive: IO[bytes], root: Path, *, most_members: int = MEMBERS, most_bytes: int = BYTES
) -> Unpacked:
    """Unpack a tar stream below `root`, which is made. Raises `UserError` (`archive_too_large`), `OutsideError`."""
    result = Unpacked()
    links: list[tuple[Path, tarfile.TarInfo]] = []
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=archive, mode="r|") as tar:
            for number, member in enumerate(tar):
                result.bytes += max(0, member.size)
                if number >= most_members or result.bytes > most_bytes or member.size < 0:
                    raise UserError(
                        "archive_too_large",
                        f"There is more than {most_members:,} names or {most_bytes:,} bytes in it: copy a part of it.",
                    )
                path = _place(root, member.name)
                if path is None or not _make(tar, root, path, member, links):
                    result.left_out.append(member.name)
                else:
                    result.files += 1
    except tarfile.TarError as error:
        raise OutsideError(
            "bad_archive", f"What the sandbox sent is no whole tar archive ({error})."
        ) from None
    except OSError as error:
        raise HostError("copy_failed", f"{error.filename or root}: {error.strerror or error}.") from None
    for path, member in links:
        if not _link(root, path, member):
            result.left_out.append(member.name)
    return result


def _place(root: Path, name: str) -> Path | None:
    """Where a member belongs; None when that is not below `root`, or behind a link."""
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
    tar: tarfile.TarFile,
    root: Path,
    path: Path,
    member: tarfile.TarInfo,
    links: list[tuple[Path, tarfile.TarInfo]],
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
    # Not "wb": what is there under this name now, nobody but us can have put there.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        while data := source.read(1_048_576):
            file.write(data)
        os.fchmod(file.fileno(), 0o755 if member.mode & 0o100 else 0o644)
    os.utime(path, (max(0, member.mtime), max(0, member.mtime)), follow_symlinks=False)
    return True


def _make_directory(root: Path, path: Path, member: tarfile.TarInfo) -> bool:
    if path != root:
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            return False
        path.mkdir(parents=True, exist_ok=True)
    return True


def _stays(depth: int, target: str) -> bool:
    """Whether a link in a directory so far below the root leads to something below the root.

    Up first, then down: a way up behind another link would start wherever that one leads.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = 0
    while up < len(parts) and parts[up] == "..":
        up += 1
    return up <= depth and ".." not in parts[up:] and bool(target) and not target.startswith("/")


def _link(root: Path, path: Path, member: tarfile.TarInfo) -> bool:
    """Make a link that stays below `root`."""
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


class _Entry(msgspec.Struct, frozen=True):
    name: str
    kind: str
    size: int
    mode: int
    modified: float


def cp(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SRC", help="A path here, or ID:PATH in a sandbox.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="A path here, or ID:PATH in a sandbox.")],
) -> None:
    """Copy a file, or a directory with all that is in it, into or out of a sandbox."""
    from cloister.core.errors import UserError

    here, there = parse(source), parse(target)
    if isinstance(here, Inside) == isinstance(there, Inside):
        raise UserError(
            "bad_usage",
            "One of both is ID:PATH and the other a path here; write ./a:b for a name with a colon.",
        )
    client = _client(ctx, here.sandbox if isinstance(here, Inside) else there.sandbox)  # type: ignore[union-attr]
    if isinstance(there, Inside) and isinstance(here, Path):
        _put(client, here, _whole(client, there))
    elif isinstance(here, Inside) and isinstance(there, Path):
        _get(client, _whole(client, here), there)


def files(
    ctx: typer.Context,
    sandbox: SandboxName,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A directory inside.")] = ".",
    as_json: AsJson = False,
) -> None:
    """List a directory of a sandbox."""
    from cloister.core.text import one_line

    client = _client(ctx, sandbox)
    at = _whole(client, Inside(sandbox, path))
    reply = client.ask("GET", _address(at, "files/list"))
    if as_json:
        from cloister.cli.screen.shows import put_json

        for each in client.decoded(list[dict[str, object]], reply):
            put_json(each)
        return
    for entry in client.decoded(tuple[_Entry, ...], reply):
        stamp = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.modified))
        name = one_line(entry.name, 200) + ("/" if entry.kind == "dir" else "")
        print(f"{entry.kind:<5} {entry.mode:04o} {entry.size:>14,} {stamp} {name}")


def parse(text: str) -> "Inside | Path":
    """A path in a sandbox or one here. A name with a colon is one here when there is a slash before that."""
    head, colon, path = text.partition(":")
    return Inside(head, path or ".") if colon and head and "/" not in head else Path(text)


def _client(ctx: typer.Context, sandbox: str) -> "Client":
    from cloister.cli.client.discover import living
    from cloister.cli.client.http import Client, no_such_sandbox

    place = living(settings_of(ctx).data_dir)
    if place is None:
        raise no_such_sandbox(sandbox)
    return Client(place)


def _whole(client: "Client", inside: Inside) -> Inside:
    return Inside(client.find_sandbox(inside.sandbox).id, inside.path)


def _address(inside: Inside, route: str) -> str:
    return f"/v1/sandboxes/{inside.sandbox}/{route}?{urlencode({'path': inside.path})}"


def _kind(client: "Client", inside: Inside) -> str | None:
    """What is there, through links; None when nothing is."""
    from cloister.core.errors import UserError

    try:
        # A trailing "/." is only there for directories, and for links to them.
        client.ask("GET", _address(Inside(inside.sandbox, posixpath.join(inside.path, ".")), "files/stat"))
    except UserError:
        pass
    else:
        return "dir"
    try:
        client.ask("GET", _address(inside, "files/stat"))
    except UserError as error:
        if error.code == "not_found":
            return None
        raise
    return "file"


def _put(client: "Client", source: Path, target: Inside) -> None:
    from cloister.core.errors import UserError

    if not source.exists():
        raise UserError("not_found", f"There is no {source} here.")
    kind = _kind(client, target)
    if target.path.endswith("/") or kind == "dir":
        target = Inside(target.sandbox, posixpath.join(target.path, source.resolve().name))
    if source.is_dir():
        with (
            client.sending("PUT", _address(target, "tree")) as body,
            tarfile.open(fileobj=body, mode="w|", format=tarfile.PAX_FORMAT) as tar,  # type: ignore[call-overload]
        ):
            tar.add(source, arcname=".")
        return
    mode = f"{source.stat().st_mode & 0o777:03o}"
    with source.open("rb") as file, client.sending("PUT", f"{_address(target, 'files')}&mode={mode}") as body:
        shutil.copyfileobj(file, body, _PIECE)


def _get(client: "Client", source: Inside, target: Path) -> None:
    from cloister.core.errors import UserError

    kind = _kind(client, source)
    if kind is None:
        raise UserError("not_found", f"There is no {source.path} in the sandbox.")
    if target.is_dir():
        name = posixpath.basename(posixpath.normpath(source.path))
        if name in ("", ".", "..", "/"):
            raise UserError("bad_usage", f"{source.path} has no name of its own: name the copy, too.")
        target = target / name
    if kind == "dir":
        _get_tree(client, source, target)
        return
    # Beside it first: a copy that breaks off is no copy.
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with client.receiving(_address(source, "files")) as reply, draft.open("xb") as file:
            shutil.copyfileobj(reply, file, _PIECE)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _get_tree(client: "Client", source: Inside, target: Path) -> None:
    pass
    from cloister.core.text import one_line

    with client.receiving(_address(source, "tree")) as reply:
        result = unpack(reply, target)
    for name in result.left_out[:10]:
        print(f"cloister: left out {one_line(name)}: no plain file, or it leads elsewhere.", file=sys.stderr)
    if len(result.left_out) > 10:
        print(f"cloister: left out {len(result.left_out):,} in all.", file=sys.stderr)
