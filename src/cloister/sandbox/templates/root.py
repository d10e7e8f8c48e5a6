"""Turn any root filesystem into a template: add the agent's user and directories, remove traces of a host.

The tree is untrusted. Nothing in it is run, and no link in it is followed: every directory on the way to a written
file is checked to be a real one. Nothing else writes to the tree meanwhile.
"""

import os
import posixpath
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from cloister.core.errors import UserError
from cloister.sandbox.templates.building import HOME

AGENT = 1000
"""The agent's user and group id inside."""

_SMALL_BYTES = 1_048_576
_LINKS = 40
_ID_DIGITS = 9
_SEARCH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_ODD_BITS = stat.S_ISUID | stat.S_ISGID


class User(msgspec.Struct, frozen=True):
    """A line of `/etc/passwd`."""

    name: str
    uid: int
    gid: int
    home: str


class Settled(msgspec.Struct, frozen=True):
    """Facts found in the root filesystem."""

    home: str
    git: bool
    bash: bool


def scrub(rootfs: Path) -> None:
    """Remove devices, setuid bits and privileged attributes, which are useless inside and dangerous outside.

    Roots are mounted `nosuid,nodev`, so this breaks nothing inside.
    """
    if not _is_directory(rootfs):
        raise UserError("bad_image", "The root of the image is not a directory.")
    for entry in _walk(rootfs):
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            os.unlink(entry.path)  # noqa: PTH108 - a name that need not be text
            continue
        for name in os.listxattr(entry.path, follow_symlinks=False):
            if name.startswith(("trusted.", "security.")):
                os.removexattr(entry.path, name, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) and status.st_mode & _ODD_BITS:
            os.chmod(entry.path, stat.S_IMODE(status.st_mode) & ~_ODD_BITS)  # noqa: PTH101 - as above


def furnish(at: Path) -> None:
    """Make the smallest root filesystem that a runtime accepts: mount points and a writable directory."""
    for name in ("proc", "dev", "etc", ".cloister", "work"):
        (at / name).mkdir(parents=True, exist_ok=True)
        (at / name).chmod(0o755)
    at.chmod(0o755)
    (at / ".cloister" / "guest").touch()
    os.chown(at / "work", AGENT, AGENT)


def settle(rootfs: Path, user: str | None, path: str = "", *, must: bool = False) -> Settled:
    """Add everything a sandbox expects. The agent becomes the image's `user`; `path` is the image's `PATH`.

    Raises `UserError` (`bad_image`) for an unusable tree, and for an unknown user if it `must` exist.
    """
    rootfs.chmod(0o755)
    etc = rootfs / "etc"
    if os.path.lexists(etc) and not _is_directory(etc):
        raise UserError("bad_image", "/etc in the image is not a directory.")
    for name in ("etc", "home", "work", "proc", "dev", ".cloister"):
        directory(rootfs / name)
    if not _is_directory(rootfs / "tmp"):
        directory(rootfs / "tmp")
        (rootfs / "tmp").chmod(0o1777)
    # The mount point of the guest, made once here instead of in each sandbox.
    put_file(rootfs / ".cloister" / "guest", "", 0o555)
    found = [has(rootfs, program, path) for program in ("git", "bash")]
    home = _settle_user(rootfs, user, "/bin/bash" if found[1] else "/bin/sh", must=must)
    os.chown(rootfs / "work", AGENT, AGENT)
    put_file(etc / "hostname", "sandbox\n")
    put_file(etc / "hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n")
    put_file(etc / "resolv.conf", "")
    put_file(etc / "gitconfig", f"{read_file(etc / 'gitconfig')}\n[safe]\n\tdirectory = *\n".lstrip("\n"))
    return Settled(home, *found)


def has(rootfs: Path, program: str, path: str = "") -> bool:
    """Whether `program` is on the search path of commands."""
    places = [*(place for place in path.split(":") if place.startswith("/")), *_SEARCH]
    return any(inside(rootfs, f"{place}/{program}") is not None for place in places)


def inside(rootfs: Path, path: str) -> Path | None:
    """Resolve `path` and its links within the tree; None when nothing is there."""
    left, here = [part for part in path.split("/") if part not in ("", ".")], "/"
    links = 0
    while left:
        part = left.pop(0)
        if part == "..":
            here = posixpath.dirname(here)
            continue
        at = posixpath.join(here, part)
        real = rootfs / at.lstrip("/")
        try:
            status = real.lstat()
        except OSError:
            return None
        if not stat.S_ISLNK(status.st_mode):
            here = at
            continue
        links += 1
        if links > _LINKS:
            return None
        goal = str(real.readlink())
        here = "/" if goal.startswith("/") else here
        left = [*(name for name in goal.split("/") if name not in ("", ".")), *left]
    return rootfs / here.lstrip("/")


