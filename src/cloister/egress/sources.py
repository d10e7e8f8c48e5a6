"""Where this machine's own package clients fetch from, as the clients themselves say."""

import re
import shutil
import tempfile
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

import anyio
import msgspec
from anyio.abc import ByteStream, SocketAttribute

from cloister.core.errors import HostError
from cloister.core.text import decode
from cloister.egress._spawn import Failed, inherited, output
from cloister.sandbox.templates.debian import host_release, read_sources

_SECONDS = 20.0
_BYTES = 262_144
_CONFIG_BYTES = 1_048_576
_URL = re.compile(r"https?://[^\s'\"<>,|]+")
_PIP_DEFAULT = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"


class NoSource(Exception):
    """There is no such client here, or it names no source; the message says so in one sentence."""


class Sources(msgspec.Struct, frozen=True):
    """What one client is set up to use."""

    indexes: tuple[str, ...]
    """Addresses, without user names and passwords."""
    env: dict[str, str] = {}
    """Variables that make the same client inside use the same places."""


async def pip() -> Sources:
    """pip's index and extra indexes, from its configuration, its environment and itself."""
    listed = await _ask(("pip", "config", "list"))
    found = [url for line in listed.splitlines() if _is_index(line) for url in _URL.findall(line)]
    env = {
        "PIP_INDEX_URL": _first(listed, "index-url"),
        "PIP_EXTRA_INDEX_URL": _first(listed, "extra-index-url"),
    }
    if not env["PIP_INDEX_URL"]:
        python = shutil.which("python3", path=inherited().get("PATH")) or "python3"
        found += _URL.findall(await _ask((python, "-c", _PIP_DEFAULT)))
    return _sources("pip", found, {name: value for name, value in env.items() if value})


def _is_index(line: str) -> bool:
    return line.partition("=")[0].rpartition(".")[2] in ("index-url", "extra-index-url")


def _first(listed: str, key: str) -> str:
    """The addresses of the last setting that `pip` would follow: those of the environment win and come last."""
    lines = [line for line in listed.splitlines() if line.partition("=")[0].rpartition(".")[2] == key]
    chosen = next((line for line in lines if line.startswith(":env:")), lines[-1] if lines else "")
    return " ".join(bare(url) for url in _URL.findall(chosen))


async def npm() -> Sources:
    """npm's registry."""
    found = _URL.findall(await _ask(("npm", "config", "get", "registry")))
    return _sources("npm", found, {"NPM_CONFIG_REGISTRY": bare(found[0])} if found else {})


async def go() -> Sources:
    """go's module proxies and its checksum database."""
    proxies = (await _ask(("go", "env", "GOPROXY"))).strip()
    database = (await _ask(("go", "env", "GOSUMDB"))).strip().split("+")[0].split(" ")
    hosts = [f"https://{name}/" for name in database if "." in name and "/" not in name]
    found = [*_URL.findall(proxies), *(url for part in database for url in _URL.findall(part)), *hosts]
    return _sources("go", found, {"GOPROXY": re.sub(r"(://)[^/@\s,|]*@", r"\1", proxies)} if proxies else {})


async def apt() -> Sources:
    """apt's package sources for this release."""
    try:
        found = await anyio.to_thread.run_sync(lambda: read_sources(host_release()))
    except HostError as error:
        raise NoSource(error.message) from None
    return _sources("apt", [source.uri for source in found])


async def cargo() -> Sources:
    """cargo's registry: the one that replaces the usual one, or where cargo itself goes when it is asked for a crate."""
    replaced = await anyio.to_thread.run_sync(_cargo_replacement, inherited())
    if replaced:
        return _sources("cargo", [replaced.removeprefix("sparse+")])
    return _sources("cargo", [f"https://{host}/" for host in await _cargo_goes_to()])


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


async def _cargo_goes_to() -> list[str]:
    """Ask cargo for a crate through a proxy of ours that goes nowhere, and hear where it wanted to go."""
    hosts: dict[str, None] = {}

    async def hear(stream: ByteStream) -> None:
        async with stream:
            with suppress(anyio.EndOfStream, OSError):
                line = (await stream.receive(4_096)).split(b"\r\n")[0]
                found = re.fullmatch(rb"CONNECT ([A-Za-z0-9.-]{1,253}):443 HTTP/1\.1", line)
                if found:
                    hosts[found[1].decode()] = None
                await stream.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "src").mkdir()
        (Path(place) / "src" / "lib.rs").write_text("")
        (Path(place) / "Cargo.toml").write_text(
            '[package]\nname = "probe"\nversion = "0.0.0"\n[dependencies]\ncfg-if = "1"\n'
        )
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, hear)
            proxy = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"  # noqa: S610
            env = {"CARGO_HTTP_PROXY": proxy, "CARGO_NET_RETRY": "0", "CARGO_HOME": f"{place}/home"}
            argv = ("cargo", "fetch", "--quiet", "--manifest-path", f"{place}/Cargo.toml")
            with suppress(Failed):
                await output(_found(argv), seconds=_SECONDS, limit_bytes=_BYTES, more_env=env)
            tasks.cancel_scope.cancel()
    return list(hosts)


CLIENTS: Mapping[str, Callable[[], Awaitable[Sources]]] = {
    "pypi": pip,
    "npm": npm,
    "debian": apt,
    "crates": cargo,
    "go": go,
}
"""Who knows what a set means."""


def bare(url: str) -> str:
    """An address without a user name and password."""
    return re.sub(r"^(https?://)[^/@]*@", r"\1", url)


def _sources(client: str, urls: list[str], env: dict[str, str] | None = None) -> Sources:
    found = tuple(dict.fromkeys(bare(url) for url in urls if url.startswith(("http://", "https://"))))
    if not found:
        raise NoSource(f"{client} names no source on the network here.")
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
