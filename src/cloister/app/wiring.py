"""The composition root: Settings to wired objects, as one async context manager."""

import errno
import fcntl
import os
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
from anyio import to_thread

from cloister.agent.budget.purse import NoLedger
from cloister.app.settings import ORGANISATION_POLICY, Settings
from cloister.app.tokens import RANK
from cloister.core import limits
from cloister.core.errors import HostError, UserError
from cloister.core.events import (
    AskAnswered,
    Event,
    ModelChosen,
    PromptReceived,
    RewindRequested,
    RunFinished,
    StopRequested,
)
from cloister.core.ids import OwnerId, RunId, SandboxId, new_owner_id
from cloister.core.log import Journal, request_of
from cloister.core.requests import NewRun, Origin, check_new_run
from cloister.core.requests import Role as CallerRole
from cloister.egress.credentials import Vault, read_credentials
from cloister.egress.factory import Doorway
from cloister.egress.model_endpoint import serve as endpoint
from cloister.egress.packages import SetFinder
from cloister.egress.rules import DoorEvent
from cloister.egress.sandbox_setup import Outfit, Through
from cloister.forge import Forges
from cloister.forge.api import Delivered
from cloister.log.audit.details import fact
from cloister.log.audit.export import Collector, check_endpoint, ship
from cloister.log.sqlite.backbone import SqliteBackbone, open_backbone
from cloister.model.catalog import Amazon
from cloister.model.local.files import Shelf
from cloister.model.local.host import LocalHost, open_local_host
from cloister.model.names import Access
from cloister.model.roles import Job, check_roles, chosen, open_models, skipped
from cloister.policy.api import Policy
from cloister.policy.layers import layer
from cloister.policy.lines import lines
from cloister.runs.attempts.compare import Compared, Subject, compare_runs, parse_subject
from cloister.runs.attempts.tree import TreeView, check_fork, fork_request, rewindable, tree
from cloister.runs.budget import BudgetReport, SqliteLedger, run_accounts
from cloister.runs.delivery import Removed, attempt_log, check_kept, remove_files, run_apply, run_diff
from cloister.runs.driver import drive_run
from cloister.runs.run_rules import RuleFiles, check_allowed, check_role, run_layer
from cloister.runs.services import RunServices
from cloister.runs.supervisor import Supervisor, open_supervisor
from cloister.runs.templates import Warming, Workshop, repositories
from cloister.runs.view import RunView, fold
from cloister.sandbox._spawn import allow_many_files
from cloister.sandbox.api import Host
from cloister.sandbox.background_commands import Commands, open_commands
from cloister.sandbox.liveness import Owners
from cloister.sandbox.pool import Pool, open_pool
from cloister.sandbox.providers import Choices, Tiers, local_tiers
from cloister.sandbox.templates.catalog import Templates
from cloister.sandbox.workbench import Sandboxes, open_sandboxes

Role = Literal["server", "embedded"]


