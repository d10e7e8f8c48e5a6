import pytest
from tests.server.conftest import Served

from cloister.core import limits
from cloister.core.events import (
    AskRaised,
    AttemptStarted,
    ConnectionDecided,
    PromptReceived,
    RunFinished,
    ToolReturned,
)

pytestmark = pytest.mark.anyio


async def test_a_run_is_durable_when_its_id_is_returned(served: Served) -> None:
    reply = await served.client.post(
        "/v1/runs", json={"prompt": "fix it", "repo": "https://host.example/a.git"}
    )
    assert reply.status_code == 201
    assert reply.json()["made"] is True
    run = reply.json()["id"]
    events = (await served.client.get(f"/v1/runs/{run}/events")).json()
    assert events[0]["seq"] == 1
    assert events[0]["body"]["type"] == "RunAdmitted"
    assert events[0]["body"]["who"] == "tester"
    assert events[0]["body"]["request"]["prompt"] == "fix it"


async def test_the_same_key_is_the_same_run(served: Served) -> None:
    body = {"prompt": "fix it", "repo": "https://host.example/a.git", "key": "once"}
    first = await served.client.post("/v1/runs", json=body)
    second = await served.client.post("/v1/runs", json=body)
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json() == {"id": first.json()["id"], "made": False}


async def test_a_key_may_be_a_header_and_stands_for_one_request(served: Served) -> None:
    body, key = {"prompt": "fix it", "repo": "https://host.example/a.git"}, {"Idempotency-Key": "once"}
    first = await served.client.post("/v1/runs", json=body, headers=key)
    second = await served.client.post("/v1/runs", json=body | {"key": "once"})
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json()["id"] == first.json()["id"]
    other = await served.client.post("/v1/runs", json=body | {"prompt": "another"}, headers=key)
    assert (other.status_code, other.json()["code"]) == (409, "key_taken")
    both = await served.client.post("/v1/runs", json=body | {"key": "twice"}, headers=key)
    assert (both.status_code, both.json()["code"]) == (400, "bad_request")


async def test_a_list_is_filtered_and_turned_page_by_page(served: Served) -> None:
    fences = [await served.claimed_run(f"number {n}") for n in range(3)]
    await served.app.backbone.append(fences[0], [RunFinished("proven", "Done.")])
    await served.app.backbone.append(fences[1], [AskRaised("a-1", 0, "bash: x", "x", 4e9)])

    async def listed(query: str) -> list[str]:
        return [row["prompt"] for row in (await served.client.get(f"/v1/runs?{query}")).json()]

    assert await listed("state=finished") == await listed("outcome=proven") == ["number 0"]
    assert await listed("state=running&who=somebody&repo=/nowhere") == ["number 2", "number 1"]
    assert await listed("who=another") == []
    assert await listed(f"before={fences[1].run}") == ["number 0"]
    assert (await served.client.get("/v1/runs?state=asleep")).status_code == 400


