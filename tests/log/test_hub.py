"""The live fan-out by itself."""

import anyio
import pytest

from cloister.core.events import Event, ModelText, PhaseStarted, RunFinished
from cloister.core.ids import RunId
from cloister.log.hub import DELTAS_WAITING, ITEMS_WAITING, Hub, Item, Subscription

pytestmark = pytest.mark.anyio

RUN = RunId("r-0000")


def event(seq: int, run: RunId = RUN) -> Event:
    return Event(run, seq, 0.0, PhaseStarted("work"))


def text(number: int) -> ModelText:
    return ModelText(0, str(number))


async def take(reader: Subscription, count: int) -> list[Item]:
    with anyio.fail_after(60):
        return [await reader.next() for _ in range(count)]


async def test_a_new_reader_is_sent_to_the_log_first() -> None:
    hub = Hub()
    with hub.subscribe(RUN) as reader:
        hub.announce((event(1), event(2)))
        hub.publish(RUN, text(1))
        assert await take(reader, 4) == [None, event(1), event(2), text(1)]


async def test_each_reader_gets_its_own_run_only() -> None:
    hub = Hub()
    other = RunId("r-1111")
    with hub.subscribe(RUN) as one, hub.subscribe(RUN) as two, hub.subscribe(other) as three:
        hub.announce((event(1),))
        hub.publish(other, text(1))
        assert await take(one, 2) == [None, event(1)]
        assert await take(two, 2) == [None, event(1)]
        assert await take(three, 2) == [None, text(1)]


async def test_a_waiting_reader_is_woken() -> None:
    hub = Hub()
    with hub.subscribe(RUN) as reader:
        await take(reader, 1)
        async with anyio.create_task_group() as tasks:

            async def expect() -> None:
                assert await take(reader, 1) == [event(1)]

            tasks.start_soon(expect)
            await anyio.wait_all_tasks_blocked()
            hub.announce((event(1),))


async def test_a_slow_reader_loses_fragments_first_and_is_then_sent_to_the_log() -> None:
    hub = Hub()
    with hub.subscribe(RUN) as reader:
        await take(reader, 1)
        for number in range(DELTAS_WAITING * 2):
            hub.publish(RUN, text(number))
        hub.announce((event(1),))
        kept = await take(reader, DELTAS_WAITING + 1)
        assert kept == [*map(text, range(DELTAS_WAITING)), event(1)]
        hub.announce(tuple(event(seq) for seq in range(2, ITEMS_WAITING + 4)))
        assert await take(reader, 2) == [None, event(ITEMS_WAITING + 3)]


async def test_looking_at_the_log_waits_its_turn_and_is_asked_for_once() -> None:
    hub = Hub()
    with hub.subscribe(RUN) as reader:
        await take(reader, 1)
        hub.publish(RUN, text(1))
        hub.look()
        hub.look()
        hub.publish(RUN, text(2))
        assert await take(reader, 3) == [text(1), None, text(2)]


async def test_what_came_before_the_shown_part_of_the_log_is_dropped() -> None:
    hub = Hub()
    with hub.subscribe(RUN) as reader:
        await take(reader, 1)
        hub.publish(RUN, text(1))
        hub.announce((event(5),))
        hub.publish(RUN, text(2))
        hub.announce((event(6),))
        reader.caught_up(5)
        assert await take(reader, 2) == [text(2), event(6)]


async def test_a_call_to_look_is_never_dropped() -> None:
    hub = Hub()
    with hub.subscribe(RUN) as reader:
        await take(reader, 1)
        hub.look()
        hub.announce((event(5),))
        reader.caught_up(5)
        assert await take(reader, 1) == [None]


async def test_readers_that_left_cost_nothing() -> None:
    hub = Hub()
    with hub.subscribe(RUN):
        with hub.subscribe(RUN):
            pass
        assert not hub.idle
    assert hub.idle
    hub.announce((event(1),))
    hub.publish(RUN, text(1))


async def test_an_event_is_taken_directly_only_in_its_turn_by_a_reader_that_waits() -> None:
    hub, taken = Hub(), list[int]()
    willing = True

    def direct(one: Event) -> bool:
        taken.extend([one.seq] if willing else [])
        return willing

    with hub.subscribe(RUN, direct=direct) as reader:
        hub.announce((event(1),))  # before it has read the log
        assert await take(reader, 2) == [None, event(1)]
        reader.position = 1
        hub.announce((event(2),))  # it does not wait yet
        assert await take(reader, 1) == [event(2)]
        reader.position = 2
        found = list[Item]()
        async with anyio.create_task_group() as tasks:

            async def read() -> None:
                found.extend(await take(reader, 4))

            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            hub.announce((event(3), event(4)))
            assert (taken, found, reader.position) == ([3, 4], [], 4)
            hub.announce((event(6),))  # another process wrote 5
            hub.announce((event(7),))  # after one that waits
            hub.publish(RUN, text(1))
            await anyio.wait_all_tasks_blocked()
            reader.position = 7
            willing = False
            hub.announce((event(8),))
        assert found == [event(6), event(7), text(1), event(8)]
        assert taken == [3, 4]


async def test_the_end_of_a_run_is_not_taken_directly() -> None:
    hub = Hub()
    with hub.subscribe(RUN, direct=lambda _: True) as reader:
        await take(reader, 1)
        end = Event(RUN, 1, 0.0, RunFinished("failed", "x"))
        async with anyio.create_task_group() as tasks:

            async def expect() -> None:
                assert await take(reader, 1) == [end]

            tasks.start_soon(expect)
            await anyio.wait_all_tasks_blocked()
            hub.announce((end,))
