"""The composition root: Settings to wired objects, as one async context manager."""

import errno
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio

from cloister.agent.budget.purse import NoLedger
from cloister.app.config import (
    calls_models,
    harness_for,
    host_policy,
    job_of,
    model_access,
    model_shelf,
    rule_files,
)
from cloister.app.settings import Settings
from cloister.app.workbench.commands import Commands, open_commands
from cloister.app.workbench.sandboxes import Sandboxes, open_sandboxes
from cloister.core.diagnosis import Diagnosis
from cloister.core.errors import CloisterError, HostError
from cloister.core.events import Event, PromptReceived
from cloister.core.ids import Lease, OwnerId, RunId, SandboxId, new_owner_id
from cloister.core.log import Journal
from cloister.core.requests import NewRun
from cloister.egress.credentials import Vault, read_credentials
from cloister.egress.factory import Doorway, Outfit, Through
from cloister.egress.model_endpoint import serve as endpoint
from cloister.egress.packages import SetFinder
from cloister.egress.rules import DoorEvent, Record
from cloister.forge import Forges
from cloister.forge.host import LocalRepositories
from cloister.log.api import AuditLog, Backbone
from cloister.log.audit.details import fact
from cloister.log.audit.export import CURSOR_FILE, Collector, HeadExport, check_endpoint, check_place, ship
from cloister.log.audit.head import HeadFile
from cloister.log.sqlite.backbone import open_backbone
from cloister.model.local.host import LocalHost, open_local_host
from cloister.model.roles import open_models, open_no_models, skipped
from cloister.policy.api import Policy
from cloister.runs.budget import BudgetLedger
from cloister.runs.delivery import SavePointCollector
from cloister.runs.driver import drive_run
from cloister.runs.environments.layers import Prepared, set_up_repository
from cloister.runs.services import RunServices
from cloister.runs.supervisor import Look, Supervisor, open_supervisor
from cloister.runs.templates import Warming, Workshop, repositories
from cloister.sandbox._spawn import allow_many_files
from cloister.sandbox.api import Host, Report
from cloister.sandbox.liveness import Owners
from cloister.sandbox.local.provider import Choices, local_provider
from cloister.sandbox.pool import Pool, open_pool
from cloister.sandbox.providers import Providers
from cloister.sandbox.store.api import Shortage
from cloister.sandbox.templates.catalog import Templates
from cloister.system.locks import take

LAST_HEAD_SECONDS = 3.0
"""How long the end of a process waits for the export of the last signed head."""

Role = Literal["server", "embedded"]


@dataclass(frozen=True, slots=True)
class App:
    """The open parts of one process; `cloister.app.verbs.local` does the work with them."""

    settings: Settings
    owner: OwnerId
    backbone: Backbone
    host: Providers
    pool: Pool
    sandboxes: Sandboxes
    commands: Commands
    supervisor: Supervisor
    workshop: Workshop
    set_up: Callable[[NewRun, Report, str], Awaitable[tuple[Prepared, tuple[Diagnosis, ...]]]]
    """Builds and checks the environment of a repository."""


async def whole_log(backbone: Backbone, run: RunId) -> tuple[Event, ...]:
    """The whole log of a run, page by page."""
    events: tuple[Event, ...] = ()
    while page := await backbone.read(run, after=len(events)):
        events += page
    return events


def _doorway(settings: Settings, policy: Policy, log: AuditLog) -> tuple[Doorway, Outfit]:
    """The factory of proxies, and the setup of sandboxes made by hand: the same rules, recorded in the audit."""
    credentials = read_credentials(settings.file.credential, str(settings.config_path))
    doorway = Doorway(
        settings.file.door, credentials, Vault(settings.variables), SetFinder(settings.data_dir).find
    )

    no_models = {endpoint.HOST: endpoint.Endpoint(lambda _: None).serve}
    return doorway, doorway.outfit(policy, _audited(settings, log), inside=no_models)


def _audited(settings: Settings, log: AuditLog) -> Record:
    """Enters the connections of sandboxes that belong to no run into the audit."""

    async def record(sandbox: SandboxId, body: DoorEvent) -> None:
        if stated := fact(body):
            await log.note(stated.kind, settings.user, stated.detail)

    return record


