"""Routes of runs: submit, look, steer, branch, compare, hand over."""

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from litestar import MediaType, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody, PathParameter, QueryParameter

from cloister.app.verbs.api import RunVerbs
from cloister.app.verbs.records import Admitted, ChangePack, RunWish
from cloister.core.events import Event
from cloister.core.ids import RunId
from cloister.core.requests import Origin
from cloister.log.api import RunRow
from cloister.runs.attempts.compare import Compared
from cloister.runs.attempts.tree import TreeView
from cloister.runs.budget import BudgetReport
from cloister.runs.delivery import Removed
from cloister.runs.receipt import Receipt
from cloister.runs.view import RunView
from cloister.server.auth import role

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs

SEQ_MAX = 2**53
"""Beyond this JSON numbers are not exact everywhere."""

Run = Annotated[str, PathParameter(description="A run's id, or the start of one.")]
After = Annotated[int, QueryParameter(ge=0, le=SEQ_MAX, description="Only events with a greater `seq`.")]
Attempt = Annotated[
    int | None, QueryParameter(ge=0, le=1_000_000, description="Only what this attempt did and inherited.")
]
Seq = Annotated[int, msgspec.Meta(ge=1, le=SEQ_MAX)]
Subject = Annotated[str, QueryParameter(description="A run, or an attempt of it: `RUN/K`.")]
Text = Annotated[str, msgspec.Meta(max_length=4_096)]


class Say(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message to the run."""

    text: str
    origin: Origin = "user"
    """Where the text came from, if it is not the caller's own."""


class UseModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model that continues the run."""

    model: Text


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A person's answer to an `AskRaised` event."""

    ask: str
    answer: Literal["allow", "deny"]


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


class Applied(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the caller put the run's change."""

    where: Text
    branch: Text


@post(
    "/v1/runs",
    summary="Ask for a run",
    operation_id="newRun",
    status_code=201,
    opt=role(RunVerbs.submit),
    responses={
        200: ResponseSpec(Admitted, description="The same key: the run exists.", generate_examples=False)
    },
)
async def new_run(data: JSONBody[RunWish], verbs: NamedDependency["Verbs"]) -> Response[Admitted]:
    admitted = await verbs.runs.submit(data)
    return Response(admitted, status_code=201 if admitted.made else 200)


@get("/v1/runs", summary="The newest runs", operation_id="listRuns", opt=role(RunVerbs.list))
async def list_runs(
    verbs: NamedDependency["Verbs"], limit: Annotated[int, QueryParameter(ge=1, le=1_000)] = 100
) -> tuple[RunRow, ...]:
    return await verbs.runs.list(limit)


@get("/v1/runs/{run:str}", summary="One run as it stands", operation_id="getRun", opt=role(RunVerbs.view))
async def get_run(run: Run, verbs: NamedDependency["Verbs"]) -> RunView:
    return await verbs.runs.view(run)


@get(
    "/v1/runs/{run:str}/row",
    summary="One run as lists show it",
    operation_id="getRow",
    opt=role(RunVerbs.row),
)
async def get_row(run: Run, verbs: NamedDependency["Verbs"]) -> RunRow:
    return await verbs.runs.row(run)


@get(
    "/v1/runs/{run:str}/events",
    summary="The log of a run",
    operation_id="listEvents",
    opt=role(RunVerbs.events),
)
async def list_events(
    run: Run,
    verbs: NamedDependency["Verbs"],
    after: After = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=10_000)] = 1_000,
    attempt: Attempt = None,
) -> tuple[Event, ...]:
    return await verbs.runs.events(run, after, limit, attempt)


@get(
    "/v1/runs/{run:str}/diff",
    summary="The run's change as a unified diff",
    operation_id="getDiff",
    media_type=MediaType.TEXT,
    opt=role(RunVerbs.diff),
)
async def get_diff(run: Run, verbs: NamedDependency["Verbs"], attempt: Attempt = None) -> str:
    return await verbs.runs.diff(run, attempt)


@post(
    "/v1/runs/{run:str}/say",
    summary="Send the run a message",
    operation_id="say",
    status_code=200,
    opt=role(RunVerbs.say),
)
async def say(run: Run, data: JSONBody[Say], verbs: NamedDependency["Verbs"]) -> Event:
    return await verbs.runs.say(run, data.text, data.origin)


@post(
    "/v1/runs/{run:str}/stop",
    summary="Ask the run to stop",
    operation_id="stop",
    status_code=200,
    opt=role(RunVerbs.stop),
)
async def stop(run: Run, verbs: NamedDependency["Verbs"]) -> Event:
    return await verbs.runs.stop(run)


@post(
    "/v1/runs/{run:str}/model",
    summary="Continue the run with another model",
    operation_id="useModel",
    status_code=200,
    opt=role(RunVerbs.use_model),
)
async def use_model(run: Run, data: JSONBody[UseModel], verbs: NamedDependency["Verbs"]) -> Event:
    return await verbs.runs.use_model(run, data.model)


