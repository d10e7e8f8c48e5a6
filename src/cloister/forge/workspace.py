"""git inside the sandbox: put the repository in, name its state, save that state outside.

A guest's answers are not trusted: the host checks every object of a saved tree and makes the commit that holds it.
"""

import logging
import shlex
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import msgspec

from cloister.core import limits
from cloister.core.computer import WORK_DIR, Command, Computer, Finished
from cloister.core.errors import Bug, SandboxLost, UserError
from cloister.core.text import decode, one_line
from cloister.forge import packs
from cloister.forge.change import commit_tree
from cloister.forge.host import in_bare, is_oid, must
from cloister.forge.modules import placed
from cloister.forge.read import CONTENT

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

_LFS = """if [ -d .git/lfs ]; then
  git config filter.lfs.smudge "sh .git/cloister-lfs smudge"
  git config filter.lfs.clean "sh .git/cloister-lfs clean"
  git config filter.lfs.required false
fi
"""
_CONTENT = ".git/lfs/objects"
_FILTER = f"""t=$(mktemp) && trap 'rm -f "$t"' EXIT && cat > "$t" || exit 1
if [ "$1" = smudge ]; then
  o=$(head -c 200 "$t" | sed -n 's/^oid sha256:\\([0-9a-f]\\{{64\\}}\\)$/\\1/p')
else
  o=$(sha256sum < "$t" | cut -c1-64)
fi
f={_CONTENT}/$(echo "$o" | cut -c1-2)/$(echo "$o" | cut -c3-4)/$o
if [ -z "$o" ] || [ ! -f "$f" ]; then
  cat "$t"
elif [ "$1" = smudge ]; then
  cat "$f"
else
  printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:%s\\nsize %s\\n' "$o" "$(wc -c < "$t" | tr -d ' ')"
fi
"""
"""git's filter for content of LFS. Content that the host fetched is a pointer in every tree; any other stays content."""

_PUT = f"""
set -e
git init --quiet --template= --initial-branch="$1" .
{_LFS}
{_EXCLUDE}
printf '[user]\\n\\tname = Cloister\\n\\temail = cloister@localhost\\n[gc]\\n\\tauto = 0\\n' >> .git/config
git index-pack --stdin > /dev/null
git update-ref refs/cloister/base "$2"
git update-ref "refs/heads/$1" "$2"
git reset --quiet --hard
cp -p .git/index .git/cloister-index
[ -z "$3" ] || GIT_INDEX_FILE=.git/cloister-index git read-tree --reset -u "$3"
"""

_REPAIR = f"""
set -e
git init --quiet --template= .
{_LFS}
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


_PUT_MODULE = """
set -e
[ -e .git ] || git init --quiet --template= .
git index-pack --stdin > /dev/null
git update-ref --no-deref HEAD "$1"
git reset --quiet --hard
"""
"""Inside a submodule's directory. `git submodule update --init` then finds it in place and fetches nothing."""

_KEPT_INDEX = ".git/cloister-kept"
_LIST_KEPT = """
export GIT_INDEX_FILE=.git/cloister-index
git ls-files -z --others --ignored --exclude-standard -- "$@"
"""
_NAME_KEPT = f"""
export GIT_INDEX_FILE={_KEPT_INDEX}
cat > $GIT_INDEX_FILE.names
rm -f $GIT_INDEX_FILE.lock
s=$(xargs -0 -r ls -lnd -- < $GIT_INDEX_FILE.names | awk '{{ s += $5 }} END {{ printf "%.0f", s }}')
[ "${{s:-0}}" -le "$1" ] || exit 7
{{ git ls-files -z; cat $GIT_INDEX_FILE.names; }} | git update-index -z --add --remove --stdin >&2
git write-tree
"""
_PACK_KEPT = """
echo "$1" | git pack-objects --revs --stdout --delta-base-offset --quiet
"""
_PUT_KEPT = f"""
set -e
export GIT_INDEX_FILE={_KEPT_INDEX}
git index-pack --stdin > /dev/null
git read-tree "$1"
git checkout-index --all --force --quiet
"""

