"""The log of several machines on real NATS servers that are killed, full, strangers' or tampered with."""

# pyright: reportUnknownMemberType=false
# The NATS client's keyword arguments have no types.

import random
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest
from tests.log.jetstream.servers import NatsServer, one_server, three_servers

from cloister.core.errors import CloisterError
from cloister.core.events import PromptReceived, RunResumed
from cloister.core.ids import new_owner_id
from cloister.core.requests import NewRun
from cloister.log.api import Backbone, Fence
from cloister.log.jetstream.backbone import open_backbone
from cloister.log.jetstream.link import Cluster, open_link
from cloister.log.jetstream.shared_log import open_shared_log
from cloister.log.sqlite.backbone import open_backbone as open_alone

pytestmark = pytest.mark.anyio

WAIT_SECONDS = 60.0
NEW = NewRun(prompt="make it green", repo="/somewhere")


@pytest.fixture
def server(tmp_path: Path) -> Generator[NatsServer]:
    with one_server(tmp_path / "nats") as started:
        yield started


@asynccontextmanager
async def machine(copy: Path, *servers: str, replicas: int = 1) -> AsyncGenerator[Backbone]:
    with anyio.fail_after(WAIT_SECONDS):
        async with (
            open_link(Cluster(servers, replicas=replicas)) as link,
            open_backbone(link, copy, owner_lives=lambda _: True) as backbone,
        ):
            yield backbone


async def claimed(backbone: Backbone) -> Fence:
    run, _ = await backbone.admit(NEW, "ann")
    fence = await backbone.claim(new_owner_id(), run)
    assert fence is not None
    return fence


def forget(directory: Path) -> None:
    for file in directory.glob("a.*"):
        file.unlink()


async def test_a_transaction_larger_than_a_message_arrives_whole(tmp_path: Path, server: NatsServer) -> None:
    text = random.Random(1).randbytes(120_000).hex()  # does not compress to less than half
    async with machine(tmp_path / "a.db", server.url) as one, machine(tmp_path / "b.db", server.url) as other:
        fence = await claimed(one)
        said = [PromptReceived(f"{number} {text}", "ann") for number in range(20)]
        added = await one.append(fence, said)
        assert await other.read(fence.run, after=2) == added


async def test_two_machines_that_write_at_once_both_come_through(tmp_path: Path, server: NatsServer) -> None:
    async with machine(tmp_path / "a.db", server.url) as one, machine(tmp_path / "b.db", server.url) as other:
        fences = {one: await claimed(one), other: await claimed(other)}

        async def work(backbone: Backbone) -> None:
            for number in range(40):
                await backbone.append(fences[backbone], [RunResumed(number)])

        async with anyio.create_task_group() as tasks:
            for backbone in fences:
                tasks.start_soon(work, backbone)
        for backbone, fence in fences.items():
            for reader in fences:
                log = await reader.read(fence.run, after=2)
                assert [event.body for event in log] == [RunResumed(number) for number in range(40)]
            assert (await backbone.verify_audit()).ok


async def test_appends_wait_for_a_server_that_was_killed_and_nothing_is_lost_or_doubled(
    tmp_path: Path, server: NatsServer
) -> None:
    async with machine(tmp_path / "a.db", server.url) as backbone:
        fence = await claimed(backbone)
        half = anyio.Event()

        async def work() -> None:
            for number in range(60):
                await backbone.append(fence, [RunResumed(number)])
                if number == 30:
                    half.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await half.wait()
            server.kill()
            server.start()
        log = await backbone.read(fence.run, after=2)
        assert [event.body for event in log] == [RunResumed(number) for number in range(60)]
        assert [event.seq for event in log] == list(range(3, 63))


async def test_a_killed_leader_of_three_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with three_servers(tmp_path) as servers:
        urls = [server.url for server in servers]
        async with machine(tmp_path / "a.db", *urls, replicas=3) as one:
            fence = await claimed(one)
            half = anyio.Event()

            async def work() -> None:
                for number in range(60):
                    await one.append(fence, [RunResumed(number)])
                    if number == 30:
                        half.set()

            async with open_link(Cluster(tuple(urls))) as link, anyio.create_task_group() as tasks:
                tasks.start_soon(work)
                await half.wait()
                info = await link.jetstream.stream_info("cloister")
                assert info.cluster is not None
                servers[int((info.cluster.leader or "n0")[1:])].kill()
            async with machine(tmp_path / "b.db", *urls) as other:
                log = await other.read(fence.run, after=2)
        assert [event.body for event in log] == [RunResumed(number) for number in range(60)]


async def test_a_deleted_copy_is_read_again_from_the_shared_log(tmp_path: Path, server: NatsServer) -> None:
    async with machine(tmp_path / "a.db", server.url) as backbone:
        fence = await claimed(backbone)
        await backbone.append(fence, [RunResumed(number) for number in range(5)])
        before, audit = await backbone.read(fence.run), await backbone.audit()
    forget(tmp_path)
    async with machine(tmp_path / "a.db", server.url) as backbone:
        assert await backbone.read(fence.run) == before
        assert await backbone.audit() == audit
        assert (await backbone.verify_audit()).ok


