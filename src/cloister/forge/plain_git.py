"""Plain git: a repository on this machine, which gets the result as a branch, or a URL, which is only fetched from."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import anyio

from cloister.core import limits
from cloister.core.addresses import without_userinfo
from cloister.core.errors import OutsideError, UserError
from cloister.core.system import in_thread
from cloister.core.text import decode, one_line
from cloister.forge import change, host
from cloister.forge._spawn import Result, Who
from cloister.forge.api import Base, Delivered, Proposal
from cloister.forge.cache import ObjectCache
from cloister.forge.host import NO_COMMIT, Checkout, complaint, in_checkout, must

BASE_REF = "refs/cloister/base"
"""The commit a run starts from, in the run's own repository."""

_SCHEMES = ("https", "http", "ssh", "git")
_VERSION = re.compile(r"(?:^|[-_/v])(\d{1,8}(?:\.\d{1,8}){1,4}(?:(?:a|b|rc|\.post)\d{1,4})?)\s{0,2}$")
_SCP_LIKE = re.compile(r"[^/\s:]+:(?!:)[^\s]*")
_NAMES_TRIED = 99
_PARTIAL = "The repository is a partial clone: the run has its newest commit without the history."


class PlainGit:
    """Implements `Forge` for paths and for URLs without any forge's API."""

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        *,
        fetch_bytes: int = limits.FETCH_BYTES,
        settings: Mapping[str, str] | None = None,
        cache: ObjectCache | None = None,
    ) -> None:
        """`environment` is the one of git for URLs, with its credentials and proxies; None is this process's own.

        `fetch_bytes` is the largest pack that a URL may send. `settings` are git's settings for URLs.
        `cache` has objects of earlier fetches.
        """
        self._cache = cache or ObjectCache(Path("/nonexistent"), 0)
        self._environment = environment
        self._settings = settings
        self._fetch_bytes = fetch_bytes
        self._notes = anyio.Lock()

    async def fetch(self, repo: str, ref: str | None, into: Path) -> Base:
        _check_text(repo, ref)
        if is_url(repo):
            return await self._fetch_url(repo, ref, into)
        checkout = await in_thread(find_checkout, repo)
        return await self._fetch_checkout(checkout, ref, into)

    async def tip(self, repo: str, ref: str | None, bare: Path) -> str:
        _check_text(repo, ref)
        if is_url(repo):
            return (await self._name_at(repo, ref, bare))[2]
        return await _commit_in(await in_thread(find_checkout, repo), ref)

    async def _fetch_url(self, url: str, ref: str | None, into: Path) -> Base:
        shown = without_userinfo(url)
        await host.ensure_bare(into)
        source, branch, _ = await self._name_at(url, ref, into)
        refspec, most = f"+{source}:{BASE_REF}", self._fetch_bytes
        # The server has just let this caller read the repository; it is asked for every name again.
        async with self._cache.lent(shown, into):
            fetched = await host.fetch_remote(
                into, url, refspec, known=self._environment, limit_bytes=most, settings=self._settings
            )
        if fetched.cut:
            raise UserError(
                "repository_too_large", f"{shown} sends more than {most >> 20:,} MiB, the limit of one fetch."
            )
        if not fetched.ok and host.is_oid(source):
            raise _unknown(shown, source)
        if not fetched.ok:
            raise _fetch_failed(shown, fetched)
        commit = await host.in_bare(into, "rev-parse", "--verify", f"{BASE_REF}^{{commit}}")
        if not commit.ok:
            raise _unknown(shown, ref or "HEAD")
        await self._cache.add(shown, into, host.oid(commit.out))
        return Base(host.oid(commit.out), branch)

    async def _name_at(self, url: str, ref: str | None, into: Path) -> tuple[str, str | None, str]:
        """The full name of `ref` at `url`, its branch, and its object."""
        exact = ref is not None and host.is_oid(ref)
        named = (f"refs/heads/{ref}", f"refs/tags/{ref}", ref or "")
        wanted = ("HEAD",) if ref is None or exact else named
        listed = await host.list_remote(into, url, *wanted, known=self._environment, settings=self._settings)
        shown = without_userinfo(url)
        if not listed.ok:
            raise _fetch_failed(shown, listed)
        if exact and ref:
            return ref, None, ref
        lines = [line.split("\t") for line in decode(listed.out).splitlines()]
        names = {
            fields[1]: fields[0] for fields in lines if len(fields) == 2 and not fields[0].startswith("ref: ")
        }
        heads = [fields[0].removeprefix("ref: ") for fields in lines if fields[0].startswith("ref: ")]
        name = next((name for name in wanted if name in names), None)
        if name is None and ref is None:
            raise UserError("empty_repository", f"{shown} has no commits yet: push something first.")
        if name is None:
            raise _unknown(shown, ref or "HEAD")
        full = heads[0] if ref is None and heads else name
        branch = full.removeprefix("refs/heads/") if full.startswith("refs/heads/") else None
        return name, branch, names[name]

    async def _fetch_checkout(self, checkout: Checkout, ref: str | None, into: Path) -> Base:
        commit = await _commit_in(checkout, ref)
        await host.ensure_bare(into)
        async with self._cache.lent(str(checkout.top), into):
            copied = await host.copy_in(checkout, commit, into, BASE_REF)
        if partial := not copied.ok and await _is_partial(checkout):
            # Its files are there, but older ones may not be; nothing asks the remote for them.
            copied = await host.copy_in(checkout, commit, into, BASE_REF, history=False)
        if not copied.ok and partial:
            raise UserError(
                "partial_clone",
                f"{checkout.top} is a partial clone without all files of {commit[:7]}, which are not fetched for it: "
                "run `git fetch --refetch --no-filter` there, or give the address of its remote as the repository.",
            )
        if not copied.ok:
            reason = complaint(copied)
            raise UserError(
                "broken_repository", f"{checkout.top} cannot be copied: {reason}; try `git fsck` there."
            )
        await self._cache.add(str(checkout.top), into, commit)
        branch = await _branch_in(checkout, ref)
        notes = (_PARTIAL if partial else None, await _dirty_note(checkout, commit))
        return Base(commit, branch, " ".join(filter(None, notes)) or None)

    async def deliver(self, proposal: Proposal) -> Delivered | None:
        _check_text(proposal.repository, proposal.branch)
        if is_url(proposal.repository):
            return None
        checkout = await in_thread(find_checkout, proposal.repository)
        copied = await host.copy_out(proposal.bare, proposal.commit, checkout)
        if not copied.ok:
            raise _not_written(checkout, copied)
        branch = await _put_branch(checkout, proposal)
        async with self._notes:  # notes written one after the other need no retry
            receipt = await change.carry(proposal.bare, proposal.commit, checkout)
        return Delivered(str(checkout.top), branch, receipt, proposal.commit)


