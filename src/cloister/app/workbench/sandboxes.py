"""Sandboxes that outlive the request that made them; a task holds each one open."""

import hmac
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from cloister.app.tokens import Caller
from cloister.core import limits
from cloister.core.errors import CloisterError, UserError
from cloister.core.ids import SandboxId
from cloister.runs.environments.by_hand import ModelsByHand
from cloister.sandbox.api import Door, Host, Sandbox, SandboxInfo, SandboxSpec
from cloister.sandbox.code.contexts import Contexts

logger = logging.getLogger(__name__)

Opener = Callable[[], AbstractAsyncContextManager[Sandbox]]
Beside = Callable[[SandboxId], AbstractAsyncContextManager[None]]


@dataclass(slots=True)
class _Pause:
    """A sandbox that stands still."""

    left: float
    """Seconds that it had to live when it was paused."""
    over: anyio.Event = field(default_factory=anyio.Event)
    done: anyio.Event = field(default_factory=anyio.Event)

    async def end(self) -> None:
        self.over.set()
        await self.done.wait()


@dataclass(slots=True)
class _Live:
    sandbox: Sandbox
    task_id: str | None
    metadata: dict[str, str]
    clock: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Ends its time to live."""
    tokens: dict[str, Caller] = field(default_factory=dict[str, Caller])
    """SHA-256 of each token for its inside → who made it."""
    addresses: dict[tuple[int, str], Caller] = field(default_factory=dict[tuple[int, str], Caller])
    """Port and SHA-256 of the secret of each shared address → who made it."""
    closing: anyio.Event = field(default_factory=anyio.Event)
    gone: anyio.Event = field(default_factory=anyio.Event)
    pause: _Pause | None = None
    changing: anyio.Lock = field(default_factory=anyio.Lock)

    @property
    def info(self) -> SandboxInfo:
        return msgspec.structs.replace(
            self.sandbox.info,
            metadata=self.metadata,
            paused=self.pause is not None,
            task_id=self.task_id,
        )

    async def set_ttl(self, seconds: float) -> None:
        await self.sandbox.set_ttl(seconds)
        self.clock.deadline = anyio.current_time() + seconds

    def running(self) -> Sandbox:
        """Raises `UserError` (`sandbox_paused`)."""
        if self.pause is not None:
            name = self.sandbox.info.id
            raise UserError(
                "sandbox_paused", f"Sandbox {name} is paused: `cloister sandbox set {name} --resume`."
            )
        return self.sandbox


class Sandboxes:
    """The sandboxes of this process that people made by hand, each with a time to live."""

    def __init__(self, host: Host, door: Door | None, tasks: TaskGroup, models: ModelsByHand) -> None:
        self._host = host
        self.models = models
        self._door = door
        self._tasks = tasks
        self._live: dict[SandboxId, _Live] = {}
        self._by_task: dict[str, tuple[SandboxSpec, SandboxId]] = {}
        self._creating = anyio.Lock()
        self._key = secrets.token_bytes(32)
        self.contexts = Contexts(tasks)

    async def create(
        self,
        spec: SandboxSpec,
        task_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        beside: Beside | None = None,
    ) -> tuple[SandboxInfo, bool]:
        """Open a sandbox; the flag says whether it is new. `beside` is open while it lives.

        The same `task_id` returns the same sandbox while it lives. Raises `UserError` (`task_id_taken`) for another spec.
        """
        _check_ttl(spec.ttl_seconds)
        opener = partial(self._host.open, spec, self._door)
        made = partial(self._hold, opener, task_id, dict(metadata or {}), beside)
        if task_id is None:
            return await self._tasks.start(made), True
        async with self._creating:
            known = self._by_task.get(task_id)
            if known is not None and (live := self._live.get(known[1])):
                if known[0] != spec:
                    raise UserError(
                        "task_id_taken", f"Task id {task_id} already names a sandbox with other settings."
                    )
                return live.info, False
            info: SandboxInfo = await self._tasks.start(made)
            self._by_task[task_id] = (spec, info.id)
            return info, True

    async def fork(self, sandbox: str, count: int = 1) -> tuple[SandboxInfo, ...]:
        """Fork a living sandbox `count` times; all of them or none."""
        if not 1 <= count <= limits.FORKS:
            raise UserError("bad_count", f"A sandbox can be forked 1 to {limits.FORKS} times at once.")
        parent = self._find(sandbox)
        opener = parent.running().fork
        made: list[SandboxInfo] = []
        failed: list[Exception] = []

        async def one() -> None:
            try:
                made.append(await self._tasks.start(self._hold, opener, None, parent.metadata))
            except Exception as error:
                # Carried out of the task group, which would wrap it.
                failed.append(error)

        try:
            async with anyio.create_task_group() as forks:
                for _ in range(count):
                    forks.start_soon(one)
            if failed:
                raise failed[0]
        except BaseException:
            for info in made:
                if (live := self._live.get(info.id)) is not None:
                    live.closing.set()
            raise
        return tuple(made)

    def get(self, sandbox: str) -> Sandbox:
        """Raises `UserError` (`no_such_sandbox`, `sandbox_paused`)."""
        return self._find(sandbox).running()

    def info(self, sandbox: str) -> SandboxInfo:
        """Raises `UserError` (`no_such_sandbox`)."""
        return self._find(sandbox).info

    def list(self) -> tuple[SandboxInfo, ...]:
        """Oldest first."""
        return tuple(live.info for live in self._live.values())

    async def change(
        self,
        sandbox: str,
        ttl_seconds: float | None = None,
        metadata: Mapping[str, str] | None = None,
        paused: bool | None = None,
    ) -> SandboxInfo:
        """Give it another time to live, from now on, or other metadata; pause it, or let it go on.

        Raises `UserError` (`bad_ttl`; `sandbox_paused`: the time to live of one that stays paused).
        """
        live = self._find(sandbox)
        if ttl_seconds is not None:
            _check_ttl(ttl_seconds)
        async with live.changing:
            if paused is False and live.pause is not None:
                await self._resume(live, live.pause, ttl_seconds)
            elif ttl_seconds is not None:
                live.running()
                await live.set_ttl(ttl_seconds)
            if paused and live.pause is None:
                await self._pause(live)
        if metadata is not None:
            live.metadata = dict(metadata)
        return live.info

    async def _pause(self, live: _Live) -> None:
        left = max(1.0, live.sandbox.info.expires_at - time.time())
        # The guest has a clock of its own, which must not ring while it stands still.
        await live.set_ttl(limits.TTL_SECONDS_MAX)
        try:
            await self._tasks.start(self._stand_still, live, _Pause(left))
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(CloisterError):
                await live.set_ttl(left)
            raise

    async def _stand_still(self, live: _Live, pause: _Pause, *, task_status: TaskStatus[None]) -> None:
        begun = False
        try:
            async with live.sandbox.paused():
                live.pause, begun = pause, True
                task_status.started()
                await pause.over.wait()
        except Exception:
            # Before it stood still the error belongs to the caller; afterwards the sandbox is gone.
            if not begun:
                raise
            logger.exception("a paused sandbox could not go on")
        finally:
            live.pause = None
            pause.done.set()

    async def _resume(self, live: _Live, pause: _Pause, ttl_seconds: float | None) -> None:
        await pause.end()
        await live.set_ttl(pause.left if ttl_seconds is None else ttl_seconds)

    def issue(self, sandbox: str, who: Caller) -> tuple[SandboxInfo, str, bool]:
        """The secret of `who`'s token for its inside: the same one each time, and kept nowhere. True if it is new."""
        live = self._find(sandbox)
        about = msgspec.json.encode((live.sandbox.info.id, who.name, who.role, who.token, who.login))
        secret = hmac.new(self._key, about, sha256).hexdigest()
        name = sha256(secret.encode()).hexdigest()
        new = name not in live.tokens
        live.tokens[name] = who
        return live.info, secret, new

    def share(self, sandbox: str, port: int, who: Caller) -> tuple[SandboxInfo, str, bool]:
        """The secret of `who`'s address of a port, as `issue`: nothing but that port can be reached with it."""
        live = self._find(sandbox)
        about = msgspec.json.encode(
            ("port", port, live.sandbox.info.id, who.name, who.role, who.token, who.login)
        )
        secret = hmac.new(self._key, about, sha256).hexdigest()[:32]
        name = sha256(secret.encode()).hexdigest()
        new = (port, name) not in live.addresses
        live.addresses[port, name] = who
        return live.info, secret, new

    def visitor(self, sandbox: str, port: int, secret: str) -> Caller | None:
        """Who comes with the address of a port: its maker, inside that sandbox, as long as both are valid."""
        live = self._live.get(SandboxId(sandbox))
        maker = live and live.addresses.get((port, sha256(secret.encode()).hexdigest()))
        return None if maker is None else self._within(SandboxId(sandbox), maker)

    def _within(self, own: SandboxId, maker: Caller) -> Caller:
        return replace(maker, sandbox=own, holds=lambda: own in self._live and maker.holds())

    def holder(self, secret: bytes) -> Caller | None:
        """Who comes with the token of a living sandbox: its maker, inside that sandbox, as long as both are valid."""
        given = sha256(secret).hexdigest()
        found = next((live for live in self._live.values() if given in live.tokens), None)
        if found is None:
            return None
        return self._within(found.sandbox.info.id, found.tokens[given])

    async def close(self, sandbox: str) -> None:
        """Destroy it; all its resources are freed when this returns."""
        live = self._find(sandbox)
        live.closing.set()
        with anyio.fail_after(30):
            await live.gone.wait()

    def _find(self, sandbox: str) -> _Live:
        live = self._live.get(SandboxId(sandbox))
        if live is None:
            raise UserError(
                "no_such_sandbox", f"There is no sandbox {sandbox[:64]}: it has ended or never existed."
            )
        return live

    async def _hold(
        self,
        opener: Opener,
        task_id: str | None,
        metadata: dict[str, str],
        beside: Beside | None = None,
        *,
        task_status: TaskStatus[SandboxInfo],
    ) -> None:
        live: _Live | None = None
        try:
            async with opener() as sandbox, beside(sandbox.info.id) if beside else nullcontext():
                live = _Live(sandbox, task_id, metadata)
                self._live[sandbox.info.id] = live
                try:
                    live.clock.deadline = anyio.current_time() + max(
                        0.0, sandbox.info.expires_at - time.time()
                    )
                    task_status.started(live.info)
                    await _until_over(live)
                finally:
                    del self._live[sandbox.info.id]
                    if live.pause is not None:
                        with anyio.CancelScope(shield=True):
                            await live.pause.end()
                    if task_id is not None:
                        self._by_task.pop(task_id, None)
        except CloisterError:
            # Before it started the error belongs to the caller of `create`; afterwards the sandbox is gone.
            if live is None:
                raise
            logger.exception("a sandbox did not end cleanly")
        finally:
            if live is not None:
                live.gone.set()


def _check_ttl(ttl_seconds: float) -> None:
    if not 1 <= ttl_seconds <= limits.TTL_SECONDS_MAX:
        raise UserError(
            "bad_ttl",
            f"ttl_seconds must be between 1 and {limits.TTL_SECONDS_MAX:.0f}, not {ttl_seconds}.",
        )


async def _until_over(live: _Live) -> None:
    """Wait until it is closed, lost or expired."""
    with live.clock:
        async with anyio.create_task_group() as waits:

            async def lost() -> None:
                await live.sandbox.wait_lost()
                waits.cancel_scope.cancel()

            waits.start_soon(lost)
            await live.closing.wait()
            waits.cancel_scope.cancel()


@asynccontextmanager
async def open_sandboxes(host: Host, door: Door | None, models: ModelsByHand) -> AsyncGenerator[Sandboxes]:
    """The registry; leaving the block destroys every sandbox in it."""
    async with anyio.create_task_group() as tasks:
        try:
            yield Sandboxes(host, door, tasks, models)
        finally:
            tasks.cancel_scope.cancel()
