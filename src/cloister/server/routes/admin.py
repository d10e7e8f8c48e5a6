"""Routes of the audit, of named tokens, of model files and of the rules."""

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter

from cloister.app.verbs.api import AuditVerbs, ModelVerbs, PolicyVerbs, TokenVerbs
from cloister.app.verbs.records import (
    Explained,
    LocalModel,
    MadeToken,
    NewToken,
    PolicyVerdict,
    RuleContext,
    TokenInfo,
)
from cloister.egress.packages import Meaning
from cloister.log.audit.entry import AuditEntry, Checkpoint
from cloister.log.audit.verify import Verdict
from cloister.policy.api import Layer
from cloister.server.auth import reading, role
from cloister.server.bodies import ProgressLines, while_wanted
from cloister.server.routes.runs import SEQ_MAX
from cloister.server.ws import Sockets

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs

Number = Annotated[int, QueryParameter(ge=0, le=SEQ_MAX)]
After = Annotated[int, QueryParameter(ge=0, le=SEQ_MAX, description="Only entries with a greater number.")]
PolicyText = Annotated[str, msgspec.Meta(max_length=1_048_576)]


class PublicKey(msgspec.Struct, frozen=True):
    """The public key that signs the audit."""

    key: str


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


@get("/v1/audit", summary="The audit, oldest first", operation_id="listAudit", opt=role(AuditVerbs.page))
async def list_audit(
    verbs: NamedDependency["Verbs"],
    after: After = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=10_000)] = 1_000,
    run: Annotated[str | None, QueryParameter(description="Of one run alone.")] = None,
) -> tuple[AuditEntry, ...]:
    return await verbs.audit.page(after, limit, run)


@get(
    "/v1/audit/checkpoints",
    summary="The signatures over a range of entries",
    operation_id="listCheckpoints",
    opt=role(AuditVerbs.checkpoints),
)
async def list_checkpoints(
    verbs: NamedDependency["Verbs"], until: Number, after: After = 0
) -> tuple[Checkpoint, ...]:
    return await verbs.audit.checkpoints(after, until)


@get(
    "/v1/audit/verify",
    summary="Whether the audit is as it was written",
    operation_id="verifyAudit",
    opt=role(AuditVerbs.verify),
)
async def verify_audit(
    verbs: NamedDependency["Verbs"],
    key: Annotated[str | None, QueryParameter(description="The public key to trust.")] = None,
) -> Verdict:
    return await verbs.audit.verify(key)


@get("/v1/audit/key", summary="The audit's public key", operation_id="getAuditKey", opt=role(AuditVerbs.key))
async def get_key(verbs: NamedDependency["Verbs"]) -> PublicKey:
    return PublicKey(await verbs.audit.key())


@post(
    "/v1/audit/key",
    summary="Replace the audit's key",
    operation_id="rotateAuditKey",
    status_code=200,
    opt=role(AuditVerbs.rotate),
)
async def rotate_key(verbs: NamedDependency["Verbs"]) -> PublicKey:
    return PublicKey(await verbs.audit.rotate())


@post(
    "/v1/audit/send",
    summary="Send entries to the configured collector",
    operation_id="sendAudit",
    status_code=200,
    opt=role(AuditVerbs.send_logs),
)
async def send_audit(data: JSONBody[SendLogs], verbs: NamedDependency["Verbs"]) -> Sent:
    return Sent(await verbs.audit.send_logs(data.run, data.since_us))


@get("/v1/tokens", summary="The named tokens", operation_id="listTokens", opt=role(TokenVerbs.list))
async def list_tokens(verbs: NamedDependency["Verbs"]) -> tuple[TokenInfo, ...]:
    return await verbs.tokens.list()


@post(
    "/v1/tokens", summary="Make a token", operation_id="newToken", status_code=201, opt=role(TokenVerbs.add)
)
async def new_token(data: JSONBody[NewToken], verbs: NamedDependency["Verbs"]) -> MadeToken:
    return await verbs.tokens.add(data.name, data.role)


