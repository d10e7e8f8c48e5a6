"""The tool `look`: a picture of a page, taken by the browser in the sandbox. A model that sees gets it with the result."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from cloister.agent.tools.api import Observation, Show, Tool, observe
from cloister.agent.tools.toolset import Offer, ToolPlace
from cloister.core.computer import Computer
from cloister.core.errors import CloisterError, UserError
from cloister.core.events import ToolReturned
from cloister.core.repository import FILES, OwnPage, read_settings
from cloister.core.requests import told
from cloister.core.system import in_thread
from cloister.core.text import decode
from cloister.forge.read import read_file
from cloister.log.attachments import Attachments
from cloister.runs.environments.pictures import address_of, picture_name, take_picture
from cloister.sandbox.templates import root
from cloister.sandbox.templates.catalog import Templates

LOOK = "look"
BROWSER = "browser"
"""The built-in template with a browser."""
PROGRAM = "chromium"
"""A template that was built with this program on its search path has one, too."""
MOST_LOOKS = 24
"""Of one attempt."""
_BYTES = 8_388_608
"""Of all its pictures: the conversation goes to the provider with those that are not elided."""
_LOCAL = ("localhost", "127.0.0.1", "::1")


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
    """A `ToolSource`: `look`, where the run or its repository names a template with a browser."""

    store: Attachments
    templates: Templates | None = None
    """Those of this machine, some of which may have a browser, too."""

    @asynccontextmanager
    async def __call__(self, place: ToolPlace) -> AsyncGenerator[Offer]:
        if not (name := await self._with_browser(place)):
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
                    own=True,
                    source=f"the template {name}",
                ),
            )
        )

    async def _with_browser(self, place: ToolPlace) -> str | None:
        """The template that the run or its repository names, if it has a browser."""
        named: list[str | None] = [place.request.template]
        if commit := place.declared[0]:
            found = {name: await read_file(place.bare, commit, name) for name in FILES}
            texts = {name: decode(data) for name, data in found.items() if data is not None}
            named.append(read_settings(texts).template)
        for name in filter(None, named):
            if name == BROWSER or (self.templates and await in_thread(_has_browser, self.templates, name)):
                return name
        return None


def _has_browser(templates: Templates, name: str) -> bool:
    try:
        built = templates.built(name)
    except UserError:
        return False
    return built is not None and root.has(built.rootfs, PROGRAM, built.about.env.get("PATH", ""))


def _taken(place: ToolPlace) -> list[int]:
    """The sizes of the pictures of this attempt."""
    done = place.journal.index.of(ToolReturned, attempt=place.attempt)
    return [one.size for body in done for one in body.pictures]


async def look(store: Attachments, place: ToolPlace, computer: Computer, args: LookArgs) -> Observation:
    """Take the picture and keep it with the run."""
    try:
        address = address_of(args.page, place.declared[1])
        name = picture_name(args.page, args.width, args.height)
        data = await take_picture(computer, address, name, OwnPage(args.page, "", args.width, args.height))
        made = await in_thread(store.put, name, data)
        await in_thread(store.keep, place.journal.events[0].run, (made,))
    except CloisterError as error:
        said = error.message if error.code == "no_picture" else f"The page cannot be shown: {error.message}"
        return observe(False, said)
    outside = None if _is_local(address) else "web"
    return msgspec.structs.replace(observe(True, told(made, data)), pictures=(made,), origin=outside)


def _is_local(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme == "file" or parts.hostname in _LOCAL
