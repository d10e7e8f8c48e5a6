"""Projects and links in Chromium: an admin makes them, a stranger's browser gets one run, and loses it again."""

import pytest
from playwright.async_api import Browser, expect
from tests.server.conftest import Served
from tests.server.pages.conftest import PATIENCE, Show, violations

from cloister.app.people.projects import people_in
from cloister.core.events import AskRaised, PromptReceived

pytestmark = pytest.mark.anyio


async def test_a_link_shows_a_stranger_one_run_until_it_is_ended(
    served: Served, show: Show, chromium: Browser
) -> None:
    fence = await served.claimed_run("Repair the sums.")
    run = fence.run
    await served.claimed_run("A secret of others.")
    owner = await show(f"/runs/{run}")
    await owner.get_by_role("button", name="Share").click()
    await owner.get_by_label("Anyone who has the link").select_option("sees and steers this run")
    await owner.get_by_role("button", name="Make a link").click()
    address = await owner.get_by_role("status").locator("code").filter(has_text="/share#").inner_text()
    assert await violations(owner) == []

    context = await chromium.new_context(viewport={"width": 390, "height": 844})
    guest = await context.new_page()
    guest.set_default_timeout(PATIENCE)
    await guest.goto(address)
    await expect(guest.get_by_role("log", name="Timeline").get_by_text("Repair the sums.")).to_be_visible()
    assert guest.url == f"http://127.0.0.1:{served.port}/runs/{run}"
    await guest.get_by_label("Say something to the run").fill("Also the rounding.")
    await guest.get_by_role("button", name="Say", exact=True).click()
    await expect(owner.get_by_text("Also the rounding.")).to_be_visible()
    await served.app.backbone.append(fence, [AskRaised("a-1", 0, "bash: git tag v1", "", 2_000_000_000)])
    await expect(owner.locator(".ask").get_by_role("button", name="Allow")).to_be_visible()
    await expect(guest.locator(".ask").get_by_role("button", name="Deny")).to_be_visible()
    await expect(guest.locator(".ask").get_by_role("button", name="Allow")).to_have_count(0)
    [said] = [
        event.body for event in await served.app.backbone.read(run) if isinstance(event.body, PromptReceived)
    ]
    assert said.who.startswith("guest sh-")
    await guest.goto(f"http://127.0.0.1:{served.port}/")
    await expect(guest.get_by_role("link", name="Repair the sums.")).to_be_visible()
    await expect(guest.get_by_text("A secret of others.")).to_have_count(0)
    assert await violations(guest) == []

    await owner.get_by_role("button", name="End", exact=True).click()
    await expect(guest.get_by_text("This login has ended")).to_be_visible()
    await guest.goto(address)
    await expect(guest.get_by_text("This link has ended or is wrong")).to_be_visible()
    await context.close()


async def test_an_admin_keeps_projects_and_members_on_their_page(served: Served, show: Show) -> None:
    page = await show("/projects")
    await expect(page.get_by_text("No projects yet")).to_be_visible()
    await page.get_by_label("Name of the project").fill("ledger")
    await page.get_by_label("Repositories").fill("git.example/acme/ledger* /srv/ledger")
    await page.get_by_role("button", name="Make", exact=True).click()
    await page.get_by_label("New member of ledger").fill("ana@example.org")
    await page.get_by_label("What the new member may do").select_option("steers")
    await page.get_by_role("button", name="Add").click()
    held = page.get_by_label("What ana@example.org may do")
    await expect(held).to_have_value("steers")
    async with page.expect_response("**/members"):
        await held.select_option("approves")
    await expect(page.get_by_text("1 member")).to_be_visible()
    people = people_in(served.app.settings.data_dir)
    await expect(held).to_have_value("approves")
    assert people.project("ledger").members == {"ana@example.org": "approves"}
    assert await violations(page) == []
    await page.get_by_role("button", name="Remove ana@example.org").click()
    await expect(held).to_have_count(0)
    assert people.project("ledger").members == {}
