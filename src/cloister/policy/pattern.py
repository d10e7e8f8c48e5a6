"""Parses the `action` of a rule into a pattern that matches actions: globs, hosts, tools."""

import posixpath
import re
import unicodedata
from functools import lru_cache
from typing import Literal
from urllib.parse import unquote

import msgspec

from cloister.core.addresses import is_address, normal_host
from cloister.core.computer import WORK_DIR
from cloister.policy.api import HOLE, SET_NAMES

# Globs: matching takes linear time for text and at most quadratic time for paths


def text_matches(pattern: str, text: str) -> bool:
    """True if all of `text` matches; `*` stands for any characters."""
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


def could_match(pattern: str, text: str) -> bool:
    """True if `text` could match with some text in place of each `HOLE`. In doubt True."""
    known, hole, _ = text.partition(HOLE)
    if not hole:
        return text_matches(pattern, text)
    first, star, _ = pattern.partition("*")
    return first.startswith(known) or (bool(star) and known.startswith(first))


def path_matches(pattern: list[str], path: list[str]) -> bool:
    """True if all segments of `path` match; `**` stands for any number of segments, `*` for part of one."""
    at = here = back_path = 0
    back_pattern = -1
    while here < len(path):
        if at < len(pattern) and pattern[at] == "**":
            back_pattern, back_path = at, here
            at += 1
        elif at < len(pattern) and text_matches(pattern[at], path[here]):
            at += 1
            here += 1
        elif back_pattern >= 0:
            back_path += 1
            at, here = back_pattern + 1, back_path
        else:
            return False
    return all(part == "**" for part in pattern[at:])


def normal_path(path: str) -> str:
    """Return `path` as an absolute path inside the sandbox, without following links."""
    return posixpath.normpath("/" + posixpath.join(WORK_DIR, path).lstrip("/"))


def path_glob(glob: str) -> str:
    """Return a glob in absolute form. One that begins with `**` matches everywhere, not only in the work directory."""
    return normal_path("/" + glob if glob.startswith("**") else glob)


@lru_cache(maxsize=4_096)
def path_segments(glob: str) -> list[str]:
    """The segments of a glob in absolute form, for `path_matches`."""
    return path_glob(glob).split("/")


def folded(segments: list[str]) -> list[str]:
    """The segments of a path or glob, equal for names that some file system takes for the same."""
    return [_folded(segment) for segment in segments]


def _folded(segment: str) -> str:
    """Without case, invisible characters, a trailing dot and a stream's name; in one Unicode form."""
    if not segment.isascii() and len(segment) <= _SEGMENT_CHARS:
        composed = unicodedata.normalize("NFC", segment)
        segment = "".join(char for char in composed if unicodedata.category(char) != "Cf")
    return (segment.partition(":")[0] or segment).rstrip(" .").casefold() or segment


def literal(glob: str) -> str:
    """Return the longest text that every match of a glob, path or text, contains."""
    pieces = (piece for part in glob.split("/") for piece in part.split("*"))
    return max(pieces, key=len)


TOOL_NAMES = ("bash", "read", "write", "edit", "search", "finish")
"""Tools that can be written without `tool:`."""

PATH_TOOLS = frozenset({"read", "write", "edit"})
"""Tools whose target is a path. The target of any other tool is text."""

COMMAND_TOOLS = frozenset({"bash"})
"""Tools whose target is a command line: a glob applies to each command in it."""

WEB_PORTS = (80, 443)
Named = Literal["credential", "push", "raw", "tier", "model", "harness"]

_PATTERN_CHARS = 1_000
_SEGMENT_CHARS = 1_000
_REQUEST_PATH_CHARS = 16_384
_TOOL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_MCP = re.compile(r"[A-Za-z0-9_.*-]{1,128}")
_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}|\*")
_HOST_PORT = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::([^:]*))?")
_NOT_WILDCARDS = frozenset("?[]{}\\")
_KINDS = (
    "an action is tool:NAME[:GLOB], connect:HOST[:PORT], connect:@SET, request:METHOD HOST[:PORT]/PATH, "
    "credential:NAME, push:REF, raw:HOST, tier:NAME, model:GLOB, harness:NAME, mcp:SERVER.TOOL, or a tool's name as in bash or write:GLOB"
)


class ToolPattern(msgspec.Struct, frozen=True):
    tool: str
    """The name; `*` stands for any characters."""
    glob: str | None
    """None matches any target."""

    def matches_target(self, tool: str, text: str) -> bool:
        """True if the glob matches `text`, which is a normal path if the target of the tool is a path."""
        if self.glob is None:
            return True
        if tool in PATH_TOOLS:
            return path_matches(path_segments(self.glob), text.split("/"))
        return text_matches(self.glob, text)


class HostPattern(msgspec.Struct, frozen=True):
    host: str
    """Empty matches any host."""
    any_below: bool
    """`*.host`: every name below `host`, not `host` itself."""
    port: int | None

    def matches(self, host: str, port: int, *, widens: bool) -> bool:
        """Without a port, a pattern that widens matches the web ports; one that narrows matches every port."""
        if self.port is not None and self.port != port:
            return False
        if self.port is None and widens and port not in WEB_PORTS:
            return False
        if self.any_below:
            return host.endswith("." + self.host)
        return not self.host or host == self.host

    @property
    def exact(self) -> bool:
        return self.port is not None and not self.any_below and bool(self.host)


class SetPattern(msgspec.Struct, frozen=True):
    """`connect:@NAME`."""

    name: str