def _workshop(settings: Settings, templates: Templates, host: Host, doorway: Doorway) -> Workshop:
    names = frozenset(one.name for one in doorway.credentials)
    at = repositories(settings.data_dir)
    forges = Forges()
    if settings.file.forge:
        from cloister.app.forges import forge_places  # loads an HTTP client

        forges = Forges(places=forge_places(settings, doorway.vault))
    return Workshop(templates, host, forges, None, settings.file.quota, at, credentials=names)


def _collector(settings: Settings, backbone: Backbone) -> SavePointCollector:
    repositories = LocalRepositories(settings.data_dir)
    return SavePointCollector(
        backbone, partial(whole_log, backbone), repositories, settings.file.save_points, settings.user
    )


@asynccontextmanager
async def _followed(
    settings: Settings, services: RunServices, backbone: Backbone, supervisor: Supervisor
) -> AsyncGenerator[None]:
    """Follow the pull requests of runs while the block lasts, if the settings name a forge."""

    async def tell(run: RunId, prompt: PromptReceived) -> None:
        await services.repositories.open(run)
        await backbone.append_outside(run, prompt)
        supervisor.drive(run)

    if not settings.file.forge or not settings.file.follow_seconds:
        yield
        return
    from cloister.runs.follow_up import Follower  # loads an HTTP client

    marks, seconds = settings.data_dir / "pull-requests.json", settings.file.follow_seconds
    follower = Follower(services.forges, backbone, services.log, tell, settings.user, marks, seconds)
    async with _background(follower.run):
        yield


@contextmanager
def _server_lock(data_dir: Path) -> Generator[None]:
    try:
        descriptor = take(data_dir / "server.lock", create=True)
    except BlockingIOError:
        raise HostError(
            "server_running",
            f"A server already runs on {data_dir}: use it, or stop it with `cloister serve --stop`.",
        ) from None
    # A client compares it with the announcement, which may be a dead server's.
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    try:
        yield
    finally:
        os.close(descriptor)


def make_data_dir(data_dir: Path) -> None:
    """Make the directory, for its owner only. Raises `HostError` (`no_data_dir`) when it cannot be used."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        (data_dir / "owners").mkdir(exist_ok=True, mode=0o700)
        if not os.access(data_dir / "owners", os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise HostError(
            "no_data_dir",
            f"The data directory {data_dir} cannot be used ({error.strerror}): choose another with --data-dir.",
        ) from None


@asynccontextmanager
async def _background(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncGenerator[None]:
    """Run `work` while the block lasts."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def _exported(settings: Settings, log: AuditLog) -> AsyncGenerator[None]:
    """Send the audit to the configured collector, if any, while the block lasts."""
    if settings.file.otlp_endpoint is None:
        yield
        return
    collector = Collector(check_endpoint(settings.file.otlp_endpoint), settings.otlp_headers)
    async with _background(partial(ship, log, settings.data_dir / CURSOR_FILE, collector)):
        yield


def _look(host: Providers, pool: Pool) -> Look:
    """How to look for a lack of disk. Idle sandboxes end then: they take space, and keep a broken store mounted."""

    async def look() -> Shortage | None:
        short = await host.shortage()
        if short is not None and short.full:
            pool.drop()
        return short

    return look


@asynccontextmanager
async def _heads_exported(settings: Settings) -> AsyncGenerator[None]:
    """Send the signed heads of the audit to the configured places while the block lasts, and once at its end."""
    places = tuple(map(check_place, settings.file.audit_heads))
    if not places:
        yield
        return
    export = HeadExport(HeadFile(settings.log_path).read, settings.data_dir, places)
    try:
        async with _background(export.run):
            yield
    finally:
        with anyio.move_on_after(LAST_HEAD_SECONDS, shield=True), suppress(CloisterError, OSError):
            await export.step()