async def test_a_monitor_reads_how_many_runs_there_are_and_ask(served: Served) -> None:
    fences = [await served.claimed_run() for _ in range(3)]
    await served.app.backbone.append(fences[0], [RunFinished("proven", "Done.")])
    await served.app.backbone.append(fences[1], [AskRaised("a-1", 0, "bash: x", "x", 4e9)])
    call = ToolReturned(0, "c1", "bash", False, "no", 0.1)
    door = ConnectionDecided("s-1", "example.org", 443, "deny", "a rule")
    await served.app.backbone.append(fences[2], [AttemptStarted(0, "m"), call, call, door])
    counts = (await served.client.get("/v1/counts")).json()
    assert counts == [
        {"state": "finished", "outcome": "proven", "runs": 1},
        {"state": "running", "outcome": None, "runs": 2},
    ]
    reply = await served.client.get("/v1/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    numbers = [line for line in reply.text.splitlines() if not line.startswith("#")]
    assert numbers[:4] == [
        'cloister_runs{state="finished",outcome="proven"} 1',
        'cloister_runs{state="running",outcome=""} 2',
        "cloister_runs_asking 1",
        "cloister_sandboxes 0",
    ]
    writes = dict(line.removeprefix("cloister_log_write_seconds").split() for line in numbers[4:-7])
    assert numbers[-7:] == [
        'cloister_attempts_total{result="started"} 1',
        'cloister_model_calls_total{result="ok"} 0',
        'cloister_model_calls_total{result="failed"} 0',
        'cloister_tool_calls_total{result="ok"} 0',
        'cloister_tool_calls_total{result="failed"} 2',
        'cloister_door_total{result="allow"} 0',
        'cloister_door_total{result="deny"} 1',
    ]
    counts = [int(count) for name, count in writes.items() if name.startswith("_bucket")]
    assert counts == sorted(counts) and float(writes["_sum"]) > 0
    # At least: three runs admitted and claimed, and two events.
    assert int(writes["_count"]) == counts[-1] >= 8


async def test_runs_are_listed_newest_first_and_bounded(served: Served) -> None:
    ids = [(await served.claimed_run(f"number {n}")).run for n in range(3)]
    rows = (await served.client.get("/v1/runs")).json()
    assert [row["id"] for row in rows] == ids[::-1]
    assert rows[0]["prompt"] == "number 2"
    assert len((await served.client.get("/v1/runs?limit=2")).json()) == 2
    for limit in ("0", "-1", "1001", "many", ""):
        reply = await served.client.get("/v1/runs", params={"limit": limit})
        assert (reply.status_code, reply.json()["code"]) == (400, "bad_request")


async def test_a_run_is_found_by_the_start_of_its_id(served: Served) -> None:
    fence = await served.claimed_run()
    view = (await served.client.get(f"/v1/runs/{fence.run[:9]}")).json()
    assert view["id"] == fence.run
    for path in ("", "/events", "/words", "/diff"):
        reply = await served.client.get(f"/v1/runs/r-nosuchrun{path}")
        assert (reply.status_code, reply.json()["code"]) == (404, "no_such_run")


async def test_a_start_that_fits_two_runs_is_refused(served: Served) -> None:
    await served.claimed_run()
    await served.claimed_run()
    reply = await served.client.get("/v1/runs/r-")
    assert (reply.status_code, reply.json()["code"]) == (400, "ambiguous_run")


async def test_the_log_is_read_from_a_cursor(served: Served) -> None:
    fence = await served.claimed_run()
    await served.app.backbone.append(fence, [PromptReceived(str(n), "x") for n in range(5)])
    reply = await served.client.get(f"/v1/runs/{fence.run}/events?after=3&limit=2")
    assert [event["seq"] for event in reply.json()] == [4, 5]
    for after in ("-1", "x", str(2**53 + 1), "1.5", "9" * 400):
        reply = await served.client.get(f"/v1/runs/{fence.run}/events", params={"after": after})
        assert reply.status_code == 400
        assert "$.after" in reply.json()["message"]


async def test_a_run_takes_messages_until_it_is_finished(served: Served) -> None:
    fence = await served.claimed_run()
    said = await served.client.post(f"/v1/runs/{fence.run}/say", json={"text": "hello"})
    assert said.status_code == 200
    assert said.json()["body"] == {
        "type": "PromptReceived",
        "text": "hello",
        "who": "tester",
        "origin": "user",
        "ref": "",
        "key": "",
        "attachments": [],
    }
    other = await served.client.post(f"/v1/runs/{fence.run}/model", json={"model": "script:/other.toml"})
    assert other.json()["body"] == {
        "type": "ModelChosen",
        "model": "script:/other.toml",
        "who": "tester",
        "key": "",
    }
    unknown = await served.client.post(f"/v1/runs/{fence.run}/model", json={"model": "nobody:knows"})
    assert (unknown.status_code, unknown.json()["code"]) == (400, "unknown_model")
    told = {"text": "from a tracker", "origin": "issue"}
    assert (await served.client.post(f"/v1/runs/{fence.run}/say", json=told)).json()["body"][
        "origin"
    ] == "issue"
    stopped = await served.client.post(f"/v1/runs/{fence.run}/stop")
    assert stopped.json()["body"] == {"type": "StopRequested", "who": "tester", "key": ""}
    await served.app.backbone.append(fence, [RunFinished("stopped", "asked")])
    late = await served.client.post(f"/v1/runs/{fence.run}/stop")
    assert (late.status_code, late.json()["code"]) == (409, "run_finished")


async def test_a_question_is_answered_once_asked(served: Served) -> None:
    fence = await served.claimed_run()
    body = {"ask": "a1", "answer": "allow"}
    early = await served.client.post(f"/v1/runs/{fence.run}/answer", json=body)
    assert (early.status_code, early.json()["code"]) == (404, "no_such_ask")
    await served.app.backbone.append(fence, [AskRaised("a1", 1, "tool:bash", "rm", deadline=2e9)])
    reply = await served.client.post(f"/v1/runs/{fence.run}/answer", json=body)
    assert reply.json()["body"] == {
        "type": "AskAnswered",
        "ask": "a1",
        "answer": "allow",
        "who": "tester",
        "role": "admin",
        "key": "",
    }
    wrong = await served.client.post(f"/v1/runs/{fence.run}/answer", json={"ask": "a1", "answer": "hunter2"})
    assert wrong.status_code == 400
    assert "hunter2" not in wrong.text


NOT_A_RUN = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"\xff\xfe",
    b'{"prompt": "p"}',
    b'{"prompt": "p", "repo": "r", "n": "3"}',
    b'{"prompt": "p", "repo": "r", "n": 99}',
    b'{"prompt": " ", "repo": "r"}',
    b'{"prompt": "p", "repo": "r", "surprise": 1}',
    b'{"prompt": "\\ud800", "repo": "r"}',
    b"[" * 100_000,
]


async def test_an_invalid_request_is_refused_with_one_sentence(served: Served) -> None:
    for body in NOT_A_RUN:
        reply = await served.client.post(
            "/v1/runs", content=body, headers={"Content-Type": "application/json"}
        )
        assert reply.status_code == 400, body[:80]
        assert set(reply.json()) == {"code", "message"}
    assert (await served.client.get("/v1/runs")).json() == []


async def test_a_prompt_that_is_too_long_is_refused_and_makes_no_run(served: Served) -> None:
    for size in (limits.PROMPT_BYTES + 1, 10_485_760):
        reply = await served.client.post(
            "/v1/runs", json={"prompt": "x" * size, "repo": "https://host.example/a.git"}
        )
        assert reply.status_code in (400, 413)
    assert reply.json()["code"] == "too_large"
    assert (await served.client.get("/v1/runs")).json() == []


async def test_unknown_addresses_and_methods_answer_in_the_same_shape(served: Served) -> None:
    nowhere = await served.client.get("/v1/nowhere")
    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "no_such_route")
    wrong = await served.client.put("/v1/runs", json={})
    assert (wrong.status_code, wrong.json()["code"]) == (405, "bad_method")


async def test_the_log_is_served_in_words(served: Served) -> None:
    fence = await served.claimed_run()
    await served.client.post(f"/v1/runs/{fence.run}/say", json={"text": "hello"})
    said = (await served.client.get(f"/v1/runs/{fence.run}/words?after=2")).json()
    assert [(each["seq"], each["lines"]) for each in said] == [
        (3, [{"text": "» tester: hello", "style": "head"}])
    ]
    assert len((await served.client.get(f"/v1/runs/{fence.run}/words?limit=1")).json()) == 1
