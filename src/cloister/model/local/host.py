"""Models that run on this machine: started on first use, stopped with this process."""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import TaskGroup, TaskStatus

from cloister.core.errors import CloisterError, HostError, sole
from cloister.model.api import Failure, Model, Reply, Request, TextDelta, single
from cloister.model.catalog import LOCAL
from cloister.model.local._spawn import Order, Serving, serving
from cloister.model.local.files import Shelf
from cloister.model.small_models import JsonActions

SIMPLE = frozenset({"read", "edit", "bash", "finish"})
"""The tools for a model of this size. With `write` it would copy a whole file including the bug."""
SPARE_BYTES = 536_870_912
"""Memory that must stay free besides the weights of a model."""


def order_for(shelf: Shelf, name: str, port: int = 0) -> Order:
    """The process to start for a model. Raises `UserError` (`no_model_file`), `HostError` (`no_memory`)."""
    path = shelf.found(name)
    need, free = path.stat().st_size + SPARE_BYTES, available_bytes()
    if need > free:
        raise HostError(
            "no_memory",
            f"The local model {name} needs {need / 2**30:.1f} GiB of memory and {free / 2**30:.1f} are free: "
            "stop another program, or use a smaller model.",
        )
    return Order(str(path), name, shelf.window(name), port=port)


def available_bytes() -> int:
    """Memory that is available on this machine now."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1_024
    except OSError:
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class LocalHost:
    """The local models of this process: one server for each model, shared by all runs."""

    def __init__(self, shelf: Shelf, tasks: TaskGroup) -> None:
        self.shelf = shelf
        self._tasks = tasks
        self._serving: dict[str, Serving] = {}
        self._lock = anyio.Lock()

    async def served(self, name: str) -> Serving:
        """Return the server of a model; start it if needed. Raises as `order_for` and `serving`."""
        async with self._lock:
            running = self._serving.get(name)
            if running is None or running.process.returncode is not None:
                self._serving[name] = await self._tasks.start(self._hold, order_for(self.shelf, name))
            return self._serving[name]

    async def _hold(self, order: Order, *, task_status: TaskStatus[Serving]) -> None:
        self.shelf.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        async with serving(order, self.shelf.folder / "server.log") as running:
            task_status.started(running)
            await running.process.wait()


@asynccontextmanager
async def open_local_host(shelf: Shelf) -> AsyncGenerator[LocalHost]:
    """Start servers on demand; leaving the block stops them."""
    try:
        async with anyio.create_task_group() as tasks:
            yield LocalHost(shelf, tasks)
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise sole(group) from None


def local_model(name: str, host: LocalHost) -> Model:
    """A model on this machine. It is small, so it uses JSON actions."""
    return JsonActions(_Served(name, host), host.shelf.window(name), SIMPLE)


class _Served:
    """The model behind our own server."""

    def __init__(self, name: str, host: LocalHost) -> None:
        self._name = name
        self._host = host

    @property
    def name(self) -> str:
        return f"{LOCAL}:{self._name}"

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[TextDelta | Reply | Failure]]:
        from cloister.model.remote.providers import open_remote
        from cloister.model.remote.wire_formats import Endpoint

        try:
            # On each call, so that a server that died is started again.
            running = await self._host.served(self._name)
        except CloisterError as error:
            yield single(Failure("bad_request", error.message))
            return
        endpoint = Endpoint("llamacpp", self._name, running.url, running.key)
        async with open_remote(endpoint) as remote, remote.stream(request) as items:
            yield items
