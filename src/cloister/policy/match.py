"""Patterns, arranged so that an action meets the few that could mean it and not all there are."""

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cloister.policy.api import HOLE, Pointed, Rule, Sets
from cloister.policy.globs import could_match, path_glob, path_prefix, text_matches, text_prefix
from cloister.policy.pattern import (
    COMMAND_TOOLS,
    PATH_TOOLS,
    HostPattern,
    NamedPattern,
    Pattern,
    RequestPattern,
    SetPattern,
    ToolPattern,
    read_host,
    read_pattern,
)
from cloister.policy.probe import NamedProbe, NetProbe, Probe, ToolProbe


@dataclass(frozen=True, slots=True)
class Entry:
    """One pattern of one layer."""

    number: int
    """Its place among all: the first of equals is the one that is named."""
    layer: int
    written: Rule | Pointed
    widens: bool
    """Whether it opens something where it matches. In doubt such an entry does not match and any other does."""
    pattern: Pattern | None
    """None when it cannot be read."""


def entry_of(number: int, layer: int, written: Rule | Pointed, *, widens: bool) -> Entry:
    try:
        pattern = read_pattern(written.action)
    except ValueError:
        pattern = None
    return Entry(number, layer, written, widens, pattern)


@dataclass(frozen=True, slots=True)
class Match:
    entry: Entry
    partly: bool = False
    """It is about some requests of the connection, and the action is the connection."""
    exact: bool = False
    """It names the very host and port."""


class _Globs:
    """Entries by what their glob begins with."""

    def __init__(self) -> None:
        self.every: list[Entry] = []
        """Those without a glob."""
        self.globbed: list[Entry] = []
        self._by_prefix: dict[str, list[Entry]] = {}
        self._lengths: list[int] = []
        self._loose: list[tuple[str, Entry]] = []
        """Those that begin with a wildcard, with a piece of text that must be in what they mean."""

    def add(self, entry: Entry, glob: str | None, prefix: str = "") -> None:
        if glob is None:
            self.every.append(entry)
            return
        self.globbed.append(entry)
        if not prefix:
            self._loose.append((max(_pieces(glob), key=len, default=""), entry))
            return
        self._by_prefix.setdefault(prefix, []).append(entry)
        if len(prefix) not in self._lengths:
            insort(self._lengths, len(prefix))

    def near(self, texts: Iterable[str]) -> dict[Entry, None]:
        """Those whose glob could mean one of `texts`, each once."""
        found: dict[Entry, None] = {}
        for text in texts:
            for length in self._lengths:
                if length > len(text):
                    break
                for entry in self._by_prefix.get(text[:length], ()):
                    found[entry] = None
            for piece, entry in self._loose:
                if piece in text:
                    found[entry] = None
        return found


def _pieces(glob: str) -> list[str]:
    """The parts of a glob, path or text, that are written out: each is in whatever matches."""
    return [piece for part in glob.split("/") for piece in part.split("*") if piece]


@dataclass(frozen=True, slots=True)
class _Host:
    entry: Entry
    host: HostPattern
    request: RequestPattern | None = None


