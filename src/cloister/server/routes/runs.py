"""Routes of runs: submit, look, steer, branch, compare, hand over."""

from collections.abc import Iterator
from itertools import accumulate, islice
from typing import Annotated, Any, Literal

import msgspec
from litestar import MediaType, Request, Response, delete, get, post, put
from litestar.datastructures import State as RequestState
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter, JSONBody, PathParameter, QueryParameter

from cloister.app.triggers import check_key
from cloister.app.verbs.api import RunVerbs, SandboxVerbs
from cloister.app.verbs.records import Admitted, ChangePack, ForgeCheck, RunWish
from cloister.core.errors import UserError
from cloister.core.events import ChangeDelivered, Event
from cloister.core.ids import RunId
from cloister.core.limits import IMAGE_BYTES
from cloister.core.requests import Attachment, Origin, Outcome, State, sniffed
from cloister.log.api import Latency, RunCount, RunRow
from cloister.runs.attempts.compare import Compared
from cloister.runs.attempts.tree import TreeView
from cloister.runs.attempts.why import LineOrigin
from cloister.runs.budget import BudgetReport
from cloister.runs.delivery import Removal, Removed
from cloister.runs.event_text.lines import EventWords
from cloister.runs.event_text.render import words
from cloister.runs.receipt import Receipt
from cloister.runs.view import RunView
from cloister.server.bodies import body_of, read_on_after_errors
from cloister.server.messages import SEQ_MAX, Seq, Text
from cloister.server.routes import Given, Wait, of

Run = Annotated[str, PathParameter(description="A run's id, or the start of one.")]
After = Annotated[int, QueryParameter(ge=0, le=SEQ_MAX, description="Only events with a greater `seq`.")]
Before = Annotated[
    int | None,
    QueryParameter(
        ge=1, le=SEQ_MAX, description="The last events with a smaller `seq`, in the order of the log."
    ),
]
Attempt = Annotated[
    int | None, QueryParameter(ge=0, le=1_000_000, description="Only what this attempt did and inherited.")
]
At = Annotated[
    int | None, QueryParameter(ge=0, le=SEQ_MAX, description="The files as they were at this save point.")
]
Once = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key", description="The caller's id of the message: sent again, it is done once."
    ),
]
Subject = Annotated[str, QueryParameter(description="A run, or an attempt of it: `RUN/K`.")]


