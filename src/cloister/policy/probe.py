"""One action as rules look at it: every spelling of what it would do, and whether some of it is unknown."""

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
from cloister.policy.globs import normal_path
from cloister.policy.pattern import COMMAND_TOOLS, PATH_TOOLS, Named, normal_host

PATH_CHARS = 4_096
"""No system opens a longer path."""

_REQUEST_PATH_CHARS = 16_384
_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}")
_BRANCH = "refs/heads/"


class ToolProbe(msgspec.Struct, frozen=True):
    tool: str
    spellings: tuple[str, ...]
    """The target, or one command of it. A rule that opens must mean all of them, one that narrows any."""
    around: tuple[str, ...] = ()
    """More text that a rule which narrows may mean: the whole line around a command."""
    unclear: str | None = None
    """Why the target is not known: every rule that narrows means it, none that opens."""


class NetProbe(msgspec.Struct, frozen=True):
    host: str
    port: int
    method: str | None = None
    """None is a connection whose requests are not known yet."""
    paths: tuple[str, ...] = ()


class NamedProbe(msgspec.Struct, frozen=True):
    kind: Named
    names: tuple[str, ...]
    """Spellings of one name: a rule means it with any of them."""


Probe = ToolProbe | NetProbe | NamedProbe


def probes(action: Action) -> tuple[Probe, ...]:
    """What must be decided; the strictest answer is the answer. Raises `ValueError`: no rule can name it."""
    match action:
        case ToolAction():
            return _tool(action)
        case ConnectAction(host, port):
            return (NetProbe(_host(host), port),)
        case RequestAction(host, port, method, path):
            if not _METHOD.fullmatch(method):
                raise ValueError("the method cannot be named by a rule: it is not a word in capitals")
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
        raise ValueError(f"the host cannot be named by a rule: {error}") from None


def request_paths(path: str) -> tuple[str, ...]:
    """The ways in which a server may read `path`: as sent, and decoded with dots and slashes resolved."""
    bare = re.split(r"[?#]", path, maxsplit=1)[0]
    if not bare.startswith("/") or not bare.isprintable() or len(bare) > _REQUEST_PATH_CHARS:
        raise ValueError("the path cannot be named by a rule: it is no plain path from /")
    decoded = bare
    for _ in range(3):
        decoded = unquote(decoded, errors="replace")
    if "%" in decoded and unquote(decoded) != decoded:
        raise ValueError("the path cannot be named by a rule: it is encoded too many times")
    ways = {bare: None}
    for text in (unquote(bare, errors="replace"), decoded):
        plain = text.replace("\\", "/")
        ways[plain] = None
        # Parameters after a semicolon are dropped by some servers before dots are resolved.
        for form in (plain, re.sub(r";[^/]*", "", plain)):
            ways[_resolved(form)] = None
    return tuple(ways)


def _resolved(path: str) -> str:
    """Without empty segments and dots; a slash at the end stays."""
    normal = "/" + posixpath.normpath(path).lstrip("/")
    return normal + "/" if path.endswith("/") and normal != "/" else normal