def is_url(repo: str) -> bool:
    """True if `repo` is not on this machine. Raises `UserError` (`no_repository`) for unsupported URLs."""
    scheme, separator, _ = repo.partition("://")
    if separator and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        if scheme.lower() == "file":
            return False
        if scheme.lower() not in _SCHEMES:
            raise UserError(
                "no_repository",
                f"{without_userinfo(one_line(repo))} is not a URL that can be fetched: "
                "use https, http, ssh, git or a path.",
            )
        return True
    return _SCP_LIKE.fullmatch(repo) is not None and not _exists(Path(repo))


async def tagged_version(repo: str, commit: str) -> str:
    """The version that the nearest tag in a repository of this machine names; empty without one."""
    if is_url(repo):
        return ""
    checkout = await in_thread(find_checkout, repo)
    found = await in_checkout(checkout, "describe", "--tags", "--abbrev=0", "--match=*[0-9].*", commit)
    version = _VERSION.search(decode(found.out)[:200])
    return version[1] if found.ok and version else ""


def find_checkout(repo: str) -> Checkout:
    """The repository that contains the directory `repo`. Blocks briefly."""
    given = Path(repo.removeprefix("file://")).expanduser()
    try:
        here = given.resolve(strict=True)
        if not here.is_dir():
            raise UserError("no_repository", f"{given} is a file: give the directory of a git repository.")
        for folder in (here, *here.parents):
            if (folder / ".git").exists():
                return Checkout(folder, bare=False, who=_owner(folder / ".git"))
            if _is_bare(folder):
                return Checkout(folder, bare=True, who=_owner(folder))
    except FileNotFoundError:
        raise UserError(
            "no_repository", f"There is no directory {given}: give the path of a git repository or a git URL."
        ) from None
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its links form a loop"
        raise UserError("no_repository", f"{one_line(str(given))} cannot be read: {reason}.") from None
    raise UserError(
        "no_repository",
        f"{given} is not a git repository: run `git init` and commit first, or give a git URL.",
    )


