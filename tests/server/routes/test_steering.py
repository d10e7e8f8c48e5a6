"""Steering a run over its stream: each message is acknowledged by its event, and done once."""

import json
import time
from pathlib import Path

import anyio
import pytest
from tests.server.conftest import Serve, Served
from tests.server.routes.test_forks import forked_run
from tests.server.routes.test_stream import answer_to, closed, next_message

from cloister.app.tokens import Tokens
from cloister.core.events import (
    AskAnswered,
    AskRaised,
    PauseRequested,
    PromptReceived,
    QuestionAnswered,
    QuestionAsked,
    ResumeRequested,
    RewindRequested,
    RunFinished,
    RunPaused,
)

pytestmark = pytest.mark.anyio


async def test_a_message_that_comes_again_is_done_once_also_after_a_restart(serving: Serve) -> None:
    say = {"type": "say", "id": "m1", "text": "hello"}
    async with serving() as served:
        fence = await served.claimed_run()
        path = f"/v1/runs/{fence.run}/stream"
        async with served.socket(path) as socket:
            answers = [await answer_to(socket, say) for _ in range(3)]
        async with served.socket(path) as socket:
            answers.append(await answer_to(socket, say))
    async with serving() as served:
        async with served.socket(path) as socket:
            answers.append(await answer_to(socket, say))
            other = await answer_to(socket, say | {"text": "something else"})
        over_http = await served.client.post(
            f"/v1/runs/{fence.run}/say", json={"text": "hello"}, headers={"Idempotency-Key": "m1"}
        )
        said = [e for e in await served.app.backbone.read(fence.run) if isinstance(e.body, PromptReceived)]
    assert [answer["seq"] for answer in answers] == [3] * 5
    assert [event.seq for event in said] == [3]
    assert over_http.json()["seq"] == 3
    assert other["error"]["code"] == "key_taken"


async def test_the_ids_of_two_people_do_not_meet(served: Served) -> None:
    fence = await served.claimed_run()
    token = Tokens(served.app.settings.data_dir).add("otto", "operator", "tester")
    path = f"/v1/runs/{fence.run}/stream"
    say = {"type": "say", "id": "m1", "text": "hello"}
    async with served.socket(path) as mine, served.socket(path, token=token) as his:
        assert [(await answer_to(one, say))["seq"] for one in (mine, his)] == [3, 4]


async def test_every_message_is_done_once_however_often_it_comes(served: Served) -> None:
    fence = await served.claimed_run()
    deadline = time.time() + 600
    await served.app.backbone.append(
        fence, [AskRaised(f"a-{n}", 1, "bash: x", "x", deadline) for n in range(2)]
    )
    steps = [
        {"type": "interrupt", "id": "1"},
        {"type": "pause", "id": "2"},
        {"type": "resume", "id": "3"},
        {"type": "approve", "id": "4", "ask": "a-0"},
        {"type": "deny", "id": "5"},
        {"type": "stop", "id": "6"},
        {"type": "model", "id": "7", "model": "script:/nowhere.toml"},
    ]
    async with served.socket(f"/v1/runs/{fence.run}/stream") as socket:
        first = [await answer_to(socket, step) for step in steps]
        await served.app.backbone.append(fence, [RunFinished("stopped", "Stopped.")])
    async with served.socket(f"/v1/runs/{fence.run}/stream?after=12") as socket:
        await closed(socket)  # the log ends here; the answers below need only HTTP
    assert [answer["seq"] for answer in first] == [5, 6, 7, 8, 9, 10, 11]
    for number, (verb, body) in enumerate(
        (
            ("interrupt", None),
            ("pause", None),
            ("resume", None),
            ("answer", {"ask": "a-0", "answer": "allow"}),
            ("answer", {"answer": "deny"}),
            ("stop", None),
            ("model", {"model": "script:/nowhere.toml"}),
        ),
        start=1,
    ):
        again = await served.client.post(
            f"/v1/runs/{fence.run}/{verb}", json=body, headers={"Idempotency-Key": str(number)}
        )
        assert (again.status_code, again.json()["seq"]) == (200, number + 4), again.text
    answers = [e.body for e in await served.app.backbone.read(fence.run) if isinstance(e.body, AskAnswered)]
    assert [(body.ask, body.answer) for body in answers] == [("a-0", "allow"), ("a-1", "deny")]


