"""A page that stays open in Chromium: runs that go on, diffs that change, and a server that does not answer for a while."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Route, expect
from tests.server.conftest import Served
from tests.server.pages.conftest import PATIENCE, Show
from tests.server.pages.test_browser import append, timeline, turn
from tests.server.routes.test_forks import forked_run

from cloister.core.events import AttemptStarted, ModelReplied, TurnEnded
from cloister.core.requests import Usage

pytestmark = pytest.mark.anyio


async def logged_in(served: Served, chromium: Browser, address: str = "/") -> Page:
    """A page of a browser whose complaints are not counted: its requests fail on purpose."""
    page = await (await chromium.new_context(viewport={"width": 1440, "height": 900})).new_page()
    page.set_default_timeout(PATIENCE)
    secret = (await served.client.post("/v1/logins")).json()["secret"]
    await page.goto(f"http://127.0.0.1:{served.port}{address}#login={secret}")
    await expect(page.get_by_text("tester, admin")).to_be_visible()
    return page


async def test_a_finished_run_goes_on_after_a_message_without_a_reload(
    served: Served, show: Show, tmp_path: Path
) -> None:
    fence, _ = await forked_run(served, tmp_path, finished=True)
    page = await show(f"/runs/{fence.run}")
    await expect(page.locator("header .badge")).to_have_text("proven")
    await page.evaluate("window.same = true")
    await page.get_by_label("Say something: the run continues").fill("Now in words.")
    await page.get_by_role("button", name="Say", exact=True).click()
    await expect(timeline(page).get_by_text("Now in words.")).to_be_visible()
    await expect(timeline(page).get_by_text("tester continued the run")).to_be_visible()
    assert await page.evaluate("window.same")


async def test_a_diff_that_changes_keeps_what_is_read_and_written(
    served: Served, show: Show, tmp_path: Path
) -> None:
    files = {f"b{n}.txt": f"line of b{n}\n" * 40 for n in range(9)}
    fence, _ = await forked_run(served, tmp_path, finished=False, files=files)
    page = await show(f"/runs/{fence.run}?pane=diff")
    await page.get_by_role("button", name="Comment on line 20 of b7.txt").click()
    await page.keyboard.type("Half a sen")
    pane = page.get_by_role("tabpanel")
    before = await pane.evaluate("pane => pane.scrollTop")
    assert before > 0

    # The next save point is that of the other attempt.
    log = await served.app.backbone.read(fence.run)
    first = next(event.body for event in log if isinstance(event.body, TurnEnded))
    await append(
        served,
        fence,
        ModelReplied(1, 3, "m", "again", (), Usage(10, 5), 0.1),
        TurnEnded(1, 3, first.commit, True),
    )
    await expect(page.locator(".code-added").first).to_have_text("+two")
    await expect(page.get_by_label("Comment", exact=True)).to_have_value("Half a sen")
    await page.keyboard.type("tence.")
    await expect(page.get_by_label("Comment", exact=True)).to_have_value("Half a sentence.")
    assert await pane.evaluate("pane => pane.scrollTop") == before
    await page.get_by_role("button", name="Add comment").click()
    await expect(page.get_by_text("1 comment not sent yet")).to_be_visible()


async def fail(route: Route) -> None:
    await route.abort()


async def test_older_parts_of_a_log_that_cannot_be_fetched_are_asked_for_again(
    served: Served, chromium: Browser
) -> None:
    fence = await served.claimed_run()
    await append(served, fence, AttemptStarted(0, "m"), *(each for n in range(1, 400) for each in turn(n)))
    page = await logged_in(served, chromium)
    await page.route("**/events?after=0&limit=*", fail, times=2)
    await page.goto(f"http://127.0.0.1:{served.port}/runs/{fence.run}")
    await expect(page.get_by_text("A part of the log is missing: The server does not answer")).to_be_visible()
    await expect(timeline(page).get_by_text("turn 399")).to_be_visible()
    await expect(page.get_by_role("slider", name="Time")).to_be_enabled()
    await expect(page.get_by_text("A part of the log is missing")).to_have_count(0)
    await page.get_by_role("slider", name="Time").fill("30")
    await expect(timeline(page).get_by_text("turn 9", exact=True)).to_be_visible()


async def test_a_run_whose_first_request_fails_is_asked_for_again(served: Served, chromium: Browser) -> None:
    fence = await served.claimed_run("Repair the sums.")
    page = await logged_in(served, chromium)
    await page.route(f"**/v1/runs/{fence.run}", fail, times=2)
    await page.goto(f"http://127.0.0.1:{served.port}/runs/{fence.run}")
    await expect(page.get_by_role("heading", name="This run cannot be shown")).to_be_visible()
    await page.get_by_role("button", name="Try again").click()
    await expect(page.get_by_role("heading", name="Repair the sums.")).to_be_visible()


async def test_a_change_of_thousands_of_files_is_drawn_in_parts(
    served: Served, show: Show, tmp_path: Path
) -> None:
    files = {f"d{n % 9}/f{n:04}.txt": f"text {n}\n" for n in range(3_000)}
    fence, _ = await forked_run(served, tmp_path, finished=False, files=files)
    page = await show(f"/runs/{fence.run}?pane=diff")
    await expect(page.locator(".diff-bar")).to_contain_text("3,001 files")
    assert (await page.locator(".file").count(), await page.locator(".file table").count()) == (200, 50)
    await page.locator(".file").nth(60).get_by_role("button").click()
    await expect(page.locator(".file table")).to_have_count(51)
    await page.get_by_role("button", name="200 more files").click()
    await expect(page.locator(".file")).to_have_count(400)