@dataclass(frozen=True, slots=True)
class App:
    """Everything wired, and the verbs that the server and the command share."""

    settings: Settings
    owner: OwnerId
    backbone: SqliteBackbone
    host: Tiers
    pool: Pool
    sandboxes: Sandboxes
    commands: Commands
    supervisor: Supervisor
    workshop: Workshop
    ledger: SqliteLedger

    async def budget(self, run: RunId | None) -> BudgetReport:
        """What every level above the runs has spent; with a run, those above it, itself and its attempts."""
        if run is None:
            return BudgetReport(await self.ledger.accounts())
        events = await self.events(run)
        return BudgetReport((*await self.ledger.accounts_of(run), *run_accounts(events)))

    async def submit(self, new: NewRun, who: str, role: CallerRole = "admin") -> tuple[RunId, bool]:
        """Admit a run; it is durable and on its way when this returns. The flag: made now or known by key."""
        if problem := check_new_run(new):
            raise UserError("bad_run", problem)
        access = model_access(self.settings)
        check_roles(access, _job(new))
        models = chosen(access, "code", _job(new))
        self.workshop.templates.recipe(new.template)
        above = await to_thread.run_sync(rule_files(self.settings).above, new.repo)
        check_role(above, new, role)
        check_allowed((*above, run_layer(new)), tier=new.tier, models=models)
        await self._check_attempts(new)
        run, made = await self.backbone.admit(new, who)
        if made:
            self.supervisor.drive(run)
        return run, made

    async def say(self, run: RunId, text: str, who: str, origin: Origin = "user") -> Event:
        """Tell the run something; a finished run continues with it. Raises `UserError` (`run_removed`)."""
        if not text.strip():
            raise UserError("empty_message", "The message is empty: say something.")
        if len(text.encode("utf-8", errors="replace")) > limits.PROMPT_BYTES:
            raise UserError("too_large", f"A message has at most {limits.PROMPT_BYTES:,} bytes.")
        finished = (await self.backbone.row(run)).state == "finished"
        if finished:
            check_kept(self.settings.data_dir, run)
        event = await self.backbone.append_outside(run, PromptReceived(text, who, origin))
        if finished:
            self.supervisor.drive(run)
        return event

    async def stop(self, run: RunId, who: str) -> Event:
        return await self.backbone.append_outside(run, StopRequested(who))

    async def answer(
        self, run: RunId, ask: str, answer: Literal["allow", "deny"], who: str, role: CallerRole = "admin"
    ) -> Event:
        """Raises `UserError` (`denied`) for a yes that takes a higher role; anyone who may answer may say no."""
        view = await self.view(run)
        pending = next((pending for pending in view.asks if pending.ask == ask), None)
        if pending is None:
            raise UserError("no_such_ask", f"Run {run} is not asking {ask}: it was answered or never asked.")
        if answer == "allow" and RANK[role] < RANK[pending.approver]:
            raise UserError("denied", f"Only the role {pending.approver} may allow this: {pending.rule}.")
        return await self.backbone.append_outside(run, AskAnswered(ask, answer, who, role))

    async def use_model(self, run: RunId, name: str, who: str) -> Event:
        """Let another model go on with the run. Raises `UserError` when there is no such model, or no right to it."""
        model = usual_model(self.settings, name)
        request = request_of(await self.events(run))
        above = await to_thread.run_sync(rule_files(self.settings).above, request.repo)
        check_allowed((*above, run_layer(request)), models=(model,))
        return await self.backbone.append_outside(run, ModelChosen(model, who))

    async def view(self, run: RunId) -> RunView:
        return fold(await self.events(run), time.time())

    async def _check_attempts(self, new: NewRun) -> None:
        """Whether every attempt has a model here and a fork something to go on from. Raises `UserError`."""
        for wish in new.attempts:
            if wish.model is not None:
                chosen(model_access(self.settings), "code", Job(new.repo, wish.model))
        if new.forked_from is not None:
            check_kept(self.settings.data_dir, new.forked_from.run)
            check_fork(await self.events(new.forked_from.run), new)

    async def diff(self, run: RunId, attempt: int | None = None) -> str:
        return await run_diff(self.settings.data_dir, run, await self.events(run), attempt)

    async def log(self, run: RunId, attempt: int) -> tuple[Event, ...]:
        """What concerns one attempt. Raises `UserError` (`no_such_attempt`)."""
        return attempt_log(await self.events(run), attempt)

    async def tree(self, run: RunId) -> TreeView:
        return tree(await self.events(run))

    async def fork(
        self, run: RunId, at: int | None, say: str | None, who: str, role: CallerRole = "admin"
    ) -> tuple[RunId, bool]:
        """A new run that goes on from a save point of `run`. Raises `UserError` (`no_save_point`)."""
        return await self.submit(fork_request(await self.events(run), at, say), who, role)

    async def rewind(self, run: RunId, to: int, who: str, role: CallerRole = "admin") -> RunId:
        """Let `run` go on from an earlier save point; one that is finished is forked. Returns which run goes on."""
        events = await self.events(run)
        point = rewindable(events, to)
        if isinstance(events[-1].body, RunFinished):
            return (await self.fork(run, point.seq, None, who, role))[0]
        await self.backbone.append_outside(run, RewindRequested(point.seq, who))
        return run

    async def remove(self, run: RunId, who: str) -> Removed:
        """Delete what a finished run keeps beside its log. Raises `UserError` (`run_not_finished`)."""
        row = await self.backbone.row(run)
        return await to_thread.run_sync(remove_files, self.settings.data_dir, run, row.state, who)

    async def compare(self, a: str, b: str) -> Compared:
        """Two runs or attempts (`RUN/K`).

        Raises `UserError` (`no_such_run`, `no_such_attempt`, `bad_attempt`, `same_twice`).
        """
        one, other = await self._subject(a), await self._subject(b)
        return await compare_runs(self.settings.data_dir, one, other, time.time())

    async def _subject(self, text: str) -> Subject:
        name, attempt = parse_subject(text)
        run = await self.backbone.resolve(name)
        return Subject(await self.events(run), attempt)

    async def apply(self, run: RunId, repo: str) -> Delivered:
        return await run_apply(self.settings.data_dir, run, await self.events(run), repo)

    async def events(self, run: RunId) -> tuple[Event, ...]:
        """The whole log of a run."""
        return await whole_log(self.backbone, run)