async def test_a_fork_and_a_rewind_are_acknowledged_and_done_once(served: Served, tmp_path: Path) -> None:
    fence, point = await forked_run(served, tmp_path, finished=False)
    fork = {"type": "fork", "id": "1", "at": point, "prompt": "Take the other way."}
    rewind = {"type": "rewind", "id": "2", "to": point}
    path = f"/v1/runs/{fence.run}/stream"
    answers: list[dict[str, object]] = []
    for _ in range(2):
        async with served.socket(path) as socket:
            answers += [await answer_to(socket, fork), await answer_to(socket, rewind)]
    made = answers[0]["run"]
    assert made != fence.run
    assert (
        answers
        == [
            {"type": "done", "id": "1", "run": made, "seq": None},
            {"type": "done", "id": "2", "run": fence.run, "seq": None},
        ]
        * 2
    )
    asked = [e for e in await served.app.backbone.read(fence.run) if isinstance(e.body, RewindRequested)]
    assert len(asked) == 1 and len(await served.app.backbone.runs()) == 2


async def test_a_pause_shows_in_every_view_of_the_run_until_it_goes_on(served: Served) -> None:
    fence = await served.claimed_run()
    path = f"/v1/runs/{fence.run}"

    async def shown() -> list[tuple[str, str | None]]:
        found = [(await served.client.get(f"{path}{end}")).json() for end in ("", "/row")]
        found += (await served.client.get("/v1/runs?state=paused")).json()
        return [(each["state"], each["reason"]) for each in found]

    assert (await served.client.post(f"{path}/resume")).json()["code"] == "run_not_paused"
    assert (await served.client.post(f"{path}/pause")).json()["body"] == {
        "type": "PauseRequested",
        "who": "tester",
        "key": "",
    }
    assert await shown() == [("paused", "Paused by tester.")] * 3
    twice = await served.client.post(f"{path}/pause")
    assert (twice.status_code, twice.json()["code"]) == (409, "run_paused")
    assert (await served.client.post(f"{path}/resume")).status_code == 200
    assert await shown() == [("running", None)] * 2
    bodies = [type(event.body) for event in await served.app.backbone.read(fence.run, after=2)]
    assert bodies == [PauseRequested, ResumeRequested]


async def test_a_run_that_a_person_paused_can_be_resumed_after_and_during_a_lack_of_disk(
    served: Served,
) -> None:
    fence, backbone = await served.claimed_run(), served.app.backbone
    path = f"/v1/runs/{fence.run}"
    for comes_back in (False, True):
        assert (await served.client.post(f"{path}/pause")).status_code == 200
        await backbone.append(fence, [RunPaused("The disk is full.", 1.0)])
        assert (await served.client.post(f"{path}/pause")).json()["code"] == "run_paused"
        if comes_back:
            assert await backbone.claim(fence.owner, fence.run)
        assert (await backbone.verify_audit()).ok
        assert (await served.client.post(f"{path}/resume")).status_code == 200
        assert (await served.client.post(f"{path}/resume")).json()["code"] == "run_not_paused"


async def test_a_client_that_sends_a_thousand_messages_a_second_is_answered_and_then_closed(
    served: Served,
) -> None:
    fence = await served.claimed_run()
    async with served.socket(f"/v1/runs/{fence.run}/stream", max_queue=None) as socket:
        for number in range(900):
            await socket.send(json.dumps({"type": "say", "id": str(number), "text": "x"}))
        done = refused = 0
        with anyio.fail_after(60):
            async for data in socket:
                message = json.loads(data)
                done += message["type"] == "done"
                refused += message["type"] == "error"
                if message["type"] == "error":
                    assert message["error"]["code"] == "too_many_messages"
                if done + refused == 900:
                    break
        said = [e for e in await served.app.backbone.read(fence.run) if isinstance(e.body, PromptReceived)]
        assert len(said) == done < 900
        for _ in range(1_200):
            await socket.send("{")
        code, reason = await closed(socket)
    assert (code, "refused" in (reason or "")) == (4429, True)


async def test_a_message_of_two_megabytes_is_answered_and_the_stream_goes_on(served: Served) -> None:
    fence = await served.claimed_run()
    async with served.socket(f"/v1/runs/{fence.run}/stream?after=2") as socket:
        for size in (2_000_000, 2 * 1_048_576):
            await socket.send(json.dumps({"type": "say", "id": "big", "text": "x" * size}))
            answer = await next_message(socket)
            assert (answer["type"], answer["error"]["code"]) == ("error", "too_large")
        assert (await answer_to(socket, {"type": "say", "id": "small", "text": "x"}))["seq"] == 3


