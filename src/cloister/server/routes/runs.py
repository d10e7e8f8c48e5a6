"""Routes of runs: ask for one, look at it, speak to it."""

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import MediaType, Response, get, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody, PathParameter, QueryParameter

from cloister.core.events import Event
from cloister.core.ids import RunId
from cloister.core.requests import Budget, BudgetWish, NewRun, Origin
from cloister.log.api import RunRow
from cloister.runs.view import RunView
from cloister.runs.words.lines import EventWords
from cloister.runs.words.render import words
from cloister.server.auth import Caller

if TYPE_CHECKING:
    from cloister.app.wiring import App

SEQ_MAX = 2**53
"""Beyond this JSON numbers are not exact everywhere."""

Run = Annotated[str, PathParameter(description="A run's id, or the start of one.")]
After = Annotated[int, QueryParameter(ge=0, le=SEQ_MAX, description="Only events with a greater `seq`.")]


Attempt = Annotated[
    int | None, QueryParameter(ge=0, le=1_000_000, description="Only what this attempt did and inherited.")
]


class RunWish(NewRun, frozen=True, forbid_unknown_fields=True):
    """A request for a run, of whose budget only what differs from the usual one is said."""

    budget: BudgetWish = BudgetWish()  # pyright: ignore[reportIncompatibleVariableOverride]

    def new_run(self, usual: Budget) -> NewRun:
        """The request with all of its budget."""
        said: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        said["budget"] = self.budget.instead_of(usual, max(1, self.n, len(self.attempts)))
        return NewRun(**said)


class Admitted(msgspec.Struct, frozen=True):
    """A run that is durable."""

    id: RunId
    made: bool
    """False when the same `key` named this run before."""


class Say(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something to tell the run."""

    text: str
    origin: Origin = "user"
    """Where the text came from, if it is not the caller's own."""


class UseModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model that is to go on."""

    model: Annotated[str, msgspec.Meta(max_length=4_096)]


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A person's answer to an `AskRaised` event."""

    ask: str
    answer: Literal["allow", "deny"]


@post(
    "/v1/runs",
    summary="Ask for a run",
    operation_id="newRun",
    status_code=201,
    responses={
        200: ResponseSpec(Admitted, description="The same key: the run exists.", generate_examples=False)
    },
)
async def new_run(
    data: JSONBody[RunWish], app: NamedDependency["App"], caller: NamedDependency[Caller]
) -> Response[Admitted]:
    caller.must_be("operator")
    run, made = await app.submit(data.new_run(app.settings.file.budget), caller.name, caller.role)
    return Response(Admitted(run, made), status_code=201 if made else 200)


@get("/v1/runs", summary="The newest runs", operation_id="listRuns")
async def list_runs(
    app: NamedDependency["App"], limit: Annotated[int, QueryParameter(ge=1, le=1_000)] = 100
) -> tuple[RunRow, ...]:
    return await app.backbone.runs(limit)


@get("/v1/runs/{run:str}", summary="One run as it stands", operation_id="getRun")
async def get_run(run: Run, app: NamedDependency["App"]) -> RunView:
    return await app.view(await app.backbone.resolve(run))


@get("/v1/runs/{run:str}/events", summary="The log of a run", operation_id="listEvents")
async def list_events(
    run: Run,
    app: NamedDependency["App"],
    after: After = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=10_000)] = 1_000,
    attempt: Attempt = None,
) -> tuple[Event, ...]:
    found = await app.backbone.resolve(run)
    if attempt is None:
        return await app.backbone.read(found, after, limit)
    return tuple(event for event in await app.log(found, attempt) if event.seq > after)[:limit]


@get("/v1/runs/{run:str}/words", summary="The log of a run in words", operation_id="getWords")
async def get_words(
    run: Run,
    app: NamedDependency["App"],
    after: After = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=10_000)] = 1_000,
) -> tuple[EventWords, ...]:
    return tuple(islice(words(await app.events(await app.backbone.resolve(run)), after), limit))


@get(
    "/v1/runs/{run:str}/diff",
    summary="What the run changed, as a unified diff",
    operation_id="getDiff",
    media_type=MediaType.TEXT,
)
async def get_diff(run: Run, app: NamedDependency["App"], attempt: Attempt = None) -> str:
    return await app.diff(await app.backbone.resolve(run), attempt)


@post("/v1/runs/{run:str}/say", summary="Tell the run something", operation_id="say", status_code=200)
async def say(
    run: Run, data: JSONBody[Say], app: NamedDependency["App"], caller: NamedDependency[Caller]
) -> Event:
    caller.must_be("operator")
    return await app.say(await app.backbone.resolve(run), data.text, caller.name, data.origin)


@post("/v1/runs/{run:str}/stop", summary="Ask the run to stop", operation_id="stop", status_code=200)
async def stop(run: Run, app: NamedDependency["App"], caller: NamedDependency[Caller]) -> Event:
    caller.must_be("operator")
    return await app.stop(await app.backbone.resolve(run), caller.name)


@post(
    "/v1/runs/{run:str}/model",
    summary="Let another model go on with the run",
    operation_id="useModel",
    status_code=200,
)
async def use_model(
    run: Run, data: JSONBody[UseModel], app: NamedDependency["App"], caller: NamedDependency[Caller]
) -> Event:
    caller.must_be("operator")
    return await app.use_model(await app.backbone.resolve(run), data.model, caller.name)


@post(
    "/v1/runs/{run:str}/answer",
    summary="Answer a question of the run",
    operation_id="answer",
    status_code=200,
)
async def answer(
    run: Run, data: JSONBody[Answer], app: NamedDependency["App"], caller: NamedDependency[Caller]
) -> Event:
    caller.must_be("operator")
    found = await app.backbone.resolve(run)
    return await app.answer(found, data.ask, data.answer, caller.name, caller.role)


ROUTES = (new_run, list_runs, get_run, list_events, get_words, get_diff, say, stop, use_model, answer)