async def check_base(repo: str, ref: str | None) -> None:
    """Raise what `fetch` would raise for the repository of a directory or its `ref`. A URL is not looked at."""
    _check_text(repo, ref)
    if not is_url(repo):
        await _commit_in(await in_thread(find_checkout, repo), ref)


async def origin_of(repo: str) -> str | None:
    """The address of the remote `origin` of a directory's repository; None without one."""
    checkout = await in_thread(find_checkout, repo)
    found = await in_checkout(checkout, "config", "--get", "remote.origin.url")
    return (decode(found.out).strip() or None) if found.ok else None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _is_bare(folder: Path) -> bool:
    return (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir()


def _owner(git_dir: Path) -> Who | None:
    """The owner whose rights git must take: programs named by a repository's configuration must never run as root."""
    status = git_dir.stat()
    if os.geteuid() != 0 or status.st_uid == 0:
        return None
    return Who(status.st_uid, status.st_gid)


def _check_text(*texts: str | None) -> None:
    for text in texts:
        if text is not None and re.search(r"[\x00-\x1f]", text):
            raise UserError(
                "bad_name", "The name of a repository or a ref cannot contain control characters."
            )


async def _commit_in(checkout: Checkout, ref: str | None) -> str:
    name = f"{ref or 'HEAD'}^{{commit}}"
    found = await in_checkout(checkout, "rev-parse", "--verify", "--quiet", "--end-of-options", name)
    text = decode(found.out).strip()
    if found.ok and host.is_oid(text):
        return text
    if found.ok:
        raise UserError("broken_repository", f"{checkout.top} uses an unsupported object format.")
    if b"dubious ownership" in found.err:
        raise UserError(
            "foreign_repository", f"{checkout.top} belongs to another user: clone it and give your copy."
        )
    if b"not a git repository" in found.err or b"invalid gitfile" in found.err or b"ermission" in found.err:
        raise UserError("no_repository", f"{checkout.top} cannot be used: {complaint(found)}.")
    if ref is None:
        how = "push something to it first" if checkout.bare else "`git add -A && git commit -m first`"
        raise UserError(
            "empty_repository", f"{checkout.top} has no commits yet, and a run starts from one: {how}."
        )
    raise _unknown(str(checkout.top), ref)


async def _is_partial(checkout: Checkout) -> bool:
    """True if objects may be left with a promisor remote."""
    found = await in_checkout(checkout, "config", "--get-regexp", r"^remote\..*\.promisor$")
    return found.ok and b" true" in found.out


def _unknown(where: str, ref: str) -> UserError:
    return UserError("unknown_ref", f"{where} has no branch, tag or commit called {one_line(ref, 80)}.")


async def _branch_in(checkout: Checkout, ref: str | None) -> str | None:
    if ref is None:
        head = await in_checkout(checkout, "symbolic-ref", "--quiet", "--short", "HEAD")
        return decode(head.out).strip() or None
    name = ref.removeprefix("refs/heads/")
    found = await in_checkout(checkout, "show-ref", "--verify", "--quiet", f"refs/heads/{name}")
    return name if found.ok else None


async def _dirty_note(checkout: Checkout, commit: str) -> str | None:
    """A note about uncommitted files. None for a clean or unreadable work tree."""
    if checkout.bare:
        return None
    status = await host.without_filters(
        checkout, "status", "--porcelain", "-z", "--untracked-files=all", "--ignore-submodules=dirty"
    )
    if status.code != 0 and not status.cut:
        return None
    count = _count_entries(status.out)
    if count == 0:
        return None
    many = "More than " if status.cut else ""
    files = "1 uncommitted file is" if count == 1 else f"{many}{count} uncommitted files are"
    return f"{files} not part of this run; it starts from commit {commit[:7]}."


def _count_entries(listing: bytes) -> int:
    """Count the files in `git status -z`; a rename has its old name as a second field."""
    count, skip = 0, False
    for field in listing.split(b"\0"):
        if skip or not field:
            skip = False
            continue
        count += 1
        skip = b"R" in field[:2] or b"C" in field[:2]
    return count


def _fetch_failed(shown: str, result: Result) -> OutsideError:
    refused = any(
        word in result.err for word in (b"uthentication", b"denied", b"ot found", b"could not read")
    )
    return OutsideError(
        "fetch_failed", f"{shown} cannot be fetched: {complaint(result)}.", retryable=not refused
    )


def _not_written(checkout: Checkout, result: Result) -> UserError:
    return UserError("not_delivered", f"{checkout.top} cannot be written to: {complaint(result)}.")


async def _put_branch(checkout: Checkout, proposal: Proposal) -> str:
    """Create the proposal's branch, or the next free name like it, or fast-forward the one of an earlier round."""
    branch, commit = proposal.branch, proposal.commit
    must(await in_checkout(checkout, "check-ref-format", f"refs/heads/{branch}"), f"name a branch {branch!r}")
    wanted = branch
    for number in range(2, _NAMES_TRIED):
        ref = f"refs/heads/{wanted}"
        made = await _move(checkout, ref, commit, NO_COMMIT)
        if made.ok:
            return wanted
        there = await in_checkout(checkout, "rev-parse", "--verify", "--quiet", ref)
        tip = decode(there.out).strip()
        if tip == commit or (tip == proposal.previous and await _moved_on(checkout, ref, proposal)):
            return wanted
        if not there.ok and "/" not in branch:
            raise _not_written(checkout, made)
        if not there.ok:  # a branch named like a directory of this name is in the way
            branch = wanted = branch.replace("/", "-")
            continue
        wanted = f"{branch}-{number}"
    raise UserError("not_delivered", f"{checkout.top} already has too many branches called {branch}.")


async def _move(checkout: Checkout, ref: str, commit: str, expected: str) -> Result:
    """Compare and swap: git refuses if `ref` is not at `expected`."""
    return await in_checkout(checkout, "update-ref", "-m", "cloister: deliver", ref, commit, expected)


async def _moved_on(checkout: Checkout, ref: str, proposal: Proposal) -> bool:
    """Move `ref` on from the commit of an earlier round: fast-forward, or after a rebase to the commit that replaces it.

    Not if a work tree has it checked out: its files would then look changed.
    """
    commit, tip = proposal.commit, proposal.previous or ""
    after = await in_checkout(checkout, "merge-base", "--is-ancestor", tip, commit)
    trees = await in_checkout(checkout, "worktree", "list", "--porcelain")
    if not ((after.ok or proposal.rebased) and trees.ok):
        return False
    if f"branch {ref}" in decode(trees.out).splitlines():
        return False
    return (await _move(checkout, ref, commit, tip)).ok
