"""git on the host: on bare repositories that we own, and as its owner on a person's own repository.

No configuration that a guest could have written is ever read here: a guest's git directory never
reaches the host, only packed objects do (`workspace.py`).
"""

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from cloister.core import limits
from cloister.core.errors import HostError
from cloister.core.text import decode, one_line
from cloister.forge import _spawn
from cloister.forge._spawn import Result, Spec, Who

_OID = re.compile(r"[0-9a-f]{40}")
NO_COMMIT = "0" * 40
"""What git calls the commit of a ref that is not there."""
_USERINFO = re.compile(r"(?<=://)[^/\s]*@")

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
    "protocol.ext.allow": "never",
    "transfer.fsckObjects": "true",
    # Old but harmless flaws that are part of the history of many honest repositories.
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
    "GIT_ALLOW_PROTOCOL": "file:https:http:ssh:git",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "SSH_ASKPASS_REQUIRE": "never",
}
_KEPT_GIT = (
    "GIT_ASKPASS",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
)
"""What of git's own variables a person's environment may say; the others name other repositories."""


class Checkout(msgspec.Struct, frozen=True):
    """A person's own repository on this machine."""

    top: Path
    """The working tree's top, or the bare repository."""
    bare: bool
    who: Who | None
    """Whose rights git gets there when we are root and it is not ours: its owner's."""


def _configured(settings: dict[str, str]) -> dict[str, str]:
    """Settings in the form that overrules every configuration file."""
    env = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        env[f"GIT_CONFIG_KEY_{number}"] = key
        env[f"GIT_CONFIG_VALUE_{number}"] = value
    return env


def own_env(known: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment on repositories of ours: of what is `known` (None: ours) the path, and what is written above."""
    return {"PATH": _path(known), **_OWN, **_ALWAYS, **_configured(_SETTINGS)}


def person_env(known: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for talking to a URL, where a person's own configuration and credentials are needed."""
    kept = (_spawn.inherited() if known is None else known).items()
    env = {key: value for key, value in kept if key in _KEPT_GIT or not key.startswith("GIT_")}
    return {**env, **_ALWAYS, **_configured(_SETTINGS)}


def checkout_env(who: Who | None, filters: Sequence[str] = ()) -> dict[str, str]:
    """The environment in a person's own repository, whose configuration may be anybody's: no keys, no filters."""
    settings = {**_SETTINGS, **dict.fromkeys(filters, "")}
    if who is None:
        known = _spawn.inherited()
        kept = {name: known[name] for name in ("HOME", "XDG_CONFIG_HOME", *_KEPT_GIT) if name in known}
        return {"PATH": _path(), **kept, **_ALWAYS, **_configured(settings)}
    # With the owner's rights nothing is gained by a repository that lies about its owner.
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
    spec = Spec(
        argv=("git", f"--git-dir={bare}", *args),
        env={**own_env(), **(env or {})},
        seconds=limits.GIT_SECONDS,
        limit_bytes=limit_bytes,
        memory_bytes=memory_bytes,
    )
    return await _spawn.run(spec, stdin)


async def in_checkout(
    checkout: Checkout, *args: str, stdin: bytes | None = None, env: dict[str, str] | None = None
) -> Result:
    """git on a person's own repository, with that person's rights."""
    spec = _checkout_spec(checkout, args, limits.GIT_SECONDS)
    return await _spawn.run(msgspec.structs.replace(spec, env={**spec.env, **(env or {})}), stdin)


async def without_filters(checkout: Checkout, *args: str) -> Result:
    """As `in_checkout`, for commands that look into files: no filter program of its configuration is run."""
    listed = await in_checkout(checkout, "config", "--name-only", "-z", "--get-regexp", _FILTERS)
    names = sorted(set(decode(listed.out).split("\0")) - {""})
    spec = _checkout_spec(checkout, args, limits.GIT_SECONDS)
    return await _spawn.run(msgspec.structs.replace(spec, env=checkout_env(checkout.who, names)))


async def to_remote(bare: Path, *args: str, known: Mapping[str, str] | None = None) -> Result:
    """git on a bare repository of ours that talks to a URL with the credentials of the person whose environment is `known`."""
    spec = _bare_spec(bare, args, limits.FETCH_SECONDS)
    return await _spawn.run(msgspec.structs.replace(spec, env=person_env(known)))


async def copy_in(checkout: Checkout, commit: str, bare: Path, ref: str) -> Result:
    """Copy `commit` of a person's repository into ours as `ref`; each side runs with its owner's rights."""
    client = _bare_spec(bare, (*FETCH, "fd::", f"+{commit}:{ref}"), limits.FETCH_SECONDS)
    server = _checkout_spec(checkout, ("upload-pack", str(checkout.top)), limits.FETCH_SECONDS)
    return await _converse(server, client)


async def copy_out(bare: Path, commit: str, checkout: Checkout) -> Result:
    """Copy the objects of `commit` into a person's repository; no ref, no tree, no index is touched."""
    client = _checkout_spec(checkout, (*FETCH, "fd::", commit), limits.FETCH_SECONDS)
    server = _bare_spec(bare, ("upload-pack", str(bare)), limits.FETCH_SECONDS)
    return await _converse(server, client)


def _bare_spec(bare: Path, args: tuple[str, ...], seconds: float) -> Spec:
    return Spec(
        argv=("git", f"--git-dir={bare}", *args),
        env=own_env(),
        seconds=seconds,
        limit_bytes=limits.OUTPUT_BYTES,
    )


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
    """Make the bare repository `path` unless it is there. No template: no hooks, no description."""
    result = await in_bare(path, "init", "--quiet", "--bare", "--template=", "--initial-branch=main")
    must(result, "make the run's repository")


def must(result: Result, doing: str) -> bytes:
    """The output of a command that cannot fail on a healthy machine."""
    if not result.ok:
        reason = "it printed too much" if result.cut else complaint(result)
        raise HostError("git_failed", f"git could not {doing}: {reason}.")
    return result.out


def complaint(result: Result) -> str:
    """What git said went wrong, as one harmless line without credentials."""
    lines = [line for line in decode(result.err).splitlines() if line.strip()]
    chosen = [line for line in lines if line.startswith(("fatal:", "error:", "remote:", "ssh:"))] or lines[
        -1:
    ]
    text = one_line("; ".join(line.removeprefix("fatal: ") for line in chosen[-2:]), 300)
    return without_userinfo(text).rstrip(".") or f"it ended with status {result.code}"


def without_userinfo(text: str) -> str:
    """`text` with user names and passwords taken out of the URLs in it."""
    return _USERINFO.sub("", text)


def is_oid(text: str) -> bool:
    """Whether `text` is a whole object name, as we store them."""
    return _OID.fullmatch(text) is not None


def oid(data: bytes) -> str:
    """The object name that a command printed."""
    text = decode(data).strip()
    if not is_oid(text):
        raise HostError("git_failed", f"git printed {one_line(text, 60)!r} instead of an object name.")
    return text
