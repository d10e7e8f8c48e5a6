"""Routes of the audit, of named tokens, of model files, of the rules and of notices about runs."""

from collections.abc import Awaitable
from typing import Annotated

import msgspec
from litestar import Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter

from cloister.app.checkup import Checkup
from cloister.app.verbs.api import AuditVerbs, MachineVerbs, ModelVerbs, PolicyVerbs, TokenVerbs
from cloister.app.verbs.declare import no_report
from cloister.app.verbs.records import (
    Explained,
    LocalModel,
    MadeToken,
    ModelRole,
    ModelTrial,
    NewToken,
    PolicyVerdict,
    RuleContext,
    TokenInfo,
)
from cloister.app.verbs.webhooks import DeadDelivery, MadeWebhook, NewWebhook, WebhookInfo, WebhookVerbs
from cloister.egress.packages import Meaning
from cloister.log.api import Peer
from cloister.log.audit.entry import AuditEntry, Checkpoint
from cloister.log.audit.verify import Verdict
from cloister.policy.api import Layer
from cloister.sandbox.api import Report
from cloister.server.bodies import ProgressLines
from cloister.server.routes import Given, Wait, of
from cloister.server.routes.runs import SEQ_MAX
from cloister.server.ws import Sockets

Number = Annotated[int, QueryParameter(ge=0, le=SEQ_MAX)]
After = Annotated[int, QueryParameter(ge=0, le=SEQ_MAX, description="Only entries with a greater number.")]
PolicyText = Annotated[str, msgspec.Meta(max_length=1_048_576)]


class PublicKey(msgspec.Struct, frozen=True):
    """The public key that signs the audit."""

    key: str


class AcceptAudit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why the audit is accepted as it is."""

    reason: Annotated[str, msgspec.Meta(max_length=4_096)]


class SendLogs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The entries to send to the collector."""

    run: str | None = None
    since_us: Annotated[int, msgspec.Meta(ge=0, le=SEQ_MAX)] = 0
    """Microseconds since 1970."""


class Sent(msgspec.Struct, frozen=True):
    """How many entries were sent."""

    sent: int


class FetchModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model to download."""

    name: str | None = None
    """None is the first of the list."""
    progress: bool = False
    """Answer JSON lines: progress, then the result."""


class AddModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GGUF file to keep."""

    source: Annotated[str, msgspec.Meta(max_length=8_192)]
    """An https:// address, or a path on the server's machine."""
    name: str | None = None
    """None takes the file's own name."""
    sha256: str | None = None
    progress: bool = False
    """Answer JSON lines: progress, then the result."""


class Explain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One action to decide."""

    action: Annotated[str, msgspec.Meta(max_length=65_536)]
    context: RuleContext = RuleContext()
    untrusted: bool = False
    """As if untrusted text had been read before."""


class PolicyTests(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy file whose tests are run."""

    text: PolicyText
    source: str = "policy.toml"


@get("/v1/audit", **of(AuditVerbs.page, "The audit, oldest first", "listAudit"))
async def list_audit(  # noqa: PLR0913  (each is a parameter of the request)
    verbs: Given,
    after: After = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=10_000)] = 1_000,
    run: Annotated[str | None, QueryParameter(description="Of one run alone.")] = None,
    kind: Annotated[str | None, QueryParameter(description="Of this kind alone.")] = None,
    who: Annotated[str | None, QueryParameter(description="Of people with this in their names.")] = None,
    newest: Annotated[bool, QueryParameter(description="The newest first.")] = False,
) -> tuple[AuditEntry, ...]:
    return await verbs.audit.page(after, limit, run, kind, who, newest)


@get(
    "/v1/audit/checkpoints",
    **of(AuditVerbs.checkpoints, "The signatures over a range of entries", "listCheckpoints"),
)
async def list_checkpoints(verbs: Given, until: Number, after: After = 0) -> tuple[Checkpoint, ...]:
    return await verbs.audit.checkpoints(after, until)


@get("/v1/audit/verify", **of(AuditVerbs.verify, "Whether the audit is as it was written", "verifyAudit"))
async def verify_audit(
    verbs: Given,
    key: Annotated[str | None, QueryParameter(description="The public key to trust.")] = None,
) -> Verdict:
    return await verbs.audit.verify(key)