@delete(
    "/v1/tokens/{name:str}", summary="Remove a token", operation_id="deleteToken", opt=role(TokenVerbs.remove)
)
async def delete_token(
    name: Annotated[str, PathParameter(description="A token's name.")], verbs: NamedDependency["Verbs"]
) -> None:
    await verbs.tokens.remove(name)


@get("/v1/models", summary="The local models", operation_id="listModels", opt=role(ModelVerbs.list))
async def list_models(verbs: NamedDependency["Verbs"]) -> tuple[LocalModel, ...]:
    return await verbs.models.list()


@post(
    "/v1/models/fetch",
    summary="Download a local model's file, or verify it",
    operation_id="fetchModel",
    status_code=200,
    opt=role(ModelVerbs.fetch),
)
async def fetch_model(
    data: JSONBody[FetchModel],
    verbs: NamedDependency["Verbs"],
    sockets: NamedDependency[Sockets],
    request: Request[Any, Any, State],
) -> Response[LocalModel]:
    if data.progress:
        return ProgressLines(lambda report: verbs.models.fetch(data.name, report), sockets.leaving)

    async def work() -> LocalModel:
        return await verbs.models.fetch(data.name)

    return Response(await while_wanted(request, sockets.leaving, work))


@delete(
    "/v1/models/{name:str}",
    summary="Remove a local model's file",
    operation_id="deleteModel",
    status_code=200,
    opt=role(ModelVerbs.remove),
)
async def delete_model(
    name: Annotated[str, PathParameter(description="A local model's name.")], verbs: NamedDependency["Verbs"]
) -> tuple[str, ...]:
    return await verbs.models.remove(name)


@post(
    "/v1/policy/layers",
    summary="The rules above a run, layer by layer",
    operation_id="listLayers",
    status_code=200,
    opt=reading(PolicyVerbs.layers),
)
async def list_layers(data: JSONBody[RuleContext], verbs: NamedDependency["Verbs"]) -> tuple[Layer, ...]:
    return await verbs.policy.layers(data)


@post(
    "/v1/policy/explain",
    summary="The decision about one action",
    operation_id="explainAction",
    status_code=200,
    opt=reading(PolicyVerbs.explain),
)
async def explain(data: JSONBody[Explain], verbs: NamedDependency["Verbs"]) -> Explained:
    return await verbs.policy.explain(data.action, data.context, untrusted=data.untrusted)


@post(
    "/v1/policy/test",
    summary="Run the tests of a policy file",
    operation_id="testPolicy",
    status_code=200,
    opt=reading(PolicyVerbs.test),
)
async def run_tests(
    data: JSONBody[PolicyTests], verbs: NamedDependency["Verbs"]
) -> tuple[PolicyVerdict, ...]:
    return await verbs.policy.test(data.text, data.source)


@get(
    "/v1/policy/sets/{name:str}",
    summary="The hosts of a named set",
    operation_id="getSet",
    opt=role(PolicyVerbs.sets),
)
async def get_set(
    name: Annotated[str, PathParameter(description="A set's name, e.g. pypi.")],
    verbs: NamedDependency["Verbs"],
    again: Annotated[bool, QueryParameter(description="Ask the package clients again.")] = False,
) -> Meaning:
    return await verbs.policy.sets(name, again=again)


ROUTES = (
    list_audit,
    list_checkpoints,
    verify_audit,
    get_key,
    rotate_key,
    send_audit,
    list_tokens,
    new_token,
    delete_token,
    list_models,
    fetch_model,
    delete_model,
    list_layers,
    explain,
    run_tests,
    get_set,
)
RECORDS = (
    AuditEntry,
    Checkpoint,
    Explain,
    Explained,
    FetchModel,
    Layer,
    LocalModel,
    MadeToken,
    Meaning,
    NewToken,
    PolicyVerdict,
    PublicKey,
    RuleContext,
    SendLogs,
    Sent,
    PolicyTests,
    TokenInfo,
    Verdict,
)
