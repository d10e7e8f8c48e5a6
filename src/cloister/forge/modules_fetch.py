"""Fetches submodules on the host: from the person's own checkout, or from an address that the host's rules let be reached."""

import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import anyio

from cloister.core import limits
from cloister.core.addresses import canonical_repository, check_address
from cloister.core.errors import CloisterError, OutsideError, UserError
from cloister.core.system import in_thread
from cloister.core.text import one_line
from cloister.forge.api import Forge
from cloister.forge.host import Checkout, copy_in, must
from cloister.forge.modules import COUNT, DEPTH, MODULE_REFS, Module, is_there, modules_of
from cloister.forge.plain_git import find_checkout, is_url

_ADDRESS_CHARS = 2_000
_NOTES = 5
_PORTS = {"https": 443, "http": 80, "ssh": 22, "git": 9418}
_URL = re.compile(r"([a-z][a-z0-9+.-]*://[^/]+)(/.*)?", re.IGNORECASE)
_SHORT = re.compile(r"([^/\s:]+:)(?!//)(.*)")


class Outside(Exception):
    """Why a submodule is left out."""


def address_of(url: str, parent: str) -> str:
    """The address of a submodule of the repository at `parent`. Raises `Outside` for all but plain addresses."""
    if not url or len(url) > _ADDRESS_CHARS or re.search(r"[\x00-\x20\x7f]", url):
        raise Outside("its address is not a plain one")
    if url.startswith(("./", "../")):
        url = _joined(url, parent)
    try:
        remote = is_url(url)
    except UserError:
        remote = False
    plain = _scheme(url) in ("https", "ssh") or _root(url) == _root(parent)
    if not remote or not plain:
        raise Outside("its address is not one of https or ssh")
    if check_address(url) is not None:
        raise Outside("its address has a password, a ? or a #")
    host, _, path = canonical_repository(url).partition("/")
    if not host or not path or host.startswith("-") or path.startswith(("-", "~")):
        raise Outside("its address is not a plain one")
    return url


def _joined(url: str, parent: str) -> str:
    """A relative address in full, as git reads it."""
    match = _URL.fullmatch(parent) or _SHORT.fullmatch(parent)
    if match is None:
        raise Outside("its address is relative, and the repository itself has no remote address")
    path = match[2] or ""
    parts = [part for part in path.split("/") if part]
    names = url.split("/")
    while names and names[0] in (".", ".."):
        if names.pop(0) == "..":
            if not parts:
                raise Outside("its address leads above the host")
            parts.pop()
    names = [name for name in names if name]
    if not names or not {".", ".."}.isdisjoint(names):
        raise Outside("its address is not a plain one")
    return match[1] + ("/" if path.startswith("/") or "://" in parent else "") + "/".join((*parts, *names))


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower() if "://" in url else "ssh"


def _root(url: str) -> tuple[str, str]:
    return _scheme(url), host_of(url)


def host_of(url: str) -> str:
    """The host of an address, with its port if that is not the scheme's own."""
    return canonical_repository(url).partition("/")[0]


def place_of(url: str) -> tuple[str, int]:
    """The host and the port of an address."""
    host, colon, port = host_of(url).rpartition(":")
    if colon and port.isdigit():
        return host, int(port)
    return host_of(url), _PORTS[_scheme(url)]


class Origin(NamedTuple):
    """Where the repository itself was fetched from."""

    address: str
    """Its remote address; empty for a directory without one."""
    checkout: Checkout | None
    """The directory, if it is one of this machine."""


async def fetch_modules(
    at: Callable[[str], Forge], may: Callable[[str], bool], origin: Origin, bare: Path, commit: str
) -> tuple[str, ...]:
    """Fetch the submodules of `commit` into `bare`, each as git fetches any repository, and those within them.

    `may` says whether the rules let an address be reached. Return a sentence for each submodule that is left out.
    """
    left: list[str] = []
    due = [(module, origin.address) for module in await modules_of(bare, commit)]
    for count in range(COUNT):
        if not due:
            break
        module, parent = due.pop(0)
        try:
            if count and await in_thread(_stored, bare) > limits.FETCH_BYTES:
                raise Outside("the submodules are larger than the limit of one fetch")
            address = await _fetch(at, may, origin, bare, module, parent)
        except (Outside, UserError, OutsideError) as error:
            why = error.message.rstrip(".") if isinstance(error, CloisterError) else str(error)
            left.append(f"The submodule {one_line(module.path, 100)} is not fetched: {one_line(why, 300)}.")
            continue
        if module.depth < DEPTH:
            due += [(inner, address) for inner in await modules_of(bare, module.commit, module)]
    if due:
        left.append(f"{len(due)} more submodules are not fetched: a run takes {COUNT}.")
    return tuple(left[:_NOTES])


def _stored(bare: Path) -> int:
    return sum(path.stat().st_size for path in (bare / "objects" / "pack").glob("*.pack"))


async def _fetch(
    at: Callable[[str], Forge],
    may: Callable[[str], bool],
    origin: Origin,
    bare: Path,
    module: Module,
    parent: str,
) -> str:
    """Fetch one submodule and return its address, empty if it has none that may be used. Raises `Outside`."""
    ref = f"{MODULE_REFS}{module.commit}"
    try:
        address, why = address_of(module.address, parent), None
    except Outside as error:
        address, why = "", error
    if await is_there(bare, module.commit) or await _from_checkout(origin.checkout, module, bare, ref):
        return address
    if why is not None:
        raise why
    if not may(address):
        host = place_of(address)[0]
        raise Outside(f"the rules do not let {host} be reached; --allow-host {host} asks for it")
    # A repository of ours has no second dot in its name.
    room = bare.with_name(f"{bare.stem}.module.git")
    try:
        await in_thread(lambda: shutil.rmtree(room, ignore_errors=True))
        await at(address).fetch(address, module.commit, room)
        copied = await copy_in(Checkout(room, bare=True, who=None), module.commit, bare, ref)
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(lambda: shutil.rmtree(room, ignore_errors=True))
    must(copied, "keep a submodule")
    return address


async def _from_checkout(checkout: Checkout | None, module: Module, bare: Path, ref: str) -> bool:
    """Copy the submodule from where the person has it: beside the files, or in a bare repository of ours."""
    if checkout is None:
        return False
    if checkout.bare:
        return (await copy_in(checkout, module.commit, bare, ref)).ok
    top = checkout.top

    def find() -> Checkout | None:
        place = top / module.path
        # No link of the work tree may lead to another repository.
        with suppress(OSError, UserError):
            if place.resolve() == top.resolve() / module.path and (place / ".git").exists():
                return find_checkout(str(place))
        return None

    found = await in_thread(find)
    return found is not None and (await copy_in(found, module.commit, bare, ref)).ok
