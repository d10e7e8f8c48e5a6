"""The composition root: Settings to wired objects, as one async context manager."""

import errno
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import anyio
import msgspec

from cloister.agent.budget.purse import NoLedger
from cloister.agent.taint import Provenance
from cloister.agent.tools.declared import DeclaredTools
from cloister.agent.tools.functions import function_tools
from cloister.agent.tools.mcp.servers import McpTools, OpenWay, Reveal, way_name
from cloister.agent.tools.toolset import ToolPlace, ToolSource
from cloister.app.cluster.storage import Load, Storage, open_storage
from cloister.app.config import (
    calls_models,
    harness_for,
    host_policy,
    job_of,
    model_access,
    model_shelf,
    rule_files,
)
from cloister.app.knowledge import knowledge_tools
from cloister.app.knowledge.look_tool import LookTool
from cloister.app.overview import Overview
from cloister.app.people.oidc import LoginProvider, login_provider
from cloister.app.settings import Settings
from cloister.app.triggers import INBOX_FILE
from cloister.app.triggers.entries import EnvironmentEntry
from cloister.app.triggers.environments import Keeper, Made
from cloister.app.verbs.declare import no_report
from cloister.app.workbench.commands import Commands, open_commands
from cloister.app.workbench.sandboxes import Sandboxes, open_sandboxes
from cloister.core.diagnosis import Diagnosis
from cloister.core.errors import CloisterError, HostError, UserError
from cloister.core.events import ConnectionDecided, Event, PromptReceived
from cloister.core.ids import OwnerId, RunId, SandboxId, new_owner_id
from cloister.core.requests import NewRun
from cloister.core.system.locks import take
from cloister.egress.credentials import Unreadable, Vault, read_credentials, token_source
from cloister.egress.factory import Doorway, Outfit, Through
from cloister.egress.model_endpoint import serve as endpoint
from cloister.egress.packages import SetFinder
from cloister.egress.rules import DoorEvent, Record
from cloister.environment.installers import Refusal, Refused
from cloister.forge import Forges
from cloister.forge.cache import ObjectCache
from cloister.forge.change import Author
from cloister.log.api import AuditLog, Backbone, RunRow
from cloister.log.attachments import Attachments
from cloister.log.audit.details import fact
from cloister.log.audit.head import HeadFile
from cloister.model.local.host import open_local_host
from cloister.model.names import Access
from cloister.model.roles import open_models, open_no_models, skipped
from cloister.runs.attempts.people import RunSandboxes
from cloister.runs.budget import BudgetLedger
from cloister.runs.driver import drive_run
from cloister.runs.environments.by_hand import ModelsByHand
from cloister.runs.environments.layers import Prepared
from cloister.runs.environments.repository import Outlook, look, prepared, set_up_repository
from cloister.runs.environments.trial import Tried, try_tool
from cloister.runs.services import RunServices
from cloister.runs.supervisor import Look, Supervisor, open_supervisor
from cloister.runs.templates import Warming, Workshop, repositories
from cloister.sandbox._spawn import allow_many_files
from cloister.sandbox.api import Host, Report, Sandbox, SandboxSpec
from cloister.sandbox.liveness import Owners
from cloister.sandbox.local.provider import Choices, local_provider
from cloister.sandbox.pool import Pool, open_pool
from cloister.sandbox.providers import Providers
from cloister.sandbox.store.api import Shortage
from cloister.sandbox.templates.catalog import Templates

if TYPE_CHECKING:
    from cloister.agent.tools.mcp.door import Way
    from cloister.app.triggers.hooks import Hooks
    from cloister.runs.delivery import Collector as Removal

LAST_HEAD_SECONDS = 3.0
"""How long the end of a process waits for the export of the last signed head."""

Role = Literal["server", "embedded"]


