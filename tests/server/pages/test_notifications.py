"""Notifications of the browser about runs, as far as a page hands them over."""

import anyio
import pytest
from playwright.async_api import Page, expect
from tests.server.conftest import Served
from tests.server.pages.conftest import Show, violations

from cloister.core.events import AskRaised, RunFinished, StuckNoticed
from cloister.core.requests import NewRun

pytestmark = pytest.mark.anyio

HEARD = """
document.hasFocus = () => false;  // a page that is not looked at
window.heard = [];
window.Notification = class extends Notification {
  constructor(title, options) { super(title, options); window.heard.push([title, options.body]); }
};
"""
HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b[31m"


async def heard(page: Page, count: int) -> list[list[str]]:
    """What the page has handed over, once it is so much."""
    with anyio.fail_after(60):
        while len(found := await page.evaluate("() => window.heard")) < count:  # noqa: ASYNC110  (a page tells nothing by itself)
            await anyio.sleep(0.05)
    return found


async def test_a_person_hears_once_that_their_run_asks_is_stuck_and_ended_and_nothing_of_others(
    served: Served, show: Show
) -> None:
    backbone = served.app.backbone
    other = await served.claimed_run("Of another person.")
    run, _ = await backbone.admit(NewRun(f"Repair the sums. {HOSTILE}", "/nowhere"), "tester")
    own = await backbone.claim(served.app.owner, run)
    assert own is not None
    page = await show("/")
    await page.context.grant_permissions(["notifications"], origin=f"http://127.0.0.1:{served.port}")
    await page.add_init_script(HEARD)
    await page.reload()
    await expect(page.get_by_role("link", name="Of another person.")).to_be_visible()
    await page.get_by_label("Notify me of").select_option("my runs")
    await expect(page.get_by_label("Notify me of")).to_have_value("my runs")

    await backbone.append(other, [RunFinished("failed", "x")])
    await backbone.append(own, [AskRaised("a-1", 0, f"bash: {HOSTILE}", "x", 4e9)])
    [[title, body]] = await heard(page, 1)
    assert title.startswith("Repair the sums. <img") and body.startswith("asks for permission: bash: <img")
    assert not {"\u202e", "\x1b"} & {*title, *body}
    await backbone.append(own, [StuckNoticed(0, "repeats", "the same again", 3)])
    assert (await heard(page, 2))[1][1] == "is stuck"
    await backbone.append(own, [RunFinished("red", "x")])
    assert (await heard(page, 3))[2][1] == "ended: red"
    assert await page.evaluate("() => window.heard.length") == 3
    assert await violations(page) == []

    await page.reload()
    await expect(page.get_by_label("Notify me of")).to_have_value("my runs")
    assert await page.evaluate("() => window.heard.length") == 0