async def test_a_copy_of_another_cluster_is_refused(tmp_path: Path, server: NatsServer) -> None:
    async with machine(tmp_path / "a.db", server.url) as backbone:
        await claimed(backbone)
    server.kill()
    shutil.rmtree(tmp_path / "nats" / "js")
    server.start()
    with pytest.raises(CloisterError, match="copy of another cluster's log") as refused:
        async with machine(tmp_path / "a.db", server.url):
            pass
    assert refused.value.code == "other_cluster"


async def test_a_copy_and_a_log_of_one_machine_are_not_taken_for_each_other(
    tmp_path: Path, server: NatsServer
) -> None:
    async with machine(tmp_path / "a.db", server.url) as backbone:
        await claimed(backbone)
    with pytest.raises(CloisterError) as refused:
        async with open_alone(tmp_path / "a.db", owner_lives=lambda _: True):
            pass
    assert refused.value.code == "cluster_copy"
    async with open_alone(tmp_path / "own.db", owner_lives=lambda _: True) as alone:
        await claimed(alone)
    with pytest.raises(CloisterError) as refused:
        async with machine(tmp_path / "own.db", server.url):
            pass
    assert refused.value.code == "own_log"


async def test_a_full_stream_is_a_full_disk_for_the_writer_only(tmp_path: Path, server: NatsServer) -> None:
    async with machine(tmp_path / "a.db", server.url) as backbone:
        fence = await claimed(backbone)
        async with open_link(Cluster((server.url,))) as link:
            info = await link.jetstream.stream_info("cloister")
            await link.jetstream.update_stream(info.config.evolve(max_bytes=info.state.bytes + 100))
        with pytest.raises(CloisterError, match="no room left") as full:
            await backbone.append(fence, [PromptReceived(random.Random(2).randbytes(4_000).hex(), "ann")])
        assert full.value.code == "no_disk"
        assert (await backbone.row(fence.run)).last_seq == 2


async def test_a_machine_with_another_audit_key_is_refused_until_it_has_the_same(
    tmp_path: Path, server: NatsServer
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    async with machine(tmp_path / "a" / "log.db", server.url) as one:
        await claimed(one)
        with pytest.raises(CloisterError, match="is not the cluster's") as refused:
            async with machine(tmp_path / "b" / "log.db", server.url):
                pass
        assert refused.value.code == "other_key"
        shutil.copy2(tmp_path / "a" / "audit.key", tmp_path / "b" / "audit.key")
        async with machine(tmp_path / "b" / "log.db", server.url) as other:
            await other.note("Login", "ann", {})
            verdict = await other.verify_audit()
            assert verdict.problems == ()
        assert (await one.verify_audit()).ok


async def test_changes_that_this_machine_did_not_decide_alike_stop_it(
    tmp_path: Path, server: NatsServer
) -> None:
    async with machine(tmp_path / "a.db", server.url) as backbone, open_link(Cluster((server.url,))) as link:
        fence = await claimed(backbone)
        shared = await open_shared_log(link)
        forged = {
            "version": 1,
            "changes": [{"type": "Noted", "kind": "Login", "who": "eve", "detail": "{}", "at": 1.0}],
            "head": "0" * 64,
        }
        await shared.append(msgspec.json.encode(forged), await shared.tip())
        with pytest.raises(CloisterError, match="does not follow the cluster's log") as stopped:
            await backbone.append(fence, [RunResumed(1)])
        assert stopped.value.code == "replica_differs"


async def test_changes_of_a_newer_version_ask_for_an_upgrade(tmp_path: Path, server: NatsServer) -> None:
    async with machine(tmp_path / "a.db", server.url) as backbone, open_link(Cluster((server.url,))) as link:
        shared = await open_shared_log(link)
        await shared.append(b'{"version": 2, "changes": [], "head": ""}', await shared.tip())
        with pytest.raises(CloisterError, match="upgrade this machine"):
            await backbone.runs()


async def test_bad_addresses_and_credentials_get_one_sentence(tmp_path: Path) -> None:
    with one_server(tmp_path / "nats", 'authorization { token: "secret" }') as server:
        for cluster, code in (
            (Cluster((server.url,)), "cluster_refused"),
            (Cluster(("nats://127.0.0.1:1",)), "cluster_away"),
            (Cluster(("http://127.0.0.1",)), "bad_cluster"),
            (Cluster(()), "bad_cluster"),
            (Cluster((server.url,), name="a b"), "bad_cluster"),
            (Cluster((server.url,), replicas=2), "bad_cluster"),
        ):
            with pytest.raises(CloisterError) as refused:
                async with open_link(cluster):
                    pass
            assert refused.value.code == code
            assert "secret" not in refused.value.message


def test_one_machine_needs_no_nats() -> None:
    script = "import sys, cloister.app.wiring, cloister.server.serve; print([n for n in sys.modules if n.startswith('nats')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