async def test_those_who_watch_see_each_other_come_and_go(served: Served) -> None:
    fence = await served.claimed_run()
    token = Tokens(served.app.settings.data_dir).add("vera", "viewer", "tester")
    path = f"/v1/runs/{fence.run}/stream?after=2"
    async with served.socket(path) as mine:
        with anyio.fail_after(20):
            assert json.loads(await mine.recv())["watchers"] == ["tester"]
            async with served.socket(path, token=token):
                assert json.loads(await mine.recv())["watchers"] == ["tester", "vera"]
            assert json.loads(await mine.recv())["watchers"] == ["tester"]


async def test_a_viewer_watches_and_steers_nothing(served: Served) -> None:
    fence = await served.claimed_run()
    token = Tokens(served.app.settings.data_dir).add("vera", "viewer", "tester")
    async with served.socket(f"/v1/runs/{fence.run}/stream", token=token) as socket:
        for message in (
            {"type": "say", "text": "x"},
            {"type": "pause"},
            {"type": "model", "model": "m"},
            {"type": "fork"},
            {"type": "rewind", "to": 1},
        ):
            answer = await answer_to(socket, message | {"id": "m"})
            assert answer["error"]["code"] == "denied"


async def test_a_long_log_is_opened_at_its_end_and_paged_backwards(served: Served) -> None:
    fence = await served.claimed_run()
    for start in range(0, 3_000, 500):
        await served.app.backbone.append(
            fence, [PromptReceived(str(n), "ann") for n in range(start, start + 500)]
        )
    path = f"/v1/runs/{fence.run}"
    async with served.socket(f"{path}/stream?last=3") as socket:
        last = [(await next_message(socket))["event"]["seq"] for _ in range(3)]
    assert last == [3_000, 3_001, 3_002]

    async def page(query: str) -> list[int]:
        return [event["seq"] for event in (await served.client.get(f"{path}/events?{query}")).json()]

    assert await page(f"before={last[0]}&limit=3") == [2_997, 2_998, 2_999]
    assert await page("before=3&limit=10") == [1, 2]
    assert await page("before=1&limit=10") == []
    assert await page("before=999999&limit=2") == [3_001, 3_002]
    assert await page("before=10&after=7&limit=10") == [8, 9]


# Questions of the model.


def question(name: str, deadline: float) -> QuestionAsked:
    return QuestionAsked(name, 1, "c1", "Round how?", ("up", "down"), "down", deadline)


async def test_a_question_of_the_model_is_answered_by_stream_and_http_and_shows_until_then(
    served: Served,
) -> None:
    fence = await served.claimed_run()
    path = f"/v1/runs/{fence.run}"
    await served.app.backbone.append(fence, [question("q-1", 4e9), question("q-2", 4e9)])

    async def open_ones() -> list[list[str]]:
        view, row = [(await served.client.get(f"{path}{end}")).json() for end in ("", "/row")]
        return [[each["question"] for each in found["questions"]] for found in (view, row)]

    assert await open_ones() == [["q-1", "q-2"]] * 2
    several = await served.client.post(f"{path}/questions", json={"text": "up"})
    assert (several.status_code, several.json()["code"]) == (409, "several_questions")
    async with served.socket(f"{path}/stream?after=4") as socket:
        message = {"type": "answer", "id": "m", "question": "q-1", "text": "up"}
        done = [await answer_to(socket, message) for _ in range(2)]
        assert [each["seq"] for each in done] == [5, 5]
        again = await answer_to(socket, message | {"id": "n"})
        assert again["error"]["code"] == "question_answered"
        unknown = await answer_to(socket, message | {"id": "o", "question": "q-9"})
        assert unknown["error"]["code"] == "no_such_question"
    reply = await served.client.post(f"{path}/questions", json={"text": "down"})
    assert reply.json()["body"]["question"] == "q-2"
    assert await open_ones() == [[], []]


async def test_an_answer_after_the_deadline_is_a_message_to_the_run(served: Served) -> None:
    fence = await served.claimed_run()
    path = f"/v1/runs/{fence.run}/questions"
    past = question("q-1", time.time() - 5)
    await served.app.backbone.append(fence, [past, QuestionAnswered("q-1", "down", "deadline")])
    key = {"Idempotency-Key": "k"}
    replies = [await served.client.post(path, json={"text": "up"}, headers=key) for _ in range(2)]
    assert [reply.json()["seq"] for reply in replies] == [5, 5]
    assert (await served.client.post(path, json={"text": "up"})).json()["code"] == "no_such_question"
    body = (await served.app.backbone.read(fence.run))[-1].body
    assert isinstance(body, PromptReceived)
    assert (body.text, body.ref) == ("Answer to your question 'Round how?': up", "q-1")
