"""The web application: every route, one way to report errors, and the guard in front."""

from functools import partial
from typing import TYPE_CHECKING, Any

from litestar import Litestar, Request
from litestar.datastructures import State
from litestar.di import Provide
from litestar.types import ASGIApp, Scope

from cloister.app.tokens import Caller, Tokens
from cloister.app.verbs.local import LocalVerbs
from cloister.server.audit_log import audited
from cloister.server.auth import Callers, caller_of, guarded
from cloister.server.bodies import JSON_BYTES, StrictRequest, while_wanted
from cloister.server.errors import respond
from cloister.server.openapi import HTTP_ROUTES, SOCKET_ROUTES, openapi_json, signature_names
from cloister.server.ports import with_ports
from cloister.server.ws import Sockets

if TYPE_CHECKING:
    from cloister.app.wiring import App


def asgi_app(app: "App", token: str, sockets: Sockets) -> ASGIApp:
    """`app` over HTTP and WebSocket, for callers with `token` or a named one."""

    def the_verbs(scope: Scope) -> LocalVerbs:
        return LocalVerbs(app, caller_of(scope))

    def the_sockets() -> Sockets:
        return sockets

    def the_caller(scope: Scope) -> Caller:
        return caller_of(scope)

    def the_wait(request: Request[Any, Any, State]) -> Any:
        return partial(while_wanted, request, sockets.leaving)

    web = Litestar(
        (*HTTP_ROUTES, openapi_json, *SOCKET_ROUTES),
        dependencies={
            "verbs": Provide(the_verbs, sync_to_thread=False),
            "sockets": Provide(the_sockets, sync_to_thread=False),
            "caller": Provide(the_caller, sync_to_thread=False),
            "wait": Provide(the_wait, sync_to_thread=False),
        },
        exception_handlers={Exception: respond},
        request_class=StrictRequest,
        request_max_body_size=JSON_BYTES,
        signature_namespace=signature_names(),
        openapi_config=None,
        logging_config=None,
    )
    callers = Callers(token, app.settings.user, Tokens(app.settings.data_dir))
    return audited(guarded(with_ports(web, app), web, callers), web, app.backbone)
