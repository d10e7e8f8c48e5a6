"""Pictures and text files of prompts: sent, bounded, judged by their bytes, kept with the run and shown."""

import base64
from pathlib import Path

import httpx
import msgspec
import pytest
from playwright.async_api import expect
from tests.server.conftest import Served
from tests.server.pages.conftest import Show, violations

from cloister.app.tokens import Caller
from cloister.app.verbs.local import LocalVerbs
from cloister.cli.client.http import Server, Transport, over_http
from cloister.cli.client.remote import RemoteRuns
from cloister.core import limits
from cloister.core.errors import UserError
from cloister.core.events import Event, PromptReceived, RunFinished
from cloister.core.log import attachments_of
from cloister.core.requests import Attachment, NewRun
from cloister.log.attachments import Attachments

pytestmark = pytest.mark.anyio

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
LOG = b"step 1\n\x1b[31mAssertionError\x1b[0m: one cent is lost\n"


async def sent(served: Served, name: str, data: bytes) -> httpx.Response:
    return await served.client.put("/v1/attachments", params={"name": name}, content=data)


async def test_a_file_is_what_its_bytes_are_and_bounded(served: Served) -> None:
    made = (await sent(served, "../../etc/shot.txt", PNG)).json()
    assert (made["name"], made["media_type"], made["size"]) == ("shot.txt", "image/png", len(PNG))
    assert (await sent(served, "build.png", LOG)).json()["media_type"] == "text/plain"
    assert (await sent(served, "a\u202e.gif", b"GIF89a" + bytes(9))).json()["media_type"] == "image/gif"
    for data in (b"", b"\x7fELF\0\0", b"\xff\xfe\xfa", b"<svg\0", b"%PDF-1.7\n\xff"):
        refused = await sent(served, "shot.png", data)
        assert (refused.status_code, refused.json()["code"]) == (400, "bad_attachment"), data
    huge = await sent(served, "shot.png", PNG + bytes(limits.IMAGE_BYTES))
    assert (huge.status_code, huge.json()["code"]) == (413, "attachment_too_large")
    made = await served.client.post("/v1/tokens", json={"name": "vera", "role": "viewer"})
    viewer = {"Authorization": f"Bearer {made.json()['token']}"}
    refused = await served.client.put("/v1/attachments?name=x", content=PNG, headers=viewer)
    assert (refused.status_code, refused.json()["code"]) == (403, "denied")


async def test_a_message_brings_its_files_and_the_run_keeps_them(served: Served) -> None:
    fence = await served.claimed_run()
    at = f"/v1/runs/{fence.run}"
    picture, log = (await sent(served, "shot.png", PNG)).json(), (await sent(served, "b.log", LOG)).json()
    reply = await served.client.post(f"{at}/say", json={"text": "Look.", "attachments": [picture, log]})
    body = msgspec.json.decode(reply.content, type=Event).body
    assert isinstance(body, PromptReceived)
    assert [one.name for one in body.attachments] == ["shot.png", "b.log"]
    for path in (served.app.settings.data_dir / "attachments").iterdir():
        path.unlink()  # a day later
    shown = await served.client.get(f"{at}/attachments/{picture['sha256']}")
    assert (shown.content, shown.headers["content-type"]) == (PNG, "image/png")
    assert "sandbox" in shown.headers["content-security-policy"]
    text = await served.client.get(f"{at}/attachments/{log['sha256']}")
    assert text.content == LOG
    assert text.headers["content-disposition"] == "attachment"
    for lie in (
        {**picture, "sha256": "0" * 64},
        {**picture, "size": 5},
        {**picture, "media_type": "text/plain"},
    ):
        refused = await served.client.post(f"{at}/say", json={"text": "x", "attachments": [lie]})
        assert (refused.status_code, refused.json()["code"]) == (404, "no_such_attachment")
    nine = [{**picture, "name": f"{n}.png"} for n in range(9)]
    refused = await served.client.post(f"{at}/say", json={"text": "x", "attachments": nine})
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_attachments")
    for wrong in ("0" * 64, "..%2fserver.json", "x"):
        assert (await served.client.get(f"{at}/attachments/{wrong}")).status_code in (400, 404)
    other = await served.claimed_run("another")
    stolen = await served.client.get(f"/v1/runs/{other.run}/attachments/{picture['sha256']}")
    assert (stolen.status_code, stolen.json()["code"]) == (404, "no_such_attachment")
    await served.app.backbone.append(fence, [RunFinished("failed", "no")])
    await served.client.delete(at)
    gone = await served.client.get(f"{at}/attachments/{picture['sha256']}")
    assert gone.json()["code"] == "no_such_attachment"


