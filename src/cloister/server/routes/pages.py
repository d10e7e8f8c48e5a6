"""The web pages: one document for every address of a page, and the scripts and styles that it names by their content.

The document of a run begins with what the run is, for a browser that may see it: the first paint waits for no script.
"""

import gzip
import re
from collections.abc import Awaitable, Callable
from html import escape
from pathlib import Path
from typing import Any

from anyio import to_thread
from litestar import MediaType, Request, Response, get
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.types import Scope

from cloister.core.errors import UserError
from cloister.core.text import one_line
from cloister.log.api import RunRow

ADDRESSES = [
    "/",
    "/new",
    "/compare",
    "/sandboxes",
    "/sandboxes/{sandbox:str}",
    "/policy",
    "/audit",
    "/budgets",
    "/models",
    "/tools",
    "/machine",
    "/projects",
    "/share",
]
"""The pages. Which one is shown is decided in the browser."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "frame-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""No inline script or style, no `eval`, nothing from elsewhere, in no frame."""

_HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_NOT_BUILT = "The page is not built in this checkout: run `make web`, then load this address again.\n"


def page_dir() -> Path:
    """What was built: package data of an installed wheel, or `web/dist` of a checkout."""
    here = Path(__file__).resolve()
    packaged = here.parents[2] / "_web"
    return packaged if packaged.is_dir() else here.parents[4] / "web" / "dist"


Seen = Callable[[Scope, str], Awaitable[RunRow | None]]
"""The row of a run, if the browser's login may see it."""

_PLACE = b'<div id="app">'


def summary(row: RunRow) -> str:
    """What a run is, as the head of its page shows it."""
    word = row.outcome or row.state
    return (
        '<div class="shell"><header class="top"><a class="brand" href="/">Cloister</a></header>'
        '<nav class="side" aria-label="Pages"></nav>'
        '<main id="main"><div class="run"><header class="run-head"><div class="run-title">'
        f'<h1>{escape(one_line(row.prompt, 300))}</h1><span class="badge idle">{escape(word)}</span></div>'
        f'<p class="run-facts"><span>{escape(one_line(row.repo, 200))}</span>'
        f"<span>asked by {escape(one_line(row.who, 100))}</span></p></header></div></main></div>"
    )


async def _document(directory: Path, row: RunRow | None = None) -> Response[bytes]:
    try:
        text = await to_thread.run_sync((directory / "index.html").read_bytes)
    except OSError:
        return Response(_NOT_BUILT.encode(), status_code=503, media_type=MediaType.TEXT)
    if row is not None:
        text = text.replace(_PLACE, _PLACE + summary(row).encode(), 1)
    headers = {**_HEADERS, "cache-control": "no-cache" if row is None else "no-store"}
    return Response(text, media_type=MediaType.HTML, headers=headers)


def page_routes(directory: Path, seen: Seen) -> tuple[HTTPRouteHandler, ...]:
    """The routes of the pages that were built into `directory`. They need no login, and hold no data without one."""
    compressed: dict[str, bytes] = {}

    def pack(name: str) -> bytes:
        if name not in compressed:
            compressed[name] = gzip.compress((directory / "assets" / name).read_bytes(), mtime=0)
        return compressed[name]

    @get(ADDRESSES, include_in_schema=False, opt={"open": True})
    async def page() -> Response[bytes]:
        return await _document(directory)

    @get("/runs/{run:str}", include_in_schema=False, opt={"open": True})
    async def run_page(run: FromPath[str], request: Request[Any, Any, State]) -> Response[bytes]:
        return await _document(directory, await seen(request.scope, run))

    @get("/assets/{name:str}", include_in_schema=False, opt={"open": True})
    async def asset(name: FromPath[str]) -> Response[bytes]:
        kind = _TYPES.get(Path(name).suffix)
        if kind is None or not _NAME.fullmatch(name):
            raise UserError("no_such_file", "There is no such file.")
        try:
            data = await to_thread.run_sync(pack, name)
        except OSError:
            raise UserError("no_such_file", "There is no such file: load the page again.") from None
        headers = {
            **_HEADERS,
            "content-encoding": "gzip",
            "cache-control": "public, max-age=31536000, immutable",
        }
        return Response(data, media_type=kind, headers=headers)

    return page, run_page, asset