@get("/v1/audit/key", **of(AuditVerbs.key, "The audit's public key", "getAuditKey"))
async def get_key(verbs: Given) -> PublicKey:
    return PublicKey(await verbs.audit.key())


@post("/v1/audit/key", **of(AuditVerbs.rotate, "Replace the audit's key", "rotateAuditKey", 200))
async def rotate_key(verbs: Given) -> PublicKey:
    return PublicKey(await verbs.audit.rotate())


@post("/v1/audit/accept", **of(AuditVerbs.accept, "Accept the audit as it is", "acceptAudit", 204))
async def accept_audit(data: JSONBody[AcceptAudit], verbs: Given) -> None:
    await verbs.audit.accept(data.reason)


@post(
    "/v1/audit/send", **of(AuditVerbs.send_logs, "Send entries to the configured collector", "sendAudit", 200)
)
async def send_audit(data: JSONBody[SendLogs], verbs: Given) -> Sent:
    return Sent(await verbs.audit.send_logs(data.run, data.since_us))


@get("/v1/tokens", **of(TokenVerbs.list, "The named tokens", "listTokens"))
async def list_tokens(verbs: Given) -> tuple[TokenInfo, ...]:
    return await verbs.tokens.list()


@post("/v1/tokens", **of(TokenVerbs.add, "Make a token", "newToken", 201))
async def new_token(data: JSONBody[NewToken], verbs: Given) -> MadeToken:
    return await verbs.tokens.add(data.name, data.role)


@delete("/v1/tokens/{name:str}", **of(TokenVerbs.remove, "Remove a token", "deleteToken"))
async def delete_token(
    name: Annotated[str, PathParameter(description="A token's name.")], verbs: Given
) -> None:
    await verbs.tokens.remove(name)


@get("/v1/models", **of(ModelVerbs.list, "The local models", "listModels"))
async def list_models(verbs: Given) -> tuple[LocalModel, ...]:
    return await verbs.models.list()


@post(
    "/v1/models/fetch",
    **of(ModelVerbs.fetch, "Download a local model's file, or verify it", "fetchModel", 200),
)
async def fetch_model(
    data: JSONBody[FetchModel], verbs: Given, sockets: NamedDependency[Sockets], wait: Wait
) -> Response[LocalModel]:
    if data.progress:
        return ProgressLines(lambda report: verbs.models.fetch(data.name, report), sockets.leaving)

    return Response(await wait(verbs.models.fetch(data.name)))


@get("/v1/models/roles", **of(ModelVerbs.roles, "Which models serve which role", "listModelRoles"))
async def model_roles(
    verbs: Given,
    repo: Annotated[str | None, QueryParameter(description="For this repository.", max_length=4_096)] = None,
) -> tuple[ModelRole, ...]:
    return await verbs.models.roles(repo)


class TryModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model to try."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=4_096)]


@post("/v1/models/try", **of(ModelVerbs.try_out, "Ask a model for one word", "tryModel", 200))
async def try_model(data: JSONBody[TryModel], verbs: Given, wait: Wait) -> ModelTrial:
    return await wait(verbs.models.try_out(data.name))


@get("/v1/doctor", **of(MachineVerbs.doctor, "Whether a run can start on the server's machine", "doctor"))
async def get_doctor(verbs: Given, wait: Wait) -> Checkup:
    return await wait(verbs.machine.doctor())


@get("/v1/machines", **of(MachineVerbs.all, "The machines of the cluster", "listMachines"))
async def list_machines(verbs: Given) -> tuple[Peer, ...]:
    return await verbs.machine.all()