async def whole_log(backbone: SqliteBackbone, run: RunId) -> tuple[Event, ...]:
    """The whole log of a run, page by page."""
    events: tuple[Event, ...] = ()
    while page := await backbone.read(run, after=len(events)):
        events += page
    return events


def usual_model(settings: Settings, name: str | None = None) -> str:
    """The full name of a model, or of the one a run has that names none. Raises `UserError` when there is none."""
    return chosen(model_access(settings), "code", Job("", name))[0]


def model_access(settings: Settings) -> Access:
    """What the settings say about models."""
    file = settings.file
    return Access(file.model, settings.keys, file.model_url, file.models, Amazon(**settings.amazon))


def model_shelf(settings: Settings) -> Shelf:
    """Where the files of local models are."""
    return Shelf(settings.data_dir / "models", settings.file.local_models)


def _job(new: NewRun) -> Job:
    model = new.model
    if model is None and all(wish.model is not None for wish in new.attempts):
        # Where every attempt names its own, nobody needs to configure another.
        model = next((wish.model for wish in new.attempts), None)
    return Job(new.repo, model, new.kind)


def rule_files(settings: Settings) -> RuleFiles:
    """Where the rules above every run are written. Raises `UserError` (`bad_policy`)."""
    named = settings.file.policy_file
    near = settings.config_path.parent
    return RuleFiles(
        organisation=near / Path(named).expanduser() if named else ORGANISATION_POLICY,
        organisation_required=named is not None,
        host=layer(
            "host",
            settings.file.policy,
            str(settings.config_path),
            may_widen=True,
            at=_rule_lines(settings),
        ),
        projects=tuple((each.repo, near / Path(each.policy).expanduser()) for each in settings.file.project),
    )


def _rule_lines(settings: Settings) -> tuple[int, ...]:
    """Where the rules of the configuration file are in it; nothing when it is no longer what was read."""
    if not settings.file.policy:
        return ()
    try:
        found = lines(settings.config_path.read_text(encoding="utf-8").replace("\r\n", "\n"))
    except (OSError, ValueError, IndexError):
        return ()
    at = [found.get(("policy", number, "action")) for number in range(len(settings.file.policy))]
    return tuple(line for line in at if line is not None) if None not in at else ()


def host_policy(settings: Settings) -> Policy:
    """The built-in rules, the organisation's and those of the configuration file."""
    return rule_files(settings).above(None)


def _doorway(settings: Settings, policy: Policy, backbone: SqliteBackbone) -> tuple[Doorway, Outfit]:
    """How doors are made, and that of sandboxes that belong to no run: same rules, and the audit to record into."""
    credentials = read_credentials(settings.file.credential, str(settings.config_path))
    doorway = Doorway(
        settings.file.door, credentials, Vault(settings.variables), SetFinder(settings.data_dir).find
    )

    async def record(sandbox: SandboxId, body: DoorEvent) -> None:
        if stated := fact(body):
            await backbone.note(stated.kind, settings.user, stated.detail)

    nobodys = {endpoint.HOST: endpoint.Endpoint(lambda _: None).serve}
    return doorway, doorway.outfit(policy, record, inside=nobodys)