@dataclass(frozen=True, slots=True)
class App:
    """The open parts of one process; `cloister.app.verbs.local` does the work with them."""

    settings: Settings
    owner: OwnerId
    """Of the sandboxes of this process."""
    storage: Storage
    backbone: Backbone
    host: Providers
    pool: Pool
    sandboxes: Sandboxes
    commands: Commands
    supervisor: Supervisor
    workshop: Workshop
    set_up: Callable[[NewRun, Report, str], Awaitable[tuple[Prepared, tuple[Diagnosis, ...]]]]
    """Builds and checks the environment of a repository."""
    try_tool: Callable[[NewRun, str, dict[str, Any], Report], Awaitable[Tried]]
    """Calls an added tool without a run."""
    look: Callable[[NewRun], Awaitable[tuple[Outlook, SandboxSpec]]]
    """Says what a run would find in its repository."""
    overview: Overview
    """The rows of all runs and the sandboxes, as they change."""
    of_runs: RunSandboxes
    """The sandboxes of attempts, which people may enter."""
    hooks: "Hooks | None" = None
    """Takes webhooks, in a server whose settings have some."""
    provider: LoginProvider | None = None
    """Where people log in, if the settings name it."""

    def entered(self, sandbox: str) -> Sandbox:
        """A sandbox made by hand, or that of an attempt. Raises `UserError` (`no_such_sandbox`)."""
        found = self.of_runs.find(sandbox)
        return self.sandboxes.get(sandbox) if found is None else found.sandbox

    async def previewed(self, sandbox: str, who: str, port: int) -> Sandbox:
        """As `entered`, for a look at a port, which the log of a run records."""
        if (found := self.of_runs.find(sandbox)) is not None:
            await found.record_preview(self.backbone.append_outside, who, port)
        return self.entered(sandbox)


async def whole_log(backbone: Backbone, run: RunId) -> tuple[Event, ...]:
    """The whole log of a run, page by page."""
    events: tuple[Event, ...] = ()
    while page := await backbone.read(run, after=len(events)):
        events += page
    return events


def _doorway(
    settings: Settings, log: AuditLog, models: ModelsByHand, refused: deque[Refused]
) -> tuple[Doorway, Outfit]:
    """The factory of proxies, and the setup of sandboxes made by hand: the same rules, recorded in the audit.

    What is denied to those is also in `refused`.
    """
    credentials = read_credentials(settings.file.credential, str(settings.config_path))
    doorway = Doorway(
        settings.file.door, credentials, Vault(settings.variables), SetFinder(settings.data_dir).find
    )

    audited = _audited(settings, log)

    async def record(sandbox: SandboxId, body: DoorEvent) -> None:
        if isinstance(body, ConnectionDecided) and body.effect == "deny":
            refused.append(Refused(time.monotonic(), sandbox, Refusal(body.host, body.port, body.rule)))
        await audited(sandbox, body)

    inside = endpoint.hosts(models.asked)
    return doorway, doorway.outfit(host_policy(settings), record, inside=inside)


def _audited(settings: Settings, log: AuditLog) -> Record:
    """Enters the connections of sandboxes that belong to no run into the audit."""

    async def record(sandbox: SandboxId, body: DoorEvent) -> None:
        if stated := fact(body):
            await log.note(stated.kind, settings.user, stated.detail)

    return record


def _workshop(
    settings: Settings, templates: Templates, host: Host, doorway: Doorway, refused: deque[Refused]
) -> Workshop:
    names = frozenset(one.name for one in doorway.credentials)
    at = repositories(settings.data_dir)
    cache = ObjectCache(settings.data_dir / "objects", int(settings.file.object_cache_gib * 2**30))
    forges = Forges(cache=cache)
    if settings.file.forge:
        from cloister.app.forges import forge_places  # loads an HTTP client

        forges = Forges(places=forge_places(settings, doorway.vault), cache=cache)
    return Workshop(
        templates, host, forges, None, settings.file.quota, at, credentials=names, refused=refused
    )


def old_files(settings: Settings, storage: Storage, host: Providers, who: str) -> "Removal":
    """What removes files that are older than the settings keep, in the name of `who`."""
    from cloister.runs.delivery import Collector as Removal

    file, read = settings.file, partial(whole_log, storage.backbone)
    return Removal(storage.backbone, read, storage.repositories, file.save_points, who, file.retention, host)


