"""The OpenAPI document: the routes as Litestar describes them, the records as msgspec reads them."""

from collections.abc import Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast, get_args, get_origin, get_type_hints

import msgspec
from litestar import Litestar, Request, Response, get
from litestar.datastructures import MutableScopeHeaders, State
from litestar.di import NamedDependency, Provide
from litestar.handlers import HTTPRouteHandler, WebsocketRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp, Message, Scope

from cloister import __version__
from cloister.app.people.logins import Logins
from cloister.app.people.projects import people_in
from cloister.app.settings import machine_id
from cloister.app.tokens import Caller, Tokens
from cloister.app.verbs.local import LocalVerbs
from cloister.core.errors import CloisterError
from cloister.log.api import RunRow
from cloister.log.audit.export import ExportState, export_state
from cloister.server.audit_log import audited
from cloister.server.auth import OPEN_PATH, OPEN_PATHS, Callers, caller_of, guarded
from cloister.server.bodies import JSON_BYTES, StrictRequest, while_wanted
from cloister.server.compat import logs, modbox, pandastack
from cloister.server.compat.e2b import control, filesystem, interpreter
from cloister.server.compat.e2b import process as e2b_process
from cloister.server.compat.e2b import templates as e2b_templates
from cloister.server.errors import Problem, respond
from cloister.server.ports import with_ports
from cloister.server.public import behind
from cloister.server.routes import (
    admin,
    commands,
    files,
    login,
    oidc,
    pages,
    people,
    process,
    runs,
    sandboxes,
    stream,
    templates,
    triggers,
)
from cloister.server.ws import Sockets

if TYPE_CHECKING:
    from cloister.app.wiring import App


Document = dict[str, Any]

SUBJECTS = (
    runs,
    stream,
    login,
    oidc,
    people,
    admin,
    sandboxes,
    commands,
    process,
    files,
    templates,
    triggers,
)
_ERRORS = {
    "400": "The request is not valid.",
    "401": "The token is missing or wrong.",
    "403": "Not allowed.",
    "404": "There is no such thing.",
    "405": "The address does not take that method: see the header `Allow`.",
    "408": "The request took too long to arrive.",
    "409": "Not in its present state.",
    "410": "The sandbox is gone.",
    "413": "Too large.",
    "421": "The host name is not that of this machine's loopback.",
    "429": "Too many at once.",
    "500": "Our mistake.",
    "502": "Something outside this machine failed.",
    "503": "This machine cannot do that now.",
    "504": "It took too long.",
}


class Health(msgspec.Struct, frozen=True):
    """The server answers."""

    version: str
    ok: bool = True
    """False while runs cannot go on."""
    reason: str | None = None
    """Why they cannot."""
    audit_export: ExportState | None = None
    """Whether the audit's signed heads arrive at the configured places; None without any."""


@get(OPEN_PATH, summary="Whether the server answers", operation_id="health", opt={"role": "viewer"})
async def health(
    shortage: NamedDependency[str | None], exported: NamedDependency[ExportState | None]
) -> Health:
    return Health(__version__, shortage is None, shortage, exported)


@get(
    "/healthz", summary="Whether the server answers, in short", operation_id="healthz", opt={"role": "viewer"}
)
async def healthz() -> Health:
    return Health(__version__)


@get("/readyz", summary="Whether runs can go on; 503 if not", operation_id="readyz", opt={"role": "viewer"})
async def readyz(shortage: NamedDependency[str | None]) -> Response[Health]:
    return Response(Health(__version__, shortage is None, shortage), status_code=503 if shortage else 200)


class Machine(msgspec.Struct, frozen=True):
    """The machine that the server runs on."""

    id: str
    """The same for a client that sees the same file system, until the next boot."""


@get("/v1/machine", summary="The server's machine", operation_id="getMachine", opt={"role": "viewer"})
async def machine() -> Machine:
    return Machine(machine_id())


@get("/v1/openapi.json", include_in_schema=False, opt={"role": "viewer"})
async def openapi_json() -> Response[bytes]:
    return Response(msgspec.json.encode(openapi_document()), media_type="application/json")


