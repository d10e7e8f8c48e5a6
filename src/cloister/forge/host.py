"""git on the host: on bare repositories of ours, and with its owner's rights on a person's own repository.

Git never reads configuration that a guest could have written: a guest's git directory never reaches the host,
only packed objects do (`workspace.py`).
"""

import base64
import os
import pwd
import re
import shutil
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import msgspec

from cloister.core import limits
from cloister.core.addresses import without_userinfo
from cloister.core.errors import HostError, UserError
from cloister.core.ids import RunId
from cloister.core.system import in_thread
from cloister.core.system.locks import lock, lock_within
from cloister.core.text import decode, one_line
from cloister.forge import _spawn
from cloister.forge._spawn import Result, Spec, Who
from cloister.forge.api import Removed

_OID = re.compile(r"[0-9a-f]{40}")
NO_COMMIT = "0" * 40
"""Git's name for the commit of a missing ref."""

FETCH = (
    "fetch",
    "--quiet",
    "--no-tags",
    "--no-write-fetch-head",
    "--no-recurse-submodules",
    "--update-shallow",
)

_SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.alternateRefsCommand": "true",
    "core.bigFileThreshold": "32m",
    "core.quotePath": "false",
    # The log names these commits, so they must be there after a power failure, too.
    "core.fsync": "objects,derived-metadata,reference",
    "protocol.ext.allow": "never",
    "transfer.fsckObjects": "true",
    # Old but harmless flaws in the history of many honest repositories.
    "fetch.fsck.badTimezone": "ignore",
    "fetch.fsck.missingSpaceBeforeDate": "ignore",
    "fetch.fsck.zeroPaddedFilemode": "ignore",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "advice.detachedHead": "false",
    "pack.threads": "2",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
}
_FILTERS = r"^filter\..*\.(clean|smudge|process|required)$"
_OWN = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "HOME": "/nonexistent",
}
_ALWAYS = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    # No transport, also none that a repository's configuration names for objects that it lacks.
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "SSH_ASKPASS_REQUIRE": "never",
}
_KEPT_GIT = (
    *("GIT_ASKPASS", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "GIT_SSH", "GIT_SSH_COMMAND"),
    *("GIT_SSL_CAINFO", "GIT_SSL_CAPATH"),
)
"""Git's own variables that are kept from a person's environment; the others name other repositories."""


class Checkout(msgspec.Struct, frozen=True):
    """A person's own repository on this machine."""

    top: Path
    """The working tree's top, or the bare repository."""
    bare: bool
    who: Who | None
    """Its owner, whose rights git gets there if we are root and the repository is not ours."""


def _configured(settings: dict[str, str]) -> dict[str, str]:
    """Settings in the form that overrules every configuration file."""
    env = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        env[f"GIT_CONFIG_KEY_{number}"] = key
        env[f"GIT_CONFIG_VALUE_{number}"] = value
    return env