@asynccontextmanager
async def _received(
    settings: Settings, services: RunServices, storage: Storage, supervisor: Supervisor, vault: Vault
) -> AsyncGenerator["Hooks | None"]:
    """Follow the pull requests of runs while the block lasts, and take webhooks, where the settings name some."""

    async def tell(run: RunId, prompt: PromptReceived) -> None:
        async with services.repositories.working(run):
            await services.repositories.open(run)
            await backbone.append_outside(run, prompt)
        supervisor.drive(run)

    file, backbone = settings.file, storage.backbone
    if not file.forge and not file.trigger:
        yield None
        return
    from cloister.app.forges import forge_places
    from cloister.app.triggers.entries import LabelTrigger, MentionTrigger, SlackTrigger
    from cloister.app.triggers.hooks import Hooks, all_hooks
    from cloister.app.triggers.start import Starter
    from cloister.app.triggers.threads import Threads
    from cloister.forge.pulls.marks import Marks, read_key
    from cloister.log.sqlite.inbox import open_inbox
    from cloister.runs.follow_up import Follower  # loads an HTTP client

    marks = Marks(read_key(settings.data_dir / "comments.key"))
    ended, seconds = settings.data_dir / "pull-requests.json", file.follow_seconds
    parts = (services.forges, backbone, services.log)
    follower = Follower(*parts, tell, services.repositories.open, settings.user, marks, ended, seconds)
    async with AsyncExitStack() as stack:
        if seconds and file.forge:
            await stack.enter_async_context(_background(storage.alone("follower", follower.run)))
        hooks = all_hooks(settings, forge_places(settings, vault))
        if not hooks and not file.trigger:
            yield None
            return
        inbox = await stack.enter_async_context(open_inbox(settings.data_dir / INBOX_FILE))
        entries = {one.name: one for one in file.trigger}
        starter = Starter(inbox, backbone, services.forges, entries, services.log, settings.user, marks)
        slack = {name: one for name, one in entries.items() if isinstance(one, SlackTrigger)}
        threads = Threads(inbox, backbone, vault, slack, services.log, tell)
        received = Hooks(inbox, vault, hooks, follower if file.forge else None, starter, threads)
        await stack.enter_async_context(_background(received.run))
        if any(isinstance(one, LabelTrigger | MentionTrigger) and one.poll for one in file.trigger):
            from cloister.app.triggers.poll import Poller

            await stack.enter_async_context(
                _background(storage.alone("poller", Poller(inbox, starter, follower).run))
            )
        yield received


def _chores(
    settings: Settings, storage: Storage, host: Providers, services: RunServices, vault: Vault
) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
    """What a server does beside driving runs: keep templates and environments ready, remove old files, send notices."""
    from cloister.app.notices.sender import Sender
    from cloister.log.sqlite.outbox import OUTBOX_FILE, Outbox

    sender = Sender(Outbox(settings.data_dir / OUTBOX_FILE), storage.backbone, vault, settings)
    environments = _environments(settings, services, storage.backbone)
    old = old_files(settings, storage, host, settings.user)
    return services.warming.keep_warm, environments.run, old.run, sender.run


def _environments(settings: Settings, services: RunServices, backbone: Backbone) -> Keeper:
    """What keeps the environments of the settings ready. The audit has each build."""

    async def tip(entry: EnvironmentEntry, bare: Path) -> str:
        return await services.forges.at(entry.repo).tip(entry.repo, entry.ref, bare)

    async def build(entry: EnvironmentEntry, again: bool) -> Made:
        request = NewRun("set-up", entry.repo, entry.ref, setup=entry.setup)
        record = _audited(settings, backbone)
        async with prepared(services, record, request, no_report, again=again) as there:
            made = there.made
        name, problem, at = made.template.name, made.problem, made.template.about.built_at
        if made.built or problem:
            detail: dict[str, object] = {"template": name, "repo": entry.repo, "problem": problem}
            await backbone.note("EnvironmentPrepared", settings.user, detail)
        return Made(there.base.commit, there.bare, name, made.built, at, problem)

    return Keeper(settings.file.environment, tip, build)


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
async def _exported(settings: Settings, log: Backbone) -> AsyncGenerator[None]:
    """Send the audit, and traces if wanted, to the configured collector, if any, while the block lasts."""
    if settings.file.otlp_endpoint is None:
        if settings.file.otlp_traces:
            raise UserError("bad_config", "otlp_traces needs the collector's address: set otlp_endpoint.")
        yield
        return
    from cloister.log.audit.export import CURSOR_FILE, Collector, check_endpoint, ship

    collector = Collector(check_endpoint(settings.file.otlp_endpoint), settings.otlp_headers)
    async with AsyncExitStack() as stack:
        work = partial(ship, log, settings.data_dir / CURSOR_FILE, collector)
        await stack.enter_async_context(_background(work))
        if settings.file.otlp_traces:
            from cloister.log.traces import STATE_FILE, ship_traces

            traces = partial(ship_traces, log, settings.data_dir / STATE_FILE, collector)
            await stack.enter_async_context(_background(traces))
        yield