def directory(path: Path) -> None:
    """Make `path`, whose parent is a real directory, a real directory."""
    if _is_directory(path):
        return
    path.unlink(missing_ok=True)
    path.mkdir(mode=0o755)
    path.chmod(0o755)


def put_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a new regular file at `path`, whose parent is a real directory; replace, never follow, an old one."""
    if _is_directory(path):
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    path.chmod(mode)


def read_file(path: Path) -> str:
    """The text of a small regular file; empty for anything else."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _SMALL_BYTES:
            return ""
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def users(passwd: str) -> tuple[User, ...]:
    """The well-formed lines of `/etc/passwd`."""
    found: list[User] = []
    for line in passwd.splitlines():
        fields = line.split(":")
        if len(fields) == 7:
            uid, gid = number(fields[2]), number(fields[3])
            if uid is not None and gid is not None:
                found.append(User(fields[0], uid, gid, fields[5]))
    return tuple(found)


def number(text: str) -> int | None:
    """The id of a user or group; None for anything else, such as digits of other scripts."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _ID_DIGITS else None


def choose_user(known: tuple[User, ...], wanted: str | None, *, must: bool) -> User | None:
    """The user that the agent becomes: the one asked for, else the one with the agent's id, else None."""
    name = (wanted or "").partition(":")[0]
    if name and name not in ("root", "0"):
        found = next((user for user in known if name in (user.name, str(user.uid))), None)
        if found is not None:
            return found
        if must:
            raise UserError(
                "bad_image", f"The image has no user {name}: name another one, or leave `user` out."
            )
    return next((user for user in known if user.uid == AGENT), None)


def _settle_user(rootfs: Path, wanted: str | None, shell: str, *, must: bool) -> str:
    """Add the agent to the user and group lists and make its home directory; return the directory."""
    etc = rootfs / "etc"
    passwd, group, shadow = (read_file(etc / name) for name in ("passwd", "group", "shadow"))
    chosen = choose_user(users(passwd), wanted, must=must)
    home = HOME
    if chosen is not None and chosen.home.startswith("/") and len(chosen.home) > 1:
        found = inside(rootfs, chosen.home)
        if found is not None and _is_directory(found) and found != rootfs:
            home = "/" + str(found.relative_to(rootfs))
    lines = [f"agent:x:{AGENT}:{AGENT}::{home}:{shell}"]
    for line in passwd.splitlines():
        fields = line.split(":")
        if fields[0] == "agent":
            continue
        if chosen is not None and fields[0] == chosen.name:
            # The image's name for the user keeps working.
            fields[2:4] = [str(AGENT), str(AGENT)]
        lines.append(":".join(fields))
    put_file(etc / "passwd", "\n".join(lines) + "\n")
    put_file(etc / "group", _with_agent(group, f"agent:x:{AGENT}:"))
    put_file(etc / "shadow", _with_agent(shadow, "agent:!:19000:0:99999:7:::"), 0o640)
    _settle_home(rootfs, home, chosen)
    return home


def _with_agent(text: str, line: str) -> str:
    return "\n".join([line, *(old for old in text.splitlines() if not old.startswith("agent:"))]) + "\n"


def _settle_home(rootfs: Path, home: str, chosen: User | None) -> None:
    at = rootfs / home.lstrip("/")
    if home == HOME and not _is_directory(at):
        at.unlink(missing_ok=True)
        skeleton = rootfs / "etc" / "skel"
        if _is_directory(skeleton):
            shutil.copytree(skeleton, at, symlinks=True, copy_function=_copy_plain)
        else:
            at.mkdir(mode=0o755)
        old = 0
    else:
        old = AGENT if chosen is None else chosen.uid
    os.chown(at, AGENT, AGENT)
    for entry in _walk(at) if old != AGENT else ():
        if entry.stat(follow_symlinks=False).st_uid == old:
            os.chown(entry.path, AGENT, AGENT, follow_symlinks=False)


def _copy_plain(source: str, target: str) -> str:
    """Copy regular files only: an untrusted skeleton may hold a FIFO."""
    if stat.S_ISREG(os.lstat(source).st_mode):
        return shutil.copy2(source, target, follow_symlinks=False)
    return target


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _walk(top: Path) -> Iterator["os.DirEntry[str]"]:
    """Everything below `top`; links are not followed."""
    left = [os.fspath(top)]
    while left:
        with os.scandir(left.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
                yield entry