def own_env(known: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for repositories of ours: only `PATH` of `known` (None: this process's), and the settings above."""
    return {"PATH": _path(known), **_OWN, **_ALWAYS, **_configured(_SETTINGS)}


def person_env(
    known: Mapping[str, str] | None = None, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment for remote URLs, which need a person's own configuration and credentials.

    `more` are settings for this call, such as the header with a token.
    """
    kept = (_spawn.inherited() if known is None else known).items()
    env = {key: value for key, value in kept if key in _KEPT_GIT or not key.startswith("GIT_")}
    # One pack, which has a limit, instead of any number of files.
    settings = _configured({**_SETTINGS, "fetch.unpackLimit": "1", **(more or {})})
    return {**env, **_ALWAYS, "GIT_ALLOW_PROTOCOL": "file:https:http:ssh:git", **settings}


def checkout_env(who: Who | None, filters: Sequence[str] = ()) -> dict[str, str]:
    """The environment for a person's own repository, whose configuration is not trusted: no keys, no filters."""
    settings = {**_SETTINGS, **dict.fromkeys(filters, "")}
    if who is None:
        known = _spawn.inherited()
        kept = {name: known[name] for name in ("HOME", "XDG_CONFIG_HOME", *_KEPT_GIT) if name in known}
        return {"PATH": _path(), **kept, **_ALWAYS, **_configured(settings)}
    # Git runs with the owner's rights, so a repository gains nothing by lying about its owner.
    settings["safe.directory"] = "*"
    return {"PATH": _path(), "HOME": _home(who), **_ALWAYS, **_configured(settings)}


def _path(known: Mapping[str, str] | None = None) -> str:
    return (_spawn.inherited() if known is None else known).get("PATH", os.defpath)


def _home(who: Who) -> str:
    try:
        return pwd.getpwuid(who.uid).pw_dir
    except KeyError:
        return "/nonexistent"


async def in_bare(
    bare: Path,
    *args: str,
    stdin: bytes | None = None,
    env: dict[str, str] | None = None,
    limit_bytes: int = limits.OUTPUT_BYTES,
    memory_bytes: int | None = limits.GIT_MEMORY_BYTES,
) -> Result:
    """git on a bare repository of ours, whose objects may come from a guest."""
    spec = _bare_spec(bare, args, limits.GIT_SECONDS, limit_bytes, memory_bytes)
    return await _spawn.run(msgspec.structs.replace(spec, env={**spec.env, **(env or {})}), stdin)


async def in_checkout(
    checkout: Checkout, *args: str, stdin: bytes | None = None, env: dict[str, str] | None = None
) -> Result:
    """git on a person's own repository, with that person's rights."""
    spec = _checkout_spec(checkout, args, limits.GIT_SECONDS)
    return await _spawn.run(msgspec.structs.replace(spec, env={**spec.env, **(env or {})}), stdin)


async def without_filters(checkout: Checkout, *args: str) -> Result:
    """As `in_checkout`, for commands that read files; runs no filter program of the repository's configuration."""
    listed = await in_checkout(checkout, "config", "--name-only", "-z", "--get-regexp", _FILTERS)
    names = sorted(set(decode(listed.out).split("\0")) - {""})
    spec = _checkout_spec(checkout, args, limits.GIT_SECONDS)
    return await _spawn.run(msgspec.structs.replace(spec, env=checkout_env(checkout.who, names)))


async def list_remote(
    bare: Path,
    url: str,
    *names: str,
    known: Mapping[str, str] | None,
    settings: Mapping[str, str] | None = None,
) -> Result:
    """The refs called `names` at a URL, with the credentials of the environment `known`."""
    args = ("ls-remote", "--symref", "--", url, *names)
    spec = _bare_spec(bare, args, limits.GIT_SECONDS, memory_bytes=limits.LISTING_MEMORY_BYTES)
    return await _spawn.run(msgspec.structs.replace(spec, env=person_env(known, settings)))


async def credential(bare: Path, url: str, known: Mapping[str, str] | None) -> str | None:
    """The header for HTTP that the person's git would send to `url`; None if it knows no credential."""
    spec = _bare_spec(bare, ("credential", "fill"), limits.GIT_SECONDS)
    found = await _spawn.run(msgspec.structs.replace(spec, env=person_env(known)), f"url={url}\n\n".encode())
    lines = (line.partition("=") for line in decode(found.out).splitlines())
    fields = {name: value for name, _, value in lines}
    if not found.ok or not {"username", "password"} <= fields.keys():
        return None
    secret = f"{fields['username']}:{fields['password']}".encode()
    return f"Basic {base64.b64encode(secret).decode('ascii')}"


async def push_remote(
    bare: Path,
    url: str,
    refspec: str,
    expected: str,
    *,
    known: Mapping[str, str] | None,
    settings: Mapping[str, str],
) -> Result:
    """Push `commit:ref` if the ref is still at `expected` there; empty: if it does not exist."""
    lease = f"--force-with-lease={refspec.partition(':')[2]}:{expected}"
    args = ("push", "--porcelain", "--no-verify", lease, "--", url, refspec)
    spec = _bare_spec(bare, args, limits.FETCH_SECONDS)
    return await _spawn.run(msgspec.structs.replace(spec, env=person_env(known, settings)))


async def fetch_remote(
    bare: Path,
    url: str,
    refspec: str,
    *,
    known: Mapping[str, str] | None,
    limit_bytes: int,
    settings: Mapping[str, str] | None = None,
) -> Result:
    """Fetch from a URL with the credentials of `known`. A pack over `limit_bytes` is cut off, and the result `cut`."""
    args = (*FETCH, "--", url, refspec)
    spec = _bare_spec(bare, args, limits.FETCH_SECONDS, memory_bytes=limits.FETCH_MEMORY_BYTES)
    spec = msgspec.structs.replace(spec, env=person_env(known, settings), file_bytes=limit_bytes)
    largest = 0
    try:
        result = await _spawn.run(spec)
    finally:
        with anyio.CancelScope(shield=True):
            largest = await in_thread(_clear_partial_packs, bare)
    return msgspec.structs.replace(result, cut=True) if largest >= limit_bytes else result


def _clear_partial_packs(bare: Path) -> int:
    """Remove the packs that a fetch left unfinished, and return the size of the largest."""
    largest = 0
    for path in (bare / "objects" / "pack").glob("tmp_*"):
        largest = max(largest, path.stat().st_size)
        path.unlink()
    return largest


async def copy_in(checkout: Checkout, commit: str, bare: Path, ref: str, *, history: bool = True) -> Result:
    """Copy `commit` of a person's repository into ours as `ref`; each side runs with its owner's rights."""
    # As one pack, which the object cache can keep.
    depth = () if history else ("--depth=1",)
    fetch = ("-c", "fetch.unpackLimit=1", *FETCH, *depth, "fd::", f"+{commit}:{ref}")
    client = _bare_spec(bare, fetch, limits.FETCH_SECONDS)
    server = _checkout_spec(checkout, ("upload-pack", str(checkout.top)), limits.FETCH_SECONDS)
    return await _converse(server, client)


async def copy_out(bare: Path, commit: str, checkout: Checkout) -> Result:
    """Copy the objects of `commit` into a person's repository; no ref, no tree, no index is touched."""
    client = _checkout_spec(checkout, (*FETCH, "fd::", commit), limits.FETCH_SECONDS)
    server = _bare_spec(bare, ("upload-pack", str(bare)), limits.FETCH_SECONDS)
    return await _converse(server, client)


def _bare_spec(
    bare: Path,
    args: tuple[str, ...],
    seconds: float,
    limit_bytes: int = limits.OUTPUT_BYTES,
    memory_bytes: int | None = None,
) -> Spec:
    argv = ("git", f"--git-dir={bare}", *args)
    return Spec(argv, own_env(), seconds, limit_bytes, memory_bytes=memory_bytes)


def _checkout_spec(checkout: Checkout, args: tuple[str, ...], seconds: float) -> Spec:
    return Spec(
        argv=("git", "-C", str(checkout.top), *args),
        env=checkout_env(checkout.who),
        seconds=seconds,
        limit_bytes=limits.OUTPUT_BYTES,
        who=checkout.who,
    )


async def _converse(server: Spec, client: Spec) -> Result:
    # Version 2 of the protocol serves any commit by its hash.
    serve = msgspec.structs.replace(server, env={**server.env, "GIT_PROTOCOL": "version=2"})
    fetch = msgspec.structs.replace(client, env={**client.env, "GIT_ALLOW_PROTOCOL": "fd"})
    return await _spawn.converse(serve, fetch, fetch.argv.index("fd::"))


async def ensure_bare(path: Path) -> None:
    """Create the bare repository `path` if it is missing. Without a template: no hooks, no description."""
    result = await in_bare(path, "init", "--quiet", "--bare", "--template=", "--initial-branch=main")
    must(result, "create the run's repository")


def must(result: Result, doing: str) -> bytes:
    """The output of a command that cannot fail on a healthy machine."""
    if not result.ok:
        reason = "its output was too long" if result.cut else complaint(result)
        raise HostError("git_failed", f"git could not {doing}: {reason}.")
    return result.out


def complaint(result: Result) -> str:
    """Git's error message as one harmless line without credentials."""
    lines = [line for line in decode(result.err).splitlines() if line.strip()]
    chosen = [line for line in lines if line.startswith(("fatal:", "error:", "remote:", "ssh:"))] or lines[
        -1:
    ]
    text = one_line("; ".join(line.removeprefix("fatal: ") for line in chosen[-2:]), 300)
    return without_userinfo(text).rstrip(".") or f"it ended with status {result.code}"


def is_oid(text: str) -> bool:
    """True if `text` is a full object name."""
    return _OID.fullmatch(text) is not None


def oid(data: bytes) -> str:
    """The object name that a command printed."""
    text = decode(data).strip()
    if not is_oid(text):
        raise HostError("git_failed", f"git printed {one_line(text, 60)!r} instead of an object name.")
    return text


# The runs' own bare repositories in the data directory of this machine.


_MARK = "removed.json"
_COLLECTED = "collected"
"""Its time is that of the last collection."""
_LOCK = "work.lock"
_KEPT_REFS = "refs/cloister/kept/"


class LocalRepositories:
    """`RunRepositories` below `<data directory>/runs`."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    async def open(self, run: RunId) -> Path:
        check_kept(self._data_dir, run)
        return bare_repository(self._data_dir, run)

    async def exists(self, run: RunId) -> bool:
        return await anyio.Path(bare_repository(self._data_dir, run)).exists()

    @asynccontextmanager
    async def working(self, run: RunId, *, alone: bool = False) -> AsyncGenerator[None]:
        at = bare_repository(self._data_dir, run).parent
        at.mkdir(parents=True, exist_ok=True, mode=0o700)
        seconds = limits.GIT_SECONDS if alone else 5 * limits.GIT_SECONDS
        async with lock_within(at / _LOCK, seconds, shared=not alone):
            yield

    async def collect(
        self, run: RunId, ended_at: float, kept: Callable[[], Awaitable[frozenset[str] | None]]
    ) -> bool:
        bare = bare_repository(self._data_dir, run)
        if not self.collectable(run, ended_at):
            return False
        with suppress(BlockingIOError), lock(bare.parent / _LOCK, create=True):
            commits = await kept()
            if commits is not None:
                await _prune(bare, commits)
                (bare.parent / _COLLECTED).touch(mode=0o600)
                return True
        return False

    def collectable(self, run: RunId, ended_at: float) -> bool:
        bare = bare_repository(self._data_dir, run)
        mark = bare.parent / _COLLECTED
        return bare.exists() and not (mark.exists() and mark.stat().st_mtime > ended_at)

    async def remove(self, run: RunId, who: str) -> Removed:
        return await in_thread(_remove, bare_repository(self._data_dir, run), who)


def bare_repository(data_dir: Path, run: RunId) -> Path:
    """Return where the repository of `run` is, or will be."""
    return data_dir / "runs" / run / "repo.git"


def check_kept(data_dir: Path, run: RunId) -> None:
    """Raises `UserError` (`run_removed`) when the run's files were removed."""
    if (bare_repository(data_dir, run).parent / _MARK).exists():
        raise UserError("run_removed", f"The files of run {run} were removed: only its log is left.")


async def _prune(bare: Path, commits: frozenset[str]) -> None:
    """Remove every object that neither a ref nor one of `commits` needs."""
    listed = await in_bare(bare, "for-each-ref", "--format=%(refname)", _KEPT_REFS)
    old = decode(must(listed, "list the kept commits")).split()
    asked = "".join(f"{commit}\n" for commit in sorted(commits)).encode()
    found = await in_bare(bare, "cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=asked)
    lines = decode(must(found, "look for the result")).splitlines()
    there = [line.removesuffix(" commit") for line in lines if line.endswith(" commit")]
    kept = {f"{_KEPT_REFS}{commit}": commit for commit in there}
    orders = [f"update {ref} {commit}\n" for ref, commit in kept.items()]
    orders += [f"delete {ref}\n" for ref in old if ref not in kept]
    # One transaction: every commit of the result has a ref at any moment.
    must(await in_bare(bare, "update-ref", "--stdin", stdin="".join(orders).encode()), "keep the result")
    must(await in_bare(bare, "repack", "-a", "-d", "-q"), "remove save points")
    must(await in_bare(bare, "prune", "--expire=now"), "remove save points")


def _removed(bare: Path) -> Removed | None:
    """Who removed the files before; None if the mark is missing or unreadable."""
    try:
        return msgspec.json.decode((bare.parent / _MARK).read_bytes(), type=Removed)
    except (OSError, msgspec.MsgspecError):
        return None


def _remove(bare: Path, who: str) -> Removed:
    bare.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not bare.exists() and (before := _removed(bare)):
        return before
    removed = Removed(who, time.time())
    # The mark comes first: it explains a repository that is only half deleted.
    (bare.parent / _MARK).write_bytes(msgspec.json.encode(removed))
    shutil.rmtree(bare, ignore_errors=True)
    shutil.rmtree(bare.parent / "attachments", ignore_errors=True)
    return removed
