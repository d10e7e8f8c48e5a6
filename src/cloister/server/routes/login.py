"""Routes of a browser's login: a one-time secret becomes a cookie, which calls then carry instead of a token."""

from typing import Annotated, Any, Protocol

import msgspec
from anyio import to_thread
from litestar import Request, Response, delete, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter

from cloister.app.people.logins import LOGIN_SECONDS, Login, Logins
from cloister.app.people.projects import People
from cloister.app.verbs.api import TokenVerbs
from cloister.app.verbs.records import LoginInfo, Me, OneTimeLogin
from cloister.server.audit_log import Notes
from cloister.server.auth import caller_of, cookie_name, is_secure
from cloister.server.routes import Given, of


class Admit(Protocol):
    """Exchanges a one-time secret for a cookie and enters it into the audit. Raises `UserError` (`bad_login`)."""

    async def __call__(self, secret: str) -> tuple[str, Login]: ...


class Secret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The one-time secret of an address."""

    secret: Annotated[str, msgspec.Meta(max_length=200)]


class LoggedOut(msgspec.Struct, frozen=True):
    """The login that was ended; None when the caller had none."""

    login: str | None


async def admit(logins: Logins, notes: Notes, secret: str) -> tuple[str, Login]:
    """See `Admit`."""
    cookie, made = await to_thread.run_sync(logins.exchange, secret.encode("utf-8", "replace"))
    await notes.note("LoginBegun", made.name, {"login": made.id, "role": made.role})
    return cookie, made


async def let_in(
    logins: Logins, people: People, notes: Notes, secret: str, cookie: bytes
) -> tuple[str | None, Login, str]:
    """The run that a link leads to, and the login that sees it: that of `cookie`, or a new one with its own cookie."""
    share = await to_thread.run_sync(people.opened, secret.encode("utf-8", "replace"))
    own = await to_thread.run_sync(logins.find, cookie) if cookie else None
    if own is not None:
        made, fresh = await to_thread.run_sync(logins.open_share, own, share.id), None
    else:
        fresh, made = await to_thread.run_sync(logins.begin_as_guest, share.id, share.until)
    await notes.note("ShareOpened", made.name, {"login": made.id, "share": share.id, "run": share.run})
    return fresh, made, share.run


def set_cookie(request: Request[Any, Any, State], value: str) -> str:
    """The header that gives the browser its login, or takes it away if `value` is empty."""
    host = request.headers.get("host", "").lower().encode()
    seconds = int(LOGIN_SECONDS) if value else 0
    secure = "; Secure" if is_secure(request.scope, host) else ""
    name = cookie_name(request.scope, host)
    return f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


@post(
    "/v1/login",
    summary="Exchange a one-time secret for a login's cookie",
    operation_id="login",
    status_code=200,
    opt={"open": True, "reads": True},
)
async def log_in(
    data: JSONBody[Secret], request: Request[Any, Any, State], admit: NamedDependency["Admit"]
) -> Response[Me]:
    cookie, made = await admit(data.secret)
    return Response(
        Me(made.name, made.role, made.id, made.known), headers={"set-cookie": set_cookie(request, cookie)}
    )


@post("/v1/logout", **of(TokenVerbs.end_login, "End the login of this browser", "logout", 200))
async def log_out(request: Request[Any, Any, State], verbs: Given) -> Response[LoggedOut]:
    if login := caller_of(request.scope).login:
        await verbs.tokens.end_login(login)
    return Response(LoggedOut(login or None), headers={"set-cookie": set_cookie(request, "")})


@get("/v1/me", **of(TokenVerbs.me, "Who calls", "getMe"))
async def get_me(verbs: Given) -> Me:
    return await verbs.tokens.me()


@post("/v1/logins", **of(TokenVerbs.offer_login, "Make a one-time secret for a browser", "offerLogin", 201))
async def offer_login(verbs: Given) -> OneTimeLogin:
    return await verbs.tokens.offer_login()


@get("/v1/logins", **of(TokenVerbs.logins, "The browsers that are logged in", "listLogins"))
async def list_logins(verbs: Given) -> tuple[LoginInfo, ...]:
    return await verbs.tokens.logins()


@delete("/v1/logins/{login:str}", **of(TokenVerbs.end_login, "End a browser's login", "endLogin"))
async def end_login(login: Annotated[str, PathParameter(description="A login's id.")], verbs: Given) -> None:
    await verbs.tokens.end_login(login)