async def test_the_verbs_do_the_same_typed_and_over_http(served: Served) -> None:
    here = LocalVerbs(served.app, Caller("ada", "operator")).runs
    there = over_http(RemoteRuns, Transport.to(Server(f"http://127.0.0.1:{served.port}", served.token)))
    assert await here.attach("a/shot.png", PNG) == await there.attach("a/shot.png", PNG)
    fence = await served.claimed_run()
    made: list[Attachment] = []
    for runs in (here, there):
        one = await runs.attach("b.log", LOG)
        made.append(one)
        await runs.say(fence.run, "Look.", attachments=(one,))
        assert await runs.attachment(fence.run, one.sha256) == LOG
        with pytest.raises(UserError) as caught:
            await runs.attachment(fence.run, "0" * 64)
        assert caught.value.code == "no_such_attachment"
        with pytest.raises(UserError) as caught:
            await runs.attach("x", b"\0")
        assert caught.value.code == "bad_attachment"
    assert attachments_of(await served.app.backbone.read(fence.run)) == tuple(made)


async def test_a_run_that_names_files_that_are_not_here_is_not_admitted(
    served: Served, tmp_path: Path
) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    one = Attachment("shot.png", "image/png", "0" * 64, 5)
    request = msgspec.to_builtins(NewRun("p", str(repo), attachments=(one,) * 9))
    del request["budget"]
    refused = await served.client.post("/v1/runs", json=request)
    assert refused.status_code == 400
    assert "at most 8 attachments" in refused.json()["message"]


def test_files_that_wait_are_swept_and_those_of_a_fork_stay(tmp_path: Path) -> None:
    kept = Attachments(tmp_path)
    one = kept.put("a.png", PNG)
    (tmp_path / "runs/r-000000000000").mkdir(parents=True)
    kept.keep("r-000000000000", [one])  # type: ignore[arg-type]
    for path in (tmp_path / "attachments").iterdir():
        path.unlink()
    kept.keep("r-111111111111", [one], "r-000000000000")  # type: ignore[arg-type]
    assert kept.read("r-111111111111", one.sha256) == PNG  # type: ignore[arg-type]
    for number in range(300):
        kept.put("n", str(number).encode())
    assert len(list((tmp_path / "attachments").iterdir())) <= 257


async def test_a_picture_is_pasted_and_shown_in_a_browser(served: Served, show: Show) -> None:
    fence = await served.claimed_run()
    page = await show(f"/runs/{fence.run}")
    field = page.get_by_label("Say something to the run")
    await field.fill("Look at this.")
    await field.evaluate(
        """(field, data) => {
            const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
            const transfer = new DataTransfer();
            transfer.items.add(new File([bytes], "<b>shot.png", { type: "image/png" }));
            field.dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true }));
        }""",
        base64.b64encode(PNG).decode(),
    )
    await expect(page.locator(".composer .attached img")).to_be_visible()
    assert await violations(page) == []
    await page.locator(".composer input[type=file]").set_input_files(
        {"name": "b.log", "mimeType": "text/plain", "buffer": LOG}
    )
    await expect(page.locator(".composer .attached li")).to_have_count(2)
    await page.get_by_role("button", name="Say", exact=True).click()
    row = page.get_by_role("log", name="Timeline").locator(".attached")
    await expect(row.locator("li")).to_have_count(2)
    await expect(row.get_by_role("img", name="<b>shot.png")).to_be_visible()
    assert (
        await row.get_by_role("img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
    )
    await expect(page.locator(".composer .attached")).to_have_count(0)
