"""`/mcp`: the MCP server over streamable HTTP, with the tokens and the roles of the API."""

from typing import TYPE_CHECKING

from litestar import asgi
from litestar.handlers import ASGIRouteHandler
from litestar.types import Receive, Scope, Send

from cloister.app.verbs.local import LocalVerbs
from cloister.server.auth import caller_of

if TYPE_CHECKING:
    from cloister.app.wiring import App

_NO_STREAM = b'{"error": "bad_method", "message": "This server has no sessions: send a POST."}'


def mcp_route(app: "App") -> ASGIRouteHandler:
    """The route. The verbs check the role of the caller, and enter into the audit what it does."""

    @asgi("/mcp", opt={"role": "viewer", "reads": True}, copy_scope=True)
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":  # type: ignore[typeddict-item]
            await _refuse(send)
            return
        from cloister.app.mcp.serve import serve_request  # noqa: PLC0415  (the SDK takes half a second)

        await serve_request(LocalVerbs(app, caller_of(scope)), scope, receive, send)

    return serve


async def _refuse(send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"allow", b"POST")]
    await send({"type": "http.response.start", "status": 405, "headers": headers})
    await send({"type": "http.response.body", "body": _NO_STREAM, "more_body": False})