class RequestPattern(msgspec.Struct, frozen=True):
    method: str
    """`*` matches any method."""
    host: HostPattern
    path: str
    """Begins with `/`; `*` matches part of a segment, `**` any number of segments."""

    def matches_request(self, method: str, path: str) -> bool:
        if self.method not in ("*", method):
            return False
        return path_matches(self.path.split("/"), path.split("/"))


class NamedPattern(msgspec.Struct, frozen=True):
    """Matches actions that have one name, such as a push or a model."""

    kind: Named
    glob: str


Pattern = ToolPattern | HostPattern | SetPattern | RequestPattern | NamedPattern


@lru_cache(maxsize=4_096)
def read_pattern(text: str) -> Pattern:
    """Parse a pattern. Raises `ValueError` with the reason."""
    if len(text) > _PATTERN_CHARS:
        raise ValueError(f"an action can have at most {_PATTERN_CHARS} characters")
    kind, colon, rest = text.partition(":")
    if kind in TOOL_NAMES:
        return _read_tool(text)
    if not colon or not rest:
        raise ValueError(_KINDS)
    match kind:
        case "tool":
            return _read_tool(rest)
        case "mcp":
            return _read_mcp(rest)
        case "connect":
            return _read_set(rest[1:]) if rest.startswith("@") else read_host(rest)
        case "request":
            return _read_request(rest)
        case "credential" | "push" | "tier" | "model" | "harness":
            return NamedPattern(kind, _glob(rest))
        case "raw":
            return _read_raw(rest)
        case _:
            raise ValueError(_KINDS)


def spell(pattern: Pattern) -> str:
    """Return the normal spelling, which `read_pattern` parses into the same pattern."""
    match pattern:
        case ToolPattern(tool, glob):
            named = tool if tool.startswith("mcp:") else f"tool:{tool}"
            return named if glob is None else f"{named}:{glob}"
        case HostPattern():
            return f"connect:{_spell_host(pattern)}"
        case SetPattern(name):
            return f"connect:@{name}"
        case RequestPattern(method, host, path):
            return f"request:{method} {_spell_host(host)}{path}"
        case NamedPattern(kind, glob):
            return f"{kind}:[{glob}]" if kind == "raw" and ":" in glob else f"{kind}:{glob}"


def _spell_host(pattern: HostPattern) -> str:
    host = f"[{pattern.host}]" if ":" in pattern.host else pattern.host or "*"
    port = "" if pattern.port is None else f":{pattern.port}"
    return f"{'*.' if pattern.any_below else ''}{host}{port}"


def _read_tool(rest: str) -> ToolPattern:
    tool, colon, glob = rest.partition(":")
    if tool == "mcp" and colon:
        raise ValueError("a tool of an MCP server is written mcp:SERVER.TOOL")
    if tool != "*" and not _TOOL.fullmatch(tool):
        raise ValueError("NAME must be the exact name of a tool, or *")
    if colon and not glob:
        raise ValueError("the GLOB is empty: leave out the last colon to match any target")
    return ToolPattern(tool, _glob(glob) if colon else None)


def _read_mcp(rest: str) -> ToolPattern:
    if not _MCP.fullmatch(rest) or ("." not in rest and rest != "*"):
        raise ValueError("write mcp:SERVER.TOOL, with * for any characters, as in mcp:jira.*")
    return ToolPattern(f"mcp:{rest}", None)


def _glob(glob: str) -> str:
    if _NOT_WILDCARDS & set(glob) or not glob.isprintable():
        raise ValueError("in a GLOB only * and ** are wildcards; ? [ ] { } \\ are not allowed")
    return glob


def _read_set(name: str) -> SetPattern:
    if name not in SET_NAMES:
        raise ValueError(f"the named sets of hosts are {', '.join(sorted(SET_NAMES))}")
    return SetPattern(name)


def _read_raw(rest: str) -> NamedPattern:
    host = read_host(rest)
    if host.port is not None or not host.host:
        raise ValueError("write raw:HOST or raw:*.SUFFIX without a port: it always means port 443")
    return NamedPattern("raw", f"{'*.' if host.any_below else ''}{host.host}")


def _read_request(rest: str) -> RequestPattern:
    method, space, where = rest.partition(" ")
    host, slash, path = where.partition("/")
    if not space or not slash or not _METHOD.fullmatch(method):
        raise ValueError("write request:METHOD HOST[:PORT]/PATH, with * for any method and /** for any path")
    if "%" in path or "#" in path or not _glob(path).isascii():
        raise ValueError("the path is written plainly, without % escapes, and with no query")
    segments = path.split("/")
    if any(part in (".", "..") for part in segments) or "" in segments[:-1]:
        raise ValueError("the path has no empty segments and neither . nor ..")
    return RequestPattern(method, read_host(host), "/" + path)


def read_host(text: str) -> HostPattern:
    """Read `HOST[:PORT]`, `*.SUFFIX[:PORT]` or `*[:PORT]`. Raises `ValueError` with the reason."""
    parts = _HOST_PORT.fullmatch(text)
    if parts is None or not parts[1]:
        raise ValueError("write connect:HOST or connect:HOST:PORT, an IPv6 address in brackets")
    host, port = parts[1], _read_port(parts[2])
    if host == "*":
        return HostPattern("", any_below=False, port=port)
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


def opens_everything(pattern: Pattern) -> bool:
    """True if an `allow` rule with this pattern would open every host."""
    host = pattern.host if isinstance(pattern, RequestPattern) else pattern
    return isinstance(host, HostPattern) and not host.host


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
