"""The OpenAPI document: what the routes say of themselves, with the records as msgspec really reads them."""

from functools import cache
from typing import Any, cast

import msgspec
from litestar import Litestar, Response, get
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme

from cloister import __version__
from cloister.core.computer import Entry
from cloister.core.events import Event
from cloister.log.api import RunRow
from cloister.log.audit.entry import AuditEntry
from cloister.log.audit.verify import Verdict
from cloister.runs.attempts.compare import Compared
from cloister.runs.attempts.tree import TreeView
from cloister.runs.budget import BudgetReport
from cloister.runs.delivery import Removed
from cloister.runs.receipt import Receipt
from cloister.runs.view import RunView
from cloister.runs.words.lines import EventWords
from cloister.sandbox.api import SandboxInfo, SnapshotInfo
from cloister.sandbox.pool import PoolInfo
from cloister.sandbox.templates.catalog import TemplateInfo
from cloister.server.auth import OPEN_PATH
from cloister.server.errors import Problem
from cloister.server.routes import (
    audit,
    budget,
    commands,
    files,
    forks,
    process,
    runs,
    sandboxes,
    snapshots,
    templates,
)

Document = dict[str, Any]

RECORDS = (
    AuditEntry,
    BudgetReport,
    Entry,
    Event,
    PoolInfo,
    Problem,
    Receipt,
    RunRow,
    RunView,
    EventWords,
    Removed,
    TreeView,
    Compared,
    SandboxInfo,
    SnapshotInfo,
    TemplateInfo,
    Verdict,
    commands.BackgroundCommand,
    commands.CommandOutput,
    files.MakeDirectory,
    files.Move,
    files.Remove,
    forks.ForkRun,
    forks.GoesOn,
    forks.Rewind,
    process.NewCommand,
    runs.Admitted,
    runs.Answer,
    runs.RunWish,
    runs.Say,
    runs.UseModel,
    sandboxes.Exec,
    sandboxes.Execute,
    sandboxes.Executed,
    sandboxes.NewSandbox,
    snapshots.Fork,
    snapshots.NewSnapshot,
    templates.BuildTemplate,
    templates.NewTemplate,
)
_ERRORS = {
    "400": "The request is not valid.",
    "401": "The token is missing or wrong.",
    "403": "Not allowed.",
    "404": "There is no such thing.",
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


@get(OPEN_PATH, summary="Whether the server answers", operation_id="health")
async def health() -> Health:
    return Health(__version__)


@get("/v1/openapi.json", include_in_schema=False)
async def openapi_json() -> Response[bytes]:
    return Response(msgspec.json.encode(openapi_document()), media_type="application/json")


HTTP_ROUTES: tuple[HTTPRouteHandler, ...] = (
    health,
    *runs.ROUTES,
    *forks.ROUTES,
    *audit.ROUTES,
    *budget.ROUTES,
    *sandboxes.ROUTES,
    *snapshots.ROUTES,
    *commands.ROUTES,
    *files.ROUTES,
    *templates.ROUTES,
)


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
        # Stand where the running server puts its parts: what is provided is no parameter.
        dependencies={
            "app": Provide(lambda: None, sync_to_thread=False),
            "sockets": Provide(lambda: None, sync_to_thread=False),
            "caller": Provide(lambda: None, sync_to_thread=False),
        },
        signature_namespace=signature_names(),
        logging_config=None,
    )
    document = app.openapi_schema.to_schema()
    _, schemas = msgspec.json.schema_components(
        (*RECORDS, Health), schema_hook=_any, ref_template="#/components/schemas/{name}"
    )
    document["components"]["schemas"] = schemas
    for path, methods in document["paths"].items():
        for operation in methods.values():
            _complete(path, operation)
    # Through JSON, so that what a caller holds is what a client reads.
    return msgspec.json.decode(msgspec.json.encode(document), type=Document)


def _any(kind: type) -> Document:
    """`object` is whatever JSON can say; no other type is left open."""
    if kind is object:
        return {"description": "Any value."}
    raise NotImplementedError


def signature_names() -> dict[str, Any]:
    """Names in the routes' signatures that are only imported for the type checker."""
    return {"App": Any}


def _complete(path: str, operation: Document) -> None:
    """What the routes cannot say: one shape for all errors, raw bodies, and which of them is open."""
    responses = cast(Document, operation["responses"])
    for status, meaning in _ERRORS.items():
        schema = {"$ref": "#/components/schemas/Problem"}
        responses[status] = {"description": meaning, "content": {"application/json": {"schema": schema}}}
    if path == OPEN_PATH:
        operation["security"] = []
    if operation["operationId"] in ("writeFile", "writeTree"):
        binary = {"schema": {"type": "string", "contentMediaType": "application/octet-stream"}}
        operation["requestBody"] = {"required": True, "content": {"application/octet-stream": binary}}
