"""Pictures of pages, taken by the browser in a sandbox: for the tool `look`, and of the pages that the settings name.

The pages of the settings are pictured on the base and with the change, each time in a sandbox of its own. No process of
the agent lives there, so the pictures show the commits alone.
"""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from cloister.core import limits
from cloister.core.computer import WORK_DIR, Command, Computer
from cloister.core.errors import CloisterError, Fenced, UserError, lack_of, sole
from cloister.core.events import AttemptEnded, PagesPictured, Progress
from cloister.core.log import Journal
from cloister.core.repository import FILES, OwnPage, read_settings
from cloister.core.requests import Attachment
from cloister.core.system import in_thread
from cloister.core.text import decode, one_line
from cloister.forge import workspace
from cloister.forge.read import read_file
from cloister.forge.several import folders_at
from cloister.runs.attempts.context import RunSetup
from cloister.runs.environments.layers import SetUp, Site
from cloister.runs.services import RunServices
from cloister.sandbox.api import Sandbox

_SECONDS = 120.0
_SERVER_SECONDS = 60.0
"""How long the server of a page may take to answer."""
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-features=OptimizationHints,OptimizationGuideModelDownloading", "--virtual-time-budget=5000"),
)
"""The sandbox is the boundary: a browser's own takes rights that no process here has."""
_SCRIPT = """d=$(mktemp -d) && trap 'rm -rf "$d"' EXIT
out=$1; shift; mkdir -p "${out%/*}"; rm -f "$out"
answers() { (exec 3<>"/dev/tcp/$AT") 2>/dev/null; }
if [ -n "$SERVE" ]; then
  (cd "./$FOLDER" && exec setsid /bin/bash -c "$SERVE" >"$d/server" 2>&1 </dev/null) & server=$!
  trap 'kill -- "-$server" 2>/dev/null; rm -rf "$d"' EXIT
  while [ $SECONDS -lt "$PATIENCE" ] && kill -0 "$server" 2>/dev/null && ! answers; do sleep 0.1; done
  answers || { echo "its server does not answer: $(tail -n 1 "$d/server")" >&2; exit 1; }
fi
command -v chromium >/dev/null || { echo 'the environment has no browser: set `template = "browser"`' >&2; exit 1; }
export HOME=$d no_proxy="$no_proxy,$OWN" NO_PROXY="$no_proxy,$OWN"
timeout 110 chromium --user-data-dir="$d/profile" --screenshot="$out" "$@"
[ $? != 124 ] || echo "it took longer than 110 s" >&2
"""
_OWN_HOSTS = (
    "clients2.google.com,update.googleapis.com,accounts.google.com,optimizationguide-pa.googleapis.com"
)
"""What the browser asks for itself. Without the proxy it reaches nothing, and no refusal looks like the page's."""
_PLACE = "tmp/looks"
"""Below the root of the sandbox."""
_SHOWN = ("proven", "unbroken", "unproven")
"""Outcomes whose changes are delivered, with pictures."""


class Place(NamedTuple):
    """A page of the settings, and the folder of its repository in a run on several."""

    page: OwnPage
    folder: str

    @property
    def name(self) -> str:
        """The name of its pictures."""
        return picture_name(f"{self.folder}{self.page.page}", self.page.width, self.page.height)


async def take_picture(computer: Computer, address: str, name: str, page: OwnPage, folder: str = "") -> bytes:
    """A page as PNG; its server lives as long as this takes. Raises `UserError` (`no_picture`), or as the computer."""
    path, parts = f"/{_PLACE}/{name}", urlsplit(address)
    port = parts.port or (443 if parts.scheme == "https" else 80) if parts.hostname else 0
    env = {
        "OWN": _OWN_HOSTS,
        "SERVE": page.serve,
        "FOLDER": folder,
        "AT": f"{parts.hostname}/{port}",
        "PATIENCE": f"{_SERVER_SECONDS:.0f}",
    }
    size = f"--window-size={page.width},{page.height}"
    argv = ("/bin/bash", "-c", _SCRIPT, "look", f"..{path}", *_FLAGS, size, address)
    seconds = _SECONDS + (_SERVER_SECONDS if page.serve else 0.0)
    done = await computer.run(Command(argv, env=env, seconds=seconds, limit_bytes=limits.FILE_BYTES))
    try:
        return await computer.read(path, limit_bytes=limits.IMAGE_BYTES)
    except UserError as error:
        if error.code != "not_found":
            raise
        why = _last(decode(done.err)) or _last(decode(done.out)) or "it took too long"
        said = f"The browser took no picture of {one_line(page.page, 200)}: {why}"
        raise UserError("no_picture", said) from None


