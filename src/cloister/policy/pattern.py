"""The left side of a rule, read once: which actions does it mean? Matching takes linear time."""

import posixpath
import re
from functools import lru_cache

import msgspec

from cloister.core.commands import WORK_DIR
from cloister.policy.api import ConnectAction, ToolAction
from cloister.policy.hosts import is_address, normal_host

PATH_TOOLS = frozenset({"read", "write", "edit"})
"""Tools whose target is a path; of the others it is plain text."""

WEB_PORTS = (80, 443)
_PATTERN_CHARS = 1_000
_TOOL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_HOST_PORT = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::([^:]*))?")
_NOT_WILDCARDS = frozenset("?[]{}\\")


class ToolPattern(msgspec.Struct, frozen=True):
    tool: str | None
    """None is any."""
    glob: str | None
    """None is any target."""

    def matches(self, action: ToolAction) -> bool:
        if self.tool is not None and self.tool != action.tool:
            return False
        if self.glob is None:
            return True
        if action.tool in PATH_TOOLS:
            return _path_matches(_path_pattern(self.glob), normal_path(action.target).split("/"))
        return _text_matches(self.glob, action.target)


class HostPattern(msgspec.Struct, frozen=True):
    host: str
    any_below: bool
    """`*.host`: every name below it, not the host itself."""
    port: int | None

    def matches(self, action: ConnectAction, without_port: tuple[int, ...] | None) -> bool:
        """`without_port` are the ports that are meant when the pattern names none; None is every port."""
        if self.port is not None and self.port != action.port:
            return False
        if self.port is None and without_port is not None and action.port not in without_port:
            return False
        if self.any_below:
            return action.host.endswith("." + self.host)
        return action.host == self.host

    @property
    def exact(self) -> bool:
        return self.port is not None and not self.any_below


Pattern = ToolPattern | HostPattern


@lru_cache(maxsize=4_096)
def read_pattern(text: str) -> Pattern:
    """Read `tool:NAME[:GLOB]` or `connect:HOST[:PORT]`. Raises `ValueError` with the reason."""
    if len(text) > _PATTERN_CHARS:
        raise ValueError(f"an action has at most {_PATTERN_CHARS} characters")
    kind, colon, rest = text.partition(":")
    if not colon or not rest or kind not in ("tool", "connect"):
        raise ValueError("an action is tool:NAME, tool:NAME:GLOB or connect:HOST[:PORT]")
    return _read_tool(rest) if kind == "tool" else _read_connect(rest)


def _read_tool(rest: str) -> ToolPattern:
    tool, colon, glob = rest.partition(":")
    if tool != "*" and not _TOOL.fullmatch(tool):
        raise ValueError("NAME is the exact name of a tool, or *")
    if colon and not glob:
        raise ValueError("the GLOB is empty: leave the last colon out to mean any target")
    if _NOT_WILDCARDS & set(glob) or not glob.isprintable():
        raise ValueError("in a GLOB only * and ** are wildcards, and ? [ ] { } \\ are not taken")
    return ToolPattern(None if tool == "*" else tool, glob if colon else None)


def _read_connect(rest: str) -> HostPattern:
    parts = _HOST_PORT.fullmatch(rest)
    if parts is None or not parts[1]:
        raise ValueError("write connect:HOST or connect:HOST:PORT, an IPv6 address in brackets")
    host, port = parts[1], _read_port(parts[2])
    any_below = host.startswith("*.")
    host = host[2:] if any_below else host
    if "*" in host:
        raise ValueError("a wildcard may only be the first label of a host, as in *.example.com")
    try:
        normal = normal_host(host)
    except ValueError as error:
        raise ValueError(f"the host cannot be used: {error}") from None
    if any_below and is_address(normal):
        raise ValueError("a wildcard stands before a name, not before an address")
    return HostPattern(normal, any_below, port)


def _read_port(text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65_535:
        raise ValueError("a port is a number from 1 to 65535")
    return int(text)


def normal_path(path: str) -> str:
    """The absolute path inside the sandbox that `path` spells; links are not followed."""
    return posixpath.normpath("/" + posixpath.join(WORK_DIR, path).lstrip("/"))


def _path_pattern(glob: str) -> list[str]:
    """A glob's segments. One that begins with `**` means everywhere, not only below the work directory."""
    return normal_path("/" + glob if glob.startswith("**") else glob).split("/")


def _path_matches(pattern: list[str], path: list[str]) -> bool:
    """Whether all of `path` matches; `**` stands for any number of segments."""
    at = here = back_path = 0
    back_pattern = -1
    while here < len(path):
        if at < len(pattern) and pattern[at] == "**":
            back_pattern, back_path = at, here
            at += 1
        elif at < len(pattern) and _text_matches(pattern[at], path[here]):
            at += 1
            here += 1
        elif back_pattern >= 0:
            back_path += 1
            at, here = back_pattern + 1, back_path
        else:
            return False
    return all(part == "**" for part in pattern[at:])


def _text_matches(pattern: str, text: str) -> bool:
    """Whether all of `text` matches, `*` standing for any characters: fixed pieces are found left to right."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == first
    *middle, last = rest
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True
