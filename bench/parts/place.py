"""Where measurements run: a data directory of their own with templates that are built once for all of them."""

import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cloister.core.computer import Command
from cloister.core.ids import OwnerId, new_owner_id
from cloister.sandbox.api import Host, SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.liveness import Owners
from cloister.sandbox.store.choose import StoreChoice
from parts.table import Table

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
WARM = CACHE / "cloister-tests"
TRUE = Command(("/bin/true",), cwd="/")


def nothing(fraction: float | None, note: str) -> None:
    """Discards progress."""


@dataclass
class Bench:
    """What every part is given."""

    table: Table
    directory: Path
    owner: OwnerId
    rounds: int

    @property
    def path(self) -> str:
        return os.environ["PATH"]

    @property
    def rootfs(self) -> Path:
        (found,) = (self.directory / "templates").glob("default-*/rootfs")
        return found

    @asynccontextmanager
    async def containers(self, store: StoreChoice = "auto") -> AsyncGenerator[ContainerHost]:
        host = ContainerHost(self.directory, self.owner, None, self.path, store=store)
        try:
            await host.prepare("default", nothing)
            yield host
        finally:
            await host.close()


@contextmanager
def bench(rounds: int) -> Generator[Bench]:
    directory = Path(tempfile.mkdtemp(prefix="cloister-bench-"))
    directory.chmod(0o711)  # a raw runtime's user namespace has to pass here
    try:
        for name in ("templates", "programs"):
            (WARM / name).mkdir(parents=True, exist_ok=True)
            (directory / name).symlink_to(WARM / name)
        owner = new_owner_id()
        with Owners(directory / "owners").hold(owner):
            yield Bench(Table(), directory, owner, rounds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def timed(job: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await job()
    return time.perf_counter() - started


async def first_exec(host: Host, spec: SandboxSpec) -> float:
    """Seconds from asking for a sandbox to the end of its first command."""
    started = time.perf_counter()
    async with host.open(spec) as sandbox:
        await sandbox.run(TRUE)
        return time.perf_counter() - started
