"""The sandbox that a run works in, entered by a person: over HTTP, WebSocket and in the browser."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import expect
from tests.server.conftest import Served
from tests.server.pages.conftest import Show, violations

from cloister.app.settings import Settings, read_settings
from cloister.core.events import AttemptStarted, RunFinished, SandboxUsed
from cloister.core.ids import RunId
from cloister.log.api import Fence
from cloister.log.sqlite.reader import AuditReader
from cloister.policy.file import read_policy
from cloister.policy.layers import BUILT_IN
from cloister.sandbox.api import SandboxSpec

pytestmark = pytest.mark.anyio

RULES = """
[[rule]]
action = "bash:curl*"
effect = "deny"

[[rule]]
action = "write:.github/**"
effect = "deny"

[[rule]]
action = "read:secrets/**"
effect = "deny"
"""


@pytest.fixture
def settings(data_dir: Path) -> Settings:
    return read_settings({"USER": "tester", "CLOISTER_MODEL": "script:/nowhere.toml"}, data_dir)


@asynccontextmanager
async def working(served: Served, fence: Fence) -> AsyncGenerator[str]:
    """A sandbox that an attempt of the run works in."""
    policy = (BUILT_IN, read_policy("organisation", RULES.encode(), "rules.toml").layer)
    async with served.app.host.open(SandboxSpec("default", ttl_seconds=600)) as sandbox:
        with served.app.of_runs.listed(fence.run, 0, sandbox, policy):
            yield f"/v1/sandboxes/{sandbox.info.id}"


@pytest.fixture
async def fence(served: Served) -> Fence:
    return await served.claimed_run("Repair the sums.")


@pytest.fixture
async def at(served: Served, fence: Fence) -> AsyncIterator[str]:
    async with working(served, fence) as address:
        yield address


async def used(served: Served, run: RunId) -> list[tuple[str, str, str]]:
    bodies = [event.body for event in await served.app.backbone.read(run)]
    return [(body.who, body.how, body.what) for body in bodies if isinstance(body, SandboxUsed)]


async def test_its_rules_bind_people_and_its_log_names_them(served: Served, fence: Fence, at: str) -> None:
    client, name = served.client, at.rpartition("/")[2]
    (listed,) = (await client.get(f"/v1/runs/{fence.run}/sandboxes")).json()
    assert (listed["id"], listed["metadata"]) == (name, {"run": fence.run, "attempt": "0"})
    assert (await client.get(at)).json() == listed
    assert (await client.get("/v1/sandboxes")).json() == []
    ran = await client.post(f"{at}/exec", json={"command": "echo $((6 * 7)) > sum.txt"})
    assert ran.json()["exit_code"] == 0
    assert (await client.put(f"{at}/files", params={"path": "a.txt"}, content=b"mine")).status_code == 204
    moved = await client.post(f"{at}/files/move", json={"path": "a.txt", "to": "b.txt"})
    assert moved.status_code == 204
    assert (await client.get(f"{at}/files", params={"path": "sum.txt"})).text == "42\n"
    done = [
        ("tester", "command", "echo $((6 * 7)) > sum.txt"),
        ("tester", "file", "write a.txt"),
        ("tester", "file", "move a.txt to b.txt"),
    ]
    assert await used(served, fence.run) == done
    for refused in (
        await client.post(f"{at}/exec", json={"command": "true; curl http://example.org"}),
        await client.post(f"{at}/commands", json={"argv": ["curl", "http://example.org"]}),
        await client.put(f"{at}/files", params={"path": ".github/x.yml"}, content=b""),
        await client.put(f"{at}/files", params={"path": "/work/x/../.github/x.yml"}, content=b""),
        await client.post(f"{at}/files/move", json={"path": "b.txt", "to": ".github/x.yml"}),
        await client.get(f"{at}/files", params={"path": "secrets/key"}),
        await client.get(f"{at}/tree", params={"path": "secrets/all"}),
    ):
        assert (refused.status_code, refused.json()["code"]) == (403, "denied"), refused.text
    for refused in (
        await client.delete(at),
        await client.post(f"{at}/fork", json={}),
        await client.post(f"{at}/snapshots", json={}),
        await client.patch(at, json={"ttl_seconds": 5}),
    ):
        assert (refused.status_code, refused.json()["code"]) == (409, "sandbox_of_run"), refused.text
    assert await used(served, fence.run) == done
    with AuditReader(served.app.settings.log_path) as audit:
        entered = [json.loads(e.detail) for e in audit.page(limit=10_000) if e.kind == "SandboxUsed"]
    assert [one["what"] for one in entered] == [what for _, _, what in done]


async def test_only_an_admin_enters_it(served: Served, fence: Fence, at: str) -> None:
    made = await served.client.post("/v1/tokens", json={"name": "opal", "role": "operator"})
    headers = {"Authorization": f"Bearer {made.json()['token']}"}
    assert (await served.client.get(f"/v1/runs/{fence.run}/sandboxes", headers=headers)).status_code == 200
    for refused in (
        await served.client.post(f"{at}/exec", json={"argv": ["true"]}, headers=headers),
        await served.client.get(f"{at}/files/list", headers=headers),
        await served.client.get(f"{at}/ports/80/", headers=headers),
    ):
        assert (refused.status_code, refused.json()["code"]) == (403, "denied")
    assert await used(served, fence.run) == []


async def test_it_is_entered_in_a_browser_until_it_is_gone(served: Served, fence: Fence, show: Show) -> None:
    append = served.app.backbone.append
    await append(fence, [AttemptStarted(0, "m")])
    async with working(served, fence) as at:
        server = ["python3", "-m", "http.server", "8123", "--bind", "127.0.0.1"]
        assert (await served.client.post(f"{at}/commands", json={"argv": server})).status_code == 201
        page = await show(f"/runs/{fence.run}")
        await expect(page.get_by_role("tab", name="Sandbox")).to_be_visible()
        await page.keyboard.press("g")
        await page.keyboard.press("i")
        await expect(page.get_by_text("entered in the log under your name")).to_be_visible()
        assert await violations(page) == []
        await page.get_by_role("button", name="terminal").click()
        await expect(page.get_by_text("Opening a shell")).to_have_count(0)
        await page.locator(".xterm-helper-textarea").focus()
        await page.keyboard.type("echo $((6 * 7))x > '<b>made.txt'; cat *made.txt\n")
        await expect(page.locator(".xterm-accessibility-tree")).to_contain_text("42x")
        await page.get_by_role("button", name="files", exact=True).click()
        await page.get_by_role("button", name="<b>made.txt", exact=True).click()
        await expect(page.locator("pre.given")).to_have_text("42x\n")
        await page.get_by_role("button", name="ports", exact=True).click()
        await page.get_by_label("A web server in the sandbox").fill("8123")
        async with page.context.expect_page() as opening:
            await page.get_by_role("link", name="Open port 8123").click()
        preview = await opening.value
        await expect(preview.get_by_text("made.txt")).to_be_visible()
        await preview.close()
    await expect(page.get_by_role("heading", name="It works in no sandbox now")).to_be_visible()
    await append(fence, [RunFinished("failed", "no")])
    await expect(page.get_by_role("heading", name="Its sandbox is gone")).to_be_visible()
    (_, first, second) = await used(served, fence.run)
    assert first[:2] == ("tester", "terminal")
    assert second == ("tester", "port", "8123")


async def test_the_page_of_a_sandbox_violates_no_rule_of_accessibility(served: Served, show: Show) -> None:
    made = (await served.client.post("/v1/sandboxes", json={})).json()
    page = await show(f"/sandboxes/{made['id']}")
    await expect(page.get_by_text("Opening a shell")).to_have_count(0)
    for part in ("Files", "Processes", "Ports", "Snapshots"):
        await page.get_by_role("tab", name=part).click()
        assert await violations(page) == [], part
