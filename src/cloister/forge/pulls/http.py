"""HTTP to a forge's API: bounded, typed, without redirects to strangers; each failure is one sentence."""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urljoin, urlsplit

import anyio
import httpx2
import msgspec
from msgspec.structs import replace

from cloister.core.errors import OutsideError
from cloister.core.text import decode, one_line

_REPLY_BYTES = 8_388_608
_LOG_BYTES = 4_194_304
_TAGGED_BYTES, _KEPT_BYTES = 262_144, 33_554_432
"""The largest reply that is kept to be asked about, and all of them at one forge."""
_PAGES = 20
_REDIRECTS = 3
PAUSES = (0.5, 2.0, 8.0)
"""Seconds before each further try of a request that failed for a passing reason."""
_WAIT_SECONDS = 60.0
"""The longest wait of a request; if a forge asks for more, the error says so and its `after` is that wait."""

T = TypeVar("T")


class Picture(NamedTuple):
    """A PNG in a form."""

    field: str
    name: str
    data: bytes


Token = Callable[[], Awaitable[str]]
"""Reads the token on the host. Raises `OutsideError` (`forge_denied`)."""


def part(text: str) -> str:
    """`text` as one segment of a path."""
    return quote(text, safe="")


class Reply(msgspec.Struct, frozen=True):
    """A reply with a status that was asked for, or one that the caller wants to see."""

    status: int
    body: bytes
    headers: dict[str, str]
    """Lower-case names."""
    where: str

    def read(self, kind: type[T]) -> T:
        """Raises `OutsideError` (`forge_unclear`)."""
        try:
            return msgspec.json.decode(self.body, type=kind, strict=False)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise OutsideError(
                "forge_unclear",
                f"{self.where} sent a reply that cannot be read: {one_line(str(error), 160)}.",
            ) from None


class Replies:
    """What a forge sent with a tag, by address: it is asked whether that still holds, which at GitHub costs nothing of the limit.

    For one token: another may see less.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Reply] = OrderedDict()
        self._bytes = 0

    def tag(self, url: str) -> dict[str, str]:
        """The header of a request to `url`."""
        return {"If-None-Match": self._kept[url].headers["etag"]} if url in self._kept else {}

    def current(self, url: str, reply: Reply) -> Reply:
        """The reply itself, or the kept one if the forge says that it holds."""
        before = self._kept.pop(url, None)
        self._bytes -= len(before.body) if before else 0
        if reply.status == 304 and before is not None:
            reply = replace(before, headers=before.headers | reply.headers)
        if reply.status == 200 and "etag" in reply.headers and len(reply.body) <= _TAGGED_BYTES:
            self._kept[url] = reply
            self._bytes += len(reply.body)
        while self._bytes > _KEPT_BYTES:
            self._bytes -= len(self._kept.popitem(last=False)[1].body)
        return reply


class Api:
    """One forge's API with one token."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        base: str,
        token: Token,
        headers: Callable[[str], Mapping[str, str]],
        pauses: Sequence[float] = PAUSES,
        replies: Replies | None = None,
    ) -> None:
        """`headers` are those of a request with this token; `base` has no slash at the end."""
        self._replies = replies or Replies()
        self._client, self._token, self._headers, self._pauses = client, token, headers, pauses
        self.base = base
        self.host = urlsplit(base).netloc
        self._origin = f"{urlsplit(base).scheme}://{self.host}"

    async def get(self, path: str, kind: type[T], **query: str | int) -> T:
        return (await self.ask("GET", path, query=query)).read(kind)

    async def pages(self, path: str, kind: type[list[T]], **query: str | int) -> list[T]:
        """All entries of a list, page by page, up to a limit."""
        found: list[T] = []
        where, asked = path, query if "limit" in query else {"per_page": 100, **query}
        for _ in range(_PAGES):
            reply = await self.ask("GET", where, query=asked)
            entries = reply.read(kind)
            found += entries
            following = _next(reply.headers.get("link", ""), self.base)
            if following is None or not entries:
                break
            where, asked = following
        return found

    async def send(self, method: str, path: str, body: object, kind: type[T]) -> T:
        return (await self.ask(method, path, body=body)).read(kind)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: object = None,
        form: Mapping[str, str] | Picture | None = None,
        also: Sequence[int] = (),
    ) -> Reply:
        """Send a request, again if that may help. A status in `also` is returned instead of raised.

        `path` is below `base`, or a whole address of the same origin. A request that may have changed something is repeated only if the forge surely did not take it.
        """
        for pause in (*self._pauses, None):
            try:
                reply = await self._once(method, path, query, _content(body, form))
            except httpx2.ConnectError as error:
                problem, wait = self._unreachable(error), pause
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                problem, wait = self._unreachable(error), pause if method == "GET" else None
            else:
                if reply.status < 300 or (
                    reply.status in also and not (reply.status == 403 and _limited(reply))
                ):
                    return reply
                problem, wait = self._problem(reply), _wait(reply, method, pause)
            if pause is None or wait is None:
                raise problem
            await anyio.sleep(wait)
        raise AssertionError("the last round returns or raises")

    async def _once(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int] | None,
        content: Mapping[str, Any],
    ) -> Reply:
        headers = {**self._headers(await self._token()), "User-Agent": "cloister"}
        if "content" in content:
            headers["Content-Type"] = "application/json"
        url, asked = path if path.startswith(f"{self._origin}/") else f"{self.base}{path}", query
        for left in range(_REDIRECTS, -1, -1):
            key = f"{url}?{urlencode(asked or {})}"
            tag = self._replies.tag(key) if method == "GET" else {}
            reply = await self._exchange(method, url, {"headers": headers | tag, "params": asked, **content})
            reply = self._replies.current(key, reply) if method == "GET" else reply
            to = urljoin(url, reply.headers.get("location", ""))
            moved = reply.status in (307, 308) or (reply.status in (301, 302) and method == "GET")
            # A renamed repository. The token never goes to another origin.
            if not (left and moved and to.startswith(f"{self._origin}/")):
                return reply
            url, asked = to, None
        raise AssertionError("the last round returns")

    async def _exchange(self, method: str, url: str, more: dict[str, Any], most: int = _REPLY_BYTES) -> Reply:
        async with self._client.stream(method, url, **more) as reply:
            body = bytearray()
            async for piece in reply.aiter_bytes():
                body += piece
                if len(body) > most:
                    break
            headers = {name.lower(): value for name, value in reply.headers.items()}
            return Reply(reply.status_code, bytes(body[: most + 1]), headers, self.host)

    async def text(self, path: str) -> str | None:
        """The end of a text such as a log, also from the store that the forge redirects to; None if there is none."""
        reply = await self.ask("GET", path, also=(302, 303, 404, 410))
        to = reply.headers.get("location", "")
        if reply.status in (302, 303) and urlsplit(to).scheme == "https":
            try:
                reply = await self._exchange("GET", to, {}, _LOG_BYTES)
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                raise self._unreachable(error) from None
        return decode(reply.body[-_LOG_BYTES:]) if reply.status == 200 else None

    def _unreachable(self, error: Exception) -> OutsideError:
        why = one_line(str(error), 160) or type(error).__name__
        return OutsideError("forge_unreachable", f"{self.host} cannot be reached: {why}.", retryable=True)

    def _problem(self, reply: Reply) -> OutsideError:
        said = one_line(_said(reply.body), 300)
        because = f": {said.rstrip('.')}" if said else ""
        match reply.status:
            case 429:
                pass
            case 403 if _limited(reply):
                pass
            case 401:
                return OutsideError(
                    "forge_denied", f"{self.host} does not accept the token{because}: give a valid one."
                )
            case 403:
                return OutsideError(
                    "forge_denied",
                    f"{self.host} forbids this{because}: `cloister forge check` lists the rights.",
                )
            case 404 | 410:
                return OutsideError(
                    "forge_missing",
                    f"{self.host} has no such repository, or the token may not see it{because}.",
                )
            case status if status >= 500:
                return OutsideError(
                    "forge_unreachable",
                    f"{self.host} failed with status {status}{because}.",
                    retryable=True,
                    after=_wanted(reply.headers) if "retry-after" in reply.headers else 0.0,
                )
            case status:
                return OutsideError("forge_refused", f"{self.host} refused it ({status}){because}.")
        after = _wanted(reply.headers)
        until = f"; it takes none for another {after:.0f} s" if after > _WAIT_SECONDS else ""
        return OutsideError(
            "forge_unreachable",
            f"{self.host} limits the number of requests{because}{until}.",
            retryable=True,
            after=after,
        )


