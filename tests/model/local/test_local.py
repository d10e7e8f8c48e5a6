"""A model on this machine: llama.cpp in a process of its own, from a file of a few kilobytes."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import httpx2
import pytest
from tests.model.tiny_model import write_tiny_model
from tests.whole.conformance.suites.model import REQUEST, check_failure, check_leaving_early, check_reply

from cloister.agent.tools import TOOLS
from cloister.core.errors import HostError, UserError
from cloister.model.api import Failure, Reply, Request, UserMessage
from cloister.model.local.files import LocalFile, Shelf
from cloister.model.local.host import LocalHost, local_model, open_local_host, order_for
from cloister.model.names import Access
from cloister.model.roles import Job, open_models

pytest.importorskip("xllamacpp", reason="the extra `local` is not installed")
pytestmark = pytest.mark.anyio

FINISH = Request("s", (UserMessage("Go."),), REQUEST.tools)


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return str(write_tiny_model(tmp_path / "tiny.gguf"))


@pytest.fixture
async def host(tmp_path: Path) -> AsyncGenerator[LocalHost]:
    async with open_local_host(Shelf(tmp_path / "models")) as host:
        yield host


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(pid: int) -> None:
    with anyio.fail_after(20):
        while lives(pid):  # noqa: ASYNC110  (there is nothing to wait on: it is not our child)
            await anyio.sleep(0.02)


def shown(pid: int) -> tuple[bytes, bytes]:
    """What everybody on this machine can see of a process: its command line, and to us its environment."""
    return Path(f"/proc/{pid}/cmdline").read_bytes(), Path(f"/proc/{pid}/environ").read_bytes()


async def test_local_model_starts_on_first_use_is_shared_and_stops_with_its_process(
    tmp_path: Path, tiny: str
) -> None:
    async with open_local_host(Shelf(tmp_path / "models")) as host:
        access = Access(f"local:{tiny}", local=host)
        async with open_models(access, Job("r")) as models, open_models(access, Job("r")) as others:
            first, second = models.role("code"), others.role("code")
            reply = await check_reply(first, FINISH)
            assert [(call.name, call.arguments) for call in reply.calls] == [("bash", {"command": ""})]
            assert reply.cost == 0.0
            assert (await check_reply(second, FINISH)).calls
            assert models.window(f"local:{tiny}") == 16_384
        running = await host.served(tiny)
        assert lives(running.process.pid)
    await gone(running.process.pid)


async def test_local_model_gets_only_the_simple_tools(host: LocalHost, tiny: str) -> None:
    every = tuple(tool.spec for tool in TOOLS.values())
    with_edit = Request(
        "s", (UserMessage("Go."),), tuple(spec for spec in every if spec.name in ("edit", "read"))
    )
    reply = await check_reply(local_model(tiny, host), with_edit)
    assert [call.name for call in reply.calls] == ["read"]


async def test_local_model_passes_the_model_conformance_checks(host: LocalHost, tiny: str) -> None:
    model = local_model(tiny, host)
    assert model.name == f"local:{tiny}"
    await check_leaving_early(model)
    plain = Request("s", (UserMessage("Hi."),), (), max_tokens=4)
    async with model.stream(plain) as items:
        last = [item async for item in items][-1]
    assert isinstance(last, Reply | Failure), "it may have nothing to say"


async def test_dead_model_server_is_restarted(host: LocalHost, tiny: str) -> None:
    model = local_model(tiny, host)
    await check_reply(model, FINISH)
    before = await host.served(tiny)
    before.process.kill()
    await before.process.wait()
    await check_reply(model, FINISH)
    assert (await host.served(tiny)).process.pid != before.process.pid


async def test_the_local_server_requires_its_key(host: LocalHost, tiny: str) -> None:
    running = await host.served(tiny)
    assert running.url.startswith("http://127.0.0.1:")
    async with httpx2.AsyncClient(timeout=30) as client:
        for key in ("", "guess"):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            answer = await client.post(
                f"{running.url}/chat/completions", json={"messages": []}, headers=headers
            )
            assert answer.status_code == 401
    command, environment = shown(running.process.pid)
    assert running.key.encode() not in command
    assert environment == b""


async def test_model_server_exits_when_its_parent_is_killed(tmp_path: Path, tiny: str) -> None:
    program = (
        "import anyio, sys\n"
        "from pathlib import Path\n"
        "from cloister.model.local.host import open_local_host\n"
        "from cloister.model.local.files import Shelf\n"
        "async def main():\n"
        "    async with open_local_host(Shelf(Path(sys.argv[1]))) as host:\n"
        "        print((await host.served(sys.argv[2])).process.pid, flush=True)\n"
        "        await anyio.sleep_forever()\n"
        "anyio.run(main)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    with subprocess.Popen(  # noqa: ASYNC220  (a second of our time, and nobody else is here)
        [sys.executable, "-c", program, str(tmp_path / "models"), tiny], stdout=subprocess.PIPE, env=env
    ) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        assert lives(child)
        owner.send_signal(signal.SIGKILL)
    await gone(child)


async def test_a_file_that_is_not_a_model_is_an_error(host: LocalHost, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF but not really")
    with pytest.raises(HostError) as caught:
        await host.served(str(bad))
    assert caught.value.code == "local_model_failed"
    assert (await check_failure(local_model(str(bad), host))).code == "bad_request"


def test_missing_file_error_names_the_command_that_fetches_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"run `cloister model fetch qwen2\.5-coder-1\.5b`"):
        order_for(Shelf(tmp_path), "qwen2.5-coder-1.5b")


def test_a_model_that_does_not_fit_is_not_started(tmp_path: Path) -> None:
    huge = LocalFile("huge", "Huge", "MIT", "x.gguf", 1, "00")
    with (tmp_path / "huge.gguf").open("wb") as stream:
        stream.truncate(2**42)
    with pytest.raises(HostError) as caught:
        order_for(Shelf(tmp_path, {}, {"huge": huge}), "huge")
    assert caught.value.code == "no_memory"
