"""The files that COPY and ADD take: found in a directory, filtered, digested, packed as a tar stream.

The directory is untrusted: a build context, or the files of another stage. Its links are resolved within it, so no
link names a file of this machine. Nothing in it is run or parsed, except `.dockerignore`.
"""

import hashlib
import os
import posixpath
import re
import stat
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import msgspec

from cloister.core.errors import UserError
from cloister.core.text import one_line
from cloister.sandbox.templates import root

_CHUNK = 262_144
_IGNORE_BYTES = 1_048_576
_PATTERNS_MOST = 2_000
_WILD = re.compile(r"[*?\[]")
_Matches = Callable[[str], object]
"""Matches a whole name. RE2, because an untrusted pattern may be slow in `re`."""


class Member(msgspec.Struct, frozen=True):
    """One file, link or directory to copy."""

    target: str
    """Absolute path inside the sandbox."""
    path: bytes
    """Where it is on this machine."""
    kind: int
    """`stat.S_IFMT` of its mode."""
    mode: int
    size: int
    modified: int
    uid: int
    gid: int
    link: bytes = b""
    text: bytes | None = None
    """The content, when it comes from the Dockerfile itself."""


class Shape(msgspec.Struct, frozen=True):
    """How members are written: owner and mode, None for their own."""

    owner: tuple[int, int] | None = None
    mode: int | None = None


@dataclass(frozen=True)
class Tree:
    """A directory that files are copied from."""

    top: Path
    what: str
    """For error messages: `the context`, or the stage."""
    ignore: str = ""
    """The text of `.dockerignore`."""
    owners: bool = False
    """Whether files keep their owners; those of a context belong to root."""
    entries: int = 1_000_000

    @cached_property
    def _ignored(self) -> tuple[tuple[bool, "_Matches"], ...]:
        return tuple(_ignore_rules(self.ignore))

    def is_ignored(self, name: str) -> bool:
        ignored = False
        for keeps, rule in self._ignored:
            if rule(name):
                ignored = not keeps
        return ignored

    def find(self, pattern: str) -> list[str]:
        """Names below `top` that a source of COPY means, links resolved. Blocks."""
        parts = [part for part in posixpath.normpath(f"/{pattern}").split("/") if part]
        found = [""]
        for part in parts:
            if _WILD.search(part) is None:
                found = [f"{name}/{part}" for name in found]
                continue
            rule = _compiled(part)
            # SAFETY: by their resolved names, because links to one directory would multiply with each part.
            places = [_below(self.top, at) for at in self._resolved(found)]
            found = [f"{name}/{each}" for name in places for each in self._names(name) if rule(each)]
            if len(found) > self.entries:
                raise UserError(
                    "bad_dockerfile", f"{one_line(pattern, 80)} finds more than {self.entries:,} names."
                )
        there = self._resolved(found)
        # In an ignored directory a file may be wanted all the same.
        return [
            _below(self.top, at) for at in there if at.is_dir() or not self.is_ignored(_below(self.top, at))
        ]

    def _resolved(self, names: list[str]) -> list[Path]:
        places = (root.inside(self.top, name) for name in names)
        return list(dict.fromkeys(at for at in places if at is not None))

    def _names(self, name: str) -> list[str]:
        at = root.inside(self.top, name)
        if at is None or not at.is_dir():
            return []
        return sorted(each.name for each in at.iterdir())

    def members(self, name: str, target: str) -> Iterator[Member]:
        """The file `name`, or all that is in the directory `name`, to be copied to `target`. Blocks."""
        top = os.fsencode(self.top)
        left = [(name, target)]
        count = 0
        while left:
            name, target = left.pop()
            path = posixpath.join(top, os.fsencode(name)) if name else top
            status = os.lstat(path)
            kind = stat.S_IFMT(status.st_mode)
            if kind == stat.S_IFDIR:
                inside = [
                    (posixpath.join(name, each), each)
                    for each in sorted(os.listdir(os.fsdecode(path)))  # noqa: PTH208 - names
                ]
                left.extend((each, posixpath.join(target, short)) for each, short in reversed(inside))
            elif kind not in (stat.S_IFREG, stat.S_IFLNK):
                continue
            count += 1
            if count > self.entries:
                raise UserError("bad_dockerfile", f"A copy takes more than {self.entries:,} files.")
            if name and self.is_ignored(name):
                continue
            yield Member(
                target,
                path,
                kind,
                stat.S_IMODE(status.st_mode) & 0o1777,
                status.st_size if kind == stat.S_IFREG else 0,
                int(status.st_mtime),
                status.st_uid if self.owners else 0,
                status.st_gid if self.owners else 0,
                os.readlink(path) if kind == stat.S_IFLNK else b"",  # noqa: PTH115 - bytes
            )


