"""One action in words, as people name it to ask what would be decided."""

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
from cloister.policy.pattern import TOOL_NAMES, HostPattern, read_host

_SPELLINGS = (
    "an action is bash:COMMAND, write:PATH (or another tool), connect:HOST[:PORT], request:METHOD HOST[:PORT]/PATH, "
    "credential:NAME, push:REF, raw:HOST, tier:NAME, model:NAME or mcp:SERVER.TOOL"
)
_TLS = 443


def read_action(text: str) -> Action:
    """The action that `text` names. Raises `ValueError` with the reason."""
    kind, colon, rest = text.partition(":")
    if kind in TOOL_NAMES:
        return ToolAction(kind, rest)
    if not colon or not rest:
        raise ValueError(_SPELLINGS)
    match kind:
        case "tool" | "mcp":
            tool, _, target = rest.partition(":")
            return ToolAction(tool if kind == "tool" else f"mcp:{tool}", target)
        case "connect":
            host = _one_host(rest)
            return ConnectAction(host.host, host.port or _TLS)
        case "request":
            return _request(rest)
        case _:
            return _named(kind, rest)


def _named(kind: str, name: str) -> Action:
    match kind:
        case "credential":
            return CredentialAction(name, "", _TLS, "GET", "/")
        case "push":
            return PushAction("", name if name.startswith("refs/") else f"refs/heads/{name}")
        case "raw":
            return RawAction(_one_host(name).host)
        case "tier":
            return TierAction(name)
        case "model":
            return ModelAction(name)
        case _:
            raise ValueError(_SPELLINGS)


def _request(rest: str) -> RequestAction:
    method, _, where = rest.partition(" ")
    name, slash, path = where.partition("/")
    if not slash:
        raise ValueError("write request:METHOD HOST[:PORT]/PATH")
    host = _one_host(name)
    return RequestAction(host.host, host.port or _TLS, method, f"/{path}")


def _one_host(text: str) -> HostPattern:
    host = read_host(text)
    if host.any_below or not host.host:
        raise ValueError("name one host, without *")
    return host