_EDITED = """
for path; do
  [ -e "$path/.git" ] && [ -n "$(git -C "$path" diff --name-only --ignore-submodules=all HEAD)" ] && echo "$path"
done
"""
_SHOWN = 5
_TOO_LARGE = 7
"""How `_NAME_KEPT` ends if the files are too large together."""

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
    await _put(computer, bare, pack, (branch, commit, ""))
    await _put_modules(computer, bare, commit, commit)


async def sync(computer: Computer, bare: Path, have: str | None, commit: str) -> None:
    """As `put`, but send only the objects that a template with the repository at `have` lacks.

    Other files of the work tree stay. Raises as `put`.
    """
    since = await packs.pack_since(bare, have, commit) if have is not None and is_oid(have) else None
    if since is not None:
        await _put_content(computer, bare)
    if since is not None and (await computer.run(_script(_PUT, WORK_BRANCH, commit, ""), since.data)).ok:
        await _put_modules(computer, bare, commit, commit)
        return
    # The template has no repository, or its setup damaged it.
    await put(computer, bare, commit)


async def restore(computer: Computer, bare: Path, base: str, commit: str, branch: str = WORK_BRANCH) -> None:
    """Make `/work` as it was when `commit` was saved: HEAD at `base`, with the files of `commit`.

    Ignored files that it keeps are put back by `restore_kept`.
    """
    tree = await packs.tree_of(bare, commit)
    await _put(computer, bare, await packs.pack(bare, base, tree), (branch, base, tree))
    await _put_modules(computer, bare, base, commit)


async def _put(computer: Computer, bare: Path, pack: packs.Pack, args: tuple[str, str, str]) -> None:
    await _put_content(computer, bare)
    done = await computer.run(_script(_PUT, *args), pack.data)
    if not done.ok:
        raise UserError("put_failed", f"The repository could not be copied into the sandbox: {_why(done)}.")
    if pack.shallow:
        await computer.write(".git/shallow", "".join(f"{name}\n" for name in pack.shallow).encode())


async def _put_content(computer: Computer, bare: Path) -> None:
    """Put the content of LFS that the host has fetched where git's filter finds it."""
    try:
        names = sorted(path.name for path in (bare / CONTENT).iterdir() if not path.suffix)
    except FileNotFoundError:
        return
    found = await computer.run(
        _script(f'for one; do [ -f "{_CONTENT}/$one" ] || echo "$one"; done', *map(_split, names))
    )
    for line in decode(found.out).splitlines():
        name = line[-64:]
        if name not in names:
            continue
        async with (
            computer.write_stream(f"{_CONTENT}/{_split(name)}", mode=0o444) as sink,
            await anyio.open_file(bare / CONTENT / name, "rb") as file,
        ):
            while data := await file.read(limits.FRAME_BYTES):
                await sink.send(data)
    await computer.write(".git/cloister-lfs", _FILTER.encode())


def _split(name: str) -> str:
    return f"{name[:2]}/{name[2:4]}/{name}"


async def _put_modules(computer: Computer, bare: Path, base: str, commit: str) -> None:
    """Check out the submodules of `commit` that the host has fetched, each with its own history."""
    for module in await placed(bare, base, commit):
        pack = await packs.pack(bare, module.commit)
        await computer.mkdir(module.path)
        inside = msgspec.structs.replace(_script(_PUT_MODULE, module.commit), cwd=f"{WORK_DIR}/{module.path}")
        done = await computer.run(inside, pack.data)
        if not done.ok:
            shown = one_line(module.path, 100)
            raise UserError(
                "put_failed", f"The submodule {shown} could not be copied into the sandbox: {_why(done)}."
            )
        if pack.shallow:
            text = "".join(f"{name}\n" for name in pack.shallow)
            await computer.write(f"{module.path}/.git/shallow", text.encode())


async def check_modules(computer: Computer, bare: Path, base: str, commit: str) -> None:
    """Raises `UserError` (`submodule_edited`) if tracked files of a submodule differ from its commit.

    Files that are new there, such as what a build left, are not looked at.
    """
    paths = [module.path for module in await placed(bare, base, commit)]
    if not paths:
        return
    looked = await computer.run(_script(_EDITED, *paths))
    edited = [one_line(line, 100) for line in decode(looked.out).splitlines()][:_SHOWN]
    if edited:
        raise UserError(
            "submodule_edited",
            f"Files of the submodule {' and '.join(edited)} were edited, and a change of this repository cannot hold "
            f"that: work without these edits, and undo them with `git -C {edited[0]} checkout .`.",
        )


