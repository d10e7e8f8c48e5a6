"""Templates over HTTP."""

import os
import shutil
from pathlib import Path

import pytest
from tests.server.conftest import Served

from cloister.app.settings import Settings, read_settings
from cloister.testing.samples import busybox, layer, layout

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(own_dir: Path) -> Settings:
    missing = [tool for tool in ("skopeo", "busybox") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (scripts/install dev)")
    env = {"USER": "tester", "PATH": os.environ["PATH"], "CLOISTER_MODEL": "script:/nowhere.toml"}
    return read_settings(env, own_dir)


async def test_a_template_lives_from_put_to_delete(served: Served, tmp_path: Path) -> None:
    image = layout(tmp_path / "image", layer(*busybox()), Env=["PATH=/bin"])
    recipe = {"kind": "oci", "image": str(image)}
    client = served.client
    assert [info["name"] for info in (await client.get("/v1/templates")).json()] == ["browser", "default"]
    made = await client.put("/v1/templates/tiny", json={"recipe": recipe})
    assert (made.status_code, made.json()["ready"], made.json()["about"]) == (200, False, None)
    assert (await client.get("/v1/templates/tiny/log")).json()["code"] == "no_such_log"
    built = await client.post("/v1/templates/tiny/build", json={}, timeout=120)
    assert built.status_code == 200, built.text
    assert built.json()["ready"]
    assert (await client.get("/v1/templates/tiny")).json() == built.json()
    assert "== ready" in (await client.get("/v1/templates/tiny/log")).text
    sandbox = (await client.post("/v1/sandboxes", json={"template": "tiny"})).json()
    assert sandbox["template"] == "tiny"
    busy = await client.delete("/v1/templates/tiny")
    assert (busy.status_code, busy.json()["code"]) == (409, "template_in_use")
    await client.delete(f"/v1/sandboxes/{sandbox['id']}")
    assert (await client.delete("/v1/templates/tiny")).status_code == 204
    for reply in (
        await client.get("/v1/templates/tiny"),
        await client.delete("/v1/templates/tiny"),
        await client.get("/v1/templates/tiny/log"),
        await client.post("/v1/templates/tiny/build", json={}),
    ):
        assert (reply.status_code, reply.json()["code"]) == (404, "no_such_template")


async def test_the_built_in_template_is_replaced_only_on_request_and_only_by_one_that_works(
    served: Served, tmp_path: Path
) -> None:
    client = served.client
    bad = {"kind": "oci", "image": str(tmp_path / "nowhere")}
    refused = await client.put("/v1/templates/default", json={"recipe": bad})
    assert (refused.status_code, refused.json()["code"]) == (409, "built_in_template")
    assert (await client.get("/v1/templates/default")).json()["recipe"]["kind"] == "packages"
    asked = await client.put("/v1/templates/default", json={"recipe": bad, "replace_built_in": True})
    assert (asked.status_code, asked.json()["ready"]) == (200, False)
    failed = await client.post("/v1/templates/default/build", json={}, timeout=120)
    assert (failed.status_code, failed.json()["code"]) == (400, "no_image")
    made = await client.post("/v1/sandboxes", json={}, timeout=120)
    assert made.status_code == 201, "what was built before still serves"
    await client.delete(f"/v1/sandboxes/{made.json()['id']}")
    good = {"kind": "oci", "image": str(layout(tmp_path / "image", layer(*busybox()), Env=["PATH=/bin"]))}
    await client.put("/v1/templates/default", json={"recipe": good, "replace_built_in": True})
    assert (await client.post("/v1/templates/default/build", json={}, timeout=120)).json()["ready"]
    made = (await client.post("/v1/sandboxes", json={})).json()
    assert served.app.sandboxes.get(made["id"]).info.template == "default"
    await client.delete(f"/v1/sandboxes/{made['id']}")


async def test_a_recipe_holds_no_secrets(served: Served) -> None:
    for recipe in (
        {"kind": "dockerfile", "context": "/x", "args": {"NPM_TOKEN": "abc"}},
        {"kind": "dockerfile", "context": "/x", "args": {"X": "ghp_" + "a" * 36}},
        {"kind": "dockerfile", "context": "/x", "args": {"INDEX": "https://me:pw@index.example/simple"}},
        {"kind": "oci", "image": "x", "env": {"DB_PASSWORD": "hush"}},
        {"kind": "oci", "image": "me:pw@registry.example/x"},
        {"kind": "devcontainer", "repo": "https://token@git.example/a/b"},
        {"kind": "repository", "repo": "https://user:pw@git.example/a/b"},
    ):
        reply = await served.client.put("/v1/templates/x", json={"recipe": recipe})
        assert (reply.status_code, reply.json()["code"]) == (400, "bad_template"), recipe
        assert "pw" not in reply.text and "abc" not in reply.text and "hush" not in reply.text
    kept = {"kind": "dockerfile", "context": "/x", "args": {"VERSION": "3", "TOKEN": ""}}
    assert (await served.client.put("/v1/templates/x", json={"recipe": kept})).status_code == 200
    await served.client.delete("/v1/templates/x")


async def test_an_invalid_recipe_is_refused(served: Served) -> None:
    for recipe in ({"kind": "oci"}, {"kind": "other"}, {"kind": "oci", "image": "x", "more": 1}, {}):
        reply = await served.client.put("/v1/templates/x", json={"recipe": recipe})
        assert (reply.status_code, reply.json()["code"]) == (400, "bad_request")
    reply = await served.client.put("/v1/templates/X", json={"recipe": {"kind": "oci", "image": "x"}})
    assert (reply.status_code, reply.json()["code"]) == (400, "bad_template")
    reply = await served.client.post("/v1/runs", json={"prompt": "p", "repo": "/r", "template": "no"})
    assert (reply.status_code, reply.json()["code"]) == (400, "unknown_template")


async def test_a_sandbox_starts_from_a_snapshot_by_its_name(served: Served) -> None:
    made = (await served.client.post("/v1/sandboxes", json={})).json()
    sandbox = served.app.sandboxes.get(made["id"])
    await sandbox.write("mine", b"kept")
    taken = await sandbox.snapshot("state")
    try:
        again = await served.client.post("/v1/sandboxes", json={"template": "snapshot:state"})
        assert again.status_code == 201, again.text
        assert await served.app.sandboxes.get(again.json()["id"]).read("mine") == b"kept"
    finally:
        await served.app.host.delete_snapshot(taken.id)
