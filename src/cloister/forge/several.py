"""Several repositories in one run: the base is one commit with a folder for each, and the change is taken apart again.

The commit exists in the run's own repository only. Its parents are the commits of the repositories, and its root has
nothing but their folders and a list of them, so the work tree, save points, checks and proofs are those of one repository.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from cloister.core.addresses import without_userinfo
from cloister.core.errors import UserError
from cloister.core.events.run import BasePart, ChangePart
from cloister.core.repository import REPOSITORIES, folders_of
from cloister.core.requests import FurtherRepository
from cloister.core.text import decode, one_line
from cloister.forge.api import Base
from cloister.forge.change import Author, commit_tree
from cloister.forge.host import ensure_bare, in_bare, must, oid
from cloister.forge.modules import compared

PART_REFS = "refs/cloister/parts/"
"""In the run's own repository: the base of each repository, by its folder."""
CHANGE_REFS = "refs/cloister/changes/"
"""The newest change of each repository, by its folder."""
_SHOWN = 3
_NAME_CHARS = 60

Bring = Callable[[FurtherRepository, str], Awaitable[Base]]
"""Fetches one repository into the run's own, as the ref that is named."""


def folders(addresses: Sequence[str]) -> tuple[str, ...]:
    """A folder for each repository: the last part of its address, with a number if that is taken."""
    found: list[str] = []
    for address in addresses:
        last = re.split(r"[/\\:]", address.rstrip("/").removesuffix(".git").rstrip("/"))[-1]
        # It is a part of a ref, too: git takes none with two dots or `.lock` at the end.
        last = last[:_NAME_CHARS].strip(".-")
        plain = re.sub(r"[^A-Za-z0-9._-]+|\.\.+|\.lock$", "-", last).strip(".-") or "repository"
        taken, name, number = {one.casefold() for one in found}, plain, 2
        while name.casefold() in taken:
            name, number = f"{plain}-{number}", number + 1
        found.append(name)
    return tuple(found)


async def bring_all(bare: Path, wanted: Sequence[FurtherRepository], bring: Bring) -> Base:
    """Fetch every repository into `bare`, and make the commit that holds them all."""
    await ensure_bare(bare)
    parts, notes = list[BasePart](), list[str]()
    for folder, one in zip(folders([one.repo for one in wanted]), wanted, strict=True):
        base = await bring(one, f"{PART_REFS}{folder}")
        parts.append(BasePart(folder, without_userinfo(one.repo), base.commit, base.branch))
        if base.note:
            notes.append(f"{folder}: {base.note}")
    commit = await compose(bare, [(part.folder, part.commit) for part in parts])
    return Base(commit, parts[0].branch, " ".join(notes) or None, tuple(parts))


async def compose(bare: Path, parts: Sequence[tuple[str, str]]) -> str:
    """The commit with each folder's commit in its place. The same parts always make the same commit."""
    marks: list[tuple[str, str, str]] = []
    for folder, _ in parts:
        made = await in_bare(bare, "hash-object", "-w", "--stdin", stdin=f"{folder}\n".encode())
        marks.append(("100644 blob", oid(must(made, "list the repositories")), folder))
    below = await _tree(bare, marks)
    for name in reversed(REPOSITORIES.strip("/").split("/")[1:]):
        below = await _tree(bare, [("040000 tree", below, name)])
    entries = [("040000 tree", below, REPOSITORIES.partition("/")[0])]
    for folder, commit in parts:
        found = await in_bare(bare, "rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}")
        entries.append(("040000 tree", oid(must(found, f"find commit {commit[:12]}")), folder))
    tree = await _tree(bare, entries)
    text = f"{len(parts)} repositories\n\n" + "".join(f"{folder}: {commit}\n" for folder, commit in parts)
    made = await commit_tree(bare, tree, " ".join(dict.fromkeys(commit for _, commit in parts)), text, at=0)
    must(await in_bare(bare, "update-ref", "refs/cloister/base", made), "keep the base")
    return made


async def _tree(bare: Path, entries: Sequence[tuple[str, str, str]]) -> str:
    lines = "".join(f"{kind} {name}\t{path}\0" for kind, name, path in entries)
    return oid(must(await in_bare(bare, "mktree", "-z", stdin=lines.encode()), "make a tree"))


async def tree_at(bare: Path, commit: str, folder: str) -> str | None:
    """The files of one repository in `commit`; None if its folder is gone."""
    listed = await in_bare(bare, "--literal-pathspecs", "ls-tree", "-z", "--full-tree", commit, "--", folder)
    about = listed.out.partition(b"\t")[0].split()
    return decode(about[2]) if listed.ok and len(about) == 3 and about[1] == b"tree" else None


async def folders_at(bare: Path, commit: str) -> tuple[str, ...]:
    """The folders of `commit` that hold a repository each; none for a commit of one repository."""
    listed = await in_bare(
        bare, "ls-tree", "-z", "--name-only", "--end-of-options", f"{commit}:{REPOSITORIES}"
    )
    names = decode(listed.out).split("\0")[:-1] if listed.ok else []
    return folders_of(f"{REPOSITORIES}{name}" for name in names)


async def check_placed(bare: Path, base: str, commit: str, places: Sequence[str]) -> None:
    """Raises `UserError` (`outside_repositories`) for changes that belong to none of the repositories in `places`."""
    if not places or base == commit:
        return
    for folder in places:
        if await tree_at(bare, commit, folder) is None:
            raise UserError(
                "outside_repositories",
                f"The folder {folder} of a repository is gone: bring it back, as with "
                f"`git checkout refs/cloister/base -- {folder}`.",
            )
    paths = [decode(path) for path in (await compared(bare, base, commit)).split(b"\0")[1::2]]
    strays = [path for path in paths if path.partition("/")[0] not in places]
    if strays:
        shown = ", ".join(one_line(path, 100) for path in strays[:_SHOWN])
        more = f" and {len(strays) - _SHOWN} more" if len(strays) > _SHOWN else ""
        raise UserError(
            "outside_repositories",
            f"{shown}{more} is in none of the repositories {', '.join(places)}, so no change can hold it: move it into "
            "one of them or delete it, and undo edits with `git checkout refs/cloister/base -- PATH`.",
        )


async def split(
    bare: Path,
    parts: Sequence[BasePart],
    saved: str,
    before: Sequence[ChangePart],
    message: Callable[[BasePart], str],
    author: Author,
) -> tuple[ChangePart, ...]:
    """Commit what `saved` changes in each repository on its base, or on the change of an earlier round."""
    shown = await in_bare(bare, "show", "--no-patch", "--format=%ct", "--end-of-options", saved)
    at = int(must(shown, f"find the save {saved[:12]}"))
    earlier, made = {one.folder: one.commit for one in before}, list[ChangePart]()
    for part in parts:
        parent = earlier.get(part.folder, part.commit)
        found = await in_bare(bare, "rev-parse", "--verify", "--end-of-options", f"{parent}^{{tree}}")
        tree = await tree_at(bare, saved, part.folder)
        commit = parent
        if tree is not None and tree != oid(must(found, f"find commit {parent[:12]}")):
            commit = await commit_tree(bare, tree, parent, message(part), author, at=at)
        if commit != part.commit:
            ref = f"{CHANGE_REFS}{part.folder}"
            must(await in_bare(bare, "update-ref", ref, commit), "keep the change")
            made.append(ChangePart(part.folder, commit))
    return tuple(made)