async def list_kept(computer: Computer, patterns: Sequence[str]) -> str:
    """The name of a tree with the ignored files that `patterns` name; empty without any, and if they are too many.

    Nothing of it is in `tree` or in a change.
    """
    paths = [f":(glob){pattern}" for pattern in patterns]
    listed = await computer.run(_script(_LIST_KEPT, *paths)) if paths else None
    if listed is None or not listed.ok or not listed.out:
        return ""
    # A repository in the work tree is one name with a slash at its end.
    names = [name for name in listed.out.split(b"\0") if name and not name.endswith(b"/")]
    stdin = b"".join(name + b"\0" for name in names)
    large = len(names) > limits.KEPT_FILES
    done = None if large else await computer.run(_script(_NAME_KEPT, str(limits.KEPT_BYTES)), stdin)
    if done is None or done.exited.code == _TOO_LARGE:
        log.warning(
            "%d ignored files are not kept: a save point keeps %d of at most %d MiB together",
            *(len(names), limits.KEPT_FILES, limits.KEPT_BYTES >> 20),
        )
        return ""
    name = decode(done.out).strip()
    return name if done.ok and is_oid(name) and names else ""


async def _save_kept(computer: Computer, bare: Path, base: str, tree: str) -> str:
    """Bring a tree of `list_kept` out of the sandbox; return a commit that holds it. Raises as `save`."""
    base_tree = await packs.tree_of(bare, base)
    whole = await in_bare(bare, "rev-list", "--objects", "--quiet", tree, f"^{base_tree}")
    if not whole.ok:
        done = await computer.run(_script(_PACK_KEPT, tree))
        _check_saved(done, limits.CHANGE_BYTES)
        await packs.take_in(bare, done.out, tree, base_tree)
    return await commit_tree(bare, tree, base, "Kept files\n", at=0)


async def kept_of(bare: Path, commit: str) -> str | None:
    """The commit with the ignored files that the save point `commit` keeps; None without any."""
    found = await in_bare(bare, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^2")
    return decode(found.out).strip() if found.ok else None


async def restore_kept(computer: Computer, bare: Path, commit: str) -> None:
    """Put the ignored files back that the save point `commit` keeps. Raises `UserError` (`put_failed`)."""
    kept = await kept_of(bare, commit)
    if kept is None:
        return
    tree = await packs.tree_of(bare, kept)
    done = await computer.run(_script(_PUT_KEPT, tree), await packs.pack_tree(bare, tree))
    if not done.ok:
        raise UserError("put_failed", f"Ignored files could not be put into the sandbox: {_why(done)}.")


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


async def save(  # noqa: PLR0913  (the last three are rarely given)
    computer: Computer,
    bare: Path,
    base: str,
    ref: str,
    *,
    limit_bytes: int = limits.CHANGE_BYTES,
    check: Callable[[str], Awaitable[None]] | None = None,
    kept: str = "",
) -> str:
    """Save the working tree outside the sandbox as a commit on `base`, under `ref`; returns that commit.

    Returns `base` if nothing differs from it and nothing is kept: `kept` is a tree of `list_kept`. `check` is called with the tree before it becomes a commit.
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
    if name != base_tree or kept:
        beside = await _save_kept(computer, bare, base, kept) if kept else ""
        commit = await commit_tree(bare, name, f"{base} {beside}", "Save point\n")
    must(await in_bare(bare, "update-ref", ref, commit), f"store {ref}")
    written = ("objects/pack/one", f"objects/{commit[:2]}/one", ref)
    await anyio.to_thread.run_sync(packs.flush_names, bare, *written)
    await packs.collect(bare)
    return commit


async def _repairing(computer: Computer, bare: Path, base: str, command: Command) -> Finished:
    """Run a git script; if it fails, repair the repository inside and run it once more."""
    done = await computer.run(command)
    if done.ok or done.exited.killed is not None:
        return done
    pack = await packs.pack(bare, base)
    await _put_content(computer, bare)
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
