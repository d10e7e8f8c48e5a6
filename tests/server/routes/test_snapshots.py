from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.conftest import Served

from cloister.app.settings import Settings, read_settings
from cloister.core.ids import new_owner_id

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(data_dir: Path) -> Settings:
    return read_settings({"USER": "tester"}, data_dir)


@pytest.fixture
async def sandbox(served: Served) -> AsyncIterator[str]:
    """The address of a new sandbox with a file in it."""
    info = (await served.client.post("/v1/sandboxes", json={"ttl_seconds": 300})).json()
    at = f"/v1/sandboxes/{info['id']}"
    assert (await served.client.put(f"{at}/files", params={"path": "file"}, content=b"then")).is_success
    yield at


async def content(served: Served, sandbox: str) -> bytes:
    return (await served.client.get(f"{sandbox}/files", params={"path": "file"})).content


def ours(found: list[dict[str, Any]], sandbox: str) -> list[dict[str, Any]]:
    return [info for info in found if sandbox.endswith(info["sandbox"])]


async def test_a_snapshot_is_taken_found_opened_and_deleted(served: Served, sandbox: str) -> None:
    name = f"kept-{new_owner_id()}"
    made = await served.client.post(f"{sandbox}/snapshots", json={"name": name})
    assert made.status_code == 201, made.text
    info = made.json()
    assert (info["name"], info["parent"], info["template"], info["tier"]) == (
        name,
        None,
        "default",
        "container",
    )
    second = (await served.client.post(f"{sandbox}/snapshots", json={})).json()
    assert second["parent"] == info["id"]
    assert (await served.client.delete(sandbox)).status_code == 204
    assert (await served.client.get(f"{sandbox}/snapshots")).json() == [info, second], (
        "it outlives its sandbox"
    )
    assert ours((await served.client.get("/v1/snapshots")).json(), sandbox) == [info, second]
    for reference in (name, info["id"]):
        assert (await served.client.get(f"/v1/snapshots/{reference}")).json() == info
        opened = await served.client.post("/v1/sandboxes", json={"template": f"snapshot:{reference}"})
        assert opened.status_code == 201, opened.text
        assert await content(served, f"/v1/sandboxes/{opened.json()['id']}") == b"then"
    for reference in (name, second["id"]):
        assert (await served.client.delete(f"/v1/snapshots/{reference}")).status_code == 204
    assert ours((await served.client.get("/v1/snapshots")).json(), sandbox) == []
    for reply in (
        await served.client.get(f"/v1/snapshots/{name}"),
        await served.client.delete(f"/v1/snapshots/{name}"),
    ):
        assert (reply.status_code, reply.json()["code"]) == (404, "no_such_snapshot")


async def test_invalid_snapshots_and_forks_are_refused(served: Served, sandbox: str) -> None:
    name = f"taken-{new_owner_id()}"
    post = served.client.post
    info = (await post(f"{sandbox}/snapshots", json={"name": name})).json()
    for reply, status, code in (
        (await post(f"{sandbox}/snapshots", json={"name": name}), 409, "name_taken"),
        (await post(f"{sandbox}/snapshots", json={"name": "../x"}), 400, "bad_name"),
        (await post(f"{sandbox}/snapshots", json={"nam": "x"}), 400, "bad_request"),
        (await post("/v1/sandboxes/s-nothing/snapshots", json={}), 404, "no_such_sandbox"),
        (await post("/v1/sandboxes/s-nothing/fork", json={}), 404, "no_such_sandbox"),
        (await post(f"{sandbox}/fork", json={"n": 0}), 400, "bad_request"),
        (await post(f"{sandbox}/fork", json={"n": 65}), 400, "bad_request"),
        (await post("/v1/sandboxes", json={"template": "snapshot:nothing"}), 400, "unknown_snapshot"),
    ):
        assert (reply.status_code, reply.json()["code"]) == (status, code), reply.text
    assert (await served.client.delete(f"/v1/snapshots/{info['id']}")).status_code == 204


async def test_forks_of_a_sandbox_are_independent(served: Served, sandbox: str) -> None:
    reply = await served.client.post(f"{sandbox}/fork", json={"n": 3})
    assert reply.status_code == 201, reply.text
    forks = [f"/v1/sandboxes/{info['id']}" for info in reply.json()]
    assert len(set(forks)) == 3
    assert {info["parent"] for info in reply.json()} == {sandbox.rpartition("/")[2]}
    for number, fork in enumerate(forks):
        assert await content(served, fork) == b"then"
        await served.client.put(f"{fork}/files", params={"path": "file"}, content=str(number).encode())
    assert (await served.client.delete(sandbox)).status_code == 204, "a fork outlives its parent"
    assert [await content(served, fork) for fork in forks] == [b"0", b"1", b"2"]
    assert len((await served.client.get("/v1/sandboxes")).json()) == 3
