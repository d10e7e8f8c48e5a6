"""The MCP servers of a run: declared in the settings, in the repository's own, and, if allowed, in its `.mcp.json`."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import anyio
import msgspec
from anyio import to_thread

from cloister.agent.tools.api import AnyTool, ToolLayer
from cloister.agent.tools.toolset import Offer, ToolPlace
from cloister.core.computer import WORK_DIR
from cloister.core.errors import HostError, UserError, describe
from cloister.core.events import ConnectionDecided, Effect
from cloister.core.repository import FILES, read_settings
from cloister.core.requests import McpServer
from cloister.core.text import decode, one_line
from cloister.forge.read import read_file

if TYPE_CHECKING:
    from cloister.agent.tools.mcp.connection import Connect
    from cloister.agent.tools.mcp.door import Way

MCP_JSON = ".mcp.json"
SERVERS = 20
_NAME_CHARS = 32

Reveal = Callable[[str, str], Awaitable[str]]
"""The value of a secret, by its name and where it is. Raises `UserError`."""

OpenWay = Callable[[ToolPlace, str], Awaitable["Way"]]
"""Opens the way out for the client of one server, by its name."""


class Declared(NamedTuple):
    """One server that can be used."""

    name: str
    layer: ToolLayer
    source: str
    entry: McpServer

    @property
    def grant(self) -> Effect | None:
        """What holds where no rule speaks of its tools: a server inside can do no more than the agent's own commands."""
        inside = not self.entry.url and self.entry.where == "sandbox"
        return self.entry.grant or ("allow" if inside else None)


def declared(name: str, entry: McpServer, layer: ToolLayer, source: str) -> Declared:
    """Check a declaration. Raises `UserError` (`bad_tool`) that says what is wrong."""
    plain = name.replace("-", "").replace("_", "")
    if not (plain.isascii() and plain.isalnum()) or len(name) > _NAME_CHARS:
        raise _bad(source, f"a server's name has letters, digits, _ and -, at most {_NAME_CHARS}")
    if bool(entry.command) == bool(entry.url):
        raise _bad(source, "give `command` or `url`")
    if any("\0" in text for text in (*entry.command, *entry.env, *entry.env.values(), *entry.secrets)):
        raise _bad(source, "there is a NUL character")
    if entry.secrets and (entry.where != "host" or layer == "repository"):
        what = "`secrets` are for a program on the host; what runs in a sandbox or at a `url` uses a [[credential]]"
        raise _bad(source, what)
    if entry.url:
        parts = urlsplit(entry.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise _bad(source, "`url` is an address with https:// or http://, without a user and a password")
        if entry.where == "host" or entry.env:
            raise _bad(source, "a server at a `url` has no `where` and no `env`")
    if layer == "repository" and (entry.where == "host" or (entry.url and entry.grant)):
        what = "let a server run on the host" if entry.where == "host" else "grant the tools of a `url`"
        raise _bad(source, f"only the organisation's settings may {what}")
    if entry.where == "host" and not entry.command[0].startswith("/"):
        raise _bad(source, "a program on the host is named by its whole path")
    return Declared(name, layer, source, entry)


def _bad(source: str, what: str) -> UserError:
    return UserError("bad_tool", f"{source}: {one_line(what, 300)}.")


def of_settings(entries: Mapping[str, McpServer], source: str) -> tuple[list[Declared], list[str]]:
    """The servers of the organisation's settings."""
    return _all(entries, "organisation", source)


def of_repository(files: Mapping[str, str], where: str = "") -> tuple[list[Declared], list[str]]:
    """The servers of a repository's settings, by the texts of its files."""
    settings = read_settings(files)
    found, problems = _all(settings.mcp, "repository", f"{settings.source('mcp')}{where}")
    return found, [*(one for one in settings.problems if "`mcp`" in one), *problems]


def of_mcp_json(text: str, where: str = "") -> tuple[list[Declared], list[str]]:
    """The servers of the file that other agents read too."""
    source, problems = f"{MCP_JSON}{where}", list[str]()
    try:
        servers = msgspec.json.decode(text, type=_McpJson).servers
    except msgspec.MsgspecError as error:
        return [], [f"{source}: {describe(error, _McpJson)}"]
    entries: dict[str, McpServer] = {}
    for name, one in servers.items():
        lost = [key for key, value in one.env.items() if "${" in value]
        lost += ["headers"] if one.headers else []
        if lost:
            problems.append(
                f"{source}, {one_line(name, 40)}: {one_line(lost[0], 40)} is not used: no variable of this machine "
                "is, and a secret is a credential of the settings."
            )
        env = {key: value for key, value in one.env.items() if key not in lost}
        command = (one.command, *one.args) if one.command else ()
        entries[name] = McpServer(command=command, url=one.url, env=env)
    found, wrong = _all(entries, "repository", source)
    return found, [*problems, *wrong]


class _McpJsonServer(msgspec.Struct, frozen=True):
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, Any] = {}


class _McpJson(msgspec.Struct, frozen=True, rename={"servers": "mcpServers"}):
    servers: dict[str, _McpJsonServer] = {}


def _all(entries: Mapping[str, McpServer], layer: ToolLayer, source: str) -> tuple[list[Declared], list[str]]:
    found: list[Declared] = []
    problems: list[str] = []
    for name, entry in entries.items():
        try:
            found.append(declared(name, entry, layer, f"{source} [mcp.{one_line(name, 40)}]"))
        except UserError as error:
            problems.append(error.message)
    return found, problems


