"""Chooses and opens the models for the roles of one run."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import get_args

import anyio
import msgspec
from anyio import to_thread
from anyio.abc import TaskGroup, TaskStatus

from cloister.core.addresses import repository_matches
from cloister.core.errors import CloisterError, OutsideError, UserError, sole
from cloister.core.model_config import ModelEntry, ModelRoutes, RoleModels
from cloister.core.requests import Usage
from cloister.model.api import (
    Failure,
    Model,
    Models,
    NoModels,
    Reply,
    Request,
    Role,
    TextDelta,
    blind,
    single,
)
from cloister.model.catalog import cost, load_prices, sees, window
from cloister.model.names import Access, choose, open_model


@dataclass(frozen=True, slots=True)
class Job:
    """The facts about a run that decide its models."""

    repo: str
    model: str | None = None
    """The model in the request, which is then used for `code`."""
    kind: str | None = None
    """The kind of task in the request."""


def chain(routes: ModelRoutes, role: Role, job: Job) -> tuple[str | None, ...]:
    """The names for `role`, best first; None means this machine's default. Pure, never empty.

    The kind of task takes precedence over the repository, and that over the rest of the table. A model in the
    request is used for `code` and for every role that no table names.
    """
    tables = _tables(routes, job)
    wanted: tuple[Role, ...] = ("code",) if role == "code" else (role, "code")
    for one in wanted:
        if one == "code" and job.model is not None:
            return (job.model,)
        for table in tables:
            if names := _names(table, one):
                return names
    return (None,)


def _tables(routes: ModelRoutes, job: Job) -> list[RoleModels]:
    tables = [routes.kind[job.kind]] if job.kind is not None and job.kind in routes.kind else []
    found = next((table for table in routes.repository if repository_matches(table.match, job.repo)), None)
    return [*tables, *([found] if found is not None else []), routes]


def _names(table: RoleModels, role: Role) -> tuple[str, ...]:
    names: str | tuple[str, ...] | None = getattr(table, role)
    return (names,) if isinstance(names, str) else names or ()


def chosen(access: Access, role: Role, job: Job) -> tuple[str, ...]:
    """As `chain`, with full names. Skips names without a key or URL if any other is left. Raises as `choose`."""
    names, unusable = _sorted_out(access, role, job)
    if not names:
        raise next(iter(unusable.values()))
    return names


def check_roles(access: Access, job: Job) -> None:
    """Check before a run that every role in the settings has a usable model. Raises as `choose`."""
    chosen(access, "code", job)
    for role in get_args(Role):
        try:
            chosen(access, role, job)
        except UserError as error:
            raise UserError(error.code, f"For the role {role}: {error.message}") from None


def skipped(access: Access, role: Role, job: Job) -> dict[str, str]:
    """The names that `chosen` skips, each with the reason. Raises as `choose`."""
    names, unusable = _sorted_out(access, role, job)
    return {name: error.message for name, error in unusable.items()} if names else {}


def _sorted_out(access: Access, role: Role, job: Job) -> tuple[tuple[str, ...], dict[str, UserError]]:
    names: dict[str, None] = {}
    unusable: dict[str, UserError] = {}
    for name in chain(access.routes, role, job):
        try:
            names[choose(name, access)] = None
        except UserError as error:
            if error.code not in ("no_key", "no_model_url") or name is None:
                raise
            unusable[name] = error
    return tuple(names), unusable


@asynccontextmanager
async def open_models(access: Access, job: Job) -> AsyncGenerator[Models]:
    """Open the models of one run; leaving the block closes them.

    Opens the first choice for `code` immediately if it has no alternative, and then raises as `open_model`.
    """
    try:
        async with anyio.create_task_group() as tasks:
            models = _Models(access, job, _Shelf(access, tasks))
            names = models.chain("code")
            if len(names) == 1:
                await models.open(names[0])
            yield models
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise sole(group) from None  # the error of the caller, or of opening a model


NO_MODEL_CALLS = "This run calls no model: its harness searches by rules and tests."


@asynccontextmanager
async def open_no_models() -> AsyncGenerator[Models]:
    """The models of a run whose harness calls none."""
    yield NoModels(NO_MODEL_CALLS)


class _Shelf:
    """Opened models by full name. A task for each opens and closes it."""

    def __init__(self, access: Access, tasks: TaskGroup) -> None:
        self.access = access
        self._tasks = tasks
        self._opened: dict[str, Model] = {}
        self._locks: dict[str, anyio.Lock] = {}

    def opened(self, name: str) -> Model | None:
        return self._opened.get(name)

    async def open(self, name: str) -> Model:
        async with self._locks.setdefault(name, anyio.Lock()):
            if name not in self._opened:
                self._opened[name] = await self._tasks.start(self._hold, name)
            return self._opened[name]

    async def _hold(self, name: str, *, task_status: TaskStatus[Model]) -> None:
        async with open_model(name, self.access) as model:
            await to_thread.run_sync(load_prices, name)
            task_status.started(model)
            await anyio.sleep_forever()


class _Models:
    def __init__(self, access: Access, job: Job, shelf: _Shelf) -> None:
        self._access = access
        self._job = job
        self._shelf = shelf

    def role(self, role: Role) -> Model:
        return self.named(self.chain(role)[0])

    def chain(self, role: Role) -> tuple[str, ...]:
        return chosen(self._access, role, self._job)

    def named(self, name: str) -> Model:
        return _Later(choose(name, self._access), self._shelf)

    def instead(self, name: str) -> Models:
        full = choose(name, self._access)
        return _Models(self._access, Job(self._job.repo, full, self._job.kind), self._shelf)

    def window(self, name: str) -> int | None:
        return window(self._really(name), self._access.routes.entry, self._access.shelf)

    def cost(self, name: str, usage: Usage) -> float | None:
        return cost(self._really(name), usage, self._access.routes.entry)

    def _really(self, name: str) -> str:
        """The full name; for a model that its server names, that name once it is known."""
        full = choose(name, self._access)
        opened = self._shelf.opened(full)
        return full if opened is None or full in self._access.routes.entry else opened.name

    async def open(self, name: str) -> Model:
        return await self._shelf.open(name)


class _Later:
    """A model that is opened on first use. If it cannot be opened, the call fails."""

    def __init__(self, name: str, shelf: _Shelf) -> None:
        self._name = name
        self._shelf = shelf

    @property
    def name(self) -> str:
        opened = self._shelf.opened(self._name)
        return self._name if opened is None else opened.name

    @property
    def _entries(self) -> Mapping[str, ModelEntry]:
        return self._shelf.access.routes.entry

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[TextDelta | Reply | Failure]]:
        try:
            model = await self._shelf.open(self._name)
        except CloisterError as error:
            yield single(_failure(error))
            return
        if not (sees(self._name, self._entries) or sees(model.name, self._entries)):
            request = blind(request)
        async with model.stream(request) as items, aclosing(self._priced(items, model.name)) as priced:
            yield priced

    async def _priced(
        self, items: AsyncIterator[TextDelta | Reply | Failure], name: str
    ) -> AsyncGenerator[TextDelta | Reply | Failure]:
        async for item in items:
            if isinstance(item, Reply):
                yield msgspec.structs.replace(
                    item, cost=cost(name, item.usage, self._shelf.access.routes.entry)
                )
            else:
                yield item


def _failure(error: CloisterError) -> Failure:
    match error:
        case OutsideError():
            return Failure("network", error.message, retryable=error.retryable)
        case UserError(code="no_key"):
            return Failure("auth", error.message)
        case _:
            return Failure("bad_request", error.message)
