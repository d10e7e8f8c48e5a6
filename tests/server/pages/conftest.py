"""A real browser that is logged in at a real server. A script error, or something that the page's policy refused, fails the test."""

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect
from tests.server.conftest import Served

from cloister.server.routes.pages import page_dir

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
PATIENCE = 60_000
"""Milliseconds: how long a page may take on a busy machine before a test calls it stuck."""
expect.set_options(timeout=PATIENCE)
AXE = Path(__file__).parents[3] / "web/node_modules/axe-core/axe.min.js"


def complaints(page: Page) -> list[str]:
    """Errors of scripts and of the console from here on."""
    found: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            found.append(f"{message.type}: {message.text} {message.location.get('url', '')}")

    page.on("console", heard)
    page.on("pageerror", lambda error: found.append(f"script: {error}"))
    return found


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    if not os.access(CHROMIUM, os.X_OK):
        pytest.skip("chromium is not installed: run scripts/install dev")
    if not (page_dir() / "index.html").is_file():
        pytest.skip("the pages are not built: run `make web`")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        await browser.close()


Show = Callable[..., Awaitable[Page]]


@pytest.fixture
async def show(served: Served, chromium: Browser) -> AsyncIterator[Show]:
    """`await show(address)`: a new browser, logged in, at a page. Each has cookies of its own."""
    shown: list[tuple[Page, list[str]]] = []

    async def open_page(address: str = "/", scheme: Literal["light", "dark"] = "light") -> Page:
        context = await chromium.new_context(viewport={"width": 1440, "height": 900}, color_scheme=scheme)
        page = await context.new_page()
        page.set_default_timeout(PATIENCE)
        shown.append((page, complaints(page)))
        secret = (await served.client.post("/v1/logins")).json()["secret"]
        path, _, place = address.partition("#")
        await page.goto(f"http://127.0.0.1:{served.port}{path}#login={secret}")
        await page.locator("#main").wait_for()
        if place:
            await page.goto(f"http://127.0.0.1:{served.port}{address}")
            await page.reload()
        return page

    yield open_page
    assert [one for _, found in shown for one in found] == []


async def violations(page: Page) -> list[str]:
    """What axe-core has to say about a page."""
    await page.evaluate(AXE.read_text(encoding="utf-8"))
    found: str = await page.evaluate(
        "async () => JSON.stringify((await axe.run()).violations.map(v => [v.id, v.help, v.nodes.map(n => n.html.slice(0, 200))]))"
    )
    return [f"{rule}: {text}: {nodes[:3]}" for rule, text, nodes in json.loads(found)]