def _look(storage: Storage, host: Providers, pool: Pool) -> Look:
    """How to look for what runs lack: the lease, or disk.

    Without disk idle sandboxes end: they take space, and keep a broken store mounted.
    """

    async def look() -> Shortage | None:
        if lost := storage.lost():
            return Shortage(lost, full=True)
        short = await host.shortage()
        if short is not None and short.full:
            pool.drop()
        return short

    return look


@asynccontextmanager
async def _heads_exported(settings: Settings) -> AsyncGenerator[None]:
    """Send the signed heads of the audit to the configured places while the block lasts, and once at its end."""
    if not settings.file.audit_heads:
        yield
        return
    from cloister.log.audit.export import HeadExport, check_place

    places = tuple(map(check_place, settings.file.audit_heads))
    export = HeadExport(HeadFile(settings.log_path).read, settings.data_dir, places)
    try:
        async with _background(export.run):
            yield
    finally:
        with anyio.move_on_after(LAST_HEAD_SECONDS, shield=True), suppress(CloisterError, OSError):
            await export.step()


def _signing_key(settings: Settings) -> Path | None:
    """Raises `UserError` (`bad_config`) if the file is missing: a run must not find that out at its end."""
    if settings.file.signing_key is None:
        return None
    key = settings.config_path.parent / Path(settings.file.signing_key).expanduser()
    if not key.is_file():
        raise UserError("bad_config", f"The signing key {key} of {settings.config_path} is no file.")
    return key


@asynccontextmanager
async def _reached(settings: Settings) -> AsyncGenerator[Access]:
    """Keys and addresses of models, and those of this machine, which run while the block lasts."""
    async with open_local_host(model_shelf(settings)) as local:
        yield replace(model_access(settings), local=local)


def _services(  # noqa: PLR0913  (each is one part of the machine)
    settings: Settings,
    host: Host,
    warming: Warming,
    doorway: Doorway,
    storage: Storage,
    access: Access,
    look: Look,
) -> RunServices:
    """The services that driving a run needs."""
    budgets = settings.file.budgets
    return RunServices(
        data_dir=settings.data_dir,
        repositories=storage.repositories,
        host=host,
        warming=warming,
        forges=warming.workshop.forges,
        models=lambda new: (
            open_models(access, job_of(new)) if calls_models(access, new) else open_no_models()
        ),
        harness=partial(harness_for, access),
        author=Author(settings.file.author, _signing_key(settings)),
        people=settings.file.people,
        kinds=tuple(settings.file.models.kind),
        tools=(
            *_tool_sources(settings, doorway, warming.workshop.templates),
            *knowledge_tools(settings, warming.workshop.forges),
        ),
        knowledge=settings.file.knowledge,
        helpers=settings.file.helpers,
        rules=rule_files(settings),
        policy=host_policy(settings),
        quota=settings.file.quota,
        ask_seconds=settings.file.ask_seconds,
        doorway=doorway,
        log=lambda run: whole_log(storage.backbone, run),
        budgets=budgets,
        # Without a limit above the run no call waits for the ledger.
        ledger=BudgetLedger(storage.backbone, budgets, storage.owner) if budgets.outer else NoLedger(),
        patience=settings.file.stuck,
        shortage=look,
        left_out=lambda new: skipped(access, "code", job_of(new)) if calls_models(access, new) else {},
        audit_head=HeadFile(settings.log_path).read,
    )


def mcp_ways(doorway: Doorway) -> OpenWay:
    """Opens proxies for clients of MCP servers: the rules of the run decide, and its log has every connection."""

    async def way(place: ToolPlace, server: str) -> "Way":
        from cloister.agent.tools.mcp.door import Way  # loads the SDK

        async def record(sandbox: SandboxId, body: DoorEvent) -> None:
            await place.journal.append(body)

        read = Provenance(None, place.journal)
        outfit = doorway.outfit(place.policy, record, untrusted=lambda: read.untrusted)
        await outfit.env()
        return Way(partial(outfit.serve, SandboxId(way_name(server))), lambda: outfit.authority)

    return way


def mcp_secrets(vault: Vault) -> Reveal:
    """Reads the secrets of MCP servers on the host."""

    async def reveal(name: str, place: str) -> str:
        try:
            return await vault.value(token_source(name, place))
        except (Unreadable, ValueError) as error:
            raise UserError("bad_credential", f"its secret {name} has no value: {error}.") from None

    return reveal