_FOUND = tuple(value for subject in SUBJECTS for value in vars(subject).values())
HTTP_ROUTES = (
    health,
    healthz,
    readyz,
    machine,
    *(route for route in _FOUND if isinstance(route, HTTPRouteHandler)),
)
COMPAT_ROUTES = (
    *(*control.ROUTES, *e2b_process.ROUTES, *filesystem.ROUTES, *interpreter.ROUTES, *e2b_templates.ROUTES),
    *(*pandastack.ROUTES, *modbox.ROUTES, *logs.ROUTES),
)
SOCKET_ROUTES = tuple(route for route in _FOUND if isinstance(route, WebsocketRouteHandler))


def _records() -> Iterator[Any]:
    """Every type that a route takes as its body or returns."""
    for route in HTTP_ROUTES:
        hints = get_type_hints(route.fn, localns=signature_names())
        found = hints["return"]
        yield get_args(found)[0] if get_origin(found) is Response else found
        if "data" in hints:
            yield hints["data"]


@cache
def openapi_document() -> Document:
    """The document as plain values, made without a running server."""
    app = Litestar(
        HTTP_ROUTES,
        openapi_config=OpenAPIConfig(
            title="Cloister",
            version=__version__,
            description="Runs and sandboxes of one machine. WebSocket routes are in docs/reference/http.md.",
            components=Components(
                security_schemes={"token": SecurityScheme(type="http", scheme="bearer")},
            ),
            security=[{"token": []}],
        ),
        # Placeholders for what the running server provides: dependencies are no parameters.
        dependencies={
            "verbs": Provide(lambda: None, sync_to_thread=False),
            "sockets": Provide(lambda: None, sync_to_thread=False),
            "caller": Provide(lambda: None, sync_to_thread=False),
            "wait": Provide(lambda: None, sync_to_thread=False),
            "shortage": Provide(lambda: None, sync_to_thread=False),
            "latency": Provide(lambda: None, sync_to_thread=False),
            "exported": Provide(lambda: None, sync_to_thread=False),
            "hooks": Provide(lambda: None, sync_to_thread=False),
            "admit": Provide(lambda: None, sync_to_thread=False),
            "let_in": Provide(lambda: None, sync_to_thread=False),
            "desk": Provide(lambda: None, sync_to_thread=False),
        },
        signature_namespace=signature_names(),
        logging_config=None,
    )
    document = app.openapi_schema.to_schema()
    _, schemas = msgspec.json.schema_components(
        (Problem, *_records()), schema_hook=_any, ref_template="#/components/schemas/{name}"
    )
    document["components"]["schemas"] = schemas
    for path, methods in document["paths"].items():
        for operation in methods.values():
            _complete(path, operation)
    # Through JSON: callers get exactly what a client reads.
    return msgspec.json.decode(msgspec.json.encode(document), type=Document)


def _any(kind: type) -> Document:
    """`object` is any JSON value; no other type is left open."""
    if kind is object:
        return {"description": "Any value."}
    raise NotImplementedError


def signature_names() -> dict[str, Any]:
    """Names in the routes' signatures that are only imported for the type checker."""
    return {"Verbs": Any, "Waiting": Any, "Hooks": Any, "Admit": Any, "LetIn": Any, "Desk": Any}


_OPTIONAL_BODY = ("newSandbox", "forkSandbox", "newSnapshot", "openPullRequest", "newContext")


def _complete(path: str, operation: Document) -> None:
    """Add what routes cannot declare: one shape for all errors, raw bodies, JSON lines, the route without a token."""
    responses = cast(Document, operation["responses"])
    for status, meaning in _ERRORS.items():
        schema = {"$ref": "#/components/schemas/Problem"}
        responses[status] = {"description": meaning, "content": {"application/json": {"schema": schema}}}
    if path in OPEN_PATHS or operation["operationId"] in (
        "receiveHook",
        "login",
        "openShare",
        "getLoginWays",
    ):
        operation["security"] = []
    for parameter in cast("list[Document]", operation.get("parameters", ())):
        if {"type": "integer"} in parameter["schema"].get("oneOf", ()):
            parameter["schema"].setdefault("minimum", 0)  # Litestar drops a minimum of 0 there
    if operation["operationId"] in ("writeFile", "writeTree", "attach"):
        binary = {"schema": {"type": "string", "contentMediaType": "application/octet-stream"}}
        operation["requestBody"] = {"required": True, "content": {"application/octet-stream": binary}}
    if operation["operationId"] in _OPTIONAL_BODY:  # Litestar takes every body for required
        operation["requestBody"]["required"] = False
    if operation["operationId"] in (
        "buildTemplate",
        "setUpEnvironment",
        "verifyChange",
        "fetchModel",
        "addModel",
    ):
        responses["200"]["content"]["application/x-ndjson"] = {"schema": {"type": "string"}}