class Say(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message to the run."""

    text: str
    origin: Origin = "user"
    """Where the text came from, if it is not the caller's own."""
    attachments: tuple[Attachment, ...] = ()
    """As `PUT /v1/attachments` answered."""


class UseModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model that continues the run."""

    model: Text


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A person's answer to an `AskRaised` event."""

    answer: Literal["allow", "deny"]
    ask: str | None = None
    """Its id; not needed while one question is open."""


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A person's answer to a question of the model, a `QuestionAsked` event."""

    text: str
    question: str | None = None
    """Its id; not needed while one question is open."""


class ForkRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new run from a save point."""

    at: Seq | None = None
    """The number of its event; else the save point of the run's result, or of its furthest work."""
    prompt: str | None = None
    """A message to the new run at that point."""


class Rewind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Continue from an earlier save point."""

    to: Seq


class GoesOn(msgspec.Struct, frozen=True):
    """The run that continues: the same one, or a fork of a finished one."""

    id: RunId


class OfRepository(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which repository of a run on several."""

    folder: Text | None = None


Folder = Annotated[
    str | None,
    QueryParameter(description="The folder of one repository, if the run has several.", max_length=100),
]


class Applied(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the caller put the run's change."""

    where: Text
    branch: Text


@post(
    "/v1/runs",
    **of(RunVerbs.submit, "Ask for a run", "newRun", 201),
    responses={
        200: ResponseSpec(Admitted, description="The same key: the run exists.", generate_examples=False)
    },
)
async def new_run(
    data: JSONBody[RunWish],
    verbs: Given,
    idempotency_key: Annotated[
        str | None,
        HeaderParameter(name="Idempotency-Key", description="The `key` of the request, as a header."),
    ] = None,
) -> Response[Admitted]:
    if idempotency_key is not None:
        if data.key not in (None, idempotency_key):
            raise UserError("bad_request", "The header Idempotency-Key and the field key differ: send one.")
        data = msgspec.structs.replace(data, key=idempotency_key)
    check_key(data.key)
    admitted = await verbs.runs.submit(data)
    return Response(admitted, status_code=201 if admitted.made else 200)


@put(
    "/v1/attachments",
    **of(RunVerbs.attach, "Store a picture or a text file for a prompt", "attach", 200),
    request_max_body_size=None,
)
async def attach(
    verbs: Given,
    request: Request[Any, Any, RequestState],
    name: Annotated[str, QueryParameter(min_length=1, max_length=1_000, description="The name of the file.")],
) -> Attachment:
    data = bytearray()
    async with read_on_after_errors(request):
        async for piece in body_of(request):
            data += piece
            if len(data) > IMAGE_BYTES:
                raise UserError("attachment_too_large", f"At most {IMAGE_BYTES:,} bytes can be attached.")
        return await verbs.runs.attach(name, bytes(data))


_ALONE = {
    "content-security-policy": "default-src 'none'; sandbox",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "private, max-age=86400, immutable",
}


@get(
    "/v1/runs/{run:str}/attachments/{sha256:str}",
    **of(RunVerbs.attachment, "The bytes of an attachment of a prompt", "getAttachment"),
    media_type="application/octet-stream",
)
async def get_attachment(
    run: Run, sha256: Annotated[str, PathParameter(description="Its hash.")], verbs: Given
) -> Response[bytes]:
    data = await verbs.runs.attachment(run, sha256)
    kind = sniffed(data) or "text/plain"
    shown = "attachment" if kind == "text/plain" else "inline"
    return Response(data, media_type=kind, headers={**_ALONE, "content-disposition": shown})


@get("/v1/runs", **of(RunVerbs.list, "The newest runs", "listRuns"))
async def list_runs(  # noqa: PLR0913  (each parameter is one of the query)
    verbs: Given,
    limit: Annotated[int, QueryParameter(ge=1, le=1_000)] = 100,
    before: Annotated[str | None, QueryParameter(description="The last run of the page before.")] = None,
    which: Annotated[
        State | None, QueryParameter(name="state", description="Only runs in this state.")
    ] = None,
    outcome: Annotated[Outcome | None, QueryParameter(description="Only runs that ended so.")] = None,
    repo: Annotated[str | None, QueryParameter(description="Only runs of this repository.")] = None,
    who: Annotated[str | None, QueryParameter(description="Only runs that this person started.")] = None,
) -> tuple[RunRow, ...]:
    return await verbs.runs.list(limit, before, which, outcome, repo, who)


class Collect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether to remove, or only to say what would be removed."""

    dry_run: bool = False


@post("/v1/gc", **of(RunVerbs.gc, "Remove what is older than the settings keep", "collect", 200))
async def collect(data: JSONBody[Collect], verbs: Given, wait: Wait) -> tuple[Removal, ...]:
    return await wait(verbs.runs.gc(data.dry_run))


@get("/v1/counts", **of(RunVerbs.counts, "How many runs are in each state", "countRuns"))
async def count_runs(verbs: Given) -> tuple[RunCount, ...]:
    return await verbs.runs.counts()


@get(
    "/v1/metrics",
    **of(SandboxVerbs.list, "Numbers for a monitor, in the text format of Prometheus", "metrics"),
    media_type="text/plain; version=0.0.4",
)
async def metrics(verbs: Given, latency: NamedDependency[Latency]) -> str:
    counts = await verbs.runs.counts()
    asking = sum(row.asks > 0 for row in await verbs.runs.list(1_000, state="running"))
    runs = [
        f'cloister_runs{{state="{each.state}",outcome="{each.outcome or ""}"}} {each.runs}' for each in counts
    ]
    lines = [
        "# HELP cloister_runs Runs in the log, by state and outcome.",
        "# TYPE cloister_runs gauge",
        *runs,
        "# HELP cloister_runs_asking Runs that wait for the answer of a person.",
        "# TYPE cloister_runs_asking gauge",
        f"cloister_runs_asking {asking}",
        "# HELP cloister_sandboxes Sandboxes made by hand that live.",
        "# TYPE cloister_sandboxes gauge",
        f"cloister_sandboxes {len(await verbs.sandboxes.list())}",
        "# HELP cloister_log_write_seconds From the call of a write to the log until it is durable.",
        "# TYPE cloister_log_write_seconds histogram",
        *_histogram("cloister_log_write_seconds", latency),
        *_counters(latency),
    ]
    return "\n".join(lines) + "\n"


_COUNTED = {
    "attempts": ("Attempts that runs have started.", ("started",)),
    "model_calls": ("Requests to models.", ("ok", "failed")),
    "tool_calls": ("Tool calls of models.", ("ok", "failed")),
    "door": ("Decisions about connections and requests of sandboxes.", ("allow", "deny")),
}


def _counters(latency: Latency) -> Iterator[str]:
    for name, (about, results) in _COUNTED.items():
        yield f"# HELP cloister_{name}_total {about} Since this server started."
        yield f"# TYPE cloister_{name}_total counter"
        for result in results:
            yield f'cloister_{name}_total{{result="{result}"}} {latency.done[name, result]}'


def _histogram(name: str, latency: Latency) -> Iterator[str]:
    sums = list(accumulate(latency.counts))
    for bound, count in zip((*map(str, latency.BOUNDS), "+Inf"), sums, strict=True):
        yield f'{name}_bucket{{le="{bound}"}} {count}'
    yield f"{name}_sum {latency.seconds:.6f}"
    yield f"{name}_count {sums[-1]}"


@get("/metrics", include_in_schema=False, media_type="text/plain; version=0.0.4", **of(SandboxVerbs.list))
async def usual_metrics(verbs: Given, latency: NamedDependency[Latency]) -> str:
    return await metrics.fn(verbs, latency)


@get("/v1/runs/{run:str}", **of(RunVerbs.view, "One run as it stands", "getRun"))
async def get_run(run: Run, verbs: Given) -> RunView:
    return await verbs.runs.view(run)


@get("/v1/runs/{run:str}/row", **of(RunVerbs.row, "One run as lists show it", "getRow"))
async def get_row(
    run: Run,
    verbs: Given,
    told: Annotated[
        bool, QueryParameter(description="False leaves out what takes a look at the log.")
    ] = True,
) -> RunRow:
    return await verbs.runs.row(run, told=told)


@get("/v1/runs/{run:str}/events", **of(RunVerbs.events, "The log of a run", "listEvents"))
async def list_events(
    run: Run,
    verbs: Given,
    after: After = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=10_000)] = 1_000,
    attempt: Attempt = None,
    before: Before = None,
) -> tuple[Event, ...]:
    return await verbs.runs.events(run, after, limit, attempt, before)


@get("/v1/runs/{run:str}/words", **of(RunVerbs.events, "The log of a run in words", "getWords"))
async def get_words(
    run: Run,
    verbs: Given,
    after: After = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=10_000)] = 1_000,
) -> tuple[EventWords, ...]:
    return tuple(islice(words(await verbs.runs.events(run), after), limit))


@get(
    "/v1/runs/{run:str}/diff",
    **of(RunVerbs.diff, "The run's change as a unified diff", "getDiff"),
    media_type=MediaType.TEXT,
)
async def get_diff(run: Run, verbs: Given, attempt: Attempt = None, at: At = None) -> str:
    return await verbs.runs.diff(run, attempt, at)


@post("/v1/runs/{run:str}/say", **of(RunVerbs.say, "Send the run a message", "say", 200))
async def say(run: Run, data: JSONBody[Say], verbs: Given, key: Once = None) -> Event:
    return await verbs.runs.say(run, data.text, data.origin, key, data.attachments)


@post("/v1/runs/{run:str}/rebase", **of(RunVerbs.rebase, "Replay the change on a moved base", "rebase", 200))
async def rebase(run: Run, verbs: Given) -> Event:
    return await verbs.runs.rebase(run)


@post("/v1/runs/{run:str}/stop", **of(RunVerbs.stop, "Ask the run to stop", "stop", 200))
async def stop(run: Run, verbs: Given, key: Once = None) -> Event:
    return await verbs.runs.stop(run, key)


@post("/v1/runs/{run:str}/pause", **of(RunVerbs.pause, "Wait before the next step", "pause", 200))
async def pause(run: Run, verbs: Given, key: Once = None) -> Event:
    return await verbs.runs.pause(run, key)


@post("/v1/runs/{run:str}/resume", **of(RunVerbs.resume, "Let a paused run go on", "resume", 200))
async def resume(run: Run, verbs: Given, key: Once = None) -> Event:
    return await verbs.runs.resume(run, key)


@post("/v1/runs/{run:str}/interrupt", **of(RunVerbs.interrupt, "Stop the current step", "interrupt", 200))
async def interrupt(run: Run, verbs: Given, key: Once = None) -> Event:
    return await verbs.runs.interrupt(run, key)


@post(
    "/v1/runs/{run:str}/model",
    **of(RunVerbs.use_model, "Continue the run with another model", "useModel", 200),
)
async def use_model(run: Run, data: JSONBody[UseModel], verbs: Given, key: Once = None) -> Event:
    return await verbs.runs.use_model(run, data.model, key)


@post("/v1/runs/{run:str}/answer", **of(RunVerbs.answer, "Answer a question of the run", "answer", 200))
async def answer(run: Run, data: JSONBody[Answer], verbs: Given, key: Once = None) -> Event:
    return await verbs.runs.answer(run, data.ask, data.answer, key)


@post(
    "/v1/runs/{run:str}/questions", **of(RunVerbs.reply, "Answer a question of the model", "replyToRun", 200)
)
async def reply(run: Run, data: JSONBody[Reply], verbs: Given, key: Once = None) -> Event:
    return await verbs.runs.reply(run, data.question, data.text, key)


@get("/v1/runs/{run:str}/tree", **of(RunVerbs.tree, "The attempts of a run and their save points", "getTree"))
async def get_tree(run: Run, verbs: Given) -> TreeView:
    return await verbs.runs.tree(run)


@post(
    "/v1/runs/{run:str}/fork", **of(RunVerbs.fork, "Continue from a save point in a new run", "forkRun", 201)
)
async def fork_run(run: Run, data: JSONBody[ForkRun], verbs: Given, key: Once = None) -> Admitted:
    return await verbs.runs.fork(run, data.at, data.prompt, key)


@post(
    "/v1/runs/{run:str}/rewind",
    **of(RunVerbs.rewind, "Continue from an earlier save point", "rewindRun", 200),
)
async def rewind_run(run: Run, data: JSONBody[Rewind], verbs: Given, key: Once = None) -> GoesOn:
    return GoesOn(await verbs.runs.rewind(run, data.to, key))


@get("/v1/runs/{run:str}/why", **of(RunVerbs.why, "The turn that wrote a line", "getWhy"))
async def get_why(
    run: Run,
    verbs: Given,
    path: Annotated[str, QueryParameter(description="A file of the result.", min_length=1, max_length=4_096)],
    line: Annotated[int, QueryParameter(description="From 1.", ge=1, le=10_000_000)],
) -> LineOrigin:
    return await verbs.runs.why(run, path, line)


@get("/v1/compare", **of(RunVerbs.compare, "Two runs or attempts side by side", "compare"))
async def compare(a: Subject, b: Subject, verbs: Given) -> Compared:
    return await verbs.runs.compare(a, b)


@delete(
    "/v1/runs/{run:str}",
    **of(RunVerbs.remove, "Delete the files of a finished run; its log stays", "removeRun", 200),
)
async def remove_run(run: Run, verbs: Given) -> Removed:
    return await verbs.runs.remove(run)


@get("/v1/runs/{run:str}/change", **of(RunVerbs.change, "The run's change as a git pack", "getChange"))
async def get_change(
    run: Run,
    verbs: Given,
    have: Annotated[str | None, QueryParameter(description="A commit that the caller has.")] = None,
    folder: Folder = None,
) -> ChangePack:
    return await verbs.runs.change(run, have, folder)


@post(
    "/v1/runs/{run:str}/applied",
    **of(RunVerbs.applied, "Record that the caller applied the run's change", "applied", 204),
)
async def applied(run: Run, data: JSONBody[Applied], verbs: Given) -> None:
    await verbs.runs.applied(run, data.where, data.branch)


@post(
    "/v1/runs/{run:str}/pull-request",
    **of(
        RunVerbs.pull_request, "Open or update a pull request with the run's change", "openPullRequest", 200
    ),
)
async def open_pull_request(
    run: Run, verbs: Given, data: JSONBody[OfRepository | None] = None
) -> ChangeDelivered:
    return await verbs.runs.pull_request(run, data.folder if data else None)


@get(
    "/v1/forge/repositories",
    **of(RunVerbs.repositories, "Repositories at a forge, by a pattern", "findRepositories"),
)
async def find_repositories(
    verbs: Given,
    pattern: Annotated[str, QueryParameter(description="`host/owner/pattern`, such as `github.com/acme/*`.")],
) -> tuple[str, ...]:
    return await verbs.runs.repositories(pattern)


@get("/v1/forge", **of(RunVerbs.check_forge, "Whether pull requests can be opened", "checkForge"))
async def check_forge(
    verbs: Given,
    repo: Annotated[str, QueryParameter(description="A repository's address, or a directory.", min_length=1)],
) -> ForgeCheck:
    return await verbs.runs.check_forge(repo)


@get("/v1/runs/{run:str}/receipt", **of(RunVerbs.receipt, "What the run touched", "getReceipt"))
async def get_receipt(run: Run, verbs: Given) -> Receipt:
    return await verbs.runs.receipt(run)


@get(
    "/v1/runs/{run:str}/receipt/markdown",
    **of(RunVerbs.receipt_page, "What the run touched, as one page", "getReceiptPage"),
    media_type=MediaType.TEXT,
)
async def get_receipt_page(
    run: Run,
    verbs: Given,
    delivered: Annotated[
        bool, QueryParameter(description="The receipt that the newest commit names by its hash.")
    ] = False,
) -> str:
    return await verbs.runs.receipt_page(run, delivered)


@get("/v1/budget", **of(RunVerbs.budget, "Limits and spending, level by level", "getBudget"))
async def get_budget(
    verbs: Given,
    run: Annotated[
        str | None, QueryParameter(description="A run: the levels it draws from, itself and its attempts.")
    ] = None,
) -> BudgetReport:
    return await verbs.runs.budget(run)