class Drain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether a machine is to take no more runs."""

    on: bool


@post(
    "/v1/machines/{machine:str}/drain",
    **of(MachineVerbs.drain, "Drain a machine, or let it take runs again", "drainMachine", 204),
)
async def drain_machine(
    machine: Annotated[str, PathParameter(max_length=64)], data: JSONBody[Drain], verbs: Given
) -> None:
    await verbs.machine.drain(machine, data.on)


@post("/v1/models", **of(ModelVerbs.add, "Keep a GGUF file as a local model", "addModel", 200))
async def add_model(
    data: JSONBody[AddModel], verbs: Given, sockets: NamedDependency[Sockets], wait: Wait
) -> Response[LocalModel]:
    def add(report: Report = no_report) -> Awaitable[LocalModel]:
        return verbs.models.add(data.source, data.name, data.sha256, report)

    return ProgressLines(add, sockets.leaving) if data.progress else Response(await wait(add()))


@delete("/v1/models/{name:str}", **of(ModelVerbs.remove, "Remove a local model's file", "deleteModel", 200))
async def delete_model(
    name: Annotated[str, PathParameter(description="A local model's name.")], verbs: Given
) -> tuple[str, ...]:
    return await verbs.models.remove(name)


@post(
    "/v1/policy/layers",
    **of(PolicyVerbs.layers, "The rules above a run, layer by layer", "listLayers", 200, reads=True),
)
async def list_layers(data: JSONBody[RuleContext], verbs: Given) -> tuple[Layer, ...]:
    return await verbs.policy.layers(data)


@post(
    "/v1/policy/explain",
    **of(PolicyVerbs.explain, "The decision about one action", "explainAction", 200, reads=True),
)
async def explain(data: JSONBody[Explain], verbs: Given) -> Explained:
    return await verbs.policy.explain(data.action, data.context, untrusted=data.untrusted)


@post(
    "/v1/policy/test", **of(PolicyVerbs.test, "Run the tests of a policy file", "testPolicy", 200, reads=True)
)
async def run_tests(data: JSONBody[PolicyTests], verbs: Given) -> tuple[PolicyVerdict, ...]:
    return await verbs.policy.test(data.text, data.source)


@get("/v1/policy/sets/{name:str}", **of(PolicyVerbs.sets, "The hosts of a named set", "getSet"))
async def get_set(
    name: Annotated[str, PathParameter(description="A set's name, e.g. pypi.")],
    verbs: Given,
    again: Annotated[bool, QueryParameter(description="Ask the package clients again.")] = False,
) -> Meaning:
    return await verbs.policy.sets(name, again=again)


# Notices about runs.


WebhookName = Annotated[str, PathParameter(description="A webhook's name.")]
DeliveryId = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The dead deliveries to try again."""

    ids: Annotated[tuple[DeliveryId, ...], msgspec.Meta(max_length=1_000)] = ()
    """None is all of them."""


class Replayed(msgspec.Struct, frozen=True):
    """How many deliveries are tried again."""

    count: int


@get("/v1/webhooks", **of(WebhookVerbs.list, "Where notices about runs go", "listWebhooks"))
async def list_webhooks(verbs: Given) -> tuple[WebhookInfo, ...]:
    return await verbs.webhooks.list()


@post("/v1/webhooks", **of(WebhookVerbs.add, "Send notices to an address", "addWebhook", 201))
async def add_webhook(data: JSONBody[NewWebhook], verbs: Given) -> MadeWebhook:
    return await verbs.webhooks.add(data)


@delete("/v1/webhooks/{name:str}", **of(WebhookVerbs.remove, "Send no more notices there", "deleteWebhook"))
async def delete_webhook(name: WebhookName, verbs: Given) -> None:
    await verbs.webhooks.remove(name)


@post("/v1/webhooks/{name:str}/test", **of(WebhookVerbs.test, "Send a test notice", "testWebhook", 202))
async def test_webhook(name: WebhookName, verbs: Given) -> None:
    await verbs.webhooks.test(name)


@get("/v1/dead-deliveries", **of(WebhookVerbs.dead, "Notices that were given up", "listDeadDeliveries"))
async def list_dead(verbs: Given) -> tuple[DeadDelivery, ...]:
    return await verbs.webhooks.dead()


@post(
    "/v1/dead-deliveries/replay",
    **of(WebhookVerbs.replay, "Try notices again that were given up", "replayDeliveries", 200),
)
async def replay(data: JSONBody[Replay], verbs: Given) -> Replayed:
    return Replayed(await verbs.webhooks.replay(data.ids))
