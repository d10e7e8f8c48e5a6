"""Names are looked up once for many connections, briefly kept, and judged for each connection."""

from collections.abc import Sequence

import anyio
import pytest
from tests.egress.world import GET, PUBLIC, World, ask, entering, listening, web

from cloister.egress.proxy import Door
from cloister.egress.rules import Outside, Resolver

pytestmark = pytest.mark.anyio


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def caching(world: World, clock: Clock) -> Door:
    return Door(world.decide, world.record, outside=Outside(Resolver(world.resolve, clock), world.dial))


async def test_hundreds_of_connections_to_one_name_take_one_lookup() -> None:
    world = World("example.com")
    replies: list[bytes] = []

    async def fetch() -> None:
        replies.append(await ask(connect, GET))

    async with (
        listening(web([])) as port,
        entering(caching(world, Clock())) as connect,
        anyio.create_task_group() as tasks,
    ):
        world.has("example.com", port)
        for _ in range(200):
            tasks.start_soon(fetch)

    assert [reply[-2:] for reply in replies] == [b"ok"] * 200
    assert world.resolved == ["example.com"]


async def test_a_kept_address_is_forgotten_soon_and_the_next_one_is_judged() -> None:
    world, clock = World("example.com"), Clock()
    async with listening(web([])) as port, entering(caching(world, clock)) as connect:
        world.has("example.com", port)
        assert (await ask(connect, GET)).endswith(b"ok")
        world.names["example.com"] = ["127.0.0.1"]
        clock.now = 29
        assert (await ask(connect, GET)).endswith(b"ok")
        clock.now = 31
        assert b" 403 " in await ask(connect, GET)
        assert b" 403 " in await ask(connect, GET)

    assert world.resolved == ["example.com"] * 2
    assert world.dialled == [PUBLIC] * 2


async def test_a_name_that_was_denied_is_not_looked_up_though_its_address_is_kept() -> None:
    world = World("example.com")
    async with listening(web([])) as port, entering(caching(world, Clock())) as connect:
        world.has("example.com", port)
        assert (await ask(connect, GET)).endswith(b"ok")
        world.policy = World().policy
        assert b" 403 " in await ask(connect, GET)

    assert world.dialled == [PUBLIC]


class Slow:
    """A resolver that answers when a test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.begun = anyio.Event()
        self.answer = anyio.Event()
        self.addresses: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        self.begun.set()
        await self.answer.wait()
        if not self.addresses:
            raise OSError("the resolver does not answer")
        return self.addresses


async def test_a_failure_is_shared_by_those_who_waited_and_by_no_one_later() -> None:
    slow = Slow()
    resolver = Resolver(slow, Clock())
    failed: list[str] = []

    async def look_up() -> None:
        with pytest.raises(OSError, match="does not answer"):
            await resolver("example.com", 443)
        failed.append("example.com")

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(look_up)
        await anyio.wait_all_tasks_blocked()
        slow.answer.set()
    assert (slow.asked, len(failed)) == (["example.com"], 5)


async def test_after_a_failure_the_next_connection_looks_the_name_up_again() -> None:
    slow, clock = Slow(), Clock()
    resolver = Resolver(slow, clock)
    slow.answer.set()
    with pytest.raises(OSError, match="does not answer"):
        await resolver("example.com", 443)
    slow.addresses = [PUBLIC]
    clock.now += 0.001
    assert await resolver("example.com", 443) == [PUBLIC]
    assert await resolver("example.com", 80) == [PUBLIC]
    assert slow.asked == ["example.com"] * 2


async def test_a_connection_that_gives_up_waiting_leaves_the_others_their_lookup() -> None:
    slow = Slow()
    slow.addresses = [PUBLIC]
    resolver = Resolver(slow, Clock())
    found: list[Sequence[str]] = []

    async def look_up() -> None:
        found.append(await resolver("example.com", 443))

    async with anyio.create_task_group() as tasks, anyio.create_task_group() as impatient:
        impatient.start_soon(look_up)
        await slow.begun.wait()
        tasks.start_soon(look_up)
        await anyio.wait_all_tasks_blocked()
        impatient.cancel_scope.cancel()
        slow.answer.set()
    assert found == [[PUBLIC]]
    assert slow.asked == ["example.com"] * 2


async def test_kept_names_are_bounded_in_number() -> None:
    slow = Slow()
    slow.addresses = [PUBLIC]
    slow.answer.set()
    resolver = Resolver(slow, Clock())
    for number in range(1_100):
        await resolver(f"{number}.example.com", 443)
    await resolver("1099.example.com", 443)
    assert len(slow.asked) == 1_100
    await resolver("0.example.com", 443)
    assert len(slow.asked) == 1_101
