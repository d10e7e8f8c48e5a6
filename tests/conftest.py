"""What every test gets. A test that needs sandboxes asks for `host` and is skipped, by reason, where there are none."""

import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, settings

from cloister.core.errors import HostError
from cloister.core.ids import new_owner_id
from cloister.core.requests import TierName
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.liveness import Owners
from cloister.sandbox.local import cgroup
from cloister.sandbox.local.names import parse_name
from cloister.sandbox.microvm.host import MicrovmHost

# A suite that was started in the background has Ctrl-C ignored, and so would every process it starts.
for ctrl in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(ctrl) is signal.SIG_IGN:
        signal.signal(ctrl, signal.default_int_handler if ctrl is signal.SIGINT else signal.SIG_DFL)

# Whether a property holds says nothing about how busy the machine is, and a run of the suite is like the one before.
# `--hypothesis-profile search` looks elsewhere each time.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", settings.get_profile("search"), derandomize=True, database=None)
settings.load_profile("steady")

PATH = os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
SLOW_FIRST = ("whole/real", "whole/e2e", "whole/chaos", "whole/escape", "sandbox", "whole/conformance")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The directories with the longest files begin, so that no worker is left alone with one in the end."""
    here = Path(__file__).parent
    places = {name: place for place, name in enumerate(SLOW_FIRST)}
    names = [item.nodeid for item in items]
    if twice := {name for name, times in Counter(names).items() if times > 1}:
        raise pytest.UsageError(
            f"Workers know tests by their names and run only one of each: {sorted(twice)}."
        )

    def place(item: pytest.Item) -> int:
        parts = item.path.relative_to(here).parts
        names = (parts[0], "/".join(parts[:2]))
        return min((places[name] for name in names if name in places), default=len(SLOW_FIRST))

    items.sort(key=place)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def warm_dir() -> Path:
    """A data directory outside the repository that keeps the template and the programs between test sessions."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cloister-tests"
    owner = new_owner_id()

    async def warm() -> None:
        warm_host = ContainerHost(cache, owner, None, PATH)
        await warm_host.prepare("default", lambda fraction, note: None)
        works = (await warm_host.report(again=True)).works
        await warm_host.close()
        if not works:
            raise HostError("no_runtime", "neither crun nor runc works here")
        # Tried here once, so that no test has to.
        gvisor = ContainerHost(cache, owner, None, PATH, tier="gvisor")
        await gvisor.report(again=True)
        await gvisor.close()

    try:
        with Owners(cache / "owners").hold(owner):
            anyio.run(warm)
    except HostError as error:
        pytest.skip(f"no sandboxes on this machine ({error.code}): {error.message}")
    return cache


@pytest.fixture
def data_dir(warm_dir: Path, tmp_path: Path) -> Path:
    """A data directory of its own that borrows what is slow to make."""
    return borrowing(warm_dir, tmp_path / "data")


def borrowing(warm_dir: Path, directory: Path) -> Path:
    directory.mkdir(mode=0o700)
    (warm_dir / "microvm").mkdir(exist_ok=True, mode=0o700)
    for name in ("templates", "programs", "runtimes.json", "store.btrfs", "microvm"):
        (directory / name).symlink_to(warm_dir / name)
    return directory


@pytest.fixture
def host(data_dir: Path) -> Generator[ContainerHost]:
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        opened = ContainerHost(data_dir, owner, None, PATH)
        yield opened
        anyio.run(opened.close)


@pytest.fixture
def host_of(data_dir: Path) -> Callable[[TierName, str | None], AbstractAsyncContextManager[ContainerHost]]:
    """Gives the host of a tier, with any or a certain runtime; skips, and says why, where that does not work."""

    return partial(host_on, data_dir)


@asynccontextmanager
async def host_on(data_dir: Path, tier: TierName, runtime: str | None) -> AsyncGenerator[ContainerHost]:
    """See `host_of`."""
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        host = ContainerHost(data_dir, owner, runtime, PATH, tier=tier)
        try:
            report = await host.report()
            if not report.works:
                pytest.skip(f"the tier {tier} does not work here: {report.found} {report.fix or ''}")
            yield host
        finally:
            await host.close()


@pytest.fixture(scope="session")
def machine_dir(warm_dir: Path) -> Path:
    """What virtual machines need and is slow to make, kept between test sessions; skips where no machine boots."""
    owner = new_owner_id()

    async def warm() -> None:
        warm_host = MicrovmHost(warm_dir, owner, None, PATH)
        report = await warm_host.report()
        if not report.works:
            raise HostError("no_tier", report.found)
        await warm_host.prepare("default", lambda fraction, note: None)
        await warm_host.close()

    try:
        with Owners(warm_dir / "owners").hold(owner):
            anyio.run(warm)
    except HostError as error:
        pytest.skip(f"no virtual machines here ({error.code}): {error.message}")
    return warm_dir / "microvm"


@pytest.fixture
def own_dir(warm_dir: Path, tmp_path: Path) -> Path:
    """As `data_dir`, with templates of its own beside the usual one."""
    directory = tmp_path / "data"
    (directory / "templates").mkdir(parents=True)
    directory.chmod(0o700)
    for name in ("programs", "runtimes.json", "store.btrfs"):
        if (warm_dir / name).exists():
            (directory / name).symlink_to(warm_dir / name)
    for home in (warm_dir / "templates").glob("default-*"):
        (directory / "templates" / home.name).symlink_to(home)
    return directory


@pytest.fixture
def own_host(own_dir: Path) -> Generator[ContainerHost]:
    owner = new_owner_id()
    with Owners(own_dir / "owners").hold(owner):
        opened = ContainerHost(own_dir, owner, None, PATH)
        yield opened
        anyio.run(opened.close)


def loop_devices(directory: Path) -> list[str]:
    """The names of the devices over files below `directory`."""
    found: list[str] = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # others on this machine let go of theirs at any moment
            if path.read_text().startswith(str(directory)):
                found.append(path.parts[3])
    return found


def leftovers(directory: Path) -> Iterator[str]:
    """What sandboxes whose data is below `directory` left on this machine."""
    names = {
        path.name
        for at, below, _ in os.walk(directory)
        if at.endswith("/sandboxes")
        for path in map(Path, below)
        if parse_name(path.name)
    }
    yield from (f"directory {name}" for name in names)
    yield from (f"cgroup {name}" for name in cgroup.names(cgroup.read_layout()) if name in names)
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    yield from (f"mount {line}" for line in mounts if str(directory) in line)
    yield from (f"loop device {name}" for name in loop_devices(directory))
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(word.startswith(f"{directory}/") and "/sandboxes/" in word for word in words):
            yield f"process {path.parent.name}: {' '.join(words)}"


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    yield
    assert list(leftovers(tmp_path_factory.getbasetemp())) == []