def _tool_sources(settings: Settings, doorway: Doorway, templates: Templates) -> tuple[ToolSource, ...]:
    """What adds tools to each attempt."""
    file, source = settings.file, str(settings.config_path)
    servers = McpTools(file.mcp, source, mcp_ways(doorway), file.mcp_json, mcp_secrets(doorway.vault))
    looking = LookTool(Attachments(settings.data_dir), templates)
    return DeclaredTools(file.tool, source), function_tools, servers, looking


def _overview(backbone: Backbone, sandboxes: Sandboxes, supervisor: Supervisor) -> Overview:
    def complete(row: RunRow) -> RunRow:
        why = None if row.state == "finished" else supervisor.why_waiting(row.id, row.state)
        return msgspec.structs.replace(row, state="paused", reason=why) if why else row

    return Overview(backbone, sandboxes.list, complete)


def _supervisor(
    settings: Settings, storage: Storage, services: RunServices, look: Look, role: Role
) -> Supervisor:
    """What drives the runs of this process, if the machine drives any."""
    entry = settings.file.cluster
    slots = 0 if entry is not None and entry.role == "api" else settings.file.concurrent_runs
    supervisor = Supervisor(
        storage.backbone,
        storage.owner,
        partial(drive_run, services),
        concurrent=slots,
        claims_all=role == "server",
        look=look,
        files=storage.files,
    )
    if storage.others is not None:
        templates = services.warming.workshop.templates

        def load() -> Load:
            built = tuple(info.name for info in templates.all() if info.ready)
            return Load(slots, supervisor.running, templates=built)

        storage.others.describe(load, supervisor.drain)
    return supervisor


def _without_a_run(services: RunServices, record: Record) -> tuple[Any, Any, Any]:
    """What is done with repositories beside runs: set one up, try a tool, look at one."""
    return (
        partial(set_up_repository, services, record),
        partial(try_tool, services, record),
        partial(look, services),
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
    owners = Owners(settings.data_dir / "owners")
    async with AsyncExitStack() as stack:
        if role == "server" or settings.file.cluster is not None:  # one process uses a copy of a shared log
            stack.enter_context(_server_lock(settings.data_dir))
        stack.enter_context(owners.hold(owner))
        storage = await stack.enter_async_context(open_storage(settings, owner, owners))
        backbone = storage.backbone
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
        access = await stack.enter_async_context(_reached(settings))
        models = ModelsByHand(access, settings.file.budgets, host_policy(settings), backbone.note)
        refused, quota = deque[Refused](maxlen=100), settings.file.quota
        doorway, outfit = _doorway(settings, backbone, models, refused)
        warming = Warming(_workshop(settings, templates, Through(host, outfit), doorway, refused))
        pooled = settings.file.pool if role == "server" else ()
        for wish in pooled:
            host.check_tier(wish.tier)
        pool = await stack.enter_async_context(open_pool(host, pooled, quota, templates.version))
        sandboxes = await stack.enter_async_context(open_sandboxes(Through(pool, outfit), None, models))
        commands = await stack.enter_async_context(
            open_commands(settings.data_dir / "commands", owner, owners.lives)
        )
        look = _look(storage, host, pool)
        services = _services(settings, pool, warming, doorway, storage, access, look)
        supervisor = _supervisor(settings, storage, services, look, role)
        await stack.enter_async_context(open_supervisor(supervisor))
        hooks = None
        if role == "server":
            for work in _chores(settings, storage, host, services, doorway.vault):
                await stack.enter_async_context(_background(work))
            received = _received(settings, services, storage, supervisor, doorway.vault)
            hooks = await stack.enter_async_context(received)
        by_hand = _without_a_run(services, _audited(settings, backbone))
        parts = (settings, owner, storage, backbone, host, pool, sandboxes, commands, supervisor)
        more = (_overview(backbone, sandboxes, supervisor), services.sandboxes, hooks)
        app = App(*parts, warming.workshop, *by_hand, *more, login_provider(settings, doorway.vault))
        async with _triggered(app):
            yield app


@asynccontextmanager
async def _triggered(app: App) -> AsyncGenerator[None]:
    """Start the runs that triggers ask for while the block lasts, as the verb `submit` does for an operator."""
    if app.hooks is None or not app.hooks.starter.entries:
        yield
        return
    from cloister.app.tokens import Caller
    from cloister.app.verbs.local import LocalVerbs

    def verbs(who: str) -> LocalVerbs:
        return LocalVerbs(app, Caller(who, "operator"))

    async with (
        _background(partial(app.hooks.starter.run, verbs)),
        _background(partial(app.hooks.threads.run, verbs)),
    ):
        yield
