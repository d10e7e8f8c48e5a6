"""The pages as a person uses them: a real server, real sandboxes, the scripted model and Chromium."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright
from tests.server.pages.conftest import CHROMIUM, FLAGS, PATIENCE

from cloister.server.routes.pages import page_dir

expect.set_options(timeout=PATIENCE)

PROMPT = "The test suite fails. Find the cause and fix it."


@pytest.fixture
def page() -> Iterator[Page]:
    if not os.access(CHROMIUM, os.X_OK):
        pytest.skip("chromium is not installed: run scripts/install dev")
    if not (page_dir() / "index.html").is_file():
        pytest.skip("the pages are not built: run `make web`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        made = browser.new_page(viewport={"width": 1440, "height": 900})
        made.set_default_timeout(PATIENCE)
        yield made
        browser.close()


def open_page(cloister: Any, page: Page, *run: str) -> None:
    page.goto(cloister("open", *run, "--no-browser").stdout.split()[0])
    page.locator("#main").wait_for()


def test_a_run_is_started_and_watched_in_a_browser_while_its_server_is_killed(
    cloister: Any, page: Page
) -> None:
    ledger: Path = cloister.ledger()
    cloister("serve", "--background", "--port", "0")
    port = json.loads((cloister.data_dir / "server.json").read_text())["port"]
    open_page(cloister, page)
    page.get_by_role("link", name="New run").click()
    page.get_by_label("What should be done?").fill(PROMPT)
    page.get_by_label("Repository", exact=True).fill(str(ledger))
    page.get_by_text("More: branch").click()
    page.get_by_label("Model").fill(cloister.fix)
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url("**/runs/r-*")
    expect(page.get_by_role("button", name="baseline 5 red")).to_be_visible(timeout=180_000)
    cloister.kill_server()
    expect(page.get_by_text("Connection lost")).to_be_visible()
    cloister("serve", "--background", "--port", str(port))
    expect(page.locator("header .badge")).to_have_text("proven", timeout=180_000)
    expect(page.get_by_text("Connection lost")).to_have_count(0)
    expect(page.locator(".names").first).to_contain_text("test_shares_add_up_to_the_total")
    page.get_by_role("tab", name="Diff").click()
    expect(page.locator(".file")).to_have_count(2)
    page.locator(".virtual").evaluate("element => { element.scrollTop = 0; }")
    expect(page.get_by_text("turn 1", exact=True)).to_be_visible()
    # Nothing twice and nothing lost: what the page holds is what the log holds.
    page.reload()
    expect(page.get_by_role("slider", name="Time")).to_have_attribute("max", str(len(cloister.events())))


ASKS = """
[[reply]]
say = "One decision is not mine."
calls = [{ tool = "ask", question = "Who gets the cent?", choices = ["the first", "the last"], default = "the first", wait_seconds = 900 }]

[[reply]]
expect = "answers: the last"
calls = [{ tool = "bash", command = "sleep 600" }]
"""


def test_a_question_of_the_model_is_answered_in_a_browser(cloister: Any, page: Page) -> None:
    ledger: Path = cloister.ledger()
    cloister("run", PROMPT, "--repo", str(ledger), "--model", cloister.script(ASKS), "--detach")
    open_page(cloister, page, "last")
    card = page.get_by_role("region", name="Question of the model")
    expect(card).to_contain_text("Who gets the cent?", timeout=180_000)
    page.keyboard.press("2")
    expect(page.get_by_role("button", name="sleep 600")).to_be_visible()
    expect(page.get_by_role("log", name="Timeline").get_by_text("answered: the last")).to_be_visible()
    expect(card).to_have_count(0)
    page.keyboard.press("s")
    expect(page.locator("header .badge")).to_have_text("stopped", timeout=120_000)


WORKS = """
[[reply]]
say = "I mark it."
calls = [{ tool = "bash", command = "touch marked" }]

[[reply]]
say = "I write a note."
calls = [{ tool = "write", path = "note.txt", content = "one\\ntwo\\n" }]

[[reply]]
calls = [{ tool = "ask", question = "Is it good?", choices = ["yes", "no"], default = "yes", wait_seconds = 900 }]

