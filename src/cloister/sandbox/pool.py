"""Warm sandboxes: opened ahead of time, handed out at once, used once, replaced in the background.

A pooled sandbox is an ordinary unused one. Environment, door and time to live are set when it is claimed.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
import msgspec
from anyio import TASK_STATUS_IGNORED, to_thread
from anyio.abc import ByteStream, TaskGroup, TaskStatus

from cloister.core import limits
from cloister.core.computer import Command
from cloister.core.errors import CloisterError, HostError, UserError
from cloister.core.ids import SandboxId
from cloister.core.requests import PoolWish, Quota, Tier
from cloister.sandbox.api import Door, Host, Poolable, Report, Sandbox, SandboxSpec, SnapshotInfo

logger = logging.getLogger(__name__)

IDLE_SECONDS = 3_600.0
"""Age at which an unclaimed sandbox is replaced."""
PASSING, PASSING_SECONDS = 4, 600.0
"""Sandboxes that are kept warm because a person is about to need one: how many, and for how long."""

_LOOK_SECONDS = 5.0
_SETTLE_SECONDS = 0.1
"""Pause after a claim, so that opening the next one does not slow down the first commands of the caller."""

_END_SECONDS = 130.0
_NOTHING = Command(("/bin/sh", "-c", "exec true"), cwd="/", seconds=10.0)
_GUESS_BYTES = 8_388_608
"""Assumed memory of a sandbox before the first one was measured."""


Version = Callable[[str], str | None]
"""The version of a template that a sandbox would start from; None when there is none."""


class PoolInfo(msgspec.Struct, frozen=True):
    """The public record of one kind of pooled sandbox."""

    template: str
    tier: Tier
    size: int
    ready: int
    memory_bytes: int
    """Memory of the ready ones."""
    bound_bytes: int
    claimed: int
    """Handed out since the start."""
    missed: int
    """Requests that found none ready."""


@dataclass(slots=True)
class _Doorway:
    """The door of a sandbox that is not claimed yet."""

    to: Door | None = None

    async def __call__(self, sandbox: SandboxId, stream: ByteStream) -> None:
        if self.to is not None:
            await self.to(sandbox, stream)


@dataclass(slots=True, eq=False)
class _Member:
    sandbox: Poolable
    version: str
    doorway: _Doorway
    expires: float
    """By `anyio.current_time()`."""
    claimed: anyio.Event = field(default_factory=anyio.Event)
    unwanted: anyio.Event = field(default_factory=anyio.Event)
    gone: anyio.Event = field(default_factory=anyio.Event)


@dataclass(slots=True, eq=False)
class _Shelf:
    """The sandboxes of one kind."""

    wish: PoolWish
    quota: Quota
    passing: bool = False
    """Whether it is for one sandbox, and gone with it."""
    ready: list[_Member] = field(default_factory=list[_Member])
    claimed: int = 0
    missed: int = 0


class Pool:
    """A host that hands out warm sandboxes where it can. Implements `sandbox.api.Host`."""

    def __init__(
        self, host: Host, wishes: tuple[PoolWish, ...], quota: Quota, version: Version, tasks: TaskGroup
    ) -> None:
        self._host = host
        self._version = version
        self._tasks = tasks
        self._shelves = [_Shelf(wish, quota) for wish in wishes]
        self._wanted = anyio.Event()
        self._changed = anyio.Event()

    @asynccontextmanager
    async def open(self, spec: SandboxSpec, door: Door | None = None) -> AsyncGenerator[Sandbox]:
        member = self._claim(spec)
        if member is None:
            async with self._host.open(spec, door) as sandbox:
                yield sandbox
            return
        try:
            member.doorway.to = door
            member.sandbox.adopt(spec, door)
            yield member.sandbox
        finally:
            member.unwanted.set()
            with anyio.move_on_after(_END_SECONDS, shield=True):
                await member.gone.wait()

    async def prepare(self, template: str, report: Report) -> None:
        await self._host.prepare(template, report)

    async def sweep(self) -> int:
        return await self._host.sweep()

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        return await self._host.snapshots()

    async def delete_snapshot(self, reference: str) -> None:
        await self._host.delete_snapshot(reference)

    def warm(self, spec: SandboxSpec) -> None:
        """Keep one sandbox as `spec` ready for some minutes, unless one waits. Of many kinds the newest are kept."""
        if any(_fits(shelf, spec) for shelf in self._shelves):
            return
        passing = [shelf for shelf in self._shelves if shelf.passing]
        for shelf in passing[: max(0, len(passing) + 1 - PASSING)]:
            self._shelves.remove(shelf)
            for member in shelf.ready:
                member.unwanted.set()
        shelf = _Shelf(PoolWish(spec.template, spec.tier, 1), spec.quota, passing=True)
        self._shelves.append(shelf)
        self._tasks.start_soon(self._pass, shelf)

    async def _pass(self, shelf: _Shelf) -> None:
        try:
            version = await to_thread.run_sync(self._version, shelf.wish.template)
            if version is not None:
                await self._hold(shelf, version, task_status=TASK_STATUS_IGNORED)
        except CloisterError as error:
            logger.warning("no sandbox of %s is kept warm: %s", shelf.wish.template, error.message)
        except Exception:
            logger.exception("no sandbox of %s is kept warm", shelf.wish.template)
        finally:
            self._leave(shelf)

    def _leave(self, shelf: _Shelf) -> None:
        if shelf.passing and shelf in self._shelves:
            self._shelves.remove(shelf)
            self._change()

    def drop(self) -> None:
        """End every sandbox that is not handed out; they are replaced when there is room."""
        for shelf in self._shelves:
            for member in shelf.ready:
                member.unwanted.set()

    def info(self) -> tuple[PoolInfo, ...]:
        """The kinds of sandbox in the pool, in the order of the configuration."""
        return tuple(
            PoolInfo(
                template=shelf.wish.template,
                tier=shelf.wish.tier,
                size=shelf.wish.size,
                ready=len(shelf.ready),
                memory_bytes=self._memory(shelf),
                bound_bytes=shelf.wish.memory_bytes,
                claimed=shelf.claimed,
                missed=shelf.missed,
            )
            for shelf in self._shelves
        )

    async def filled(self) -> None:
        """Wait until every shelf holds what it may."""
        while any(self._lacks(one) is not None or (one.passing and not one.ready) for one in self._shelves):
            await self._changed.wait()

    async def keep_full(self) -> None:
        """Never returns: opens what is missing, one at a time, and lets go of what is out of date."""
        while True:
            self._wanted = anyio.Event()
            for shelf in [each for each in self._shelves if not each.passing]:
                await self._tend(shelf)
            with anyio.move_on_after(_LOOK_SECONDS):
                await self._wanted.wait()
            await anyio.sleep(_SETTLE_SECONDS)

    def _claim(self, spec: SandboxSpec) -> _Member | None:
        """Take a warm sandbox that fits `spec`, if there is one."""
        now = anyio.current_time()
        for shelf in [each for each in self._shelves if _fits(each, spec)]:
            version = self._version(shelf.wish.template)
            for member in shelf.ready:
                if member.version == version and now + spec.ttl_seconds <= member.expires:
                    shelf.ready.remove(member)
                    member.claimed.set()
                    shelf.claimed += 1
                    self._leave(shelf)
                    self._wanted.set()
                    return member
            shelf.missed += 1
        return None

    async def _tend(self, shelf: _Shelf) -> None:
        version = self._version(shelf.wish.template)
        for member in shelf.ready:
            if member.version != version:
                member.unwanted.set()
        if self._memory(shelf) > shelf.wish.memory_bytes:
            shelf.ready[-1].unwanted.set()
        while (lacking := self._lacks(shelf)) is not None:
            try:
                await self._tasks.start(self._hold, shelf, lacking)
            except CloisterError as error:
                logger.warning("no sandbox of %s for the pool: %s", shelf.wish.template, error.message)
                return
            except Exception:
                logger.exception("no sandbox of %s for the pool", shelf.wish.template)
                return

    def _lacks(self, shelf: _Shelf) -> str | None:
        """The version to open one more of; None with enough sandboxes, too little memory or no template."""
        if shelf.passing:
            return None
        version = self._version(shelf.wish.template)
        fresh = [member for member in shelf.ready if member.version == version]
        if version is None or len(fresh) >= shelf.wish.size:
            return None
        each = [member.sandbox.memory_bytes() for member in shelf.ready]
        # Room for two more, so that a little growth of another does not end the new one at once.
        more = 2 * max(each) if each else _GUESS_BYTES
        return version if sum(each) + more <= shelf.wish.memory_bytes else None

    def _memory(self, shelf: _Shelf) -> int:
        return sum(member.sandbox.memory_bytes() for member in shelf.ready)

    async def _hold(self, shelf: _Shelf, version: str, *, task_status: TaskStatus[None]) -> None:
        """Hold one sandbox open until it is lost or not wanted."""
        doorway, member = _Doorway(), None
        wish = shelf.wish
        spec = SandboxSpec(wish.template, wish.tier, shelf.quota, limits.TTL_SECONDS_MAX)
        expires = anyio.current_time() + limits.TTL_SECONDS_MAX
        try:
            async with self._host.open(spec, doorway) as sandbox:
                if not isinstance(sandbox, Poolable):
                    tier = sandbox.info.isolation.tier
                    raise HostError("cannot_pool", f"Sandboxes of the tier {tier} cannot be kept warm.")
                await _stretch(sandbox)
                member = _Member(sandbox, version, doorway, expires)
                shelf.ready.append(member)
                task_status.started()
                self._change()
                await self._until_over(shelf, member)
        except Exception:
            if member is None:
                raise  # to `_tend`
            logger.exception("a pooled sandbox did not end cleanly")
        finally:
            if member is not None:
                member.gone.set()
                self._wanted.set()
                self._change()

    async def _until_over(self, shelf: _Shelf, member: _Member) -> None:
        async with anyio.create_task_group() as waits:

            async def lost() -> None:
                await member.sandbox.wait_lost()
                if member.claimed.is_set():
                    return  # the caller notices the loss itself
                waits.cancel_scope.cancel()

            async def let_go() -> None:
                await member.unwanted.wait()
                waits.cancel_scope.cancel()

            waits.start_soon(lost)
            waits.start_soon(let_go)
            with anyio.move_on_after(PASSING_SECONDS if shelf.passing else IDLE_SECONDS):
                await member.claimed.wait()
            if member.claimed.is_set():
                await member.unwanted.wait()
            waits.cancel_scope.cancel()
        if member in shelf.ready:
            shelf.ready.remove(member)

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _fits(shelf: _Shelf, spec: SandboxSpec) -> bool:
    wish = shelf.wish
    return not spec.kept and (wish.template, wish.tier, shelf.quota) == (spec.template, spec.tier, spec.quota)


async def _stretch(sandbox: Sandbox) -> None:
    """Run a command without effect, which loads the shell and its libraries into memory."""
    with suppress(UserError):  # a template without a shell
        await sandbox.run(_NOTHING)


@asynccontextmanager
async def open_pool(
    host: Host, wishes: tuple[PoolWish, ...], quota: Quota, version: Version
) -> AsyncGenerator[Pool]:
    """The pool, filled in the background; leaving the block ends every sandbox of it."""
    async with anyio.create_task_group() as tasks:
        pool = Pool(host, wishes, quota, version, tasks)
        if wishes:
            tasks.start_soon(pool.keep_full)
        try:
            yield pool
        finally:
            tasks.cancel_scope.cancel()