def _services(  # noqa: PLR0913  (each is one part of the machine)
    settings: Settings,
    host: Host,
    warming: Warming,
    doorway: Doorway,
    backbone: Backbone,
    ledger: BudgetLedger,
    local: LocalHost,
    look: Look,
) -> RunServices:
    """The services that driving a run needs."""
    access = replace(model_access(settings), local=local)
    return RunServices(
        data_dir=settings.data_dir,
        repositories=LocalRepositories(settings.data_dir),
        host=host,
        warming=warming,
        forges=warming.workshop.forges,
        models=lambda new: (
            open_models(access, job_of(new)) if calls_models(access, new) else open_no_models()
        ),
        harness=partial(harness_for, access),
        author=settings.file.author,
        people=settings.file.people,
        kinds=tuple(settings.file.models.kind),
        rules=rule_files(settings),
        policy=host_policy(settings),
        quota=settings.file.quota,
        ask_seconds=settings.file.ask_seconds,
        doorway=doorway,
        log=lambda run: whole_log(backbone, run),
        budgets=settings.file.budgets,
        # Without a limit above the run no call waits for the ledger.
        ledger=ledger if settings.file.budgets.outer else NoLedger(),
        patience=settings.file.stuck,
        shortage=look,
        left_out=lambda new: skipped(access, "code", job_of(new)) if calls_models(access, new) else {},
        audit_head=HeadFile(settings.log_path).read,
    )


@asynccontextmanager
async def open_app(settings: Settings, *, role: Role) -> AsyncGenerator[App]:
    """Open every part; leaving the block closes them, and unfinished runs stay resumable.

    A server drives every queued or interrupted run and refuses a data directory that has a server
    (`HostError` `server_running`). Embedded, only the runs submitted here are driven.
    """
    make_data_dir(settings.data_dir)
    allow_many_files()
    owner = new_owner_id()
    owners: Lease = Owners(settings.data_dir / "owners")
    policy = host_policy(settings)
    async with AsyncExitStack() as stack:
        if role == "server":
            stack.enter_context(_server_lock(settings.data_dir))
        stack.enter_context(owners.hold(owner))
        backbone = await stack.enter_async_context(open_backbone(settings.log_path, owner_lives=owners.lives))
        await stack.enter_async_context(_heads_exported(settings))
        if role == "server":
            stack.push_async_callback(backbone.sign_audit)
            await stack.enter_async_context(_exported(settings, backbone))
        choices = Choices(settings.file.runtime, settings.file.runsc, settings.file.store)
        host = Providers((local_provider(settings.data_dir, owner, settings.path, choices),))
        stack.push_async_callback(host.close)
        await host.sweep()
        templates = Templates(settings.data_dir / "templates", settings.path)
        await templates.sweep()
        (doorway, outfit), quota = _doorway(settings, policy, backbone), settings.file.quota
        warming = Warming(_workshop(settings, templates, Through(host, outfit), doorway))
        pooled = settings.file.pool if role == "server" else ()
        for wish in pooled:
            host.check_tier(wish.tier)
        pool = await stack.enter_async_context(open_pool(host, pooled, quota, templates.version))
        sandboxes = await stack.enter_async_context(open_sandboxes(Through(pool, outfit), None))
        commands = await stack.enter_async_context(
            open_commands(settings.data_dir / "commands", owner, owners.lives)
        )
        ledger = BudgetLedger(backbone, settings.file.budgets, owner)
        local = await stack.enter_async_context(open_local_host(model_shelf(settings)))
        look = _look(host, pool)
        services = _services(settings, pool, warming, doorway, backbone, ledger, local, look)

        async def drive(journal: Journal, run: RunId) -> None:
            await drive_run(services, journal, run)

        supervisor = Supervisor(
            backbone,
            owner,
            drive,
            concurrent=settings.file.concurrent_runs,
            claims_all=role == "server",
            look=look,
        )
        await stack.enter_async_context(open_supervisor(supervisor))
        if role == "server":
            await stack.enter_async_context(_background(warming.keep_warm))
            await stack.enter_async_context(_background(_collector(settings, backbone).run))
            await stack.enter_async_context(_followed(settings, services, backbone, supervisor))
        set_up = partial(set_up_repository, services, _audited(settings, backbone))
        parts = (settings, owner, backbone, host, pool, sandboxes, commands, supervisor)
        yield App(*parts, warming.workshop, set_up)
