"""This machine among those of a cluster: its lease, its record, and the log and files that they share.

A lease that was lost is never renewed. Its runs stop here, others take them, and this machine goes on with another lease.
"""

import logging
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec
from anyio import TASK_STATUS_IGNORED, to_thread
from anyio.abc import TaskStatus

from cloister import __version__
from cloister.app.cluster.storage import Load, Storage, Work
from cloister.app.settings import ClusterEntry, Settings, host_name
from cloister.core.errors import CloisterError
from cloister.core.ids import OwnerId, new_owner_id
from cloister.forge.host import LocalRepositories, ensure_bare
from cloister.log.api import Peer
from cloister.log.jetstream.backbone import open_backbone
from cloister.log.jetstream.leases import StreamLeases, Terms, open_leases
from cloister.log.jetstream.link import Cluster, check, open_link
from cloister.log.jetstream.machines import Machines, open_machines
from cloister.log.jetstream.objects import open_objects
from cloister.log.jetstream.run_files import SharedRepositories

TELL_SECONDS = 2.0
"""How often a machine renews what it says of itself, and looks whether it is drained."""

LEAVE_SECONDS = 3.0
_LOOK_SECONDS = 0.2
_SWEEP_SECONDS = 3_600.0
_LOST = "The lease of this machine ran out: the cluster did not answer in time."

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Member:
    """`Others`, and the lease of this process."""

    def __init__(
        self,
        machines: Machines,
        leases: StreamLeases,
        terms: Terms,
        me: Peer,
        failure: Callable[[], CloisterError | None],
    ) -> None:
        self._machines = machines
        self._failure = failure
        """Why this machine cannot follow the log any more."""
        self._leases = leases
        self._terms = terms
        self._me = me
        self._load: Callable[[], Load] = lambda: Load(0, 0)
        self._drain: Callable[[bool], None] = lambda _: None
        self._used = False
        """Whether the lease may have runs."""
        self._drained = False
        """Whether this machine was drained when it last looked: a claim that was under way has ended since."""
        self._given_up = False

    @property
    def name(self) -> str:
        return self._me.name

    @property
    def owner(self) -> OwnerId:
        """In whose name this process claims runs."""
        return self._me.owner

    def lost(self) -> str | None:
        """Why this process may not drive runs now."""
        if failure := self._failure():
            return failure.message
        return None if self._leases.acts(self._me.owner) else _LOST

    def describe(self, load: Callable[[], Load], drain: Callable[[bool], None]) -> None:
        self._load, self._drain = load, drain

    async def all(self) -> tuple[Peer, ...]:
        return await self._machines.all()

    async def drain(self, name: str, on: bool) -> None:
        await self._machines.drain(name, on)

    async def keep(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Hold a lease, and another one whenever one was lost or given up, as long as this machine follows the log."""
        async with _entered(self._leases.hold(self._me.owner)):
            task_status.started()
            await self._until_over()
        while self._failure() is None:
            owner = new_owner_id()
            async with AsyncExitStack() as held:
                try:
                    await held.enter_async_context(_entered(self._leases.hold(owner)))
                except CloisterError as error:
                    logger.warning("no new lease: %s", error.message)
                    await anyio.sleep(1.0)
                    continue
                self._me = msgspec.structs.replace(self._me, owner=owner)
                self._given_up = False
                logger.warning("this machine goes on as %s", owner)
                await self._until_over()
        logger.error("this machine drives no runs until it is started again: %s", self.lost())

    async def _until_over(self) -> None:
        """Wait until others may take the runs of this lease; they were stopped when it was lost."""
        await self._while_acting(self._me.owner)
        if not self._given_up:
            await anyio.sleep(self._terms.dead_seconds - self._terms.act_seconds)

    async def _while_acting(self, owner: OwnerId) -> None:
        while True:
            if (
                self._failure()
                or not self._leases.acts(owner)
                or (self._given_up and owner == self._me.owner)
            ):
                return
            await anyio.sleep(_LOOK_SECONDS)

    def alone(self, name: str, work: Work) -> Work:
        """`work`, done by one machine of the cluster at a time."""
        owner = OwnerId(f"o-{name}")

        async def led() -> None:
            while True:
                await anyio.sleep(TELL_SECONDS)
                if await to_thread.run_sync(self._leases.lives, owner):
                    continue
                try:
                    await to_thread.run_sync(self._leases.bury, owner)
                    async with _entered(self._leases.hold(owner)), anyio.create_task_group() as tasks:
                        tasks.start_soon(work)
                        await self._while_acting(owner)
                        tasks.cancel_scope.cancel()
                except CloisterError as error:
                    logger.info("another machine does the work called %s: %s", name, error.message)

        return led

    async def tell(self) -> None:
        """Say what this machine does, and obey what a person asks of it; never returns."""
        while True:
            await anyio.sleep(TELL_SECONDS)
            load = self._load()
            self._me = msgspec.structs.replace(
                self._me,
                at=time.time(),
                slots=load.slots,
                running=load.running,
                tiers=load.tiers,
                templates=load.templates,
            )
            try:
                await self._machines.tell(self._me)
                drained = await self._machines.is_drained(self._me.name)
            except CloisterError as error:
                logger.warning("the cluster does not know of this machine now: %s", error.message)
                continue
            self._drain(drained)
            self._used = self._used or not drained
            before, self._drained = self._drained, drained
            if drained and before and self._used and not self._load().running:
                # The runs that it drove can be claimed by others at once.
                self._used, self._given_up = False, True


def _identity(data_dir: Path) -> str:
    """What this data directory is called, made once."""
    path = data_dir / "machine.id"
    if not path.exists():
        draft = path.with_suffix(".new")
        draft.write_text(secrets.token_hex(12) + "\n", encoding="ascii")
        draft.replace(path)
    return path.read_text(encoding="ascii").strip()


def _machine(settings: Settings, entry: ClusterEntry) -> Peer:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    now = time.time()
    return Peer(
        entry.machine,
        _identity(settings.data_dir),
        new_owner_id(),
        entry.role,
        __version__,
        started_at=now,
        at=now,
        cpus=os.cpu_count() or 1,
        memory_bytes=pages * size,
        labels=entry.labels,
    )


@asynccontextmanager
async def _entered(block: AbstractContextManager[T]) -> AsyncGenerator[T]:
    """Enter and leave a block that waits, in a thread."""
    found = await to_thread.run_sync(block.__enter__)
    try:
        yield found
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(block.__exit__, None, None, None)


@asynccontextmanager
async def open_member(settings: Settings, entry: ClusterEntry) -> AsyncGenerator[Storage]:
    """Take part in the cluster until the block ends. Raises `UserError`, `HostError`, `OutsideError`."""
    entry = msgspec.structs.replace(entry, machine=entry.machine or host_name())
    near = settings.config_path.parent
    cluster = Cluster(
        entry.servers,
        entry.name,
        entry.replicas,
        entry.machine,
        near / entry.credentials if entry.credentials else None,
        near / entry.ca if entry.ca else None,
    )
    check(cluster)
    terms = Terms()
    async with AsyncExitStack() as stack:
        leases = await stack.enter_async_context(_entered(open_leases(cluster, terms)))
        link = await stack.enter_async_context(open_link(cluster))
        machines = await open_machines(link, leases.lives)
        me = _machine(settings, entry)
        backbone = open_backbone(link, settings.log_path, owner_lives=leases.lives)
        shared = await stack.enter_async_context(backbone)
        member = Member(machines, leases, terms, me, lambda: shared.failure)
        objects = await open_objects(link)
        local = LocalRepositories(settings.data_dir)
        files = SharedRepositories(local, settings.data_dir / "runs", objects, ensure_bare)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        await tasks.start(member.keep)
        before = await machines.join(me, terms.dead_seconds + terms.renew_seconds)
        stack.push_async_callback(_leave, machines, me.name)
        if before is not None:
            # The lock of this data directory is ours: the process that held that lease is gone.
            await to_thread.run_sync(leases.bury, before.owner)
        tasks.start_soon(member.tell)
        tasks.start_soon(_sweep, files)
        yield Storage(shared, files, lambda: member.owner, member.lost, member.alone, files, member)


async def _leave(machines: Machines, name: str) -> None:
    with anyio.move_on_after(LEAVE_SECONDS, shield=True), suppress(CloisterError):
        await machines.leave(name)


async def _sweep(files: SharedRepositories) -> None:
    """Remove stored files that no run names; never returns."""
    while True:
        await anyio.sleep(_SWEEP_SECONDS)
        try:
            await files.sweep()
        except CloisterError as error:
            logger.warning("old files of the cluster cannot be removed now: %s", error.message)
