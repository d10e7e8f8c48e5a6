"""Package clients inside work through the door with one rule each, and get nothing without it."""

import io
import shutil
import tarfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.egress.git_server import git_server, make_repository
from tests.egress.world import listening

from cloister.core.computer import Finished, shell
from cloister.core.ids import SandboxId
from cloister.core.requests import TierName
from cloister.egress.factory import Doorway, Through
from cloister.egress.packages import Meaning, SetFinder, derive
from cloister.egress.rules import DoorEvent
from cloister.policy.api import Layer, Rule
from cloister.sandbox.api import Host, Sandbox, SandboxSpec
from cloister.sandbox.container.host import ContainerHost

pytestmark = pytest.mark.anyio

SECONDS = 90


@pytest.fixture(scope="module")
def tier() -> TierName:
    """The clients are the same on every tier, and so is the way to the door."""
    return "container"


@asynccontextmanager
async def opened(host: Host, data_dir: Path, *allowed: str) -> AsyncGenerator[Sandbox]:
    rules = tuple(Rule(action, "allow", "test") for action in allowed)

    async def record(sandbox: SandboxId, body: DoorEvent) -> None:
        return None

    doorway = Doorway(find_sets=SetFinder(data_dir).find)
    outfit = doorway.outfit((Layer("host", rules, may_widen=True),), record)
    async with Through(host, outfit).open(SandboxSpec()) as sandbox:
        yield sandbox


async def meaning(name: str) -> Meaning:
    """What a set means here; skips, and says why, where it means nothing."""
    found = await derive(name)
    if found.problem or not found.hosts:
        pytest.skip(f"the set {name} means nothing here: {found.problem}")
    return found


async def attempt(sandbox: Sandbox, line: str, *, root: bool = False) -> Finished:
    return await sandbox.run(shell(line, seconds=SECONDS, user="root" if root else "agent"))


PIP = (
    "python3 -m pip install -q --no-input --retries 0 --timeout 20 --break-system-packages --target here iniconfig"
    " && ls here/iniconfig"
)
APT = (
    "apt-get update -q -o Acquire::Retries=0 && apt-get install -q -y --no-install-recommends hello && hello"
)
NPM = "./node npm/bin/npm-cli.js install --no-audit --no-fund --fetch-retries 0 is-number && ls node_modules/is-number"


@pytest.mark.parametrize(("name", "line", "root"), [("pypi", PIP, False), ("debian", APT, True)])
async def test_a_package_client_works_with_one_rule_and_fails_closed_without(
    name: str, line: str, root: bool, host: ContainerHost, data_dir: Path
) -> None:
    await meaning(name)
    async with opened(host, data_dir) as sandbox:
        assert not (await attempt(sandbox, line, root=root)).ok
    async with opened(host, data_dir, f"connect:@{name}") as sandbox:
        worked = await attempt(sandbox, line, root=root)
    assert worked.ok, (worked.out[-2000:], worked.err[-2000:])


async def test_npm_works_with_one_rule_and_fails_closed_without(host: ContainerHost, data_dir: Path) -> None:
    await meaning("npm")
    archive = await anyio.to_thread.run_sync(own_npm)
    for allowed in ((), ("connect:@npm",)):
        async with opened(host, data_dir, *allowed) as sandbox:
            async with sandbox.upload("/work") as sink:
                for at in range(0, len(archive), 1_048_576):
                    await sink.send(archive[at : at + 1_048_576])
            worked = await attempt(sandbox, NPM)
        assert worked.ok == bool(allowed), (worked.out[-2000:], worked.err[-2000:])


def own_npm() -> bytes:
    """This machine's npm and what runs it, to be put into a sandbox; skips where there is none."""
    node, npm = shutil.which("node"), shutil.which("npm")
    home = Path(npm).resolve().parent.parent if npm else None
    if node is None or home is None or not (home / "bin" / "npm-cli.js").is_file():
        pytest.skip("npm is not installed on this machine")
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.add(Path(node).resolve(), "node")
        archive.add(home, "npm")
    return data.getvalue()


async def test_git_clones_with_one_rule_and_fails_closed_without(
    host: ContainerHost, data_dir: Path, tmp_path: Path
) -> None:
    await anyio.to_thread.run_sync(make_repository, tmp_path / "forge" / "team" / "ledger.git")
    async with listening(git_server(tmp_path / "forge", public=True)) as port:
        line = f"git clone -q http://localhost:{port}/team/ledger.git && ls -d ledger/.git"
        # Where it is: the loopback of this machine, which is not that of the sandbox.
        line = f"NO_PROXY= no_proxy= {line.replace('&&', '&& NO_PROXY= ')}"
        async with opened(host, data_dir) as sandbox:
            assert not (await attempt(sandbox, line)).ok
        async with opened(host, data_dir, f"connect:localhost:{port}") as sandbox:
            worked = await attempt(sandbox, line)
    assert worked.ok, worked
