"""Named sets of hosts: an ecosystem's index as this machine uses it, and the hosts its index points files to.

Nothing here knows the name of any registry: the package clients of this machine do, and their indexes.
"""

import logging
import re
import shlex
import shutil
import ssl
import tempfile
import time
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import cast
from urllib.parse import urljoin, urlsplit

import anyio
import msgspec
from anyio.abc import ByteStream, SocketAttribute

from cloister.core.addresses import normal_host, without_userinfo
from cloister.core.errors import HostError
from cloister.core.text import decode
from cloister.egress._spawn import Failed, inherited, output
from cloister.environment.installers import TRIALS
from cloister.policy.api import Sets
from cloister.sandbox.local.spec import PROXY_NAMES
from cloister.sandbox.templates.debian import host_release, read_sources

# Package sources: the addresses that this machine's own package clients use.


_SECONDS = 20.0
_BYTES = 262_144
_CONFIG_BYTES = 1_048_576
_URL = re.compile(r"https?://[^\s'\"<>,|]+")
_PIP_DEFAULT = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"


class NoSource(Exception):
    """The client is missing or has no source. The message says so in one sentence."""


class Sources(msgspec.Struct, frozen=True):
    """The configuration of one client."""

    indexes: tuple[str, ...]
    """Addresses without user names and passwords."""
    env: dict[str, str] = {}
    """Variables that make the same client inside use the same addresses."""


async def pip() -> Sources:
    """pip's index and extra indexes, from its configuration, its environment and itself."""
    listed = await _ask(("pip", "config", "list"))
    found = [url for line in listed.splitlines() if _is_index(line) for url in _URL.findall(line)]
    env = {
        "PIP_INDEX_URL": _first(listed, "index-url"),
        "PIP_EXTRA_INDEX_URL": _first(listed, "extra-index-url"),
    }
    env |= {"UV_DEFAULT_INDEX": env["PIP_INDEX_URL"], "UV_INDEX": env["PIP_EXTRA_INDEX_URL"]}
    if not env["PIP_INDEX_URL"]:
        python = shutil.which("python3", path=inherited().get("PATH")) or "python3"
        found += _URL.findall(await _ask((python, "-c", _PIP_DEFAULT)))
    return _sources("pip", found, {name: value for name, value in env.items() if value})


def _is_index(line: str) -> bool:
    return line.partition("=")[0].rpartition(".")[2] in ("index-url", "extra-index-url")


def _first(listed: str, key: str) -> str:
    """The addresses of the last setting; pip lists the environment last, and it takes precedence."""
    lines = [line for line in listed.splitlines() if line.partition("=")[0].rpartition(".")[2] == key]
    chosen = next((line for line in lines if line.startswith(":env:")), lines[-1] if lines else "")
    return " ".join(without_userinfo(url) for url in _URL.findall(chosen))


async def npm() -> Sources:
    """npm's registry."""
    found = _URL.findall(await _ask(("npm", "config", "get", "registry")))
    registry = without_userinfo(found[0]) if found else ""
    names = ("NPM_CONFIG_REGISTRY", "YARN_NPM_REGISTRY_SERVER")  # yarn 2 and later has a variable of its own
    return _sources("npm", found, dict.fromkeys(names, registry) if registry else {})


async def go() -> Sources:
    """go's module proxies and its checksum database."""
    proxies = (await _ask(("go", "env", "GOPROXY"))).strip()
    database = (await _ask(("go", "env", "GOSUMDB"))).strip().split("+")[0].split(" ")
    hosts = [f"https://{name}/" for name in database if "." in name and "/" not in name]
    found = [*_URL.findall(proxies), *(url for part in database for url in _URL.findall(part)), *hosts]
    return _sources("go", found, {"GOPROXY": without_userinfo(proxies)} if proxies else {})


async def apt() -> Sources:
    """apt's package sources for this release."""
    try:
        found = await anyio.to_thread.run_sync(lambda: read_sources(host_release()))
    except HostError as error:
        raise NoSource(error.message) from None
    return _sources("apt", [source.uri for source in found])


async def cargo() -> Sources:
    """cargo's registry: the configured replacement, or the address that cargo itself contacts."""
    replaced = await anyio.to_thread.run_sync(_cargo_replacement, inherited())
    if replaced:
        return _sources("cargo", [replaced.removeprefix("sparse+")])
    return await _goes_to("crates")


