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
from anyio.abc import ByteStream

from cloister.core import limits
from cloister.core.errors import HostError, UserError
from cloister.core.events import (
    AskAnswered,
    ConnectionClosed,
    ConnectionDecided,
    Event,
    PromptReceived,
    StopRequested,
)
from cloister.core.ids import OwnerId, RunId, SandboxId, new_owner_id
from cloister.core.journal import Journal
from cloister.core.records import NewRun, check_new_run
from cloister.egress.door import Door
from cloister.forge.api import Delivered
from cloister.forge.plain import PlainGit
from cloister.model.registry import choose, open_model
from cloister.policy.api import Policy
from cloister.policy.builtin import BUILT_IN
from cloister.policy.decide import decide
from cloister.policy.read import layer
from cloister.runs.commands import Commands, open_commands
from cloister.runs.conduct import conduct
from cloister.runs.means import Means, run_layer
from cloister.runs.result import run_apply, run_diff
from cloister.runs.sandboxes import Sandboxes, open_sandboxes
from cloister.runs.sqlite import SqliteBackbone, open_backbone
from cloister.runs.supervisor import Supervisor, open_supervisor
from cloister.runs.view import RunView, fold
from cloister.runs.warming import Warming, repositories
from cloister.runs.workshop import Workshop
from cloister.sandbox._spawn import allow_many_files
from cloister.sandbox.api import Door as DoorCall
from cloister.sandbox.api import Host
from cloister.sandbox.owners import Owners
from cloister.sandbox.pool import Pool, open_pool
from cloister.sandbox.templates.catalog import Templates
from cloister.sandbox.tiers import Choices, Tiers, local_tiers
from cloister.settings import Settings

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

    async def submit(self, new: NewRun, who: str) -> tuple[RunId, bool]:
        """Admit a run; it is durable and on its way when this returns. The flag: made now or known by key."""
        if problem := check_new_run(new):
            raise UserError("bad_run", problem)
        choose_model(self.settings, new.model)
        self.workshop.templates.recipe(new.template)
        run_layer(new)
        run, made = await self.backbone.admit(new, who)
        if made:
            self.supervisor.drive(run)
        return run, made

    async def say(self, run: RunId, text: str, who: str) -> Event:
        if not text.strip():
            raise UserError("empty_message", "The message is empty: say something.")
        if len(text.encode("utf-8", errors="replace")) > limits.PROMPT_BYTES:
            raise UserError("too_large", f"A message has at most {limits.PROMPT_BYTES:,} bytes.")
        return await self.backbone.append_outside(run, PromptReceived(text, who))

    async def stop(self, run: RunId, who: str) -> Event:
        return await self.backbone.append_outside(run, StopRequested(who))

    async def answer(self, run: RunId, ask: str, answer: Literal["allow", "deny"], who: str) -> Event:
        view = await self.view(run)
        if all(pending.ask != ask for pending in view.asks):
            raise UserError("no_such_ask", f"Run {run} is not asking {ask}: it was answered or never asked.")
        return await self.backbone.append_outside(run, AskAnswered(ask, answer, who))

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


def host_policy(settings: Settings) -> Policy:
    """The built-in rules and those of the configuration file."""
    return (BUILT_IN, layer("host", settings.file.policy, str(settings.config_path), may_widen=True))


def _hand_door(policy: Policy) -> DoorCall:
    """The door of sandboxes that belong to no run: same rules, nothing to record into."""

    async def record(sandbox: SandboxId, body: ConnectionDecided | ConnectionClosed) -> None:
        return None

    door = Door(lambda action: decide(policy, action), record)

    async def serve(sandbox: SandboxId, client: ByteStream) -> None:
        await door.serve(sandbox, client)

    return serve


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


def _means(settings: Settings, host: Host, warming: Warming, policy: Policy) -> Means:
    """What conducting runs takes."""
    return Means(
        data_dir=settings.data_dir,
        host=host,
        warming=warming,
        forge=warming.workshop.forge,
        models=lambda name: open_model(
            name, default=settings.file.model, keys=settings.keys, url=settings.file.model_url
        ),
        policy=policy,
        quota=settings.file.quota,
        ask_seconds=settings.file.ask_seconds,
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
        backbone = await stack.enter_async_context(
            open_backbone(settings.data_dir / "cloister.db", owner_lives=owners.lives)
        )
        choices = Choices(settings.file.runtime, settings.file.runsc, settings.file.store)
        host = local_tiers(settings.data_dir, owner, settings.path, choices)
        stack.push_async_callback(host.close)
        await host.sweep()
        templates = Templates(settings.data_dir / "templates", settings.path)
        await templates.sweep()
        door, quota = _hand_door(policy), settings.file.quota
        workshop = Workshop(templates, host, PlainGit(), door, quota, repositories(settings.data_dir))
        warming = Warming(workshop)
        pooled = settings.file.pool if role == "server" else ()
        pool = await stack.enter_async_context(open_pool(host, pooled, quota, templates.version))
        sandboxes = await stack.enter_async_context(open_sandboxes(pool, door))
        commands = await stack.enter_async_context(
            open_commands(settings.data_dir / "commands", owner, owners.lives)
        )
        means = _means(settings, pool, warming, policy)

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
