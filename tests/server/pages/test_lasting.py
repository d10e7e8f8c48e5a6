"""A page that stays open in Chromium: runs that go on, diffs that change, and a server that does not answer for a while."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Route, expect
from tests.server.conftest import Served
from tests.server.pages.conftest import PATIENCE, Show, violations
from tests.server.pages.test_browser import append, timeline, turn
from tests.server.routes.test_forks import forked_run

from cloister.core.diagnosis import Comparison
from cloister.core.events import Advised, AttemptEnded, AttemptStarted, ChecksRan, ModelReplied, TurnEnded
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
    await page.route("**/events?after=0&limit=*", fail)
    await page.goto(f"http://127.0.0.1:{served.port}/runs/{fence.run}")
    await expect(page.get_by_text("A part of the log is missing: The server does not answer")).to_be_visible()
    await page.unroute("**/events?after=0&limit=*")
    await expect(timeline(page).get_by_text("turn 399")).to_be_visible()
    await expect(page.get_by_role("slider", name="Time")).to_be_enabled()
    await expect(page.get_by_text("A part of the log is missing")).to_have_count(0)
    await page.get_by_role("slider", name="Time").fill("30")
    await expect(timeline(page).get_by_text("turn 9", exact=True)).to_be_visible()


async def test_a_run_whose_first_request_fails_is_asked_for_again(served: Served, chromium: Browser) -> None:
    fence = await served.claimed_run("Repair the sums.")
    page = await logged_in(served, chromium)
    await page.route(f"**/v1/runs/{fence.run}", fail)
    await page.goto(f"http://127.0.0.1:{served.port}/runs/{fence.run}")
    await expect(page.get_by_role("heading", name="This run cannot be shown")).to_be_visible()
    await page.unroute(f"**/v1/runs/{fence.run}")
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


async def test_a_server_that_does_not_answer_at_first_ends_no_login(
    served: Served, chromium: Browser
) -> None:
    page = await logged_in(served, chromium)
    await page.route("**/v1/me", fail)
    await page.reload()
    await expect(page.get_by_text("The server does not answer")).to_be_visible()
    await page.unroute("**/v1/me")
    await expect(page.get_by_text("tester, admin")).to_be_visible()
    await expect(page.get_by_text("The server does not answer")).to_have_count(0)


async def test_an_unknown_run_and_a_login_that_ended_are_said(served: Served, chromium: Browser) -> None:
    fence = await served.claimed_run("Repair the sums.")
    page = await logged_in(served, chromium, "/runs/r-000000000000")
    await expect(page.get_by_role("heading", name="This run cannot be shown")).to_be_visible()
    await expect(page.get_by_role("alert")).to_contain_text("r-000000000000")
    await expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    await page.goto(f"http://127.0.0.1:{served.port}/runs/{fence.run}")
    await expect(timeline(page).get_by_text("Repair the sums.")).to_be_visible()
    await page.context.clear_cookies()
    await page.get_by_label("Say something to the run").fill("Also the rounding.")
    await page.get_by_role("button", name="Say", exact=True).click()
    await expect(page.get_by_role("heading", name="Cloister")).to_be_visible()
    await expect(page.get_by_text("cloister open", exact=True)).to_be_visible()


async def test_the_plan_of_a_run_and_the_tests_that_differ_have_their_places(
    served: Served, show: Show, tmp_path: Path
) -> None:
    fence, _ = await forked_run(served, tmp_path, finished=False)
    page = await show(f"/runs/{fence.run}")
    await expect(page.get_by_role("tab", name="Evidence")).to_be_visible()
    await expect(page.get_by_role("tab", name="Plan")).to_have_count(0)
    advice = Advised(1, "plan", "m", "1. Read **it**.\n2. Mend it.")
    log = await served.app.backbone.read(fence.run)
    last = [event.body.commit for event in log if isinstance(event.body, TurnEnded)][-1]
    mixed = Comparison(fixed=("test_one",), new=("test_<b>two",))
    await append(served, fence, advice, ChecksRan(1, 3, (), mixed), AttemptEnded(1, "red", "", last, mixed))
    await page.get_by_role("tab", name="Plan").click()
    await expect(page.get_by_role("tabpanel").get_by_role("listitem")).to_have_text(["Read it.", "Mend it."])
    assert await violations(page) == []
    await page.goto(f"http://127.0.0.1:{served.port}/compare?a={fence.run}/0&b={fence.run}/1")
    rows = page.get_by_role("region", name="Tests that differ").get_by_role("row")
    await expect(rows.nth(1)).to_contain_text("t")
    for name, words in (("test_one", "fixed"), ("test_<b>two", "newly red"), ("t", "still red")):
        row = rows.filter(has=page.get_by_role("rowheader", name=name, exact=True))
        await expect(row).to_contain_text(words)
    assert await violations(page) == []


async def test_the_audit_page_asks_for_the_newest_entries_that_match(served: Served, show: Show) -> None:
    fence = await served.claimed_run("Repair the sums.")
    for number in range(3):
        await served.app.backbone.note("Checked", f"person {number}", {"number": number})
    page = await show("/")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.get_by_role("link", name="Audit").click()
    rows = page.get_by_role("region", name="Entries").get_by_role("row")
    await expect(rows.filter(has_text="person 2")).to_be_visible()
    assert ["newest=true" in url for url in asked if "/v1/audit?" in url] == [True]
    await page.get_by_label("Person").fill("son 1")
    await expect(rows).to_have_count(2)
    await expect(rows.nth(1)).to_contain_text("person 1")
    await page.get_by_label("Person").fill("")
    await page.get_by_label("Kind").select_option("RunAdmitted")
    await expect(rows).to_have_count(2)
    await expect(rows.nth(1)).to_contain_text(fence.run)


async def test_g_and_t_lead_to_the_tools_from_a_run_too(served: Served, show: Show) -> None:
    fence = await served.claimed_run()
    page = await show(f"/runs/{fence.run}")
    await expect(page.get_by_role("tab", name="Sandbox")).to_be_visible()
    await page.keyboard.press("?")
    keys = await page.get_by_role("dialog").locator("dt").all_inner_texts()
    assert len(keys) == len(set(keys))
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.keyboard.press("g")
    await page.keyboard.press("t")
    await page.wait_for_url("**/tools")
