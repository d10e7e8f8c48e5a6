"""A `Host` whose sandboxes are directories of this machine. No isolation: for tests only.

What runs inside are plain processes; a fork is a copy of the directory. Sandboxes can be lost on purpose. A door
listens on loopback, and programs find it by the usual variable.
"""

import shutil
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread
from anyio.abc import ByteStream, SocketAttribute

from cloister.core.commands import Command, Finished
from cloister.core.errors import CloisterError, SandboxLost, UserError
from cloister.core.ids import SandboxId
from cloister.core.records import Isolation
from cloister.sandbox.api import Door, Report, SandboxInfo, SandboxSpec, SnapshotInfo
from cloister.testing.local_computer import LocalComputer, LocalProcess

ISOLATION = Isolation("container", "none", shares_kernel=True, store="directory")


class LocalSandbox(LocalComputer):
    """One directory as a `Sandbox`."""

    def __init__(
        self, host: "LocalHost", root: Path, spec: SandboxSpec, door: Door | None, parent: SandboxId | None
    ) -> None:
        super().__init__(root)
        self.root = root
        self.env = dict(spec.env)
        self._host = host
        self._spec = spec
        self._door = door
        self._parent = parent
        self._name = SandboxId(f"s-{root.name}")
        self._lost = anyio.Event()

    @property
    def info(self) -> SandboxInfo:
        now = time.time()
        ends = now + self._spec.ttl_seconds
        return SandboxInfo(
            self._name, self._spec.template, ISOLATION, self._spec.quota, now, ends, self._parent
        )

    @asynccontextmanager
    async def start(self, command: Command) -> AsyncGenerator[LocalProcess]:
        known = msgspec.structs.replace(command, env={**self.env, **command.env})
        async with super().start(known) as process:
            yield process

    async def run(self, command: Command, stdin: bytes = b"") -> Finished:
        if self._lost.is_set():
            raise SandboxLost("The sandbox was lost on purpose.")
        return await super().run(command, stdin)

    def lose(self) -> None:
        """From now on it is gone."""
        self._lost.set()

    @asynccontextmanager
    async def fork(self) -> AsyncGenerator["LocalSandbox"]:
        if self._lost.is_set():
            raise SandboxLost("The sandbox was lost on purpose.")
        async with self._host.opened(self._spec, self._door, self) as made:
            yield made

    async def snapshot(self, name: str | None = None) -> SnapshotInfo:
        raise UserError("no_snapshots", "A local sandbox keeps no snapshots.")

    async def dial(self, port: int) -> ByteStream:
        raise UserError("no_such_port", "A local sandbox has no ports.")

    async def wait_lost(self) -> str:
        await self._lost.wait()
        return "The sandbox was lost on purpose."


@asynccontextmanager
async def _listening(sandbox: LocalSandbox, door: Door | None) -> AsyncGenerator[None]:
    if door is None:
        yield
        return
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, partial(door, sandbox.info.id))
        port = listener.extra(SocketAttribute.local_port)  # noqa: S610  (no database)
        sandbox.env["http_proxy"] = f"http://127.0.0.1:{port}"
        yield
        tasks.cancel_scope.cancel()


class LocalHost:
    """Opens directories below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._numbers = count(1)
        self.living: list[LocalSandbox] = []
        self.refused: dict[int, CloisterError] = {}
        """Which sandboxes, counted from 1, cannot be opened, and why."""

    @asynccontextmanager
    async def open(self, spec: SandboxSpec, door: Door | None = None) -> AsyncGenerator[LocalSandbox]:
        async with self.opened(spec, door, None) as made:
            yield made

    @asynccontextmanager
    async def opened(
        self, spec: SandboxSpec, door: Door | None, parent: LocalSandbox | None
    ) -> AsyncGenerator[LocalSandbox]:
        """A sandbox with the files of `parent`, if there is one."""
        number = next(self._numbers)
        if number in self.refused:
            raise self.refused[number]
        at = self._root / f"{number:04}"
        if parent is not None:
            await to_thread.run_sync(lambda: shutil.copytree(parent.root, at, symlinks=True))
        made = LocalSandbox(self, at, spec, door, parent and parent.info.id)
        self.living.append(made)
        try:
            async with _listening(made, door):
                yield made
        finally:
            self.living.remove(made)
            made.lose()
            shutil.rmtree(at, ignore_errors=True)

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        return ()

    async def delete_snapshot(self, reference: str) -> None:
        raise UserError("unknown_snapshot", "A local host keeps no snapshots.")

    async def prepare(self, template: str, report: Report) -> None:
        return None

    async def sweep(self) -> int:
        return 0
