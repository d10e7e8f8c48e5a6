"""The form of a new run: what it says about the repository, the sandbox that waits meanwhile, and what it asks for."""

from pathlib import Path

import anyio
import msgspec
import pytest
from playwright.async_api import expect
from tests.server.conftest import Served
from tests.server.pages.conftest import Show, violations

from cloister.app.settings import Settings, read_settings
from cloister.core.attempts import AttemptWish
from cloister.core.events import Event, RunAdmitted, SandboxOpened
from cloister.core.ids import RunId
from cloister.core.requests import Attachment, Budget, FurtherRepository, NewRun, RunRule
from cloister.log.attachments import Attachments
from cloister.sandbox.local.names import parse_name
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

SCRIPT = """
[[reply]]
say = "Nothing to do."
"""


@pytest.fixture
def settings(data_dir: Path, tmp_path: Path) -> Settings:
    (tmp_path / "script.toml").write_text(SCRIPT)
    return read_settings({"USER": "tester", "CLOISTER_MODEL": f"script:{tmp_path / 'script.toml'}"}, data_dir)


def living(served: Served) -> set[str]:
    names = (parse_name(path.name) for path in (served.app.settings.data_dir / "sandboxes").iterdir())
    return {name.sandbox for name in names if name}


async def opened(served: Served, run: RunId) -> SandboxOpened:
    """The first sandbox of a run, as soon as it has one."""
    with anyio.fail_after(120):
        async with served.app.backbone.follow(run) as items:
            async for item in items:
                if isinstance(item, Event) and isinstance(item.body, SandboxOpened):
                    return item.body
    raise AssertionError("the run opened no sandbox")


async def test_the_form_shows_the_checks_and_the_run_gets_the_sandbox_that_was_warmed_meanwhile(
    served: Served, show: Show, tmp_path: Path
) -> None:
    repo = SampleRepo(tmp_path / "repo")
    repo.write("Makefile", "test:\n\ttrue\n")
    commit = repo.commit("base")
    page = await show("/new")
    await page.get_by_label("Repository", exact=True).fill(str(repo.path))
    look = page.locator(".look")
    await expect(look).to_contain_text("are shown here")  # half of an address is not looked at
    more = page.get_by_text("More: branch")
    before = await more.bounding_box()
    await page.get_by_label("What should be done?").fill("Repair the sums.")
    await expect(look).to_contain_text(commit[:10])
    assert await more.bounding_box() == before, "a click on its way would miss"
    await expect(look).to_contain_text("Checks found: make test")
    await expect(look).to_contain_text("a sandbox is being warmed")
    assert await violations(page) == []
    with anyio.fail_after(60):
        await served.app.pool.filled()
    (warm,) = living(served)
    await page.get_by_text("More: branch").click()
    await page.get_by_label("Rules for this run").fill("deny bash:git push*\n\nask  write:.github/**")
    await page.get_by_role("button", name="Start", exact=True).click()
    await page.wait_for_url("**/runs/r-*")
    run = RunId(page.url.rsplit("/", 1)[1])
    (first,) = await served.app.backbone.read(run, limit=1)
    assert isinstance(first.body, RunAdmitted)
    assert first.body.request.rules == (
        RunRule("bash:git push*", "deny"),
        RunRule("write:.github/**", "ask"),
    )
    assert (await opened(served, run)).sandbox == warm
    await page.goto(f"http://127.0.0.1:{served.port}/new?from={run}")
    await page.get_by_text("More: branch").click()
    await expect(page.get_by_label("Rules for this run")).to_have_value(
        "deny bash:git push*\nask write:.github/**"
    )


async def test_a_repository_that_is_not_there_is_said_before_the_run_is_asked_for(
    served: Served, show: Show
) -> None:
    page = await show("/new?repo=/nowhere/<b>")
    await expect(page.locator(".look .warn")).to_contain_text("/nowhere/<b>")
    assert served.app.pool.info() == ()


async def test_a_run_asked_for_again_has_everything_of_the_first(
    served: Served, show: Show, tmp_path: Path
) -> None:
    for name in ("shop", "lib"):
        repo = SampleRepo(tmp_path / name)
        repo.write("a.txt", "one\n")
        repo.commit("base")
    log = await served.client.put("/v1/attachments?name=b.log", content=b"one cent is lost")
    first = NewRun(
        "Repair the sums.",
        str(tmp_path / "shop"),
        ref="main",
        checks=("true",),
        kind="fix",
        budget=Budget(steps=7, tokens=70_000, seconds=700.0, dollars=0.5),
        attempts=(AttemptWish(temperature=0.5), AttemptWish(hint="Be brief.")),
        first_green=True,
        search="beam:2",
        asked=("true",),
        allow_test_changes=("tests/*",),
        ask_test_changes=True,
        harness="native",
        seed=3,
        setup="off",
        notes="off",
        pull_request=False,
        attachments=(msgspec.json.decode(log.content, type=Attachment),),
        also=(FurtherRepository(str(tmp_path / "lib"), "main"),),
        issue=12,
        template="default",
    )
    run, _ = await served.app.backbone.admit(first, "somebody")
    Attachments(served.app.settings.data_dir).keep(run, first.attachments)
    page = await show(f"/new?from={run}")
    kept = page.get_by_role("list", name="Kept from the earlier run")
    await expect(kept).to_contain_text("70,000 tokens")
    await expect(page.get_by_text("b.log")).to_be_visible()
    await kept.get_by_role("button", name="Leave out issue").click()
    await expect(kept).not_to_contain_text("issue")
    assert await violations(page) == []
    async with page.expect_response("**/v1/runs") as answer:
        await page.get_by_role("button", name="Start", exact=True).click()
    made = (await (await answer.value).json())["id"]
    (event,) = await served.app.backbone.read(RunId(made), limit=1)
    assert isinstance(event.body, RunAdmitted)
    assert msgspec.structs.replace(event.body.request, key=None) == msgspec.structs.replace(first, issue=None)
