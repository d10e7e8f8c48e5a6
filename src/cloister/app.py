"""The composition root: Settings to wired objects, as one async context manager."""

import errno
import fcntl
import os
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
from anyio import to_thread

from cloister.core import limits
from cloister.core.errors import HostError, UserError
from cloister.core.events import (
    AskAnswered,
    Event,
    PromptReceived,
    StopRequested,
)
from cloister.core.ids import OwnerId, RunId, SandboxId, new_owner_id
from cloister.core.journal import Journal
from cloister.core.records import NewRun, Origin, check_new_run
from cloister.core.records import Role as CallerRole
from cloister.egress.credentials import read_credentials
from cloister.egress.doorway import Doorway
from cloister.egress.gate import DoorEvent
from cloister.egress.outfit import Outfit, Through
from cloister.egress.sets import SetFinder
from cloister.egress.vault import Vault
from cloister.forge.api import Delivered
from cloister.forge.plain import PlainGit
from cloister.model.registry import choose, open_model
from cloister.policy.api import Policy
from cloister.policy.lines import lines
from cloister.policy.read import layer
from cloister.runs.commands import Commands, open_commands
from cloister.runs.conduct import conduct
from cloister.runs.means import Means
from cloister.runs.result import run_apply, run_diff
from cloister.runs.rules import RuleFiles, check_allowed, check_role, run_layer
from cloister.runs.sandboxes import Sandboxes, open_sandboxes
from cloister.runs.sqlite import SqliteBackbone, open_backbone
from cloister.runs.supervisor import Supervisor, open_supervisor
from cloister.runs.tokens import RANK
from cloister.runs.view import RunView, fold
from cloister.runs.warming import Warming, repositories
from cloister.runs.workshop import Workshop
from cloister.sandbox.api import Host
from cloister.sandbox.owners import Owners
from cloister.sandbox.pool import Pool, open_pool
from cloister.sandbox.templates.catalog import Templates
from cloister.sandbox.tiers import Choices, Tiers, local_tiers
from cloister.settings import ORGANISATION_POLICY, Settings

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

    async def submit(self, new: NewRun, who: str, role: CallerRole = "admin") -> tuple[RunId, bool]:
        """Admit a run; it is durable and on its way when this returns. The flag: made now or known by key."""
        if problem := check_new_run(new):
            raise UserError("bad_run", problem)
        model = choose_model(self.settings, new.model)
        self.workshop.templates.recipe(new.template)
        above = await to_thread.run_sync(rule_files(self.settings).above, new.repo)
        check_role(above, new, role)
        check_allowed((*above, run_layer(new)), tier=new.tier, model=model)
        run, made = await self.backbone.admit(new, who)
        if made:
            self.supervisor.drive(run)
        return run, made

    async def say(self, run: RunId, text: str, who: str, origin: Origin = "user") -> Event:
        if not text.strip():
            raise UserError("empty_message", "The message is empty: say something.")
        if len(text.encode("utf-8", errors="replace")) > limits.PROMPT_BYTES:
            raise UserError("too_large", f"A message has at most {limits.PROMPT_BYTES:,} bytes.")
        return await self.backbone.append_outside(run, PromptReceived(text, who, origin))

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

    async def view(self, run: RunId) -> RunView:
        return fold(await self._events(run), time.time())

    async def diff(self, run: RunId) -> str:
        return await run_diff(self.settings.data_dir, run, await self._events(run))

    async def apply(self, run: RunId, repo: str) -> Delivered:
        return await run_apply(self.settings.data_dir, run, await self._events(run), repo)

    async def _events(self, run: RunId) -> tuple[Event, ...]:
        """The whole log of a run, page by page."""
        events: tuple[Event, ...] = ()
        while page := await self.backbone.read(run, after=len(events)):
            events += page
        return events


def choose_model(settings: Settings, name: str | None) -> str:
    """The model that `name` stands for here. Raises `UserError` when there is none."""
    return choose(name, default=settings.file.model, keys=settings.keys, url=settings.file.model_url)


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


def _doorway(settings: Settings, policy: Policy) -> tuple[Doorway, Outfit]:
    """How doors are made, and that of sandboxes that belong to no run: same rules, nothing to record into."""
    credentials = read_credentials(settings.file.credential, str(settings.config_path))
    doorway = Doorway(
        settings.file.door, credentials, Vault(settings.variables), SetFinder(settings.data_dir).find
    )

    async def record(sandbox: SandboxId, body: DoorEvent) -> None:
        return None

    return doorway, doorway.outfit(policy, record)


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


def _means(settings: Settings, host: Host, warming: Warming, policy: Policy, doorway: Doorway) -> Means:
    """What conducting runs takes."""
    return Means(
        data_dir=settings.data_dir,
        host=host,
        warming=warming,
        forge=warming.workshop.forge,
        models=lambda name: open_model(
            name, default=settings.file.model, keys=settings.keys, url=settings.file.model_url
        ),
        rules=rule_files(settings),
        policy=policy,
        quota=settings.file.quota,
        ask_seconds=settings.file.ask_seconds,
        doorway=doorway,
    )


@asynccontextmanager
async def open_app(settings: Settings, *, role: Role) -> AsyncGenerator[App]:
    """Wire everything; leaving the block closes it and leaves unfinished runs resumable.

    A server drives every queued or interrupted run and refuses a data directory that has a server
    (`HostError` `server_running`). Embedded, only the runs submitted here are driven.
    """
    make_data_dir(settings.data_dir)
    owner = new_owner_id()
    owners = Owners(settings.data_dir / "owners")
    policy = host_policy(settings)
    async with AsyncExitStack() as stack:
        if role == "server":
            stack.enter_context(_server_lock(settings.data_dir))
        stack.enter_context(owners.hold(owner))
        backbone = await stack.enter_async_context(
            open_backbone(settings.data_dir / "cloister.db", owner_lives=owners.lives)
        )
        choices = Choices(settings.file.runtime, settings.file.runsc, settings.file.store)
        host = local_tiers(settings.data_dir, owner, settings.path, choices)
        stack.push_async_callback(host.close)
        await host.sweep()
        templates = Templates(settings.data_dir / "templates", settings.path)
        await templates.sweep()
        (doorway, outfit), quota = _doorway(settings, policy), settings.file.quota
        workshop = Workshop(
            templates, Through(host, outfit), PlainGit(), None, quota, repositories(settings.data_dir)
        )
        warming = Warming(workshop)
        pooled = settings.file.pool if role == "server" else ()
        pool = await stack.enter_async_context(open_pool(host, pooled, quota, templates.version))
        sandboxes = await stack.enter_async_context(open_sandboxes(Through(pool, outfit), None))
        commands = await stack.enter_async_context(
            open_commands(settings.data_dir / "commands", owner, owners.lives)
        )
        means = _means(settings, pool, warming, policy, doorway)

        async def drive(journal: Journal, run: RunId) -> None:
            await conduct(means, journal, run)

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
        yield App(settings, owner, backbone, host, pool, sandboxes, commands, supervisor, workshop)
