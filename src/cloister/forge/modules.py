"""Submodules: fetched on the host into the repository of the run, put into the sandbox from there.

`.gitmodules` is a file of the repository, so a stranger may have written it. It says where submodules are, nothing else:
its names become no path, its commands are not run, and an address is used only if the host's rules let it be.
"""

from pathlib import Path
from typing import NamedTuple

from cloister.core import limits
from cloister.core.errors import UserError
from cloister.core.text import decode, one_line
from cloister.forge.host import in_bare, must

MODULE_REFS = "refs/cloister/modules/"
"""In the run's own repository: the commits of submodules that were fetched."""
DEPTH, COUNT = 4, 64
"""Submodules of submodules, and all submodules of one run."""
_FILE = ".gitmodules"
_FILE_BYTES = 1_048_576
_PATH_CHARS = 1_024


class Module(NamedTuple):
    """A submodule of one commit."""

    path: str
    """From the top of the outermost repository."""
    address: str
    """As `.gitmodules` has it; empty if it has none."""
    commit: str
    depth: int = 1
    """2 for a submodule of a submodule, and so on."""


async def modules_of(bare: Path, commit: str, within: Module | None = None) -> tuple[Module, ...]:
    """The submodules of `commit`, which may be a submodule itself. Links that `.gitmodules` does not name are none."""
    listed = await in_bare(bare, "--literal-pathspecs", "ls-tree", "-lz", "--full-tree", commit, "--", _FILE)
    about = listed.out.partition(b"\t")[0].split()
    if not listed.ok or len(about) != 4 or about[0] not in (b"100644", b"100755"):
        return ()
    if int(about[3]) > _FILE_BYTES:
        return ()
    read = await in_bare(bare, "config", "--null", "--no-includes", f"--blob={commit}:{_FILE}", "--list")
    named: dict[str, dict[str, str]] = {}
    for entry in decode(read.out).split("\0"):
        key, _, value = entry.partition("\n")
        section, _, rest = key.partition(".")
        name, _, what = rest.rpartition(".")
        if section == "submodule" and what in ("path", "url"):
            named.setdefault(name, {})[what] = value
    addresses = {one["path"].strip("/"): one.get("url", "") for one in named.values() if one.get("path")}
    wanted = [path for path in sorted(addresses) if _plain(path) and len(path) <= _PATH_CHARS][:COUNT]
    if not wanted:
        return ()
    links = await in_bare(bare, "--literal-pathspecs", "ls-tree", "-z", "--full-tree", commit, "--", *wanted)
    found: list[Module] = []
    for entry in must(links, "list the submodules").split(b"\0")[:-1]:
        about, _, path = entry.partition(b"\t")
        mode, _, oid = about.split()
        if mode == b"160000" and (name := decode(path)) in addresses:
            below, depth = (f"{within.path}/", within.depth + 1) if within else ("", 1)
            found.append(Module(f"{below}{name}", addresses[name], oid.decode(), depth))
    return tuple(found)


def _plain(path: str) -> bool:
    """True if no part of the path leads out of the tree, or into git's own files."""
    parts = path.split("/")
    return not any(part in ("", ".", "..") or part.casefold() in (".git", "git~1") for part in parts)


# The submodules of a saved tree.


async def placed(bare: Path, base: str, commit: str) -> tuple[Module, ...]:
    """The submodules of `commit` whose files `bare` has. One that moved to an unknown commit is where `base` has it."""
    refs = await in_bare(bare, "for-each-ref", "--count=1", MODULE_REFS)
    if not must(refs, "look for submodules"):
        return ()
    before = {module.path: module for module in await modules_of(bare, base)} if commit != base else {}
    due, found = list(await modules_of(bare, commit)), list[Module]()
    while due and len(found) < COUNT:
        module = due.pop(0)
        if not await _is_known(bare, module.commit):
            module = before.get(module.path, module)
        if await _is_known(bare, module.commit):
            found.append(module)
            due += await modules_of(bare, module.commit, module)
    return tuple(found)


async def is_there(bare: Path, commit: str) -> bool:
    """True if the submodule was fetched at this commit."""
    return (await in_bare(bare, "show-ref", "--verify", "--quiet", f"{MODULE_REFS}{commit}")).ok


async def _is_known(bare: Path, commit: str) -> bool:
    """True if `commit` is in the history of a submodule that was fetched. A guest cannot send such a history."""
    if await is_there(bare, commit):
        return True
    found = await in_bare(bare, "for-each-ref", "--count=1", f"--contains={commit}", MODULE_REFS)
    return found.ok and bool(found.out)


async def compared(bare: Path, base: str, tree: str) -> bytes:
    """What differs, as `git diff-tree -r -z` prints it, of a change of any size that can be saved."""
    args = ("diff-tree", "-r", "--no-renames", "-z", "--end-of-options", base, tree)
    made = await in_bare(bare, *args, limit_bytes=limits.CHANGE_BYTES)
    return must(made, "compare the change with its base")


async def moved(bare: Path, base: str, tree: str) -> dict[bytes, str]:
    """The submodules that `tree` moves to commits which their repositories do not have, and their commits in `base`."""
    fields = (await compared(bare, base, tree)).split(b"\0")
    links: dict[bytes, tuple[str, str]] = {}
    for entry, path in zip(fields[::2], fields[1::2], strict=False):
        if entry.startswith(b":160000 160000 "):
            old, new = decode(entry).split()[2:4]
            links[path] = (old, new)
    return {
        path: old
        for path, (old, new) in links.items()
        if await is_there(bare, old) and not await _is_known(bare, new)
    }


async def check_moved(bare: Path, base: str, tree: str) -> None:
    """Raises `UserError` (`submodule_moved`) if a clone of the change could not have one of its submodules."""
    for path, old in (await moved(bare, base, tree)).items():
        shown = one_line(decode(path), 200)
        raise UserError(
            "submodule_moved",
            f"{shown} is a submodule, and its repository does not have the commit that is checked out there. A change "
            f"cannot hold what was committed inside: undo it with `git -C {shown} checkout {old[:12]}`.",
        )