def _content(body: object, form: Mapping[str, str] | Picture | None) -> dict[str, Any]:
    """The body of a request, as the client takes it."""
    if isinstance(form, Picture):
        return {"files": {form.field: (form.name, form.data, "image/png")}}
    return {"data": form} if body is None else {"content": msgspec.json.encode(body)}


def _limited(reply: Reply) -> bool:
    """True for the status 403 that means too many requests."""
    return "retry-after" in reply.headers or reply.headers.get("x-ratelimit-remaining") == "0"


def _wait(reply: Reply, method: str, pause: float | None) -> float | None:
    """Seconds until the next try; None for an error that stays."""
    if pause is None:
        return None
    if reply.status == 429 or (reply.status == 403 and _limited(reply)):
        wanted = max(pause, _wanted(reply.headers))
        return wanted if wanted <= _WAIT_SECONDS else None
    passing = reply.status in (502, 503, 504) if method != "GET" else reply.status >= 500
    # After 502 and 504 a change may have been made.
    return pause if passing and (method == "GET" or reply.status == 503) else None


def _wanted(headers: Mapping[str, str]) -> float:
    for name, now in (
        ("retry-after", 0.0),
        ("ratelimit-reset", time.time()),
        ("x-ratelimit-reset", time.time()),
    ):
        try:
            return max(0.0, float(headers[name]) - now)
        except (KeyError, ValueError):
            continue
    return 0.0


def _said(body: bytes) -> str:
    """The message in the reply of an error. Each forge has its own form."""
    try:
        found = msgspec.json.decode(body[:65_536])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return "; ".join(dict.fromkeys(_texts(found, 0)))


def _texts(found: object, depth: int) -> list[str]:
    if isinstance(found, str):
        return [found]
    if depth > 4:
        return []
    if isinstance(found, list):
        return [text for one in found[:5] for text in _texts(one, depth + 1)]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(found, dict):
        named = ("message", "error", "errors", "error_description", "detail", "title")
        return [text for name in named if name in found for text in _texts(found[name], depth + 1)]  # pyright: ignore[reportUnknownArgumentType]
    return []


def _next(link: str, base: str) -> tuple[str, dict[str, str | int]] | None:
    """The path and the query of the next page from a `Link` header, if it is below `base`."""
    for entry in link.split(","):
        url, _, rest = entry.strip().partition(">")
        if 'rel="next"' in rest and url.startswith(f"<{base}/"):
            path, _, query = url[1 + len(base) :].partition("?")
            return path, dict(parse_qsl(query))
    return None