async def _list_methods(message: Message, scope: Scope) -> None:
    """Name every method of the path in the answer to OPTIONS: Litestar names those of its first handler."""
    given = cast("dict[str, object]", scope)
    if message["type"] != "http.response.start" or given["method"] != "OPTIONS":
        return
    found = [
        route for route in scope["litestar_app"].routes if route.path_format == given.get("path_template")
    ]
    methods = sorted({method for route in found if isinstance(route, HTTPRoute) for method in route.methods})
    headers = MutableScopeHeaders.from_message(message)
    if methods and "allow" in headers:
        headers["allow"] = ", ".join(methods)


# The web application: every route, one way to report errors, and the guard in front.


def _dependencies(app: "App", sockets: Sockets, logins: Logins, tokens: Tokens) -> dict[str, Provide]:
    """What the routes are given, by name."""

    def the_verbs(scope: Scope) -> LocalVerbs:
        return LocalVerbs(app, caller_of(scope))

    def the_caller(scope: Scope) -> Caller:
        return caller_of(scope)

    def the_wait(request: Request[Any, Any, State]) -> Any:
        return partial(while_wanted, request, sockets.leaving)

    def the_shortage() -> str | None:
        # Without the path: this answer needs no token.
        if lost := app.storage.lost():
            return lost
        short = app.supervisor.shortage
        return None if short is None else "The disk is full: runs are paused until there is room."

    def the_exported() -> ExportState | None:
        # Without places and reasons, for the same cause.
        return export_state(app.settings.data_dir, app.settings.file.audit_heads)

    admit = partial(login.admit, logins, app.backbone)
    let_in = partial(login.let_in, logins, people_in(app.settings.data_dir), app.backbone)
    desk = oidc.Desk(
        app.provider, logins, tokens, app.settings.user, app.backbone, people_in(app.settings.data_dir)
    )
    given = {
        "verbs": the_verbs,
        "caller": the_caller,
        "wait": the_wait,
        "shortage": the_shortage,
        "latency": lambda: app.backbone.latency,
        "exported": the_exported,
        "sockets": lambda: sockets,
        "hooks": lambda: app.hooks,
        "admit": lambda: admit,
        "let_in": lambda: let_in,
        "desk": lambda: desk,
    }
    return {name: Provide(cast(Any, make), sync_to_thread=False) for name, make in given.items()}


def asgi_app(app: "App", token: str, sockets: Sockets, names: frozenset[str] | None = None) -> ASGIApp:
    """`app` over HTTP and WebSocket, for callers with `token` or a named one.

    `names` are those by which others call it; None takes the `hosts` of the settings.
    """
    logins, tokens = Logins(app.settings.data_dir), Tokens(app.settings.data_dir)
    callers = Callers(token, app.settings, tokens, logins, app.sandboxes, app.provider)

    async def seen(scope: Scope, run: str) -> RunRow | None:
        try:
            caller = callers.browser(scope)
            return None if caller is None else await LocalVerbs(app, caller).runs.row(run, told=False)
        except CloisterError:  # the page says why
            return None

    pages_here = pages.page_routes(pages.page_dir(), seen)
    web = Litestar(
        (*HTTP_ROUTES, *COMPAT_ROUTES, openapi_json, stream.mcp_route(app), *pages_here, *SOCKET_ROUTES),
        dependencies=_dependencies(app, sockets, logins, tokens),
        state=State({"watchers": filesystem.Watchers(), "builds": e2b_templates.Builds()}),
        before_send=[_list_methods],
        exception_handlers={Exception: respond},
        request_class=StrictRequest,
        request_max_body_size=JSON_BYTES,
        signature_namespace=signature_names(),
        openapi_config=None,
        logging_config=None,
    )
    file = app.settings.file
    inner = guarded(
        with_ports(web, app), web, callers, file.connections, file.hosts if names is None else names
    )
    return behind(audited(inner, web, app.backbone), file.proxies)
