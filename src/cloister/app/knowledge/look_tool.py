"""The tool `look`: a picture of a page, taken by the browser in the sandbox. A model that sees gets it with the result."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Meta

from cloister.agent.tools.api import Observation, Show, Tool, observe
from cloister.agent.tools.toolset import Offer, ToolPlace
from cloister.core import limits
from cloister.core.computer import Command, Computer
from cloister.core.errors import CloisterError, UserError
from cloister.core.events import ToolReturned
from cloister.core.repository import FILES, read_settings
from cloister.core.requests import told
from cloister.core.system import in_thread
from cloister.core.text import decode, one_line
from cloister.forge.read import read_file
from cloister.log.attachments import Attachments

LOOK = "look"
BROWSER = "browser"
"""The built-in template with a browser."""
MOST_LOOKS = 24
"""Of one attempt."""
_BYTES = 8_388_608
"""Of all its pictures: the conversation goes to the provider with those that are not elided."""
_LOCAL = ("localhost", "127.0.0.1", "::1")
_SECONDS = 60.0
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--virtual-time-budget=5000",
)
"""The sandbox is the boundary: a browser's own takes rights that no process here has."""
_SCRIPT = """d=$(mktemp -d) && trap 'rm -rf "$d"' EXIT
out=$1; shift; mkdir -p "${out%/*}"; rm -f "$out"
export HOME=$d no_proxy="$no_proxy,$OWN" NO_PROXY="$no_proxy,$OWN"
timeout 50 chromium --user-data-dir="$d/profile" --screenshot="$out" "$@"
"""
_OWN_HOSTS = "clients2.google.com,update.googleapis.com,accounts.google.com"
"""What the browser asks for itself. Without the proxy it reaches nothing, and no refusal looks like the page's."""
_PLACE = "tmp/looks"
"""Below the root of the sandbox."""


class LookArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    page: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=2_000,
            description="An address such as http://localhost:8000/, or a file such as build/index.html.",
        ),
    ]
    width: Annotated[int, Meta(ge=200, le=2_000)] = 1_280
    height: Annotated[int, Meta(ge=200, le=3_000)] = 800


@dataclass(frozen=True, slots=True)
class LookTool:
    """A `ToolSource`: `look`, where the run or its repository names the template with the browser."""

    store: Attachments

    @asynccontextmanager
    async def __call__(self, place: ToolPlace) -> AsyncGenerator[Offer]:
        if not await _has_browser(place):
            yield Offer()
            return

        async def run(computer: Computer, args: LookArgs, show: Show) -> Observation:
            taken = _taken(place)
            if len(taken) >= MOST_LOOKS or sum(taken) > _BYTES:
                return observe(
                    False, f"No more pictures: {len(taken)} with {sum(taken):,} bytes are the most."
                )
            return await look(self.store, place, computer, args)

        yield Offer(
            (
                Tool(
                    name=LOOK,
                    description="Look at a page in a browser, before and after you change what it shows.",
                    args=LookArgs,
                    target=lambda args: args.page,
                    run=run,
                    grant="allow",
                    source=f"the template {BROWSER}",
                ),
            )
        )


async def _has_browser(place: ToolPlace) -> bool:
    if place.request.template == BROWSER:
        return True
    if not (commit := place.declared[0]):
        return False
    found = {name: await read_file(place.bare, commit, name) for name in FILES}
    texts = {name: decode(data) for name, data in found.items() if data is not None}
    return read_settings(texts).template == BROWSER


def _taken(place: ToolPlace) -> list[int]:
    """The sizes of the pictures of this attempt."""
    done = place.journal.index.of(ToolReturned, attempt=place.attempt)
    return [one.size for body in done for one in body.pictures]


async def look(store: Attachments, place: ToolPlace, computer: Computer, args: LookArgs) -> Observation:
    """Take the picture and keep it with the run."""
    try:
        address = address_of(args.page, place.declared[1])
        name = f"{slug(args.page)}-{args.width}x{args.height}.png"
        path = f"/{_PLACE}/{name}"
        size = f"--window-size={args.width},{args.height}"
        argv = ("/bin/bash", "-c", _SCRIPT, "look", f"..{path}", *_FLAGS, size, address)
        done = await computer.run(
            Command(argv, env={"OWN": _OWN_HOSTS}, seconds=_SECONDS, limit_bytes=limits.FILE_BYTES)
        )
        data = await _picture(computer, path)
        if data is None:
            why = _last(decode(done.err)) or _last(decode(done.out)) or "it took too long"
            return observe(False, f"The browser took no picture of {one_line(args.page, 200)}: {why}")
        made = await in_thread(store.put, name, data)
        await in_thread(store.keep, place.journal.events[0].run, (made,))
    except CloisterError as error:
        return observe(False, f"The page cannot be shown: {error.message}")
    outside = None if _is_local(address) else "web"
    return msgspec.structs.replace(observe(True, told(made, data)), pictures=(made,), origin=outside)


async def _picture(computer: Computer, path: str) -> bytes | None:
    try:
        return await computer.read(path, limit_bytes=limits.IMAGE_BYTES)
    except UserError as error:
        if error.code == "not_found":
            return None
        raise


def address_of(page: str, directory: str) -> str:
    """The address of a page or of a file. Raises `UserError` (`bad_page`)."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", page):
        parts = urlsplit(page)
        if parts.scheme not in ("http", "https") or not parts.hostname or not page.isprintable():
            raise UserError("bad_page", "give an address with http:// or https://, or the path of a file.")
        return page
    return f"file://{quote(page if page.startswith('/') else f'{directory}/{page}')}"


def _is_local(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme == "file" or parts.hostname in _LOCAL


def slug(page: str) -> str:
    """The name of a page's pictures."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", re.sub(r"^https?://", "", page)).strip("-")
    return plain[:60] or "page"


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return one_line(lines[-1], 300) if lines else ""
