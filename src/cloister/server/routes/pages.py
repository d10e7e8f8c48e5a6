"""The web pages: one document for every address of a page, and the scripts and styles that it names by their content."""

import gzip
import re
from pathlib import Path

from anyio import to_thread
from litestar import MediaType, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from cloister.core.errors import UserError

ADDRESSES = [
    "/",
    "/new",
    "/compare",
    "/runs/{run:str}",
    "/sandboxes",
    "/sandboxes/{sandbox:str}",
    "/templates",
    "/policy",
    "/audit",
    "/budgets",
    "/models",
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


def page_routes(directory: Path) -> tuple[HTTPRouteHandler, ...]:
    """The routes of the pages that were built into `directory`. They need no login: they hold no data."""
    compressed: dict[str, bytes] = {}

    def pack(name: str) -> bytes:
        if name not in compressed:
            compressed[name] = gzip.compress((directory / "assets" / name).read_bytes(), mtime=0)
        return compressed[name]

    @get(ADDRESSES, include_in_schema=False, opt={"open": True})
    async def page() -> Response[bytes]:
        try:
            document = await to_thread.run_sync((directory / "index.html").read_bytes)
        except OSError:
            return Response(_NOT_BUILT.encode(), status_code=503, media_type=MediaType.TEXT)
        headers = {**_HEADERS, "cache-control": "no-cache"}
        return Response(document, media_type=MediaType.HTML, headers=headers)

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

    return page, asset