class Index:
    """The entries of one list."""

    def __init__(self, entries: Iterable[Entry], sets: Sets) -> None:
        self._sets = sets
        self._tools: dict[str, _Globs] = {}
        self._any_tool: list[tuple[Entry, ToolPattern]] = []
        self._of_servers = _Globs()
        """Patterns over names of tools."""
        self._named: dict[str, _Globs] = {}
        self._hosts: dict[str, list[_Host]] = {}
        self._below: dict[str, list[_Host]] = {}
        self._any_host: list[_Host] = []
        self._broken: list[Entry] = []
        for entry in entries:
            self._add(entry)

    def _add(self, entry: Entry) -> None:
        match entry.pattern:
            case None:
                # Layers from a reader are well formed. Of one that is not, only what narrows is believed.
                if not entry.widens:
                    self._broken.append(entry)
            case ToolPattern() as pattern:
                self._add_tool(entry, pattern)
            case NamedPattern(kind, glob):
                self._named.setdefault(kind, _Globs()).add(entry, glob, text_prefix(glob))
            case HostPattern() as pattern:
                self._add_host(_Host(entry, pattern))
            case RequestPattern() as pattern:
                self._add_host(_Host(entry, pattern.host, pattern))
            case SetPattern(name):
                for host in self._sets.get(name, ()):
                    self._add_host(_Host(entry, read_host(host)))

    def _add_tool(self, entry: Entry, pattern: ToolPattern) -> None:
        tool, glob = pattern.tool, pattern.glob
        if tool == "*":
            self._any_tool.append((entry, pattern))
            return
        if "*" in tool:
            self._of_servers.add(entry, tool, text_prefix(tool))
            return
        prefix = text_prefix(glob or "")
        if glob is not None and tool in PATH_TOOLS:
            glob = path_glob(glob)
            prefix = path_prefix(glob)
        self._tools.setdefault(tool, _Globs()).add(entry, glob, prefix)

    def _add_host(self, host: _Host) -> None:
        if not host.host.host:
            self._any_host.append(host)
        else:
            where = self._below if host.host.any_below else self._hosts
            where.setdefault(host.host.host, []).append(host)

    def about_commands(self, tool: str) -> bool:
        """Whether any entry says something about the commands that `tool` would run."""
        if tool not in COMMAND_TOOLS:
            return False
        own = self._tools.get(tool)
        return (own is not None and bool(own.globbed)) or any(
            pattern.glob is not None for _, pattern in self._any_tool
        )

    def find(self, probe: Probe) -> list[Match]:
        """Every entry that means `probe`, in the order in which they were written."""
        match probe:
            case ToolProbe():
                found = [Match(entry) for entry in self._find_tool(probe)]
            case NetProbe():
                found = list(self._find_host(probe))
            case NamedProbe(kind, names):
                globs = self._named.get(kind)
                near = globs.near(names) if globs else ()
                found = [Match(e) for e in near if any(text_matches(_glob_of(e), name) for name in names)]
        found.extend(Match(entry) for entry in self._broken)
        if len(found) > 1:
            found.sort(key=lambda match: match.entry.number)
        return found

    def _find_tool(self, probe: ToolProbe) -> Iterator[Entry]:
        for entry, pattern in self._any_tool:
            if _means(entry, pattern, probe):
                yield entry
        for entry in self._of_servers.near((probe.tool,)):
            if isinstance(entry.pattern, ToolPattern) and text_matches(entry.pattern.tool, probe.tool):
                yield entry
        own = self._tools.get(probe.tool)
        if own is None:
            return
        yield from own.every
        holes = any(HOLE in text for text in probe.spellings)
        every = probe.unclear is not None or holes
        near = own.globbed if every else own.near((*probe.spellings, *probe.around))
        for entry in near:
            pattern = entry.pattern
            if isinstance(pattern, ToolPattern) and _means(entry, pattern, probe):
                yield entry

    def _find_host(self, probe: NetProbe) -> Iterator[Match]:
        yield from self._at(probe, self._any_host)
        yield from self._at(probe, self._hosts.get(probe.host, ()))
        above = probe.host
        while self._below and "." in above:
            above = above.partition(".")[2]
            yield from self._at(probe, self._below.get(above, ()))

    @staticmethod
    def _at(probe: NetProbe, hosts: Iterable[_Host]) -> Iterator[Match]:
        for item in hosts:
            widens = item.entry.widens
            if not item.host.matches(probe.host, probe.port, widens=widens):
                continue
            if item.request is None:
                yield Match(item.entry, exact=item.host.exact)
            elif probe.method is None:
                yield Match(item.entry, partly=True, exact=item.host.exact)
            else:
                meant = [item.request.matches_request(probe.method, path) for path in probe.paths]
                if all(meant) if widens else any(meant):
                    yield Match(item.entry, exact=item.host.exact)


def _glob_of(entry: Entry) -> str:
    pattern = entry.pattern
    return pattern.glob if isinstance(pattern, NamedPattern) else ""


def _means(entry: Entry, pattern: ToolPattern, probe: ToolProbe) -> bool:
    if pattern.glob is None:
        return True
    if probe.unclear is not None:
        return not entry.widens
    if entry.widens:
        return all(pattern.matches_target(probe.tool, text) for text in probe.spellings)
    if probe.tool in COMMAND_TOOLS and any(could_match(pattern.glob, text) for text in probe.spellings):
        return True
    return any(pattern.matches_target(probe.tool, text) for text in (*probe.spellings, *probe.around))
