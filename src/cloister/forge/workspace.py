"""git inside the sandbox: put the repository in, name its state, save that state outside.

A guest's answers are not trusted: the host checks every object of a saved tree and makes the commit that holds it.
"""

import logging
import shlex
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from cloister.core import limits
from cloister.core.computer import WORK_DIR, Command, Computer, Finished
from cloister.core.errors import Bug, SandboxLost, UserError
from cloister.core.text import decode, one_line
from cloister.forge import packs
from cloister.forge.change import AUTHOR, commit_tree
from cloister.forge.host import in_bare, is_oid, must

log = logging.getLogger(__name__)

WORK_BRANCH = "work"
SAVE_REFS = "refs/cloister/"

_SETTINGS = {
    "safe.directory": "*",
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.splitIndex": "false",
    "core.sparseCheckout": "false",
    "core.autocrlf": "false",
    "core.safecrlf": "false",
    "core.fileMode": "true",
    "core.symlinks": "true",
    "core.excludesFile": "/dev/null",
    "core.attributesFile": "/dev/null",
    "advice.addEmbeddedRepo": "false",
    "gc.auto": "0",
}
"""Keep the agent's own git configuration from changing the save. No defence: this runs inside the sandbox."""

_ENV = {
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_COUNT": str(len(_SETTINGS)),
    **{f"GIT_CONFIG_KEY_{n}": key for n, key in enumerate(_SETTINGS)},
    **{f"GIT_CONFIG_VALUE_{n}": value for n, value in enumerate(_SETTINGS.values())},
}

_LITTER = ("__pycache__/", "*.pyc", ".pytest_cache/", ".mypy_cache/", ".ruff_cache/", "node_modules/")
"""Files that checks leave behind. Never part of a change, even if the repository does not ignore them."""

_LEFT = ".git/cloister-left"
"""Patterns of files that a template's setup left in the work tree: no part of a change either."""

_EXCLUDE = f"""mkdir -p .git/info
printf '%s\\n' {" ".join(map(shlex.quote, _LITTER))} > .git/info/exclude
if [ -f {_LEFT} ]; then cat {_LEFT} >> .git/info/exclude; fi
"""

_PUT = f"""
set -e
git init --quiet --template= --initial-branch="$1" .
{_EXCLUDE}
printf '[user]\\n\\tname = Cloister\\n\\temail = cloister@localhost\\n[gc]\\n\\tauto = 0\\n' >> .git/config
git index-pack --stdin > /dev/null
git update-ref refs/cloister/base "$2"
git update-ref "refs/heads/$1" "$2"
git reset --quiet --hard
cp .git/index .git/cloister-index
[ -z "$3" ] || GIT_INDEX_FILE=.git/cloister-index git read-tree --reset -u "$3"
"""

_REPAIR = f"""
set -e
git init --quiet --template= .
{_EXCLUDE}
git index-pack --stdin > /dev/null
git update-ref refs/cloister/base "$1"
rm -f .git/cloister-index
"""

# Our own index, beside the agent's, is kept between calls: unchanged files are not read again.
# Without it we start from the base, so that tracked files that an ignore rule names stay tracked.
_SNAP = """
i=.git/cloister-index
export GIT_INDEX_FILE=$i
if [ -e $i.lock ]; then rm -f $i.lock; fi
snap() {
  [ -f $i ] || git read-tree refs/cloister/base 2>/dev/null || $1
  git add --all --ignore-errors . >&2
  git write-tree
}
"""
_TREE = _SNAP + "snap true || { rm -f $i; snap true; }"
_SAVE = (
    _SNAP
    + """
t=$(snap "exit 3") || exit 3
echo "$t"
[ "$t" = "$1" ] || printf '%s\\n^%s\\n' "$t" "$1" \
  | git pack-objects --revs --thin --stdout --delta-base-offset --quiet
"""
)


_DISOWN = f"""
git -c core.quotePath=false ls-files --others --exclude-standard --directory \\
  | sed 's/[][*?\\\\!#]/\\\\&/g; s|^|/|' > {_LEFT}
cat {_LEFT} >> .git/info/exclude
"""


_UNCHANGED = Command(
    ("git", "ls-files", "-z", "--modified", "--deleted", "--others", "--exclude-standard"),
    env={**_ENV, "GIT_INDEX_FILE": ".git/cloister-index"},
    seconds=limits.GIT_SECONDS,
    limit_bytes=limits.DIFF_BYTES,
)
"""Prints the differences from the index that `_SNAP` keeps. For most turns, which change nothing, this suffices."""


async def put(
    computer: Computer,
    bare: Path,
    commit: str,
    branch: str = WORK_BRANCH,
    *,
    history_bytes: int = limits.HISTORY_BYTES,
) -> None:
    """Make `/work` a fresh checkout of `commit` on `branch`, with as much history as fits.

    Raises `UserError` (`put_failed`, `repository_too_large`).
    """
    pack = await packs.pack(bare, commit, limit_bytes=history_bytes)
    await _put(computer, pack, (branch, commit, ""))


async def sync(computer: Computer, bare: Path, have: str | None, commit: str) -> None:
    """As `put`, but send only the objects that a template with the repository at `have` lacks.

    Other files of the work tree stay. Raises as `put`.
    """
    since = await packs.pack_since(bare, have, commit) if have is not None and is_oid(have) else None
    if since is not None and (await computer.run(_script(_PUT, WORK_BRANCH, commit, ""), since.data)).ok:
        return
    # The template has no repository, or its setup damaged it.
    await put(computer, bare, commit)