def _below(top: Path, at: Path) -> str:
    """The name of `at` in the tree; empty for the tree itself."""
    return "" if at == top else str(at.relative_to(top))


def text_member(target: str, text: str) -> Member:
    """A file whose content is in the Dockerfile."""
    data = text.encode("utf-8", "surrogateescape")
    return Member(target, b"", stat.S_IFREG, 0o644, len(data), 0, 0, 0, text=data)


def directory_member(target: str) -> Member:
    return Member(target, b"", stat.S_IFDIR, 0o755, 0, 0, 0, 0)


def digest(members: Sequence[Member]) -> str:
    """A digest of names, contents, modes and owners; times do not count. Blocks."""
    whole = hashlib.sha256()
    for each in members:
        about = (each.target, each.kind, each.mode, each.size, each.uid, each.gid, each.link)
        whole.update(repr(about).encode("utf-8", "surrogateescape"))
        for data in _content(each):
            whole.update(data)
    return whole.hexdigest()


def pack(members: Sequence[Member], shape: Shape) -> Iterator[bytes]:
    """The members as a tar archive. Blocks."""
    for each in members:
        about = tarfile.TarInfo(each.target.lstrip("/"))
        about.mode = each.mode if shape.mode is None or each.kind == stat.S_IFLNK else shape.mode
        about.uid, about.gid = shape.owner or (each.uid, each.gid)
        about.mtime = each.modified
        about.size = each.size
        if each.kind == stat.S_IFDIR:
            about.type = tarfile.DIRTYPE
        elif each.kind == stat.S_IFLNK:
            about.type, about.linkname = tarfile.SYMTYPE, os.fsdecode(each.link)
        yield about.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        yield from _content(each)
        yield bytes(-each.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _content(each: Member) -> Iterator[bytes]:
    """Exactly `size` bytes. Raises `UserError` when the file is another one by now."""
    if each.kind != stat.S_IFREG or each.text is not None:
        yield each.text or b""
        return
    left = each.size
    descriptor = os.open(each.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            left = -1
        while left > 0 and (data := file.read(min(left, _CHUNK))):
            left -= len(data)
            yield data
    if left:
        raise UserError("bad_dockerfile", f"{one_line(each.target, 100)} changed while it was copied.")


def ignore_text(context: Path, dockerfile: str) -> str:
    """The text of the file that names what a build leaves aside."""
    for name in (f"{dockerfile}.dockerignore", ".dockerignore"):
        at = root.inside(context, name)
        if at is not None and at.is_file():
            with at.open("rb") as file:
                return file.read(_IGNORE_BYTES).decode("utf-8", "replace")
    return ""


def _ignore_rules(text: str) -> "Iterator[tuple[bool, _Matches]]":
    for line in text.splitlines()[:_PATTERNS_MOST]:
        pattern = line.strip()
        if not pattern or line.startswith("#"):
            continue
        keeps = pattern.startswith("!")
        pattern = posixpath.normpath("/" + pattern.removeprefix("!").strip()).lstrip("/")
        if pattern:
            yield keeps, _compiled(pattern, below=True)


def _compiled(pattern: str, *, below: bool = False) -> "_Matches":
    """A pattern with `*`, `?`, `[…]` and, for names with slashes, `**`."""
    made: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            made.append("(?:.*/)?")
            at += 3
        elif pattern.startswith("**", at):
            made.append(".*")
            at += 2
        else:
            piece, at = _piece(pattern, at)
            made.append(piece)
    engine = cast(Any, import_module("re2"))
    options = engine.Options()
    options.log_errors = False
    try:
        text = "(?s)" + "".join(made) + ("(?:/.*)?" if below else "")
        matches = engine.compile(_plain(text), options).fullmatch
    except engine.error:
        raise UserError("bad_dockerfile", f"{one_line(pattern, 80)!r} is not a pattern.") from None
    return lambda name: matches(_plain(name))


def _plain(name: str) -> str:
    """A name for a pattern: git keeps any bytes, and RE2 takes text."""
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "replace")


def _piece(pattern: str, at: int) -> tuple[str, int]:
    char = pattern[at]
    if char == "[" and (end := pattern.find("]", at + 2)) > 0:
        inside = pattern[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
        return f"[{inside}]", end + 1
    if char == "\\" and at + 1 < len(pattern):
        return re.escape(pattern[at + 1]), at + 2
    return {"*": "[^/]*", "?": "[^/]"}.get(char) or re.escape(char), at + 1
