"""Warm sandboxes: handed out at once, each to one, and replaced."""

import time
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio.abc import ByteStream

from cloister.core.computer import Command, shell
from cloister.core.errors import SandboxLost, UserError
from cloister.core.ids import SandboxId
from cloister.core.requests import PoolWish, Quota
from cloister.sandbox.api import Sandbox, SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.local.names import parse_name
from cloister.sandbox.pool import PASSING, Pool, open_pool

pytestmark = pytest.mark.anyio

QUOTA = Quota()
CONNECT = """
import socket
s = socket.create_connection(("127.0.0.1", 3128)); s.sendall(b"knock"); print(s.recv(100).decode())
"""


async def full(pool: Pool) -> None:
    with anyio.fail_after(60):
        await pool.filled()


def living(data_dir: Path) -> set[str]:
    names = (parse_name(path.name) for path in (data_dir / "sandboxes").iterdir())
    return {name.sandbox for name in names if name}


async def hello(sandbox: Sandbox) -> bytes:
    return (await sandbox.run(shell("cat mine 2>&1; echo $COLOUR"))).out


async def test_a_claimed_sandbox_was_warm_is_used_once_and_is_replaced(
    host: ContainerHost, data_dir: Path
) -> None:
    async with open_pool(host, (PoolWish(size=2),), QUOTA, host.templates.version) as pool:
        await full(pool)
        warm = living(data_dir)
        assert len(warm) == 2
        async with pool.open(SandboxSpec()) as sandbox:
            assert sandbox.info.id in warm
            await sandbox.write("mine", b"x")
            await full(pool)
            assert pool.info()[0].ready == 2
        assert sandbox.info.id not in living(data_dir), "nobody gets it again"
        with pytest.raises(SandboxLost):
            await sandbox.run(Command(("/bin/true",)))
        async with pool.open(SandboxSpec()) as other:
            assert b"No such file" in await hello(other)
        (info,) = pool.info()
        assert (info.claimed, info.missed, info.size) == (2, 0, 2)
        assert 0 < info.memory_bytes < info.bound_bytes
    assert living(data_dir) == set()


async def test_pooled_sandbox_takes_env_proxy_and_ttl_from_the_claim(host: ContainerHost) -> None:
    knocked: list[tuple[SandboxId, bytes]] = []

    async def door(sandbox: SandboxId, stream: ByteStream) -> None:
        knocked.append((sandbox, await stream.receive()))
        await stream.send(b"who is there")

    async with open_pool(host, (PoolWish(size=1),), QUOTA, host.templates.version) as pool:
        await full(pool)
        before = time.time()
        async with pool.open(SandboxSpec(env={"COLOUR": "red"}, ttl_seconds=300), door) as sandbox:
            assert before <= sandbox.info.created_at
            assert sandbox.info.expires_at == sandbox.info.created_at + 300
            assert (await hello(sandbox)).endswith(b"red\n")
            said = await sandbox.run(Command(("python3", "-c", CONNECT)))
            assert said.out == b"who is there\n", said.err
            async with sandbox.fork() as child:
                assert (await hello(child)).endswith(b"red\n")
                assert (await child.run(Command(("python3", "-c", CONNECT)))).out == b"who is there\n"
                assert child.info.expires_at - child.info.created_at == 300
                assert knocked == [(sandbox.info.id, b"knock"), (child.info.id, b"knock")]
        await full(pool)
        async with pool.open(SandboxSpec()) as sandbox:
            said = await sandbox.run(Command(("python3", "-c", CONNECT)))
            assert said.out.strip() == b"", "without a door it is shut"


async def test_its_time_begins_when_it_is_claimed_and_ends(host: ContainerHost) -> None:
    async with open_pool(host, (PoolWish(size=1),), QUOTA, host.templates.version) as pool:
        await full(pool)
        async with pool.open(SandboxSpec(ttl_seconds=1)) as sandbox:
            with anyio.fail_after(30):
                assert "time to live" in await sandbox.wait_lost()
            with pytest.raises(SandboxLost):
                await sandbox.run(Command(("/bin/true",)))
        await full(pool)
        assert pool.info()[0].ready == 1