[[reply]]
expect = "note.txt:2\\n> two\\nSay it in words."
calls = [{ tool = "bash", command = "sleep 600" }]
"""


def test_a_real_run_is_allowed_to_act_reviewed_stopped_and_forked_in_a_browser(
    cloister: Any, page: Page
) -> None:
    how = ("--model", cloister.script(WORKS), "--check", "true", "--rule", "ask bash:touch *", "--detach")
    cloister("run", PROMPT, "--repo", str(cloister.ledger()), *how)
    open_page(cloister, page, "last")
    timeline = page.get_by_role("log", name="Timeline")
    expect(page.get_by_role("button", name="Allow a")).to_have_count(1, timeout=180_000)
    page.keyboard.press("a")
    expect(timeline.get_by_text("Allowed by")).to_be_visible()
    expect(page.get_by_role("region", name="Question of the model")).to_contain_text("Is it good?")
    page.get_by_role("tab", name="Diff").click()
    page.get_by_role("button", name="Comment on line 2 of note.txt").last.click()
    page.get_by_label("Comment", exact=True).fill("Say it in words.")
    page.get_by_role("button", name="Add comment").click()
    page.get_by_role("button", name="Send to the agent").click()
    expect(page.get_by_text("comment not sent yet")).to_have_count(0)
    page.get_by_role("region", name="Question of the model").get_by_role("button", name="yes").click()
    expect(page.get_by_role("button", name="sleep 600")).to_be_visible()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator("header .badge")).to_have_text("stopped", timeout=120_000)
    run = page.url.partition("/runs/")[2].split("?")[0]
    ended = [event["seq"] for event in cloister.events() if event["body"]["type"] == "TurnEnded"]
    page.get_by_role("slider", name="Time").fill(str(ended[1]))
    expect(page.locator("header .badge")).to_have_text("running")
    page.get_by_role("button", name="Fork from here").click()
    page.get_by_label("What should it do differently?").fill("Take the other way.")
    page.get_by_role("dialog").get_by_role("button", name="Fork from here").click()
    page.wait_for_url(lambda url: "/runs/r-" in url and run not in url)
    expect(timeline.get_by_text("Take the other way.").first).to_be_visible(timeout=120_000)
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator("header .badge")).to_have_text("stopped", timeout=120_000)


def test_a_sandbox_is_opened_typed_into_and_deleted(cloister: Any, page: Page) -> None:
    found: list[str] = []
    page.on(
        "console",
        lambda message: (
            found.append(f"{message.text} {message.location}") if message.type == "error" else None
        ),
    )
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("dialog", lambda dialog: dialog.accept())
    cloister("serve", "--background", "--port", "0")
    open_page(cloister, page)
    page.get_by_role("link", name="Sandboxes").click()
    page.get_by_role("button", name="Open a sandbox").click()
    page.wait_for_url("**/sandboxes/s-*", timeout=180_000)
    uses = page.get_by_role("group", name="What it uses now")
    expect(uses).to_contain_text(re.compile(r"processors\d+\.\d of 2\.0"))
    expect(uses).to_contain_text(re.compile(r"memory[\d.]+ MiB of 2\.0 GiB"))
    expect(page.get_by_text("Opening a shell")).to_have_count(0)
    page.locator(".xterm-helper-textarea").focus()
    page.keyboard.type("echo $((6 * 7))x > /work/made.txt; cat /work/made.txt\n")
    expect(page.locator(".xterm-accessibility-tree")).to_contain_text("42x")
    page.keyboard.type("printf '\\033[38;2;1;2;250mcoloured\\033[0m\\n'\n")
    expect(page.locator(".xterm-rows span[style]").filter(has_text="coloured").last).to_be_visible()
    assert page.locator(".xterm-rows").evaluate("rows => rows.getBoundingClientRect().width") > 600
    page.get_by_role("tab", name="Files").click()
    page.get_by_role("button", name="made.txt", exact=True).click()
    expect(page.locator("pre")).to_have_text("42x\n")
    page.get_by_role("tab", name="Snapshots").click()
    page.get_by_role("button", name="Take a snapshot").click()
    expect(page.locator(".file-line")).to_have_count(1)
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("heading", name="No sandboxes")).to_be_visible()
    assert found == []
