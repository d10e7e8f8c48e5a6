"""The overview of all runs, and streams as server-sent events."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.server.conftest import Serve, Served
from tests.server.routes.test_stream import closed, next_message
from websockets.asyncio.client import ClientConnection

from cloister.core.events import (
    AnyBody,
    AskAnswered,
    AskRaised,
    FinishRefused,
    PhaseEnded,
    PhaseStarted,
    PromptReceived,
    RunFinished,
    StopRequested,
    StuckNoticed,
)
from cloister.core.requests import NewRun, Outcome
from cloister.server.messages import stream_schema

pytestmark = pytest.mark.anyio

SCHEMA = Path(__file__).parents[3] / "docs" / "reference" / "stream.schema.json"
FINISH = RunFinished("proven", "done")


def test_the_schema_in_the_reference_is_current() -> None:
    """If not: `scripts/schemas`."""
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == stream_schema()


async def until_synced(socket: ClientConnection) -> tuple[list[dict[str, Any]], int]:
    """The runs up to the next sync, and its cursor."""
    runs: list[dict[str, Any]] = []
    while (message := await next_message(socket))["type"] != "synced":
        if message["type"] == "run":
            runs.append(message["run"])
    return runs, int(message["cursor"])


async def changed_runs(socket: ClientConnection) -> list[dict[str, Any]]:
    """The runs of the next sync that has any."""
    while not (runs := (await until_synced(socket))[0]):
        pass
    return runs


async def test_the_overview_sends_what_there_is_and_then_each_change(served: Served) -> None:
    old, new = await served.claimed_run("old"), await served.claimed_run("new")
    await served.app.backbone.append(old, [FINISH])
    async with served.socket("/v1/stream") as socket:
        runs, _ = await until_synced(socket)
        assert [(run["prompt"], run["state"]) for run in runs] == [("old", "finished"), ("new", "running")]
        await served.app.backbone.append(
            new, [PhaseStarted("work"), AskRaised("a-1", 1, "bash: x", "x", 4e9)]
        )
        (run,) = await changed_runs(socket)
        assert (run["id"], run["phase"], run["asks"]) == (new.run, "work", 1)
        assert [(ask["ask"], ask["action"]) for ask in run["approvals"]] == [("a-1", "bash: x")]
        await served.app.backbone.append_outside(new.run, AskAnswered("a-1", "deny", "ann"))
        assert (await changed_runs(socket))[0]["approvals"] == []


async def test_many_changes_of_a_run_are_few_rows(served: Served) -> None:
    fence = await served.claimed_run()
    async with served.socket("/v1/stream") as socket:
        await until_synced(socket)
        for number in range(300):
            await served.app.backbone.append(fence, [PromptReceived(str(number), "ann")])
        await served.app.backbone.append(fence, [FINISH])
        rows = 0
        while True:
            found = await changed_runs(socket)
            rows += len(found)
            if found[-1]["state"] == "finished":
                break
    assert rows < 100


async def test_a_client_that_comes_back_gets_what_changed_since_also_from_another_server(
    serving: Serve,
) -> None:
    async with serving() as served:
        fences = [await served.claimed_run(str(number)) for number in range(3)]
        for fence in fences[:2]:
            await served.app.backbone.append(fence, [FINISH])
        async with served.socket("/v1/stream") as socket:
            _, cursor = await until_synced(socket)
        await served.app.backbone.append_outside(fences[0].run, PromptReceived("more", "ann"))
    async with serving() as served, served.socket(f"/v1/stream?after={cursor}") as socket:
        runs, _ = await until_synced(socket)
    # The unfinished ones always, the finished ones only if they changed.
    assert [run["prompt"] for run in runs] == ["0", "2"]


async def test_old_runs_are_left_to_the_list(served: Served) -> None:
    for number in range(5):
        await served.app.backbone.append(await served.claimed_run(str(number)), [FINISH])
    async with served.socket("/v1/stream?last=2") as socket:
        assert [run["prompt"] for run in (await until_synced(socket))[0]] == ["3", "4"]
    for bad in ("last=1001", "last=x", "after=-1"):
        async with served.socket(f"/v1/stream?{bad}") as socket:
            assert (await closed(socket))[0] == 4400


async def test_a_queued_run_says_how_many_are_ahead(served: Served) -> None:
    for number in range(3):
        await served.app.backbone.admit(NewRun(str(number), "/nowhere"), "ann")
    async with served.socket("/v1/stream") as socket:
        runs, _ = await until_synced(socket)
    assert [run["ahead"] for run in runs] == [0, 1, 2]


# Server-sent events.


@asynccontextmanager
async def events(served: Served, path: str, **headers: str) -> AsyncGenerator[AsyncIterator[tuple[str, Any]]]:
    """The messages of a stream, each with its id."""
    async with served.client.stream("GET", path, headers=headers) as reply:
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"

        async def found() -> AsyncIterator[tuple[str, Any]]:
            place = ""
            left = b""
            async for part in reply.aiter_bytes():
                *lines, left = (left + part).split(b"\n")  # nothing else ends a line in a browser
                for line in lines:
                    name, _, value = line.decode().partition(": ")
                    place = value if name == "id" else place
                    if name == "data":
                        yield place, json.loads(value)

        yield found()


async def test_a_run_as_server_sent_events_is_resumed_by_the_last_id_without_gap(served: Served) -> None:
    fence = await served.claimed_run()
    await served.app.backbone.append(fence, [PromptReceived("a\nb\u2028c", "ann")] * 5)
    path, seen = f"/v1/runs/{fence.run}/stream", list[int]()
    with anyio.fail_after(30):
        async with events(served, path) as found:
            async for place, message in found:
                if message["type"] == "event":
                    assert place == str(message["event"]["seq"])
                    seen.append(int(place))
                    if len(seen) == 4:
                        break
        await served.app.backbone.append(fence, [FINISH])
        async with events(served, path, **{"Last-Event-ID": str(seen[-1])}) as found:
            rest = [message async for _, message in found]
    seen += [message["event"]["seq"] for message in rest if message["type"] == "event"]
    assert seen == list(range(1, 9))
    assert rest[-1] == {"type": "end", "code": 1000, "reason": "The run is finished."}
    # An `EventSource` comes back after each end, but for this answer.
    again = await served.client.get(path, headers={"Last-Event-ID": "8"})
    assert again.status_code == 204


async def test_the_overview_as_server_sent_events_carries_its_cursor(served: Served) -> None:
    fence, place = await served.claimed_run(), ""
    with anyio.fail_after(30):
        async with events(served, "/v1/stream") as found:
            async for place, message in found:
                if message["type"] == "synced":
                    assert place == str(message["cursor"])
                    break
        await served.app.backbone.append(fence, [FINISH])
        async with events(served, "/v1/stream", **{"Last-Event-ID": place}) as found:
            message = await anext(found)
    assert message[1]["run"]["state"] == "finished"


async def test_a_wrong_place_is_refused_before_the_stream_begins(served: Served) -> None:
    fence = await served.claimed_run()
    for path, headers, code in (
        (f"/v1/runs/{fence.run}/stream", {"Last-Event-ID": "99"}, 400),
        (f"/v1/runs/{fence.run}/stream", {"Last-Event-ID": "x"}, 400),
        ("/v1/runs/r-nosuchrun/stream", {}, 404),
        ("/v1/stream", {"Last-Event-ID": "x"}, 400),
    ):
        assert (await served.client.get(path, headers=headers)).status_code == code


async def test_server_sent_events_end_when_the_server_stops(serving: Serve) -> None:
    async with serving() as served:
        fence = await served.claimed_run()
        messages: list[dict[str, Any]] = []
        async with (
            anyio.create_task_group() as tasks,
            events(served, f"/v1/runs/{fence.run}/stream") as found,
        ):
            messages.append((await anext(found))[1])
            tasks.start_soon(served.sockets.leave, 5)
            messages += [message async for _, message in found]
        assert (messages[-1]["type"], messages[-1]["code"]) == ("end", 1001)


async def test_a_phase_says_how_long_it_usually_takes_and_a_run_that_it_is_stuck(served: Served) -> None:
    for seconds in (2.0, 30.0, 4.0):
        fence = await served.claimed_run()
        spent = [
            PhaseStarted("work"),
            PhaseEnded("work", seconds),
            PhaseStarted("clone"),
            PhaseEnded("clone", 1),
        ]
        await served.app.backbone.append(fence, [*spent, FINISH])
    fence = await served.claimed_run()
    stuck = StuckNoticed(0, "repeats", "the same command", 3)
    await served.app.backbone.append(fence, [PhaseStarted("work"), stuck])
    row = (await served.client.get(f"/v1/runs/{fence.run}/row")).json()
    assert (row["phase_usual"], row["stuck"]) == (4.0, 4)
    await served.app.backbone.append(fence, [PhaseEnded("work", 1), FINISH])
    row = (await served.client.get(f"/v1/runs/{fence.run}/row")).json()
    assert (row["phase_usual"], row["stuck"]) == (None, None)


async def test_a_run_that_did_not_end_well_names_the_event_that_shows_why(served: Served) -> None:
    async def shown_by(outcome: Outcome, *before: AnyBody) -> str | None:
        fence = await served.claimed_run()
        events = await served.app.backbone.append(fence, [*before, RunFinished(outcome, "because")])
        seq = (await served.client.get(f"/v1/runs/{fence.run}")).json()["shown_by"]
        return next((type(one.body).__name__ for one in events if one.seq == seq), None)

    refused, replied = FinishRefused(0, "red"), PhaseStarted("work")
    assert await shown_by("red", refused, replied) == "FinishRefused"
    assert await shown_by("stopped", refused, StopRequested("ann"), replied) == "StopRequested"
    assert await shown_by("failed", replied) == "RunFinished"
    assert await shown_by("proven", refused) is None