def _cargo_replacement(env: Mapping[str, str]) -> str | None:
    home = Path(env.get("CARGO_HOME") or Path(env.get("HOME", "/root")) / ".cargo")
    for name in ("config.toml", "config"):
        try:
            data = (home / name).read_bytes()[:_CONFIG_BYTES]
            table = cast("dict[str, object]", tomllib.loads(decode(data)))
            tables = msgspec.convert(table.get("source", {}), dict[str, dict[str, object]])
        except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError):
            continue
        source = tables.get("crates-io", {})
        for _ in range(8):
            instead = source.get("replace-with")
            if not isinstance(instead, str):
                break
            source = tables.get(instead, {})
        registry = source.get("registry")
        if isinstance(registry, str):
            return registry
    return None


async def _goes_to(name: str) -> Sources:
    """Let the client ask for a package through a local proxy that relays nothing, and record the addresses it wanted."""
    client, script = TRIALS[name]
    _found((client,))
    urls: dict[str, None] = {}

    async def hear(stream: ByteStream) -> None:
        async with stream:
            with suppress(anyio.EndOfStream, OSError):
                line = (await stream.receive(4_096)).split(b"\r\n")[0]
                if found := re.match(rb"CONNECT ([A-Za-z0-9.-]{1,253}:\d{1,5}) HTTP/", line):
                    urls[f"https://{found[1].decode()}/"] = None
                elif found := re.match(rb"GET (http://[A-Za-z0-9.-]{1,253}(?::\d{1,5})?)/", line):
                    urls[f"{found[1].decode()}/"] = None
                await stream.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    with tempfile.TemporaryDirectory() as place:
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, hear)
            port = listener.extra(SocketAttribute.local_port)  # noqa: S610
            java = (f"-D{kind}.proxyHost=127.0.0.1 -D{kind}.proxyPort={port}" for kind in ("http", "https"))
            env = dict.fromkeys((*PROXY_NAMES, "CARGO_HTTP_PROXY"), f"http://127.0.0.1:{port}")
            env |= {"MAVEN_OPTS": " ".join(java), "NO_PROXY": "", "no_proxy": ""}
            argv = ("/bin/sh", "-c", f"cd {shlex.quote(place)} && {script}")
            with suppress(Failed):
                await output(argv, seconds=_SECONDS, limit_bytes=_BYTES, more_env=env)
            tasks.cancel_scope.cancel()
    return _sources(client, list(urls))


CLIENTS: Mapping[str, Callable[[], Awaitable[Sources]]] = {
    "pypi": pip,
    "npm": npm,
    "debian": apt,
    "crates": cargo,
    "go": go,
    **{name: partial(_goes_to, name) for name in ("maven", "gems", "composer", "hex")},
}
"""The function that resolves each set."""


def _sources(client: str, urls: list[str], env: dict[str, str] | None = None) -> Sources:
    found = tuple(
        dict.fromkeys(without_userinfo(url) for url in urls if url.startswith(("http://", "https://")))
    )
    if not found:
        raise NoSource(f"{client} has no network source configured here.")
    return Sources(found, env or {})


def _found(argv: tuple[str, ...]) -> tuple[str, ...]:
    program = shutil.which(argv[0], path=inherited().get("PATH"))
    if program is None:
        raise NoSource(f"{argv[0]} is not installed on this machine.")
    return (program, *argv[1:])


async def _ask(argv: tuple[str, ...]) -> str:
    try:
        return decode(await output(_found(argv), seconds=_SECONDS, limit_bytes=_BYTES))
    except Failed as error:
        raise NoSource(f"{' '.join(argv[:3])} did not answer: {error}.") from None


logger = logging.getLogger(__name__)

_FRESH_SECONDS = 86_400.0
_FAILED_SECONDS = 300.0
_PAGE_BYTES = 4_194_304
_PAGE_SECONDS = 20.0
_HOSTS = 32
_HREF = re.compile(r"""href\s*=\s*["']([^"'#]+)""", re.IGNORECASE)
_PROBES = {"pypi": "pip/", "npm": "is-number/latest", "crates": "config.json"}
"""A package to look up, to see on which hosts an index keeps its files."""


class Meaning(msgspec.Struct, frozen=True):
    """The hosts of a set on this machine."""

    name: str
    hosts: tuple[str, ...] = ()
    """`HOST:PORT`: with a port, the host may be a mirror on a private address."""
    env: dict[str, str] = {}
    problem: str | None = None
    """Why the set is incomplete or empty, in one sentence."""
    found_at: float = 0.0