def address_of(page: str, directory: str) -> str:
    """The address of a page or of a file. Raises `UserError` (`bad_page`)."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", page):
        try:
            parts = urlsplit(page)
            good = (
                parts.scheme in ("http", "https")
                and parts.hostname
                and parts.port != 0
                and page.isprintable()
            )
        except ValueError:
            good = False
        if not good:
            raise UserError("bad_page", "give an address with http:// or https://, or the path of a file.")
        return page
    return f"file://{quote(page if page.startswith('/') else f'{directory}/{page}')}"


def picture_name(page: str, width: int, height: int) -> str:
    """The name of a page's pictures at a size."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", re.sub(r"^https?://", "", page)).strip("-")
    return f"{plain[:60] or 'page'}-{width}x{height}.png"


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return one_line(lines[-1], 300) if lines else ""


async def picture_pages(
    services: RunServices, journal: Journal, setup: RunSetup, winner: AttemptEnded
) -> None:
    """Record the pages that the base's settings name, as they are on the base and with the winner's change.

    What cannot be pictured is recorded with the reason, and the run goes on.
    """
    known = journal.index.last(PagesPictured)
    if (
        winner.outcome not in _SHOWN
        or winner.commit == setup.base
        or (known and known.commit == winner.commit)
    ):
        return
    pages = await _pages(setup)
    if not pages:
        return
    taking = _Taking(services, journal, setup)
    before, problems = await taking.all_of(pages, setup.base)
    after, more = await taking.all_of(pages, winner.commit)
    said = (*(f"{one} (on the base)" for one in problems), *more)
    await journal.append(PagesPictured(winner.attempt, winner.commit, before, after, said))


async def _pages(setup: RunSetup) -> tuple[Place, ...]:
    """The pages of each repository, as the base has them: a change cannot choose its own."""

    async def of(folder: str) -> list[Place]:
        texts = {
            name: decode(await read_file(setup.bare, setup.base, f"{folder}{name}") or b"") for name in FILES
        }
        return [Place(page, folder) for page in read_settings(texts).pages]

    inside = await folders_at(setup.bare, setup.base)
    found = [page for folder in ("", *inside) for page in await of(folder and f"{folder}/")]
    return tuple(found[: limits.PAGES])


class _Taking(NamedTuple):
    """Takes the pictures of one run."""

    services: RunServices
    journal: Journal
    setup: RunSetup

    async def all_of(
        self, pages: tuple[Place, ...], commit: str
    ) -> tuple[tuple[Attachment, ...], tuple[str, ...]]:
        """The pictures of a commit, and one sentence for each that there is not."""
        taken, problems = list[Attachment](), list[str]()
        try:
            async with self._opened(commit) as sandbox:
                for place in pages:
                    self._report(None, f"a picture of {one_line(place.page.page, 60)}")
                    try:
                        taken.append(await self._one(sandbox, place))
                    except UserError as error:
                        problems.append(error.message)
        except Exception as error:
            cause = sole(error)
            if not isinstance(cause, CloisterError) or isinstance(cause, Fenced) or lack_of(cause):
                raise
            problems.append(f"The pages cannot be shown: {cause.message}")
        return tuple(taken), tuple(one_line(one, 400) for one in problems)

    async def _one(self, sandbox: Sandbox, place: Place) -> Attachment:
        address = address_of(place.page.page, f"{WORK_DIR}/{place.folder}".rstrip("/"))
        data = await take_picture(sandbox, address, place.name, place.page, place.folder)
        store = self.services.attachments
        made = await in_thread(store.put, place.name, data)
        await in_thread(store.keep, self.setup.run, (made,))
        return made

    @asynccontextmanager
    async def _opened(self, commit: str) -> AsyncGenerator[Sandbox]:
        """A sandbox with the environment and the files of a commit."""
        setup = self.setup
        site, own = (
            Site(setup.request.repo, setup.bare, commit),
            SetUp(self.services, self.journal, setup.request),
        )
        async with (
            own.proving(setup.base, site, setup.template, self._report) as template,
            self.services.open(setup.request, template, self.journal, setup.inside.model) as sandbox,
        ):
            await workspace.restore(sandbox, setup.bare, setup.base, commit)
            yield sandbox

    def _report(self, fraction: float | None, note: str) -> None:
        self.journal.show(Progress("change", fraction, note))