async def test_a_sandbox_that_is_about_to_be_needed_is_warmed_for_one_and_not_replaced(
    host: ContainerHost, data_dir: Path
) -> None:
    spec = SandboxSpec(quota=Quota(memory_bytes=268_435_456), ttl_seconds=60)
    async with open_pool(host, (), QUOTA, host.templates.version) as pool:
        for _ in range(3):
            pool.warm(spec)
        await full(pool)
        warm = living(data_dir)
        assert len(warm) == 1
        async with pool.open(SandboxSpec()) as other:
            assert other.info.id not in warm, "of another size"
        async with pool.open(spec) as sandbox:
            assert {sandbox.info.id} == warm
            assert pool.info() == () and living(data_dir) == warm
        for seconds in range(60, 60 + 2 * PASSING):
            pool.warm(msgspec.structs.replace(spec, quota=Quota(cpus=seconds / 100)))
        assert len(pool.info()) == PASSING, "the newest kinds"
        pool.warm(SandboxSpec(template="unknown"))
    assert living(data_dir) == set()


async def test_who_asks_for_something_else_gets_that(host: ContainerHost, data_dir: Path) -> None:
    other = Quota(memory_bytes=268_435_456)
    async with open_pool(host, (PoolWish(size=1),), QUOTA, host.templates.version) as pool:
        await full(pool)
        warm = living(data_dir)
        for spec in (SandboxSpec(quota=other), SandboxSpec(ttl_seconds=86_400)):
            async with pool.open(spec) as sandbox:
                assert sandbox.info.id not in warm
                assert sandbox.info.quota == spec.quota
        with pytest.raises(UserError) as refused:
            async with pool.open(SandboxSpec(template="unknown")):
                pass
        assert refused.value.code == "unknown_template"
        assert pool.info()[0].ready == 1


async def test_an_empty_pool_opens_a_sandbox_at_once(host: ContainerHost) -> None:
    async with open_pool(host, (PoolWish(size=1),), QUOTA, host.templates.version) as pool:
        await full(pool)
        async with pool.open(SandboxSpec()) as one, pool.open(SandboxSpec()) as two:
            assert one.info.id != two.info.id
            assert (await two.run(Command(("/bin/true",)))).ok


async def test_many_who_claim_at_once_get_one_each(host: ContainerHost) -> None:
    got: list[SandboxId] = []
    async with open_pool(host, (PoolWish(size=3),), QUOTA, host.templates.version) as pool:
        await full(pool)

        async def claim() -> None:
            async with pool.open(SandboxSpec()) as sandbox:
                assert (await sandbox.run(Command(("/bin/true",)))).ok
                got.append(sandbox.info.id)

        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(claim)
    assert len(set(got)) == 6


async def test_the_pool_stays_within_its_memory(host: ContainerHost) -> None:
    bound = 33_554_432
    async with open_pool(
        host, (PoolWish(size=100, memory_bytes=bound),), QUOTA, host.templates.version
    ) as pool:
        await full(pool)
        (info,) = pool.info()
        assert 2 <= info.ready < 100
        assert info.memory_bytes <= bound


async def test_one_that_dies_while_it_waits_is_replaced(host: ContainerHost, data_dir: Path) -> None:
    async with open_pool(host, (PoolWish(size=1),), QUOTA, host.templates.version) as pool:
        await full(pool)
        (victim,) = living(data_dir)
        (home,) = (data_dir / "sandboxes").glob(f"{victim}.*")
        from cloister.sandbox.local.cgroup import Cgroup, read_layout

        Cgroup(read_layout(), home.name).kill()
        with anyio.fail_after(60):
            while living(data_dir) & {victim} or not living(data_dir):  # noqa: ASYNC110  nothing says so
                await anyio.sleep(0.01)
        await full(pool)
        async with pool.open(SandboxSpec()) as sandbox:
            assert sandbox.info.id != victim
            assert (await sandbox.run(Command(("/bin/true",)))).ok


async def test_a_pool_without_its_template_waits_for_it(host: ContainerHost) -> None:
    async with open_pool(host, (PoolWish(template="not-there"),), QUOTA, host.templates.version) as pool:
        await full(pool)
        assert pool.info()[0].ready == 0
