"""Routes of trees and forks: look at a run's attempts, go on from a save point, compare."""

from typing import TYPE_CHECKING, Annotated

import msgspec
from litestar import delete, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter

from cloister.core.ids import RunId
from cloister.runs.attempts.compare import Compared
from cloister.runs.attempts.tree import TreeView
from cloister.runs.delivery import Removed
from cloister.server.auth import Caller
from cloister.server.routes.runs import SEQ_MAX, Admitted, Run

if TYPE_CHECKING:
    from cloister.app.wiring import App

Seq = Annotated[int, msgspec.Meta(ge=1, le=SEQ_MAX)]
Subject = Annotated[str, QueryParameter(description="A run, or an attempt of it: `RUN/K`.")]


class ForkRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new run that goes on from a save point."""

    at: Seq | None = None
    """The number of its event; else where the run's result, or its furthest work, stands."""
    prompt: str | None = None
    """What the new run is told there."""


class Rewind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Go on from an earlier save point."""

    to: Seq


class GoesOn(msgspec.Struct, frozen=True):
    """The run that goes on: the same one, or a fork of one that was finished."""

    id: RunId


@get("/v1/runs/{run:str}/tree", summary="The attempts of a run and their save points", operation_id="getTree")
async def get_tree(run: Run, app: NamedDependency["App"]) -> TreeView:
    return await app.tree(await app.backbone.resolve(run))


@post(
    "/v1/runs/{run:str}/fork",
    summary="Go on from a save point in a new run",
    operation_id="forkRun",
    status_code=201,
)
async def fork_run(
    run: Run, data: JSONBody[ForkRun], app: NamedDependency["App"], caller: NamedDependency[Caller]
) -> Admitted:
    caller.must_be("operator")
    found = await app.backbone.resolve(run)
    made, new = await app.fork(found, data.at, data.prompt, caller.name, caller.role)
    return Admitted(made, new)


@post(
    "/v1/runs/{run:str}/rewind",
    summary="Go on from an earlier save point",
    operation_id="rewindRun",
    status_code=200,
)
async def rewind_run(
    run: Run, data: JSONBody[Rewind], app: NamedDependency["App"], caller: NamedDependency[Caller]
) -> GoesOn:
    caller.must_be("operator")
    found = await app.backbone.resolve(run)
    return GoesOn(await app.rewind(found, data.to, caller.name, caller.role))


@get("/v1/compare", summary="Two runs or attempts side by side", operation_id="compare")
async def compare(a: Subject, b: Subject, app: NamedDependency["App"]) -> Compared:
    return await app.compare(a, b)


@delete(
    "/v1/runs/{run:str}",
    summary="Delete what a finished run keeps beside its log",
    operation_id="removeRun",
    status_code=200,
)
async def remove_run(run: Run, app: NamedDependency["App"], caller: NamedDependency[Caller]) -> Removed:
    return await app.remove(await app.backbone.resolve(run), caller.name)


ROUTES = (get_tree, fork_run, rewind_run, compare, remove_run)
