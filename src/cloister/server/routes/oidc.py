"""Login at a provider: `/login/oidc` sends the browser there, and the address that it comes back to gives it its cookie.

Both answer with small pages of their own, because a person sees them. The last one leads on by itself instead of by a
redirect: the browser would not send the new cookie along on the way from another site.
"""

import base64
import hashlib
import html
from typing import Annotated, Any

import msgspec
from anyio import to_thread
from litestar import MediaType, Request, Response, get
from litestar.datastructures import Cookie, State
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from cloister.app.people.logins import Login, Logins
from cloister.app.people.oidc import FLOW_SECONDS, LoginProvider
from cloister.app.people.projects import GROUP, GUEST, People
from cloister.app.tokens import Tokens
from cloister.core.errors import CloisterError, UserError
from cloister.server.audit_log import Notes
from cloister.server.auth import cookie_in, cookie_name, is_secure
from cloister.server.errors import problem
from cloister.server.routes.login import set_cookie

CALLBACK = "/login/oidc/callback"
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:34em;margin:15vh auto;padding:0 1em;"
    "color-scheme:light dark}"
)
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class LoginWays(msgspec.Struct, frozen=True):
    """How a browser can log in, beside the address that `cloister open` prints."""

    provider: str | None
    """What the login provider is called; None without one. `/login/oidc?next=PAGE` leads there."""


class Desk:
    """Lets people in whom the provider names."""

    def __init__(
        self,
        provider: LoginProvider | None,
        logins: Logins,
        tokens: Tokens,
        user: str,
        notes: Notes,
        people: People,
    ) -> None:
        self._people = people
        self._provider = provider
        self._logins = logins
        self._tokens = tokens
        self._user = user
        self._notes = notes

    @property
    def label(self) -> str | None:
        if self._provider is None:
            return None
        entry = self._provider.entry
        return entry.label or entry.issuer.partition("://")[2].partition("/")[0]

    @property
    def provider(self) -> LoginProvider:
        """Raises `UserError` (`no_such_provider`)."""
        if self._provider is None:
            raise UserError(
                "no_such_provider", "This server has no login provider: run `cloister open` on its machine."
            )
        return self._provider

    async def admit(self, cookie: bytes, query: dict[str, str], back: str) -> tuple[str, Login, str]:
        """The new cookie, its login and the page to show. Raises `UserError` (`bad_login`, `denied`)."""
        person = await self.provider.finish(cookie, query, back)
        taken = {token.name for token in await to_thread.run_sync(self._tokens.all)} | {
            self._user,
            "deadline",
        }
        if person.name in taken:
            raise UserError(
                "denied",
                f"{person.name} is the name of a token or an account of this server: remove that token.",
            )
        members = {who for one in self._people.projects() for who in one.members}
        named = {
            *self.provider.entry.groups,
            *(who.removeprefix(GROUP) for who in members if who.startswith(GROUP)),
        }
        groups = tuple(one for one in person.groups if one in named)
        role = self.provider.role_of(groups)
        if role is None and members.isdisjoint({person.name, *(f"{GROUP}{one}" for one in groups)}):
            raise UserError(
                "denied",
                f"None of the groups of {person.name} has a role on this server, and no project names them.",
            )
        if person.name.startswith(GUEST):
            raise UserError("denied", f"A name cannot begin with {GUEST!r}.")
        issuer = self.provider.entry.issuer
        made, login = await to_thread.run_sync(self._logins.begin, person.name, role, issuer, groups)
        detail = {"login": login.id, "role": role or "none", "provider": issuer, "groups": groups}
        await self._notes.note("LoginBegun", person.name, detail)
        return made, login, person.next


@get("/v1/login", summary="How a browser can log in", operation_id="getLoginWays", opt={"open": True})
async def login_ways(desk: NamedDependency["Desk"]) -> LoginWays:
    return LoginWays(desk.label)


@get("/login/oidc", include_in_schema=False, opt={"open": True})
async def begin(
    request: Request[Any, Any, State],
    desk: NamedDependency["Desk"],
    page: Annotated[str, QueryParameter(name="next", max_length=1_000)] = "/",
) -> Response[bytes]:
    try:
        begun = await desk.provider.begin(_back(request), page)
    except CloisterError as error:
        return _refusal(request, error)
    return Response(
        b"",
        status_code=302,
        headers={**_HEADERS, "location": begun.url},
        cookies=[_flow_cookie(request, begun.cookie)],
    )


@get(CALLBACK, include_in_schema=False, opt={"open": True})
async def come_back(request: Request[Any, Any, State], desk: NamedDependency["Desk"]) -> Response[bytes]:
    # A parameter that comes twice is none.
    query = {name: values[0] for name, values in request.query_params.dict().items() if len(values) == 1}
    cookie = cookie_in(request.scope["headers"], _flow_name(request))
    try:
        made, login, page = await desk.admit(cookie, query, _back(request))
    except CloisterError as error:
        return _refusal(request, error)
    where = html.escape(page)
    told = f'<p>{html.escape(login.name)} is logged in. <a href="{where}">Go on</a></p>'
    return Response(
        _page(told, f'<meta http-equiv="refresh" content="0;url={where}">'),
        media_type=MediaType.HTML,
        headers={**_HEADERS, "set-cookie": set_cookie(request, made)},
        cookies=[_flow_cookie(request, "")],
    )


def _refusal(request: Request[Any, Any, State], error: CloisterError) -> Response[bytes]:
    status, body = problem(error)
    told = f'<p>{html.escape(body.message)}</p><p><a href="/login/oidc">Log in again</a></p>'
    return Response(
        _page(told),
        status_code=status,
        media_type=MediaType.HTML,
        headers=_HEADERS,
        cookies=[_flow_cookie(request, "")],
    )


def _page(told: str, head: str = "") -> bytes:
    start = '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Cloister: login</title>'
    size = '<meta name="viewport" content="width=device-width">'
    return f"{start}{size}{head}<style>{_STYLE}</style></head><body><main><h1>Cloister</h1>{told}</main></body></html>".encode()


def _host(request: Request[Any, Any, State]) -> str:
    return request.headers.get("host", "").lower()


def _back(request: Request[Any, Any, State]) -> str:
    """Where the provider sends the browser: this server, by the name that the browser calls it. The guard has checked it."""
    secure = "s" if is_secure(request.scope, _host(request).encode()) else ""
    return f"http{secure}://{_host(request)}{CALLBACK}"


def _flow_name(request: Request[Any, Any, State]) -> str:
    return f"{cookie_name(request.scope, _host(request).encode())}-flow"


def _flow_cookie(request: Request[Any, Any, State], value: str) -> Cookie:
    """Sent along when the provider leads the browser back, which a strict cookie is not."""
    return Cookie(
        key=_flow_name(request),
        value=value,
        max_age=int(FLOW_SECONDS) if value else 0,
        httponly=True,
        samesite="lax",
        secure=is_secure(request.scope, _host(request).encode()),
    )