def distinct(servers: list[Declared]) -> tuple[list[Declared], list[str]]:
    """At most `SERVERS` servers whose names are their own; the organisation's name is its own against a repository."""
    by_name: dict[str, Declared] = {}
    problems: list[str] = []
    for one in servers:
        if one.name in by_name:
            first = by_name[one.name].source
            problems.append(f"{one.source} is not used: {first} has this name; rename one.")
        elif len(by_name) >= SERVERS:
            problems.append(f"{one.source} is not used: a run has at most {SERVERS} MCP servers.")
        else:
            by_name[one.name] = one
    return list(by_name.values()), problems


async def _no_secret(name: str, place: str) -> str:
    raise UserError("bad_credential", f"{name} cannot be read here")


@dataclass(frozen=True, slots=True)
class McpTools:
    """A `ToolSource`: the tools of all declared servers."""

    entries: Mapping[str, McpServer]
    source: str
    """The file of the settings."""
    open_way: OpenWay
    mcp_json: bool = False
    """Whether `.mcp.json` of repositories is read."""
    reveal: Reveal = _no_secret

    async def declarations(self, place: ToolPlace) -> tuple[list[Declared], list[str]]:
        """The servers of the settings, and those of the repository's base commit."""
        found, problems = of_settings(self.entries, self.source)
        if commit := place.declared[0]:
            where = f"@{commit[:12]}"
            files = await _files(place, FILES)
            parts = [of_repository(files, where)] if files else []
            if self.mcp_json and (text := (await _files(place, (MCP_JSON,))).get(MCP_JSON)):
                parts.append(of_mcp_json(text, where))
            for own, wrong in parts:
                found, problems = [*found, *own], [*problems, *wrong]
        usable, doubled = distinct(found)
        return usable, [*problems, *doubled]

    @asynccontextmanager
    async def __call__(self, place: ToolPlace) -> AsyncGenerator[Offer]:
        servers, problems = await self.declarations(place)
        if not servers:
            yield Offer((), tuple(problems))
            return
        await to_thread.run_sync(_load)
        if any(not one.entry.url and one.entry.where == "sandbox" for one in servers):
            await place.computer.stat(WORK_DIR)  # its time does not count as the server's
        async with anyio.create_task_group() as tasks:
            opening = _Opening(self, place, tasks, problems)
            async with anyio.create_task_group() as each:
                for one in servers:
                    each.start_soon(opening.open, one)
            yield Offer(tuple(opening.tools(servers)), tuple(problems))
            tasks.cancel_scope.cancel()


async def _files(place: ToolPlace, names: tuple[str, ...]) -> dict[str, str]:
    found = {name: await read_file(place.bare, place.declared[0], name) for name in names}
    return {name: decode(data) for name, data in found.items() if data is not None}


def _load() -> None:
    """Import the SDK, which takes a second."""
    import_module("cloister.agent.tools.mcp.door")
    import_module("cloister.agent.tools.mcp.tools")


@dataclass(slots=True)
class _Opening:
    source: McpTools
    place: ToolPlace
    tasks: Any
    problems: list[str]
    _found: dict[str, list[AnyTool]] = field(default_factory=dict[str, list[AnyTool]])

    async def open(self, one: Declared) -> None:
        """Connect to one server and list its tools; a failure is a problem."""
        from cloister.agent.tools.mcp.connection import Server  # noqa: PLC0415  (the SDK takes a second)
        from cloister.agent.tools.mcp.tools import tools_of  # noqa: PLC0415

        server = Server(one.name, self._connect(one), self.tasks, start_seconds=one.entry.start_seconds)
        source = one.source
        try:
            listed = await server.tools()
            tools, wrong = await to_thread.run_sync(tools_of, server, one.entry, one.grant, source, listed)
        except HostError as error:
            self.problems.append(f"{source}: {error.message}{self._denied(one)}")
        else:
            self._found[one.name] = [replace(tool, layer=one.layer) for tool in tools]
            self.problems += wrong

    def tools(self, servers: list[Declared]) -> list[AnyTool]:
        """What was found, in the order of the declarations."""
        return [tool for one in servers for tool in self._found.get(one.name, ())]

    def _connect(self, one: Declared) -> "Connect":
        from cloister.agent.tools.mcp import connection, door  # noqa: PLC0415

        entry = one.entry
        if entry.url:
            return door.over_http(entry.url, partial(self.source.open_way, self.place, one.name))
        if entry.where == "host":
            return connection.on_host(entry.command, entry.env, partial(self._secrets, one))
        cwd = self.place.declared[1] if one.layer == "repository" else WORK_DIR
        return connection.in_sandbox(self.place.computer, entry.command, entry.env, cwd)

    async def _secrets(self, one: Declared) -> dict[str, str]:
        """Read at each start, so that a new value needs no new run."""
        reveal = self.source.reveal
        named = one.entry.secrets.items()
        return {key: await reveal(f"{one.source} {key}", place) for key, place in named}

    def _denied(self, one: Declared) -> str:
        """The rule that denied its connection, if one did."""
        if not one.entry.url:
            return ""
        decided = self.place.journal.index.of(ConnectionDecided)
        found = [body for body in decided if body.sandbox == way_name(one.name) and body.effect == "deny"]
        return (
            f" The connection to {found[-1].host}:{found[-1].port} was denied: {found[-1].rule}."
            if found
            else ""
        )


def way_name(server: str) -> str:
    """The name of a server's client in the events of connections."""
    return f"mcp:{server}"
