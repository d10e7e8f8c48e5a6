"""Named sets of hosts: an ecosystem's index as this machine uses it, and the hosts its index points files to.

Nothing here knows the name of any registry: the package clients of this machine do, and their indexes.
"""

import logging
import re
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import anyio
import httpx
import msgspec

from cloister.egress.sources import CLIENTS, NoSource, Sources
from cloister.policy.api import Sets
from cloister.policy.hosts import normal_host

logger = logging.getLogger(__name__)

_FRESH_SECONDS = 86_400.0
_FAILED_SECONDS = 300.0
_PAGE_BYTES = 4_194_304
_PAGE_SECONDS = 20.0
_HOSTS = 32
_HREF = re.compile(r"""href\s*=\s*["']([^"'#]+)""", re.IGNORECASE)
_PROBES = {"pypi": "pip/", "npm": "is-number/latest", "crates": "config.json"}
"""What to ask an index for, to see where its files are; the others keep them where their index is."""


class Meaning(msgspec.Struct, frozen=True):
    """What a set means on this machine."""

    name: str
    hosts: tuple[str, ...] = ()
    """`HOST:PORT`: who names a port may mean a mirror on a private address."""
    env: dict[str, str] = {}
    problem: str | None = None
    """Why it means less than it might, or nothing, in one sentence."""
    found_at: float = 0.0


class SetFinder:
    """Finds out once a day; what was found is kept in the data directory."""

    def __init__(self, data_dir: Path, now: Callable[[], float] = time.time) -> None:
        self._path = data_dir / "sets.json"
        self._now = now
        self._lock = anyio.Lock()
        self._known: dict[str, Meaning] = {}

    async def find(self, names: frozenset[str]) -> tuple[Sets, dict[str, str]]:
        """What the sets mean, for a policy, and the variables that go with them."""
        found = [await self.meaning(name) for name in sorted(names)]
        for one in found:
            if one.problem:
                logger.warning("the set %s: %s", one.name, one.problem)
        env = {name: value for one in found for name, value in one.env.items()}
        return {one.name: one.hosts for one in found}, env

    async def meaning(self, name: str, *, again: bool = False) -> Meaning:
        """What one set means; `again` does not remember."""
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
    """Ask the client of this machine, and its indexes. Never raises: a problem is part of the answer."""
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
            except (httpx.HTTPError, OSError, ValueError) as error:
                where = _host(index) or "an index"
                problem = f"{where} did not say where its files are ({type(error).__name__})."
    return Meaning(name, tuple(hosts)[:_HOSTS], sources.env, problem)


async def _file_hosts(name: str, index: str, probe: str) -> list[str]:
    base = index if index.endswith("/") else f"{index}/"
    url = urljoin(base, probe)
    page = bytearray()
    # The trust of this machine, as its other programs have it.
    context = ssl.create_default_context()
    async with httpx.AsyncClient(
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
    """The addresses of files on a page of an index, its own included. Raises `ValueError`."""
    match name:
        case "npm":
            return [base, msgspec.json.decode(page, type=_Package).dist.tarball]
        case "crates":
            found = msgspec.json.decode(page, type=_Crates)
            return [base, found.dl, found.api or ""]
        case _:
            return [base, *(urljoin(base, link) for link in dict.fromkeys(_HREF.findall(page)))]


def _host(url: str) -> str | None:
    """The host and port of an address as a rule names them; None when it has none."""
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