@post(
    "/v1/runs/{run:str}/answer",
    summary="Answer a question of the run",
    operation_id="answer",
    status_code=200,
    opt=role(RunVerbs.answer),
)
async def answer(run: Run, data: JSONBody[Answer], verbs: NamedDependency["Verbs"]) -> Event:
    return await verbs.runs.answer(run, data.ask, data.answer)


@get(
    "/v1/runs/{run:str}/tree",
    summary="The attempts of a run and their save points",
    operation_id="getTree",
    opt=role(RunVerbs.tree),
)
async def get_tree(run: Run, verbs: NamedDependency["Verbs"]) -> TreeView:
    return await verbs.runs.tree(run)


@post(
    "/v1/runs/{run:str}/fork",
    summary="Continue from a save point in a new run",
    operation_id="forkRun",
    status_code=201,
    opt=role(RunVerbs.fork),
)
async def fork_run(run: Run, data: JSONBody[ForkRun], verbs: NamedDependency["Verbs"]) -> Admitted:
    return await verbs.runs.fork(run, data.at, data.prompt)


@post(
    "/v1/runs/{run:str}/rewind",
    summary="Continue from an earlier save point",
    operation_id="rewindRun",
    status_code=200,
    opt=role(RunVerbs.rewind),
)
async def rewind_run(run: Run, data: JSONBody[Rewind], verbs: NamedDependency["Verbs"]) -> GoesOn:
    return GoesOn(await verbs.runs.rewind(run, data.to))


@get(
    "/v1/compare",
    summary="Two runs or attempts side by side",
    operation_id="compare",
    opt=role(RunVerbs.compare),
)
async def compare(a: Subject, b: Subject, verbs: NamedDependency["Verbs"]) -> Compared:
    return await verbs.runs.compare(a, b)


@delete(
    "/v1/runs/{run:str}",
    summary="Delete the files of a finished run; its log stays",
    operation_id="removeRun",
    status_code=200,
    opt=role(RunVerbs.remove),
)
async def remove_run(run: Run, verbs: NamedDependency["Verbs"]) -> Removed:
    return await verbs.runs.remove(run)


@get(
    "/v1/runs/{run:str}/change",
    summary="The run's change as a git pack",
    operation_id="getChange",
    opt=role(RunVerbs.change),
)
async def get_change(
    run: Run,
    verbs: NamedDependency["Verbs"],
    have: Annotated[str | None, QueryParameter(description="A commit that the caller has.")] = None,
) -> ChangePack:
    return await verbs.runs.change(run, have)


@post(
    "/v1/runs/{run:str}/applied",
    summary="Record that the caller applied the run's change",
    operation_id="applied",
    status_code=204,
    opt=role(RunVerbs.applied),
)
async def applied(run: Run, data: JSONBody[Applied], verbs: NamedDependency["Verbs"]) -> None:
    await verbs.runs.applied(run, data.where, data.branch)


@get(
    "/v1/runs/{run:str}/receipt",
    summary="What the run touched",
    operation_id="getReceipt",
    opt=role(RunVerbs.receipt),
)
async def get_receipt(run: Run, verbs: NamedDependency["Verbs"]) -> Receipt:
    return await verbs.runs.receipt(run)


@get(
    "/v1/runs/{run:str}/receipt/markdown",
    summary="What the run touched, as one page",
    operation_id="getReceiptPage",
    media_type=MediaType.TEXT,
    opt=role(RunVerbs.receipt_page),
)
async def get_receipt_page(run: Run, verbs: NamedDependency["Verbs"]) -> str:
    return await verbs.runs.receipt_page(run)


@get(
    "/v1/budget",
    summary="Limits and spending, level by level",
    operation_id="getBudget",
    opt=role(RunVerbs.budget),
)
async def get_budget(
    verbs: NamedDependency["Verbs"],
    run: Annotated[
        str | None, QueryParameter(description="A run: the levels it draws from, itself and its attempts.")
    ] = None,
) -> BudgetReport:
    return await verbs.runs.budget(run)


ROUTES = (
    new_run,
    list_runs,
    get_run,
    get_row,
    list_events,
    get_diff,
    say,
    stop,
    use_model,
    answer,
    get_tree,
    fork_run,
    rewind_run,
    compare,
    remove_run,
    get_change,
    applied,
    get_receipt,
    get_receipt_page,
    get_budget,
)
RECORDS = (
    Admitted,
    Answer,
    Applied,
    BudgetReport,
    ChangePack,
    Compared,
    Event,
    ForkRun,
    GoesOn,
    Receipt,
    Removed,
    Rewind,
    RunRow,
    RunView,
    RunWish,
    Say,
    TreeView,
    UseModel,
)
