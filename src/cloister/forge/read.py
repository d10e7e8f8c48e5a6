"""Reads files and commits from bare repositories of ours. Never acts on their content."""

import os
import posixpath
import shutil
import tempfile
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cloister.core import limits
from cloister.core.computer import WORK_DIR
from cloister.core.errors import UserError
from cloister.core.system import in_thread
from cloister.core.text import decode
from cloister.forge._spawn import Result
from cloister.forge.host import Checkout, copy_in, ensure_bare, in_bare, in_checkout, must, oid
from cloister.forge.modules import MODULE_REFS
from cloister.forge.plain_git import BASE_REF, find_checkout

CONTENT = "lfs"
"""Directory in a run's repository with the content of LFS: one file per object, named by its hash."""
FILE_BYTES = 1_048_576
"""The largest file that is read this way."""


async def read_file(bare: Path, commit: str, path: str) -> bytes | None:
    """The file at `path`; None if the commit has none. Raises `UserError` (`file_too_large`)."""
    listed = await in_bare(bare, "ls-tree", "-z", "--full-tree", commit, "--", path)
    if (blob := _file_in(listed)) is None:
        return None
    found = await in_bare(bare, "cat-file", "blob", blob, limit_bytes=FILE_BYTES)
    if found.cut:
        raise UserError("file_too_large", f"{path} is larger than {FILE_BYTES >> 20} MiB: make it smaller.")
    return must(found, f"read {path}")


class Blob(NamedTuple):
    """A regular file of a commit."""

    oid: str
    size: int


async def blobs(bare: Path, commit: str) -> dict[str, Blob]:
    """Every regular file of the commit. Raises `UserError` (`repository_too_large`)."""
    listed = await in_bare(
        bare, "ls-tree", "-r", "-l", "-z", "--full-tree", commit, limit_bytes=limits.CHANGE_BYTES
    )
    if listed.cut:
        raise UserError("repository_too_large", "The repository has too many files to list them.")
    found: dict[str, Blob] = {}
    for entry in must(listed, "list the files of the commit").split(b"\0")[:-1]:
        about, _, path = entry.partition(b"\t")
        mode, kind, name, size = about.split()
        if kind == b"blob" and mode != _LINK:
            found[decode(path)] = Blob(name.decode(), int(size))
    return found


async def texts(bare: Path, chosen: Mapping[str, Blob]) -> dict[str, str]:
    """The texts of small files; larger ones than `FILE_BYTES` are left out."""
    small = {path: blob for path, blob in chosen.items() if blob.size <= FILE_BYTES}
    if not small:
        return {}
    stdin = b"".join(blob.oid.encode() + b"\n" for blob in small.values())
    read = await in_bare(bare, "cat-file", "--batch", stdin=stdin, limit_bytes=limits.CHANGE_BYTES)
    data, at = must(read, "read the files"), 0
    found: dict[str, str] = {}
    for path, blob in small.items():
        start = data.index(b"\n", at) + 1
        at = start + blob.size + 1
        found[path] = decode(data[start : at - 1])
    return found


class Folder(NamedTuple):
    """The small files of one directory of a commit, by their whole paths."""

    files: dict[str, bytes]
    problems: tuple[str, ...]
    """One sentence for each file that is not read."""


async def folder_of(
    bare: Path, commit: str, folder: str, ending: str, *, most: int, limit_bytes: int
) -> Folder:
    """The files of `folder` whose names end in `ending`. A link is not followed, and a large file is not read."""
    return await _folder(partial(in_bare, bare), commit, folder, ending, most, limit_bytes)


