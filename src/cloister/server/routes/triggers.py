"""Routes of triggers, and of the webhooks that reach them."""

from typing import TYPE_CHECKING, Annotated, Any

import anyio
import msgspec
from litestar import Request, Response, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter

from cloister.app.triggers import HOOK_BYTES
from cloister.app.verbs.api import TriggerVerbs
from cloister.app.verbs.records import Admitted, TriggerInfo
from cloister.core.errors import UserError
from cloister.server.bodies import JSON_SECONDS
from cloister.server.routes import Given, of

if TYPE_CHECKING:
    from cloister.app.triggers.hooks import Hooks  # noqa: F401  (named as text below)

Name = Annotated[str, PathParameter(description="A trigger's name in the settings.")]


class RunTrigger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run to start by hand."""

    repo: Annotated[str, msgspec.Meta(max_length=4_096)] | None = None
    """None is the repository of the trigger."""
    fields: dict[str, Annotated[str, msgspec.Meta(max_length=100_000)]] | None = None
    """Values for its prompt."""


class PauseTrigger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the trigger starts runs."""

    paused: bool = True


@get("/v1/triggers", **of(TriggerVerbs.list, "What starts runs from outside", "listTriggers"))
async def list_triggers(verbs: Given) -> tuple[TriggerInfo, ...]:
    return await verbs.triggers.list()


@get("/v1/triggers/{name:str}", **of(TriggerVerbs.get, "One trigger", "getTrigger"))
async def get_trigger(name: Name, verbs: Given) -> TriggerInfo:
    return await verbs.triggers.get(name)


@post("/v1/triggers/{name:str}/run", **of(TriggerVerbs.run, "Start its run now", "runTrigger", 201))
async def run_trigger(name: Name, data: JSONBody[RunTrigger], verbs: Given) -> Admitted:
    return await verbs.triggers.run(name, data.repo, data.fields)


@post(
    "/v1/triggers/{name:str}/pause",
    **of(TriggerVerbs.pause, "Pause it, or let it go on", "pauseTrigger", 200),
)
async def pause_trigger(name: Name, data: JSONBody[PauseTrigger], verbs: Given) -> TriggerInfo:
    return await verbs.triggers.pause(name, paused=data.paused)


# Webhooks: their signature authenticates them instead of a token.


Received = NamedDependency["Hooks | None"]
HookName = Annotated[
    str, PathParameter(description="The host of a forge in the settings, or the name of a trigger.")
]


class Delivered(msgspec.Struct, frozen=True):
    """A delivery is stored."""

    new: bool
    """False for a copy of an earlier delivery, which is not processed again."""
    challenge: str | None = None
    """What Slack sent to check the address."""


@post(
    "/v1/hooks/{name:str}",
    summary="Receive a webhook",
    operation_id="receiveHook",
    status_code=202,
    request_max_body_size=HOOK_BYTES,
    opt={"open": True, "reads": True},
)
async def receive_hook(
    name: HookName, request: Request[Any, Any, State], hooks: Received
) -> Response[Delivered]:
    if hooks is None:
        raise UserError(
            "no_such_hook",
            "There is no webhook of this name: a forge needs `hook` in its table, or a trigger has this name.",
        )
    hooks.find(name)  # before the body is read: strangers may call this
    try:
        with anyio.fail_after(JSON_SECONDS):
            body = await request.body()
    except TimeoutError:
        raise UserError("slow_request", "The request took too long to arrive: send it at once.") from None
    headers = {
        key.decode("latin-1").lower(): value.decode("latin-1") for key, value in request.scope["headers"]
    }
    found = await hooks.receive(name, headers, body)
    if isinstance(found, str):
        return Response(Delivered(new=True, challenge=found), status_code=200)
    return Response(Delivered(found))
