"""Fixtures and options of all tests.

A test that needs sandboxes asks for `host` and is skipped, with the reason, on a machine that cannot run them. With
`CI` set in the environment a skip is a failure, unless `ACCEPTED_SKIPS` lists it.
"""

import fcntl
import gc
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import httpx
import pytest
from hypothesis import HealthCheck, settings
from tests.cli.client import forked

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

# `make test` tries the same examples each time, without a deadline: the machine may be busy. `--long` tries others each
# time, and LONG_FACTOR times as many.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", settings.get_profile("search"), derandomize=True, database=None)
LONG_FACTOR = 10
settings.register_profile("long", settings.get_profile("search"), max_examples=100 * LONG_FACTOR)
settings.load_profile("steady")

PATH = os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
ACCEPTED_SKIPS = {
    r"the tier (gvisor|microvm) does not work here|no virtual machines here": "hardware or a package of the distribution",
    r"(chromium|PostgreSQL) is not installed": "a package of the distribution",
    r"clang (on this machine|has no sanitizers)": "a package of the distribution",
    r"\.gguf|is not in \S+/models|Qwen|SmolLM|cannot be fetched: ": "a model's file",
    r"cannot be fetched here|means nothing here|no template for the real bugs": "a package registry",
    r"CLOISTER_FORGE_DESCRIPTIONS has no description": "files that a person provides",
    r"a store that grows needs 24 GiB": "free disk space",
    r"^Skipped: [a-z-]+ has no [a-z ]+$|own client reads|has a client of its own|store has none|about what a container shares": "not for this case",
}
"""What a skip's reason says → why it is no failure in CI."""
SLOW_FIRST = (
    "whole/real/test_c_java.py",  # alone at first: the others would wait for the template that it builds
    *("whole/e2e", "whole/chaos", "whole/real", "whole/escape", "sandbox", "whole/conformance"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="search for hours, not minutes: see `make test-long`"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "long(only=False): fuzzing, chaos and searching that `make test-long` runs at full length; "
        "with `only`, cases whose behaviour others in `make test` show already",
    )
    if config.getoption("--long"):
        settings.load_profile("long")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting makes millions of objects that stay: looking for garbage among them takes as long as the rest."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def long(pytestconfig: pytest.Config) -> bool:
    """True in `make test-long`: fuzzing and chaos tests then run at full length."""
    return bool(pytestconfig.getoption("--long"))


def _search_longer(items: list[pytest.Item]) -> None:
    """Multiply the number of examples where a decorator sets it: it takes precedence over the profile's."""
    name = "_hypothesis_internal_use_settings"
    usual = settings.get_profile("long").max_examples
    functions = {getattr(item, "obj", None) for item in items}  # once, however often it is parametrized
    for function in functions:
        found = getattr(function, name, None)
        if isinstance(found, settings) and found.max_examples != usual:
            setattr(function, name, settings(found, max_examples=found.max_examples * LONG_FACTOR))


def _is_accepted(reason: str) -> bool:
    return any(re.search(pattern, reason) for pattern in ACCEPTED_SKIPS)


def _fail_a_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """In CI a test that was skipped has failed, unless its reason is accepted."""
    if not os.environ.get("CI") or report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not _is_accepted(reason):
        report.outcome = "failed"
        report.longrepr = f"Skipped in CI, which counts as a failure: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_a_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_a_skip(report)
    return report


_seconds: defaultdict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    parts = report.nodeid.split("::")[0].split("/")[:-1]
    _seconds["/".join(parts[: 3 if parts[1:2] == ["whole"] else 2])] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("seconds per directory, over all workers")
    for name, seconds in sorted(_seconds.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{seconds:8.1f}  {name}")
    if os.environ.get("CI"):
        terminalreporter.section("skips that CI accepts")
        for pattern, why in ACCEPTED_SKIPS.items():
            terminalreporter.write_line(f"{why}: {pattern}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The directories and files that take longest begin, so that no worker is left alone with one in the end."""
    if config.getoption("--long"):
        _search_longer(items)
    else:
        later = [item for item in items if any(one.kwargs.get("only") for one in item.iter_markers("long"))]
        config.hook.pytest_deselected(items=later)
        items[:] = [item for item in items if item not in set(later)]
    here = Path(__file__).parent
    places = {name: place for place, name in enumerate(SLOW_FIRST)}
    names = [item.nodeid for item in items]
    if twice := {name for name, times in Counter(names).items() if times > 1}:
        raise pytest.UsageError(
            f"Workers know tests by their names and run only one of each: {sorted(twice)}."
        )

    def place(item: pytest.Item) -> int:
        parts = item.path.relative_to(here).parts
        names = ["/".join(parts[:length]) for length in (1, 2, 3)]
        return min((places[name] for name in names if name in places), default=len(SLOW_FIRST))

    items.sort(key=place)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cloister-tests"
"""A data directory outside the repository that keeps the template and the programs between test sessions."""


@contextmanager
def first_worker(factory: pytest.TempPathFactory) -> Generator[bool]:
    """True in the first worker of a session that comes here. The others wait for it."""
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if session is None:
        yield True
        return
    with (factory.getbasetemp().parent / f"warm-{session}").open("a+") as marker:
        fcntl.flock(marker, fcntl.LOCK_EX)
        yield marker.tell() == 0
        marker.write("warm")


@pytest.fixture(scope="session")
def warm_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`CACHE`, with all that a test may borrow from it."""
    owner = new_owner_id()

    async def warm(again: bool) -> None:
        warm_host = ContainerHost(CACHE, owner, None, PATH)
        await warm_host.prepare("default", lambda fraction, note: None)
        works = (await warm_host.report(again=again)).works
        await warm_host.close()
        if not works:
            raise HostError("no_runtime", "neither crun nor runc works here")
        # Tried here once, so that no test has to.
        gvisor = ContainerHost(CACHE, owner, None, PATH, tier="gvisor")
        await gvisor.report(again=again)
        await gvisor.close()

    try:
        with Owners(CACHE / "owners").hold(owner), first_worker(tmp_path_factory) as first:
            anyio.run(warm, first)
    except HostError as error:
        pytest.skip(f"no sandboxes on this machine ({error.code}): {error.message}")
    return CACHE


@pytest.fixture
def data_dir(warm_dir: Path, tmp_path: Path) -> Path:
    """A data directory of its own that borrows what is slow to make."""
    return borrowing(warm_dir, tmp_path / "data")


def tried(directory: Path) -> None:
    """Lend `directory` what earlier sessions found out about this machine, if they did: to try its runtimes takes long."""
    for name in ("programs", "runtimes.json", "microvm"):
        if (CACHE / name).exists():
            (directory / name).symlink_to(CACHE / name)


def borrowing(warm_dir: Path, directory: Path) -> Path:
    directory.mkdir(mode=0o700)
    for name in ("microvm", "programs"):
        (warm_dir / name).mkdir(exist_ok=True, mode=0o700)
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
def forks_end() -> Iterator[None]:
    yield
    forked.close()


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    yield
    assert list(leftovers(tmp_path_factory.getbasetemp())) == []


@pytest.fixture
def registry(tmp_path: Path) -> Generator[str]:
    """A registry of our own on loopback; its `host:port`."""
    missing = [tool for tool in ("docker-registry", "skopeo") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (scripts/install dev)")
    # Bound here for as long as the registry listens there, so that nobody else is given the port.
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    port: int = kept.getsockname()[1]
    config = tmp_path / "registry.yml"
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}\n"
        f"http: {{addr: 127.0.0.1:{port}}}\nlog: {{level: error}}\n"
    )
    with (
        kept,
        subprocess.Popen(
            ["docker-registry", "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process,
    ):
        try:
            deadline = time.monotonic() + 30
            while True:
                try:
                    httpx.get(f"http://127.0.0.1:{port}/v2/", trust_env=False)
                    break
                except httpx.HTTPError:
                    assert process.poll() is None and time.monotonic() < deadline, (
                        "the registry did not start"
                    )
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