async def folder_of_head(
    repo: str, folder: str, ending: str, *, most: int, limit_bytes: int
) -> tuple[str, Folder]:
    """HEAD of the repository at the path `repo` and its `folder`, as `folder_of`; empty if it has no commit.

    Raises `UserError` (`no_repository`).
    """
    checkout = await in_thread(find_checkout, repo)
    head = await in_checkout(checkout, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if not head.ok:
        return "", Folder({}, ())
    commit = oid(head.out)
    return commit, await _folder(partial(in_checkout, checkout), commit, folder, ending, most, limit_bytes)


async def _folder(
    git: Callable[..., Awaitable[Result]], commit: str, folder: str, ending: str, most: int, limit_bytes: int
) -> Folder:
    listed = must(
        await git("ls-tree", "-l", "-z", "--full-tree", commit, "--", folder, f"{folder}/"),
        f"look into {folder}",
    )
    chosen: dict[str, str] = {}
    problems: list[str] = []
    for entry in listed.split(b"\0")[:-1]:
        about, _, name = entry.partition(b"\t")
        mode, _, blob, size = about.split()
        path = decode(name)
        if mode == _LINK and (path == folder or path.endswith(ending)):
            problems.append(f"{path} is a symbolic link, which is not followed.")
        elif not path.startswith(f"{folder}/") or not path.endswith(ending) or not size.isdigit():
            continue
        elif int(size) > limit_bytes:
            problems.append(f"{path} is larger than {limit_bytes:,} bytes.")
        elif len(chosen) >= most:
            problems.append(f"{path} is not read: only {most} files of {folder} are.")
        else:
            chosen[path] = blob.decode()
    files = {path: must(await git("cat-file", "blob", blob), f"read {path}") for path, blob in chosen.items()}
    return Folder(files, tuple(problems))


class Content(NamedTuple):
    """A regular file of a commit with its content."""

    oid: str
    data: bytes
    runs: bool
    """True if it may be executed."""


async def chosen_files(
    bare: Path, commit: str, wanted: Callable[[str], bool], *, most: int
) -> dict[str, Content]:
    """The first `most` regular files of the commit whose paths are `wanted`.

    Files larger than `FILE_BYTES` are left out; what a link leads to is no file of its own.
    """
    return await _chosen(partial(in_bare, bare, limit_bytes=limits.CHANGE_BYTES), commit, wanted, most)


async def chosen_of_head(
    repo: str, wanted: Callable[[str], bool], *, most: int
) -> tuple[str, dict[str, Content]]:
    """HEAD of the repository at the path `repo` and its files as `chosen_files`; empty if it has no commit.

    Raises `UserError` (`no_repository`).
    """
    checkout = await in_thread(find_checkout, repo)
    head = await in_checkout(checkout, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if not head.ok:
        return "", {}
    commit = oid(head.out)
    return commit, await _chosen(partial(in_checkout, checkout), commit, wanted, most)


async def _chosen(
    git: Callable[..., Awaitable[Result]], commit: str, wanted: Callable[[str], bool], most: int
) -> dict[str, Content]:
    listed = must(await git("ls-tree", "-r", "-z", "--full-tree", commit), "list the files of the commit")
    names: dict[str, tuple[str, bool]] = {}
    for entry in listed.split(b"\0")[:-1]:
        about, _, path = entry.partition(b"\t")
        mode, kind, name = about.split()
        if kind == b"blob" and mode != _LINK and len(names) < most and wanted(decode(path)):
            names[decode(path)] = name.decode(), mode == b"100755"
    if not names:
        return {}
    stdin = b"".join(name.encode() + b"\n" for name, _ in names.values())
    sizes = must(
        await git("cat-file", "--batch-check=%(objectsize)", stdin=stdin), "look at the files"
    ).split(b"\n")
    small = {
        path: int(size)
        for path, size in zip(names, sizes, strict=False)
        if size.isdigit() and int(size) <= FILE_BYTES
    }
    stdin = b"".join(names[path][0].encode() + b"\n" for path in small)
    data, at = must(await git("cat-file", "--batch", stdin=stdin), "read the files"), 0
    found: dict[str, Content] = {}
    for path, size in small.items():
        start = data.find(b"\n", at) + 1
        at = start + size + 1
        if at > len(data):
            break  # cut at the limit
        found[path] = Content(names[path][0], data[start : at - 1], names[path][1])
    return found


async def read_head_file(repo: str, path: str) -> tuple[str, bytes | None] | None:
    """HEAD of the repository at the path `repo` and its file at `path`; None if it has no commit.

    Raises `UserError` (`no_repository`).
    """
    checkout = await in_thread(find_checkout, repo)
    head = await in_checkout(checkout, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if not head.ok:
        return None
    commit = oid(head.out)
    listed = await in_checkout(checkout, "ls-tree", "-z", "--full-tree", commit, "--", path)
    if (blob := _file_in(listed)) is None:
        return commit, None
    return commit, must(await in_checkout(checkout, "cat-file", "blob", blob), f"read {path}")


async def working_files(
    repo: str, chosen: Callable[[Sequence[str]], Sequence[str]]
) -> tuple[list[str], dict[str, str]]:
    """The names of the files in the checkout at the path `repo`, ignored ones left out, and the texts of the `chosen` ones.

    Raises `UserError` (`no_repository`).
    """
    checkout = await in_thread(find_checkout, repo)
    if checkout.bare:
        raise UserError("no_repository", f"{checkout.top} has no working tree: give the path of a checkout.")
    listed = await in_checkout(
        checkout,
        *("ls-files", "-z", "--cached", "--others", "--exclude-standard"),
    )
    names = sorted(set(decode(must(listed, "list the files")).split("\0")) - {""})

    def read() -> dict[str, str]:
        found: dict[str, str] = {}
        for name in chosen(names):
            path = checkout.top / name
            # SAFETY: the texts may travel to a server, and a link could lead to any file of this machine.
            with suppress(OSError):
                if path.resolve() == checkout.top.resolve() / name and path.is_file():
                    with path.open("rb") as file:
                        found[name] = decode(file.read(FILE_BYTES))
        return found

    return names, await in_thread(read)


def _file_in(listed: Result) -> str | None:
    """The object of the one regular file that `git ls-tree -z` lists."""
    about = must(listed, "look into the repository").partition(b"\t")[0].split()
    return about[2].decode() if len(about) == 3 and about[1] == b"blob" and about[0] != b"120000" else None


async def export(bare: Path, commit: str, at: Path) -> None:
    """Write every file of `commit` into the new directory `at`, links as links."""
    await in_thread(lambda: at.mkdir(mode=0o700))
    env = {"GIT_INDEX_FILE": str(at.with_name(f"{at.name}.index"))}
    must(await in_bare(bare, "read-tree", commit, env=env), "read the commit")
    # Git rejects names that lead out, and does not write through links.
    written = await in_bare(bare, f"--work-tree={at}", "checkout-index", "--all", "--quiet", env=env)
    must(written, "write the files of the commit")
    await in_thread(lambda: at.with_name(f"{at.name}.index").unlink(missing_ok=True))


# The names of changed paths, by the trees alone. Nothing is checked out.

_LINK, _MODULE = b"120000", b"160000"
_LINK_BYTES = 4_096
"""PATH_MAX: the kernel follows no longer link."""
_HOPS = 40
"""ELOOP: the kernel follows no more links in one path."""
_NESTED = 4
"""Links to directories in one name that are followed backwards."""
_NAMES = 200_000
"""The most names of one change that are judged."""


@dataclass(frozen=True, slots=True)
class Touched:
    """A path in which two trees differ, by one of its names."""

    path: str
    name: str
    """The path itself, or a name that links of the tree give it."""
    holder: bool = False
    """True if it is a link or a submodule: names below it may mean other files."""


async def touched(bare: Path, base: str, tree: str) -> Sequence[Touched]:
    """Every path in which `tree` differs from `base`, under each of its names. Renames count as two paths.

    Raises `UserError` (`change_too_large`) if there are too many.
    """
    compared = await in_bare(
        bare,
        *("diff-tree", "-r", "--no-renames", "-z", "--end-of-options", base, tree),
        limit_bytes=limits.CHANGE_BYTES,
    )
    if compared.cut:
        raise _too_many()
    fields = must(compared, "compare the change with its base").split(b"\0")
    changes = {decode(path): entry.split() for entry, path in zip(fields[::2], fields[1::2], strict=False)}
    if not changes:
        return ()
    names = await _links(bare, tree)
    found: list[Touched] = []
    for path, (before, after, *_) in changes.items():
        holder = not {_LINK, _MODULE}.isdisjoint((before.lstrip(b":"), after))
        for name in names.of(path):
            found.append(Touched(path, name, holder))
            if len(found) > _NAMES:
                raise _too_many()
    return found


def _too_many() -> UserError:
    return UserError(
        "change_too_large", "The change has too many files to compare them with the rules: undo some."
    )


async def _links(bare: Path, tree: str) -> "_Links":
    listed = await in_bare(
        bare, "ls-tree", "-r", "-l", "-z", "--full-tree", tree, limit_bytes=limits.CHANGE_BYTES
    )
    if listed.cut:
        raise _too_many()
    files: list[str] = []
    blobs: dict[str, bytes] = {}
    for entry in must(listed, "list the files of the change").split(b"\0")[:-1]:
        about, _, path = entry.partition(b"\t")
        mode, _, blob, size = about.split()
        files.append(decode(path))
        if mode == _LINK and int(size) <= _LINK_BYTES:
            blobs[files[-1]] = blob
    if not blobs:
        return _Links({}, files)
    stdin = b"".join(blob + b"\n" for blob in blobs.values())
    texts = must(
        await in_bare(bare, "cat-file", "--batch", stdin=stdin, limit_bytes=limits.CHANGE_BYTES), "read links"
    )
    targets: dict[str, str] = {}
    at = 0
    for path in blobs:
        end = texts.index(b"\n", at)
        size = int(texts[at:end].split()[2])
        targets[path] = decode(texts[end + 1 : end + 1 + size])
        at = end + size + 2
    return _Links(targets, files)


@dataclass(slots=True)
class _Links:
    """The symbolic links of one tree."""

    targets: Mapping[str, str]
    files: list[str]
    """Every path of the tree."""
    _leading_to: dict[str, list[str]] = field(default_factory=dict[str, "list[str]"])
    """Real path → the links that lead there."""

    def __post_init__(self) -> None:
        self.files.sort()
        for link in self.targets:
            real = self._real(link)
            if real is not None:
                self._leading_to.setdefault(real, []).append(link)

    def of(self, path: str) -> Iterator[str]:
        """`path` and its other names. A link also names all that is below its end."""
        names = [path]
        if path in self.targets and (real := self._real(path)) is not None:
            names.extend(path + below for below in self._below(real))
        seen = dict.fromkeys(names)
        for _ in range(_NESTED):
            names = [other for name in names for other in self._through(name) if other not in seen]
            seen.update(dict.fromkeys(names))
            if len(seen) > _NAMES:
                raise _too_many()
        yield from seen

    def _through(self, name: str) -> Iterator[str]:
        """The names that `name` has through one more link."""
        end = len(name)
        while end > 0:
            yield from (link + name[end:] for link in self._leading_to.get(name[:end], ()))
            end = name.rfind("/", 0, end)
        yield from (f"{link}/{name}" for link in self._leading_to.get("", ()))

    def _below(self, folder: str) -> Iterator[str]:
        for at in range(bisect_left(self.files, f"{folder}/") if folder else 0, len(self.files)):
            path = self.files[at]
            if folder and not path.startswith(f"{folder}/"):
                return
            yield path[len(folder) :] if folder else f"/{path}"

    def _real(self, path: str) -> str | None:
        """The path that `path` leads to; None if it leads out of the tree or in circles."""
        done: list[str] = []
        left = deque(path.split("/"))
        hops = 0
        while left:
            part = left.popleft()
            if part == "..":
                if not done:
                    return None
                done.pop()
            elif part not in ("", "."):
                done.append(part)
                target = self.targets.get("/".join(done))
                if target is not None:
                    hops += 1
                    if hops > _HOPS:
                        return None
                    done.pop()
                    if target.startswith("/"):
                        below = posixpath.relpath(target, WORK_DIR)
                        if below.startswith(".."):
                            return None
                        done, target = [], below
                    left.extendleft(reversed(target.split("/")))
        return "/".join(done)


INHERITED_REF = "refs/cloister/inherited"


async def copy_commit(source: Path, commit: str, base: str, into: Path) -> None:
    """Copy `commit` and its history from one run's repository into another's, created if missing."""
    await ensure_bare(into)
    for name, ref in ((base, BASE_REF), (commit, INHERITED_REF)):
        copied = await copy_in(Checkout(source, bare=True, who=None), name, into, ref)
        must(copied, "copy the save point")
    if (source / CONTENT).is_dir():  # of LFS
        await in_thread(
            lambda: shutil.copytree(source / CONTENT, into / CONTENT, copy_function=_link, dirs_exist_ok=True)
        )
    refs = await in_bare(source, "for-each-ref", "--format=%(objectname)", MODULE_REFS)
    for name in decode(must(refs, "list the submodules")).split():
        copied = await copy_in(Checkout(source, bare=True, who=None), name, into, f"{MODULE_REFS}{name}")
        must(copied, "copy a submodule")


def _link(source: str, into: str) -> None:
    """An earlier copy may have been cut short."""
    with suppress(FileExistsError):
        os.link(source, into)


async def diff_of_diffs(bare: Path, one: str, other: str, names: tuple[str, str]) -> str:
    """The unified diff of two unified diffs; empty if they are the same. Leaves `bare` unchanged."""
    with tempfile.TemporaryDirectory(prefix="cloister-", dir=bare) as folder:
        env = {"GIT_OBJECT_DIRECTORY": folder}
        blobs: list[str] = []
        for text in (one, other):
            stored = await in_bare(
                bare, "hash-object", "-w", "--stdin", stdin=_comparable(text).encode(), env=env
            )
            blobs.append(oid(must(stored, "compare the changes")))
        made = await in_bare(
            bare,
            *("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--text", *blobs),
            env=env,
            limit_bytes=limits.DIFF_BYTES,
        )
    text = decode(made.out) if made.cut else decode(must(made, "compare the changes"))
    start = text.find("\n@@")
    if start < 0:
        return ""
    ending = "\n[… the rest of the diff is cut off …]\n" if made.cut else ""
    return f"--- {names[0]}\n+++ {names[1]}{text[start:]}{ending}"


def _comparable(diff: str) -> str:
    """The diff without object names and hunk positions, which differ for equal changes."""
    kept: list[str] = []
    for line in diff.removesuffix("\n").split("\n"):
        if line.startswith("index "):
            continue
        kept.append(
            "@@" + line.split("@@", 2)[-1] if line.startswith("@@ ") and line.count("@@") >= 2 else line
        )
    return "".join(f"{line}\n" for line in kept)