async def restore(computer: Computer, bare: Path, base: str, commit: str, branch: str = WORK_BRANCH) -> None:
    """Make `/work` as it was when `commit` was saved: HEAD at `base`, with the files of `commit`."""
    tree = await packs.tree_of(bare, commit)
    await _put(computer, await packs.pack(bare, base, tree), (branch, base, tree))


async def _put(computer: Computer, pack: packs.Pack, args: tuple[str, str, str]) -> None:
    done = await computer.run(_script(_PUT, *args), pack.data)
    if not done.ok:
        raise UserError("put_failed", f"The repository could not be copied into the sandbox: {_why(done)}.")
    if pack.shallow:
        await computer.write(".git/shallow", "".join(f"{name}\n" for name in pack.shallow).encode())


async def disown(computer: Computer) -> None:
    """Exclude the current untracked files of the work tree from every later change."""
    done = await computer.run(_script(_DISOWN))
    if not done.ok:
        raise UserError("save_failed", f"git in the sandbox cannot read the working tree: {_why(done)}.")


async def tree(computer: Computer, bare: Path, base: str, last: str | None = None) -> str:
    """The name of the current tree: tracked and untracked files without ignored ones. Equal names mean equal files.

    A repository that the agent damaged is repaired from `base`. `last` is the newest known name; it is returned
    if a quick look finds no difference. Raises `UserError` (`save_failed`) if git inside fails.
    """
    if last is not None:
        looked = await computer.run(_UNCHANGED)
        if looked.ok and not looked.out and not looked.err:
            return last
    done = await _repairing(computer, bare, base, _script(_TREE))
    name = decode(done.out[-41:]).strip()
    if not done.ok or not is_oid(name):
        raise UserError("save_failed", f"git in the sandbox cannot read the working tree: {_why(done)}.")
    return name


async def save(
    computer: Computer,
    bare: Path,
    base: str,
    ref: str,
    *,
    limit_bytes: int = limits.CHANGE_BYTES,
    check: Callable[[str], Awaitable[None]] | None = None,
) -> str:
    """Save the working tree outside the sandbox as a commit on `base`, under `ref`; returns that commit.

    Returns `base` if nothing differs from it. `check` is called with the tree before it becomes a commit.
    Raises `UserError` (`save_failed`, `change_too_large`), what `check` raises, `HostError` (`no_disk`), and
    `SandboxLost` if the sandbox sends data that an honest one never sends.
    """
    if not ref.startswith(SAVE_REFS):
        raise Bug(f"A save point must be under {SAVE_REFS}, not {ref}.")
    base_tree = await packs.tree_of(bare, base)
    command = msgspec.structs.replace(_script(_SAVE, base_tree), limit_bytes=limit_bytes)
    done = await _repairing(computer, bare, base, command)
    _check_saved(done, limit_bytes)
    name, data = decode(done.out[:40]), done.out[41:]
    if not is_oid(name):
        raise SandboxLost("The sandbox named a tree that cannot exist.")
    commit = base
    if name != base_tree:
        await packs.take_in(bare, data, name, base_tree)
        if check is not None:
            await check(name)
        commit = await commit_tree(bare, name, base, "Save point\n", AUTHOR)
    must(await in_bare(bare, "update-ref", ref, commit), f"store {ref}")
    await packs.collect(bare)
    return commit


async def _repairing(computer: Computer, bare: Path, base: str, command: Command) -> Finished:
    """Run a git script; if it fails, repair the repository inside and run it once more."""
    done = await computer.run(command)
    if done.ok or done.exited.killed is not None:
        return done
    pack = await packs.pack(bare, base)
    await computer.run(_script(_REPAIR, base), pack.data)
    return await computer.run(command)


def _check_saved(done: Finished, limit_bytes: int) -> None:
    if done.exited.killed == "output":
        raise UserError(
            "change_too_large",
            f"The change is larger than {limit_bytes >> 20} MiB: "
            "remove generated files, or name them in .gitignore.",
        )
    if not done.ok or b"No space left" in done.err or b"quota exceeded" in done.err:
        raise UserError("save_failed", f"git in the sandbox cannot save the working tree: {_why(done)}.")
    if done.err:
        log.warning("git in the sandbox complained while it saved: %s", _why(done))


def _script(text: str, *args: str) -> Command:
    return Command(
        ("/bin/sh", "-c", text, "git", *args),
        env=_ENV,
        seconds=limits.CHECK_SECONDS,
        limit_bytes=limits.CHANGE_BYTES,
    )


def _why(done: Finished) -> str:
    if done.exited.killed is not None:
        return f"it was killed ({done.exited.killed})"
    lines = [line for line in decode(done.err[-4_000:]).splitlines() if line.strip()]
    return one_line(lines[-1], 200).rstrip(".") if lines else f"it ended with status {done.exited.code}"


class TreeWatch:
    """The name of a work tree, turn after turn; runs git only if a file has changed."""

    def __init__(self, computer: Computer, bare: Path, base: str) -> None:
        self._computer = computer
        self._bare = bare
        self._base = base
        self._name: str | None = None
        """The newest name of the tree."""
        self._mark: int | None = 0
        """The change token of the files before git named them; None if there are too many to look at."""

    async def tree(self) -> str:
        """As `workspace.tree`. A change in git's own files alone, such as its ignore rules, is noticed later."""
        mark = await self._marked()
        if self._name is None or not mark or mark != self._mark:
            self._name = await tree(self._computer, self._bare, self._base, self._name)
            self._mark = mark  # taken before git looked, so later changes are noticed
        return self._name

    async def _marked(self) -> int | None:
        if self._mark is None:
            return None
        with suppress(UserError):  # git gives the better error
            return await self._computer.mark(WORK_DIR, without=".git")
        return 0
