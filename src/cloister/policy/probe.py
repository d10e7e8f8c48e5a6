"""Turns an action into probes: every spelling that a rule could match, and what is unknown about it."""

import posixpath
import re
from urllib.parse import unquote

import msgspec

from cloister.policy.api import (
    Action,
    ConnectAction,
    CredentialAction,
    ModelAction,
    PushAction,
    RawAction,
    RequestAction,
    TierAction,
    ToolAction,
)
from cloister.policy.pattern import COMMAND_TOOLS, PATH_TOOLS, Named, normal_host, normal_path

PATH_CHARS = 4_096
"""PATH_MAX: Linux opens no longer path."""

_REQUEST_PATH_CHARS = 16_384
_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}")
_BRANCH = "refs/heads/"


class ToolProbe(msgspec.Struct, frozen=True):
    tool: str
    spellings: tuple[str, ...]
    """The target, or one command of it. A rule that widens must match all of them, one that narrows any."""
    around: tuple[str, ...] = ()
    """More text that a rule which narrows can match: the whole line around a command."""
    unclear: str | None = None
    """Why the target is not known. Then every rule that narrows matches, and none that widens."""


class NetProbe(msgspec.Struct, frozen=True):
    host: str
    port: int
    method: str | None = None
    """None means a connection whose requests are not known yet."""
    paths: tuple[str, ...] = ()


class NamedProbe(msgspec.Struct, frozen=True):
    kind: Named
    names: tuple[str, ...]
    """Spellings of one name: a rule can match any of them."""


Probe = ToolProbe | NetProbe | NamedProbe


def probes(action: Action) -> tuple[Probe, ...]:
    """Return the probes of an action; the strictest decision applies. Raises `ValueError` if no rule can match it."""
    match action:
        case ToolAction():
            return _tool(action)
        case ConnectAction(host, port):
            return (NetProbe(_host(host), port),)
        case RequestAction(host, port, method, path):
            if not _METHOD.fullmatch(method):
                raise ValueError("no rule can match the method: it is not a word in capitals")
            return (NetProbe(_host(host), port, method, request_paths(path)),)
        case CredentialAction(name=name):
            return (NamedProbe("credential", (name,)),)
        case PushAction(ref=ref):
            short = (ref.removeprefix(_BRANCH),) if ref.startswith(_BRANCH) else ()
            return (NamedProbe("push", (ref, *short)),)
        case RawAction(host):
            return (NamedProbe("raw", (_host(host),)),)
        case TierAction(tier):
            return (NamedProbe("tier", (tier,)),)
        case ModelAction(model):
            return (NamedProbe("model", (model,)),)


def _tool(action: ToolAction) -> tuple[Probe, ...]:
    tool, target = action.tool, action.target
    if tool in PATH_TOOLS:
        path = normal_path(target)
        if len(path) > PATH_CHARS:
            raise ValueError(f"a path has at most {PATH_CHARS} characters")
        return (ToolProbe(tool, (path,)),)
    if tool not in COMMAND_TOOLS:
        return (ToolProbe(tool, (target,)),)
    parsed = action.commands
    if parsed is None:
        return (ToolProbe(tool, (), (target,), "it was not parsed"),)
    found: list[Probe] = [ToolProbe(tool, spellings, (target,)) for spellings in parsed.simple]
    if parsed.unclear is not None:
        found.append(ToolProbe(tool, (), (target,), parsed.unclear))
    return tuple(found) or (ToolProbe(tool, (), (target,)),)


def _host(host: str) -> str:
    try:
        return normal_host(host)
    except ValueError as error:
        raise ValueError(f"no rule can match the host: {error}") from None


def request_paths(path: str) -> tuple[str, ...]:
    """Return the ways in which a server may read `path`: as sent, and decoded with dots and slashes resolved."""
    bare = re.split(r"[?#]", path, maxsplit=1)[0]
    if not bare.startswith("/") or not bare.isprintable() or len(bare) > _REQUEST_PATH_CHARS:
        raise ValueError("no rule can match the path: it is not a plain path that starts with /")
    decoded = bare
    for _ in range(3):
        decoded = unquote(decoded, errors="replace")
    if "%" in decoded and unquote(decoded) != decoded:
        raise ValueError("no rule can match the path: it is percent-encoded too many times")
    ways = {bare: None}
    for text in (unquote(bare, errors="replace"), decoded):
        plain = text.replace("\\", "/")
        ways[plain] = None
        # Some servers drop the parameters after a semicolon before they resolve dots.
        for form in (plain, re.sub(r";[^/]*", "", plain)):
            ways[_resolved(form)] = None
    return tuple(ways)


def _resolved(path: str) -> str:
    """Remove empty segments and dots; keep a trailing slash."""
    normal = "/" + posixpath.normpath(path).lstrip("/")
    return normal + "/" if path.endswith("/") and normal != "/" else normal