class SetFinder:
    """Resolves sets once a day and caches them in the data directory."""

    def __init__(self, data_dir: Path, now: Callable[[], float] = time.time) -> None:
        self._path = data_dir / "sets.json"
        self._now = now
        self._lock = anyio.Lock()
        self._known: dict[str, Meaning] = {}

    async def find(self, names: frozenset[str]) -> tuple[Sets, dict[str, str]]:
        """Resolve sets for a policy; also return their variables."""
        found = [await self.meaning(name) for name in sorted(names)]
        for one in found:
            if one.problem:
                logger.warning("the set %s: %s", one.name, one.problem)
        env = {name: value for one in found for name, value in one.env.items()}
        return {one.name: one.hosts for one in found}, env

    async def meaning(self, name: str, *, again: bool = False) -> Meaning:
        """Resolve one set. `again` ignores the cache."""
        async with self._lock:
            self._known = self._known or await anyio.to_thread.run_sync(self._read)
            known = self._known.get(name)
            if known is not None and not again:
                fresh = _FAILED_SECONDS if known.problem else _FRESH_SECONDS
                if 0 <= self._now() - known.found_at < fresh:
                    return known
            made = msgspec.structs.replace(await derive(name), found_at=self._now())
            self._known[name] = made
            await anyio.to_thread.run_sync(self._write)
            return made

    def _read(self) -> dict[str, Meaning]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Meaning])
        except (OSError, msgspec.DecodeError):
            return {}

    def _write(self) -> None:
        part = self._path.with_suffix(".part")
        try:
            part.write_bytes(msgspec.json.encode(self._known))
            part.chmod(0o600)
            part.replace(self._path)
        except FileNotFoundError:
            return  # There is no data directory yet, and this is no reason to make one.
        except OSError as error:
            logger.warning("what sets mean is not kept: %s", error.strerror)


async def derive(name: str) -> Meaning:
    """Ask this machine's client and its indexes. Never raises: the result describes the problem."""
    import httpx2  # noqa: PLC0415  (only named sets need it, and it takes long to load)

    client = CLIENTS.get(name)
    if client is None:
        return Meaning(name, problem=f"There is no set {name}.")
    try:
        sources = await client()
    except NoSource as error:
        return Meaning(name, problem=str(error))
    hosts: dict[str, None] = dict.fromkeys(h for h in map(_host, sources.indexes) if h)
    problem = None
    probe = _PROBES.get(name)
    if probe is not None:
        for index in sources.indexes:
            try:
                hosts.update(dict.fromkeys(await _file_hosts(name, index, probe)))
            except (httpx2.HTTPError, OSError, ValueError) as error:
                where = _host(index) or "an index"
                problem = f"{where} did not say where its files are ({type(error).__name__})."
    return Meaning(name, tuple(hosts)[:_HOSTS], sources.env, problem)


async def _file_hosts(name: str, index: str, probe: str) -> list[str]:
    import httpx2  # noqa: PLC0415  (only named sets need it, and it takes long to load)

    base = index if index.endswith("/") else f"{index}/"
    url = urljoin(base, probe)
    page = bytearray()
    # Trust the same CAs as other programs of this machine.
    context = ssl.create_default_context()
    async with httpx2.AsyncClient(
        verify=context, timeout=_PAGE_SECONDS, follow_redirects=True, trust_env=False
    ) as client:
        with anyio.fail_after(_PAGE_SECONDS):
            async with client.stream("GET", url) as reply:
                reply.raise_for_status()
                async for piece in reply.aiter_bytes():
                    page += piece
                    if len(page) > _PAGE_BYTES:
                        break
                final = str(reply.url)
    return [
        host for link in links(name, page.decode("utf-8", errors="replace"), final) if (host := _host(link))
    ]


class _Dist(msgspec.Struct, frozen=True):
    tarball: str = ""


class _Package(msgspec.Struct, frozen=True):
    dist: _Dist = _Dist()


class _Crates(msgspec.Struct, frozen=True):
    dl: str = ""
    api: str | None = None


def links(name: str, page: str, base: str) -> list[str]:
    """The file addresses on an index page, and its own. Raises `ValueError`."""
    match name:
        case "npm":
            return [base, msgspec.json.decode(page, type=_Package).dist.tarball]
        case "crates":
            found = msgspec.json.decode(page, type=_Crates)
            return [base, found.dl, found.api or ""]
        case _:
            return [base, *(urljoin(base, link) for link in dict.fromkeys(_HREF.findall(page)))]


def _host(url: str) -> str | None:
    """Host and port of an address in rule syntax; None without a host."""
    try:
        parts = urlsplit(url)
        host, port = normal_host(parts.hostname or ""), parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https"):
        return None
    named = f"[{host}]" if ":" in host else host
    return f"{named}:{port or (443 if parts.scheme == 'https' else 80)}"


__all__ = ["Meaning", "SetFinder", "Sources", "derive", "links"]