@contextmanager
def _server_lock(data_dir: Path) -> Generator[None]:
    descriptor = os.open(data_dir / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise HostError(
            "server_running",
            f"A server already runs on {data_dir}: use it, or stop it with `cloister serve --stop`.",
        ) from None
    # Who reads an announcement can tell by this whether it is ours or a dead server's.
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
    """`work` goes on while the block lasts."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def _exported(settings: Settings) -> AsyncGenerator[None]:
    """The audit goes to the collector, where there is one, while the block lasts."""
    if settings.file.otlp_endpoint is None:
        yield
        return
    collector = Collector(check_endpoint(settings.file.otlp_endpoint), settings.otlp_headers)
    async with _background(partial(ship, settings.log_path, collector)):
        yield


def _services(  # noqa: PLR0913  (each is one part of the machine)
    settings: Settings,
    host: Host,
    warming: Warming,
    doorway: Doorway,
    backbone: SqliteBackbone,
    ledger: SqliteLedger,
    local: LocalHost,
) -> RunServices:
    """What conducting runs takes."""
    access = replace(model_access(settings), local=local)
    return RunServices(
        data_dir=settings.data_dir,
        host=host,
        warming=warming,
        forges=warming.workshop.forges,
        models=lambda new: open_models(access, _job(new)),
        kinds=tuple(settings.file.models.kind),
        rules=rule_files(settings),
        policy=host_policy(settings),
        quota=settings.file.quota,
        ask_seconds=settings.file.ask_seconds,
        doorway=doorway,
        log=lambda run: whole_log(backbone, run),
        budgets=settings.file.budgets,
        # Without a limit above the run nobody waits for the ledger before each call.
        ledger=ledger if settings.file.budgets.outer else NoLedger(),
        patience=settings.file.stuck,
        left_out=lambda new: skipped(access, "code", _job(new)),
    )


@asynccontextmanager
async def open_app(settings: Settings, *, role: Role) -> AsyncGenerator[App]:
    """Wire everything; leaving the block closes it and leaves unfinished runs resumable.

    A server drives every queued or interrupted run and refuses a data directory that has a server
    (`HostError` `server_running`). Embedded, only the runs submitted here are driven.
    """
    make_data_dir(settings.data_dir)
    allow_many_files()
    owner = new_owner_id()
    owners = Owners(settings.data_dir / "owners")
    policy = host_policy(settings)
    async with AsyncExitStack() as stack:
        if role == "server":
            stack.enter_context(_server_lock(settings.data_dir))
        stack.enter_context(owners.hold(owner))
        backbone = await stack.enter_async_context(open_backbone(settings.log_path, owner_lives=owners.lives))
        if role == "server":
            stack.push_async_callback(backbone.sign_audit)
            await stack.enter_async_context(_exported(settings))
        choices = Choices(settings.file.runtime, settings.file.runsc, settings.file.store)
        host = local_tiers(settings.data_dir, owner, settings.path, choices)
        stack.push_async_callback(host.close)
        await host.sweep()
        templates = Templates(settings.data_dir / "templates", settings.path)
        await templates.sweep()
        (doorway, outfit), quota = _doorway(settings, policy, backbone), settings.file.quota
        workshop = Workshop(
            templates, Through(host, outfit), Forges(), None, quota, repositories(settings.data_dir)
        )
        warming = Warming(workshop)
        pooled = settings.file.pool if role == "server" else ()
        pool = await stack.enter_async_context(open_pool(host, pooled, quota, templates.version))
        sandboxes = await stack.enter_async_context(open_sandboxes(Through(pool, outfit), None))
        commands = await stack.enter_async_context(
            open_commands(settings.data_dir / "commands", owner, owners.lives)
        )
        ledger = SqliteLedger(backbone, settings.file.budgets, owner, owners.lives)
        local = await stack.enter_async_context(open_local_host(model_shelf(settings)))
        services = _services(settings, pool, warming, doorway, backbone, ledger, local)

        async def drive(journal: Journal, run: RunId) -> None:
            await drive_run(services, journal, run)

        supervisor = Supervisor(
            backbone,
            owner,
            drive,
            concurrent=settings.file.concurrent_runs,
            claims_all=role == "server",
        )
        await stack.enter_async_context(open_supervisor(supervisor))
        if role == "server":
            await stack.enter_async_context(_background(warming.keep_warm))
        yield App(settings, owner, backbone, host, pool, sandboxes, commands, supervisor, workshop, ledger)
