import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.server.conftest import Serve, Served

from cloister.app.settings import Settings, read_settings
from cloister.log.sqlite.reader import AuditReader

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(data_dir: Path) -> Settings:
    return read_settings({"USER": "tester"}, data_dir)


@pytest.fixture
async def sandbox(served: Served) -> AsyncIterator[str]:
    """The address of a new sandbox."""
    reply = await served.client.post("/v1/sandboxes", json={"ttl_seconds": 300})
    assert reply.status_code == 201, reply.text
    yield f"/v1/sandboxes/{reply.json()['id']}"


async def run(served: Served, sandbox: str, **body: Any) -> dict[str, Any]:
    reply = await served.client.post(f"{sandbox}/exec", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_a_sandbox_lives_from_create_to_delete(served: Served) -> None:
    made = await served.client.post("/v1/sandboxes", json={"ttl_seconds": 60, "env": {"COLOUR": "red"}})
    assert made.status_code == 201
    info = made.json()
    assert info["expires_at"] - info["created_at"] == pytest.approx(60)  # type: ignore[reportUnknownMemberType]
    assert info["isolation"]["tier"] == "container"
    at = f"/v1/sandboxes/{info['id']}"
    assert (await served.client.get(at)).json() == info
    assert (await served.client.get("/v1/sandboxes")).json() == [info]
    assert (await run(served, at, command="echo $COLOUR"))["stdout"] == "red\n"
    assert (await served.client.delete(at)).status_code == 204
    assert (await served.client.get("/v1/sandboxes")).json() == []
    for reply in (
        await served.client.get(at),
        await served.client.delete(at),
        await served.client.post(f"{at}/exec", json={"argv": ["true"]}),
        await served.client.get(f"{at}/files", params={"path": "x"}),
    ):
        assert (reply.status_code, reply.json()["code"]) == (404, "no_such_sandbox")


async def test_a_body_without_a_required_field_may_be_left_out(served: Served) -> None:
    made = await served.client.post("/v1/sandboxes")
    assert (made.status_code, made.json()["template"]) == (201, "default")
    at = f"/v1/sandboxes/{made.json()['id']}"
    copies = await served.client.post(f"{at}/fork")
    assert (copies.status_code, len(copies.json())) == (201, 1)
    kept = await served.client.post(f"{at}/snapshots")
    assert (kept.status_code, kept.json()["name"]) == (201, None)
    refused = await served.client.post("/v1/runs")
    assert (refused.status_code, refused.json()["message"]) == (400, "The request needs a JSON body.")


async def test_the_same_task_id_is_the_same_sandbox(served: Served) -> None:
    body: dict[str, Any] = {"task_id": "mine", "ttl_seconds": 60}
    first = await served.client.post("/v1/sandboxes", json=body)
    again = await served.client.post("/v1/sandboxes", json=body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    other = await served.client.post("/v1/sandboxes", json={**body, "ttl_seconds": 61})
    assert (other.status_code, other.json()["code"]) == (409, "task_id_taken")


async def test_a_sandbox_that_cannot_be_is_refused_in_one_sentence(served: Served) -> None:
    for body in (
        {"ttl_seconds": 0},
        {"ttl_seconds": 1e9},
        {"ttl_seconds": "60"},
        {"template": "nowhere"},
        {"template": "../../etc"},
        {"quota": {"cpus": -1}},
        {"quota": {"memory_bytes": 1}},
        {"env": {"A=B": "x"}},
        {"task_id": ""},
        {"task_id": "x" * 201},
        {"tier": "strong"},
    ):
        reply = await served.client.post("/v1/sandboxes", json=body)
        assert reply.status_code == 400, body
        assert set(reply.json()) == {"code", "message"}
    assert (await served.client.get("/v1/sandboxes")).json() == []


async def test_a_command_runs_and_its_end_is_reported_as_it_was(served: Served, sandbox: str) -> None:
    done = await run(served, sandbox, argv=["sh", "-c", "cat; echo oops >&2; exit 3"], stdin="hello")
    assert done.pop("seconds") >= 0
    assert done == {
        "exit_code": 3,
        "signal": None,
        "killed": None,
        "stdout": "hello",
        "stderr": "oops\n",
        "truncated": False,
    }
    line = await run(served, sandbox, command="echo $A | tr a-z A-Z; pwd; id -u", env={"A": "b"}, cwd="/tmp")
    assert line["stdout"] == "B\n/tmp\n1000\n"
    assert (await run(served, sandbox, argv=["id", "-u"], user="root"))["stdout"] == "0\n"
    assert (await run(served, sandbox, argv=["printf", "\\377ok"]))["stdout"] == "\ufffdok"


async def test_a_command_without_end_is_ended_by_its_time_or_its_output(served: Served, sandbox: str) -> None:
    slow = await run(served, sandbox, argv=["sleep", "600"], seconds=0.2)
    assert (slow["killed"], slow["truncated"]) == ("time", False)
    loud = await run(served, sandbox, argv=["yes"])
    assert (loud["killed"], loud["truncated"]) == ("output", True)
    assert len(loud["stdout"]) <= 9_000_000


async def test_a_command_that_cannot_be_is_refused(served: Served, sandbox: str) -> None:
    bodies: list[dict[str, Any]] = [
        {},
        {"argv": []},
        {"argv": ["true"], "command": "true"},
        {"command": "  "},
        {"argv": ["a\0b"]},
        {"argv": ["true"], "seconds": 0},
        {"argv": ["true"], "seconds": 1e9},
        {"argv": ["true"], "env": {"": "x"}},
        {"argv": ["true"], "user": "toor"},
    ]
    for body in bodies:
        reply = await served.client.post(f"{sandbox}/exec", json=body)
        assert reply.status_code == 400, body
    missing = await served.client.post(f"{sandbox}/exec", json={"argv": ["no-such-program"]})
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


async def test_code_is_run_as_a_file_and_leaves_none(served: Served, sandbox: str) -> None:
    tricky = "'\"$(touch /tmp/owned)`touch /tmp/owned`\\n"
    for language, code in (
        ("python", f"import sys\nprint({tricky!r}, end='')\nsys.exit(len(sys.stdin.read()))"),
        ("bash", "printf '%s' \"$WORDS\"; exit $(cat | wc -c)"),
        ("sh", "printf '%s' \"$WORDS\"; exit $(cat | wc -c)"),
    ):
        body: dict[str, Any] = {"language": language, "code": code, "stdin": "four", "env": {"WORDS": tricky}}
        done = (await served.client.post(f"{sandbox}/execute", json=body)).json()
        assert (done["stdout"], done["exit_code"]) == (tricky, 4)
    assert (await run(served, sandbox, command="ls -A /tmp"))["stdout"] == ""
    unknown = await served.client.post(f"{sandbox}/execute", json={"language": "cobol", "code": ""})
    assert unknown.status_code == 400


async def test_files_go_in_and_come_out_unchanged(served: Served, sandbox: str) -> None:
    data = bytes(range(256)) * 5_000
    path = {"path": "some/where/ä file.bin"}
    put = await served.client.put(f"{sandbox}/files", params={**path, "mode": "750"}, content=data)
    assert (put.status_code, put.content) == (204, b"")
    got = await served.client.get(f"{sandbox}/files", params=path)
    assert got.content == data
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["content-disposition"] == "attachment"
    part = await served.client.get(f"{sandbox}/files", params={**path, "offset": 3, "limit": 4})
    assert part.content == data[3:7]
    (entry,) = (await served.client.get(f"{sandbox}/files/list", params={"path": "some/where"})).json()
    assert (entry["name"], entry["kind"], entry["size"]) == ("ä file.bin", "file", len(data))
    assert entry["mode"] & 0o777 == 0o750
    assert (await served.client.get(f"{sandbox}/files/list")).json()[0]["name"] == "some"


async def test_files_that_cannot_be_are_refused(served: Served, sandbox: str) -> None:
    get, put = served.client.get, served.client.put
    for reply, status in (
        (await get(f"{sandbox}/files", params={"path": "missing"}), 404),
        (await get(f"{sandbox}/files", params={"path": "/tmp"}), 400),
        (await get(f"{sandbox}/files", params={"path": "/etc/shadow"}), 403),
        (await get(f"{sandbox}/files", params={"path": "a\0b"}), 400),
        (await get(f"{sandbox}/files", params={"path": ""}), 400),
        (await get(f"{sandbox}/files"), 400),
        (await get(f"{sandbox}/files/list", params={"path": "/etc/passwd"}), 400),
        (await put(f"{sandbox}/files", params={"path": "x", "mode": "4755"}, content=b""), 400),
        (await put(f"{sandbox}/files", params={"path": "x", "mode": "999"}, content=b""), 400),
        (await put(f"{sandbox}/files", params={"path": "/etc/passwd"}, content=b""), 403),
    ):
        assert reply.status_code == status, reply.text
        assert set(reply.json()) == {"code", "message"}


async def test_a_file_may_be_larger_than_a_json_body(served: Served, sandbox: str) -> None:
    data = b"x" * 5_000_000
    assert (await served.client.put(f"{sandbox}/files", params={"path": "big"}, content=data)).is_success
    assert (await run(served, sandbox, command="wc -c < big"))["stdout"] == "5000000\n"
    long = await served.client.post(f"{sandbox}/exec", json={"argv": ["true"], "stdin": "x" * 2_000_000})
    assert (long.status_code, long.json()["code"]) == (413, "too_large")


async def test_sandbox_that_dies_under_a_command_is_reported_lost(served: Served, sandbox: str) -> None:
    replies: list[int] = []

    async def wait() -> None:
        reply = await served.client.post(f"{sandbox}/exec", json={"argv": ["sleep", "600"], "seconds": 600})
        replies.append(reply.status_code)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            while "sleep" not in (await run(served, sandbox, command="cat /proc/*/comm"))["stdout"]:
                pass
            assert (await served.client.delete(sandbox)).status_code == 204
    assert replies == [410]


async def test_a_caller_who_hangs_up_takes_his_command_with_him_and_is_entered_so(
    served: Served, sandbox: str, settings: Settings
) -> None:
    body = {"argv": ["sleep", "600"], "seconds": 600}

    async def sleeps() -> bool:
        return "sleep" in (await run(served, sandbox, command="cat /proc/*/comm"))["stdout"]

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: served.client.post(f"{sandbox}/exec", json=body))
            while not await sleeps():
                pass
            tasks.cancel_scope.cancel()
        while await sleeps():
            pass
        with AuditReader(settings.log_path) as audit:
            calls = [json.loads(e.detail) for e in audit.page(limit=10_000) if e.kind == "ApiCall"]
    statuses = [call["status"] for call in calls if call["route"] == f"{sandbox}/exec"]
    assert statuses.count(499) == 1 and set(statuses) == {200, 499}


async def test_a_server_that_goes_does_not_wait_for_long_commands(serving: Serve) -> None:
    replies: list[str] = []
    replied = anyio.Event()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks, serving() as served:
            info = (await served.client.post("/v1/sandboxes", json={})).json()
            at = f"/v1/sandboxes/{info['id']}"

            async def wait() -> None:
                reply = await served.client.post(
                    f"{at}/exec", json={"argv": ["sleep", "600"], "seconds": 600}
                )
                replies.append(reply.json()["code"])
                replied.set()

            tasks.start_soon(wait)
            while "sleep" not in (await run(served, at, command="cat /proc/*/comm"))["stdout"]:
                pass
            await served.sockets.leave(0)
            await replied.wait()
    assert replies == ["server_stopping"]
