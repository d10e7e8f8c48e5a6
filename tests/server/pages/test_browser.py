"""The pages in Chromium: a run as it streams, steering, time travel, and hostile text."""

import re
from functools import partial
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, Page, Route, WebSocketRoute, expect
from tests.server.conftest import Served
from tests.server.pages.conftest import Show, violations
from tests.server.routes.test_forks import forked_run

from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.diagnosis import TestResult as Result
from cloister.core.events import (
    AskAnswered,
    AskRaised,
    AttemptStarted,
    BaselineTaken,
    ChecksRan,
    CommandOutput,
    Event,
    ModelReplied,
    ModelText,
    PatchFound,
    PromptReceived,
    QuestionAnswered,
    QuestionAsked,
    RunFinished,
    StopRequested,
    ToolReturned,
    TurnEnded,
)
from cloister.core.requests import ToolCall, Usage
from cloister.log.api import Fence
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

RED = Diagnosis("pytest", 1, 0.5, tests=(Result("test_one", "failed"), Result("test_two", "passed")))
GREEN = Diagnosis("pytest", 0, 0.5, tests=(Result("test_one", "passed"), Result("test_two", "passed")))


def turn(step: int, command: str = "ls", output: str = "a.txt", text: str = "I look.") -> tuple[object, ...]:
    call = ToolCall(f"c{step}", "bash", {"command": command})
    return (
        ModelReplied(0, step, "m", text, (call,), Usage(10, 5), 0.1, cost=0.01),
        ToolReturned(0, f"c{step}", "bash", True, output, 0.2, exit_code=0),
        TurnEnded(0, step, "f" * 40, False),
    )


async def append(served: Served, fence: Fence, *bodies: object) -> tuple[Event, ...]:
    return await served.app.backbone.append(fence, bodies)  # type: ignore[arg-type]


def timeline(page: Page) -> Locator:
    return page.get_by_role("log", name="Timeline")


async def said(served: Served, fence: Fence, kind: type) -> list[object]:
    return [event.body for event in await served.app.backbone.read(fence.run) if isinstance(event.body, kind)]


async def test_a_page_on_which_nothing_happens_draws_nothing(served: Served, show: Show) -> None:
    """It costs the processor of the person who leaves it open."""
    page = await show("/")
    await expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()
    asked = await page.evaluate(
        """async () => {
            const real = requestAnimationFrame;
            let asked = 0;
            window.requestAnimationFrame = (run) => (asked++, real(run));
            for (let at = 0; at < 60; at++) await new Promise((done) => real(done));
            return asked;
        }"""
    )
    assert asked < 30


async def test_an_address_logs_one_browser_in_once(served: Served, chromium: Browser) -> None:
    secret = (await served.client.post("/v1/logins")).json()["secret"]
    address = f"http://127.0.0.1:{served.port}/#login={secret}"
    page = await (await chromium.new_context()).new_page()
    await page.goto(address)
    await expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()
    assert secret not in page.url
    await page.reload()
    await expect(page.get_by_text("tester, admin")).to_be_visible()
    other = await (await chromium.new_context()).new_page()
    await other.goto(address)
    await expect(other.get_by_text("cloister open", exact=True)).to_be_visible()
    assert await violations(other) == []


async def test_a_run_is_watched_as_it_streams(served: Served, show: Show) -> None:
    fence = await served.claimed_run("Repair the sums.")
    page, other = await show(f"/runs/{fence.run}"), await show(f"/runs/{fence.run}")
    await append(served, fence, AttemptStarted(0, "m"), BaselineTaken((RED,)))
    call = ToolCall("c1", "bash", {"command": "make sums"})
    for each in (page, other):
        await expect(each.get_by_role("button", name="baseline 1 red, 1 green")).to_be_visible()
    await append(served, fence, ModelReplied(0, 1, "m", "I begin.", (call,), Usage(1, 1), 0.1))
    for each in (page, other):
        await each.get_by_role("button", name="make sums").click()
    served.app.backbone.publish(fence.run, CommandOutput(0, "c1", "out", "\x1b[31mred words\x1b[0m so far"))
    for each in (page, other):
        await expect(each.locator("span.fg1")).to_have_text("red words")
    await append(served, fence, ToolReturned(0, "c1", "bash", True, "the whole output", 0.2, exit_code=0))
    await expect(page.get_by_text("the whole output")).to_be_visible()
    served.app.backbone.publish(fence.run, ModelText(0, "I am think"))
    await expect(page.get_by_text("I am think")).to_be_visible()
    fixed = Comparison(fixed=("test_one",), shown=("test_one",), green=True, ran=1, passed=2)
    await append(served, fence, ChecksRan(0, 1, (GREEN,), fixed), RunFinished("proven", "It adds up."))
    for each in (page, other):
        await expect(each.locator("header .badge")).to_have_text("proven")
        await expect(each.get_by_text("Shown by test_one")).to_be_visible()
    await page.reload()
    await expect(page.get_by_text("It adds up.")).to_be_visible()
    assert await page.get_by_text("make sums").count() == 1


async def test_a_run_is_steered_with_words_and_keys(served: Served, show: Show) -> None:
    fence = await served.claimed_run()
    page = await show(f"/runs/{fence.run}")
    await append(served, fence, AttemptStarted(0, "m"), *turn(1))
    await expect(page.get_by_text("turn 1")).to_be_visible()
    await page.keyboard.press("/")
    await page.keyboard.type("Use integers.")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Use integers.")).to_be_visible()
    (prompt,) = await said(served, fence, PromptReceived)
    assert isinstance(prompt, PromptReceived)
    assert (prompt.text, prompt.who) == ("Use integers.", "tester")
    await page.keyboard.press("Escape")
    ask = AskRaised("a-1", 0, "bash: git tag v1", "", 2_000_000_000)
    await append(served, fence, ask)
    await expect(page.get_by_role("button", name="Allow a")).to_have_count(1)
    await expect(timeline(page).get_by_text("asks you")).to_be_visible()
    await page.keyboard.press("a")
    await expect(timeline(page).get_by_text("Allowed by tester")).to_be_visible()
    assert [one.answer for one in await said(served, fence, AskAnswered) if isinstance(one, AskAnswered)] == [
        "allow"
    ]
    await append(served, fence, AskRaised("a-2", 0, "bash: git push", "", 2_000_000_000))
    await page.locator(".run-left > .ask").get_by_role("button", name="Deny").click()
    await expect(timeline(page).get_by_text("Denied by tester")).to_be_visible()
    await page.get_by_role("button", name="Pause").click()
    await expect(page.locator("header .badge")).to_have_text("paused")
    await page.get_by_role("button", name="Go on").click()
    await expect(page.locator("header .badge")).to_have_text("running")
    await expect(page.get_by_text("tester let the run go on")).to_be_visible()
    await page.get_by_role("button", name="Stop", exact=True).click()
    await expect(page.get_by_role("button", name="Stopping")).to_be_disabled()
    assert len(await said(served, fence, StopRequested)) == 1


async def test_an_event_that_comes_after_the_answer_still_changes_the_buttons(
    served: Served, chromium: Browser
) -> None:
    fence = await served.claimed_run()
    page = await (await chromium.new_context()).new_page()
    held: list[str | bytes] = []
    holding = False
    sockets: list[WebSocketRoute] = []

    def between(route: WebSocketRoute) -> None:
        sockets.append(route)
        route.connect_to_server().on_message(lambda text: held.append(text) if holding else route.send(text))

    await page.route_web_socket("**/v1/runs/*/stream*", between)
    secret = (await served.client.post("/v1/logins")).json()["secret"]
    await page.goto(f"http://127.0.0.1:{served.port}/runs/{fence.run}#login={secret}")
    await append(served, fence, AttemptStarted(0, "m"), *turn(1))
    await expect(page.get_by_text("turn 1")).to_be_visible()
    for button, after in (("Pause", "Go on"), ("Go on", "Pause"), ("Stop", "Stopping")):
        holding = True
        async with page.expect_response("**/v1/runs/**"):
            await page.get_by_role("button", name=button, exact=True).click()
        await expect(page.get_by_role("button", name=button, exact=True)).to_be_enabled()
        holding = False
        for text in held:
            sockets[0].send(text)
        held.clear()
        await expect(page.get_by_role("button", name=after, exact=True)).to_be_visible()


def question(name: str, text: str, *choices: str, deadline: float = 2_000_000_000) -> QuestionAsked:
    return QuestionAsked(name, 0, "c1", text, choices, "down", deadline)


async def test_a_question_of_the_model_is_answered_with_words_and_keys(served: Served, show: Show) -> None:
    fence = await served.claimed_run()
    await append(served, fence, AttemptStarted(0, "m"), question("q-1", "Round how?", "up", "down"))
    page = await show("/")
    group = page.locator("section").filter(has=page.get_by_role("heading", name="Asks you"))
    await expect(group.locator(".run-line")).to_contain_text("Round how?")
    await page.get_by_role("link", name="1 run asks you").click()
    card = page.get_by_role("region", name="Question of the model")
    await expect(card).to_contain_text("Without an answer it goes on with “down” in ")
    await expect(page.locator("header .badge")).to_have_text("asks you")
    assert await violations(page) == []
    await page.keyboard.press("1")
    await expect(timeline(page).get_by_text("tester answered: up")).to_be_visible()
    await expect(card).to_have_count(0)
    await append(served, fence, question("q-2", "To which digit?"))
    await expect(card).to_contain_text("To which digit?")
    await page.keyboard.press("r")
    await page.keyboard.type("the second")
    await page.keyboard.press("Enter")
    await expect(timeline(page).get_by_text("tester answered: the second")).to_be_visible()
    answers = [
        one for one in await said(served, fence, QuestionAnswered) if isinstance(one, QuestionAnswered)
    ]
    assert [(one.question, one.text, one.who) for one in answers] == [
        ("q-1", "up", "tester"),
        ("q-2", "the second", "tester"),
    ]


async def test_a_late_answer_to_the_model_is_a_message_and_nothing_typed_is_lost(
    served: Served, show: Show
) -> None:
    fence = await served.claimed_run()
    page = await show(f"/runs/{fence.run}")
    late = QuestionAnswered("q-1", "down", "deadline")
    await append(served, fence, AttemptStarted(0, "m"), question("q-1", "Round how?", deadline=1.0))
    card = page.get_by_role("region", name="Question of the model")
    await expect(card).to_contain_text("The time is up")
    await card.get_by_label("Your answer").fill("half up")
    await append(served, fence, late)
    await expect(card).to_contain_text("A late answer is sent to the run as a message.")
    await page.keyboard.press("Escape")
    await expect(card).to_have_count(0)
    await page.get_by_role("button", name="Answer late").click()
    await expect(card.get_by_label("Your answer")).to_be_focused()
    await page.keyboard.type("half up")
    await page.keyboard.press("Enter")
    await expect(timeline(page).get_by_text("tester answered later, with a message.")).to_be_visible()
    await expect(page.get_by_text("Answer to your question 'Round how?': half up")).to_be_visible()
    await expect(page.get_by_role("button", name="Answer late")).to_have_count(0)
    assert await said(served, fence, QuestionAnswered) == [late]


async def test_what_is_said_again_because_no_answer_came_counts_once(
    served: Served, chromium: Browser
) -> None:
    fence = await served.claimed_run()
    secret = (await served.client.post("/v1/logins")).json()["secret"]
    page = await (await chromium.new_context()).new_page()
    await page.goto(f"http://127.0.0.1:{served.port}/runs/{fence.run}#login={secret}")
    field = page.get_by_label("Say something to the run")
    await field.fill("Use integers.")

    async def lose_the_answer(route: Route) -> None:
        await route.fetch()
        await route.abort()

    await page.route("**/say", lose_the_answer, times=1)
    await field.press("Enter")
    await expect(page.get_by_text("The server does not answer: check")).to_be_visible()
    await field.press("Enter")
    await expect(field).to_have_value("")
    await field.fill("Use integers.")
    await field.press("Enter")
    await expect(field).to_have_value("")
    prompts = [one for one in await said(served, fence, PromptReceived) if isinstance(one, PromptReceived)]
    assert [one.text for one in prompts] == ["Use integers."] * 2
    assert len({one.key for one in prompts}) == 2


async def test_a_fork_asked_for_again_because_no_answer_came_is_one_run(
    served: Served, chromium: Browser, tmp_path: Path
) -> None:
    fence, _ = await forked_run(served, tmp_path, finished=True)
    secret = (await served.client.post("/v1/logins")).json()["secret"]
    page = await (await chromium.new_context()).new_page()
    await page.goto(f"http://127.0.0.1:{served.port}/runs/{fence.run}#login={secret}")
    await page.get_by_role("tab", name="Evidence").wait_for()

    async def lose_the_answer(route: Route) -> None:
        await route.fetch()
        await route.abort()

    for way, button in (("fork", "Fork from here"), ("rewind", "Back to here, in a new run")):
        before = len(await served.app.backbone.runs())
        await page.route(f"**/{way}", lose_the_answer, times=1)
        await page.goto(f"http://127.0.0.1:{served.port}/runs/{fence.run}")
        await expect(page.get_by_role("slider", name="Time")).to_be_enabled()
        await page.keyboard.press("f")
        await page.get_by_role("dialog").get_by_role("button", name=button).click()
        await expect(page.get_by_text("The server does not answer: check")).to_be_visible()
        await page.get_by_role("dialog").get_by_role("button", name=button).click()
        await page.wait_for_url(lambda url: fence.run not in url)
        assert len(await served.app.backbone.runs()) == before + 1, way


async def test_the_list_of_runs_is_live(served: Served, show: Show) -> None:
    page = await show("/")
    await expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()
    fence = await served.claimed_run("Repair the sums.")
    line = page.locator(".run-line")
    await expect(line.locator(".badge")).to_have_text("running")
    await append(
        served, fence, AttemptStarted(0, "m"), ChecksRan(0, 1, (RED,), Comparison(still=("test_one",), ran=1))
    )
    await append(served, fence, AskRaised("a-1", 0, "bash: git tag v1", "", 2_000_000_000))
    await expect(line).to_contain_text("git tag v1")
    await expect(page.get_by_role("heading", name="Asks you")).to_be_visible()
    await expect(page.get_by_role("link", name="1 run asks you")).to_be_visible()
    await append(served, fence, AskAnswered("a-1", "deny", "somebody"))
    fixed = Comparison(fixed=("test_one",), shown=("test_one",), green=True, ran=1, passed=2)
    await append(served, fence, ChecksRan(0, 1, (GREEN,), fixed), RunFinished("proven", "It adds up."))
    await expect(line.locator(".badge")).to_have_text("proven")
    await expect(line.get_by_role("img")).to_have_accessible_name("failing: 1, then 0")
    await page.get_by_label("Search in runs").fill("nothing like it")
    await expect(page.get_by_text("No run matches.")).to_be_visible()


async def test_a_finished_run_is_asked_for_again_with_its_values(served: Served, show: Show) -> None:
    fence = await served.claimed_run("Repair the sums.")
    await append(served, fence, AttemptStarted(0, "m"), RunFinished("failed", "The disk broke."))
    page = await show(f"/runs/{fence.run}")
    await page.get_by_role("link", name="run again").click()
    await expect(page.get_by_label("What should be done?")).to_have_value("Repair the sums.")
    await expect(page.get_by_label("Repository", exact=True)).to_have_value("/nowhere")


async def test_a_patch_of_the_search_shows_what_speaks_against_it(served: Served, show: Show) -> None:
    fence = await served.claimed_run("The tests fail.")
    patch = partial(PatchFound, 0, 1, 9, path="a.py", line=3, diff="-    a\n+    b\n", fixed=("test_one",))
    await append(
        served,
        fence,
        AttemptStarted(0, "", harness="repair"),
        patch(rule="number"),
        patch(rule="range", broke=("test_two",)),
        patch(rule="special case", concern="it special-cases a value of the tests"),
    )
    rows = timeline(await show(f"/runs/{fence.run}"))
    found = rows.locator(".note", has_text="A patch makes 1 test green")
    await expect(found).to_have_count(3)
    for tone, says in (
        ("good", "number in a.py:3"),
        ("dim", "but it breaks 1 test"),
        ("warn", "but it special-cases a value of the tests"),
    ):
        await expect(rows.locator(f".note.{tone}", has_text=says)).to_have_count(1)


async def test_a_comment_on_the_diff_goes_to_the_agent(served: Served, show: Show, tmp_path: Path) -> None:
    fence, _ = await forked_run(served, tmp_path, finished=False)
    page = await show(f"/runs/{fence.run}?pane=diff")
    await page.get_by_role("button", name="Side by side").click()
    await page.get_by_role("button", name="Comment on line 1 of a.txt").last.click()
    await page.keyboard.type("Say it in words.")
    await page.get_by_role("button", name="Add comment").click()
    await page.get_by_role("button", name="Send to the agent").click()
    await expect(page.get_by_text("comment not sent yet")).to_have_count(0)
    (prompt,) = await said(served, fence, PromptReceived)
    assert isinstance(prompt, PromptReceived)
    assert prompt.text == "Comments on the diff:\n\na.txt:1\n> two\nSay it in words."


async def test_the_run_goes_back_in_time_and_is_forked_there(
    served: Served, show: Show, tmp_path: Path
) -> None:
    fence, point = await forked_run(served, tmp_path, finished=True)
    page = await show(f"/runs/{fence.run}?pane=diff")
    await expect(page.locator(".code-added")).to_have_text("+three")
    await expect(page.get_by_role("slider", name="Time")).to_be_enabled()
    await page.get_by_role("slider", name="Time").fill(str(point))
    assert f"at={point}" in page.url
    await expect(page.locator(".code-added")).to_have_text("+two")
    await expect(page.locator("header .badge")).to_have_text("running")
    await expect(page.get_by_text("other")).to_have_count(0)
    await page.reload()
    await expect(page.locator(".code-added")).to_have_text("+two")
    await page.get_by_role("button", name="Fork from here").click()
    await page.get_by_label("What should it do differently?").fill("Take the other way.")
    await page.get_by_role("dialog").get_by_role("button", name="Fork from here").click()
    await page.wait_for_url(lambda url: fence.run not in url)
    made = page.url.rsplit("/", 1)[1]
    request = (await served.client.get(f"/v1/runs/{made}/events?limit=1")).json()[0]["body"]["request"]
    assert request["forked_from"] == {"run": fence.run, "seq": point, "say": "Take the other way."}


async def test_the_attempts_are_compared(served: Served, show: Show, tmp_path: Path) -> None:
    fence, _ = await forked_run(served, tmp_path, finished=True)
    page = await show(f"/runs/{fence.run}?pane=attempts")
    await page.get_by_label("Compare attempt 0").check()
    await page.get_by_label("Compare attempt 1").check()
    await page.get_by_role("link", name="Compare attempts 0 and 1").click()
    await expect(page.get_by_text("++three")).to_be_visible()
    assert await violations(page) == []


async def test_the_address_holds_the_place(served: Served, show: Show) -> None:
    fence = await served.claimed_run()
    await append(served, fence, AttemptStarted(0, "m"), *(each for n in range(1, 400) for each in turn(n)))
    page = await show(f"/runs/{fence.run}#e601")
    await expect(page.get_by_role("link", name="Event 601")).to_be_in_viewport()
    await append(served, fence, *turn(400))
    await expect(page.get_by_role("button", name=re.compile("new line"))).to_be_visible()
    await expect(page.get_by_role("link", name="Event 601")).to_be_in_viewport()
    await page.keyboard.press("G")
    await expect(page.get_by_text("turn 400")).to_be_in_viewport()


@pytest.mark.parametrize("turns", [5_000, pytest.param(33_000, marks=pytest.mark.long(only=True))])
async def test_a_long_run_opens_at_its_end(served: Served, show: Show, turns: int) -> None:
    fence = await served.claimed_run()
    await append(served, fence, AttemptStarted(0, "m"))
    for first in range(1, turns, 1_000):
        await append(served, fence, *(each for n in range(first, first + 1_000) for each in turn(n)))
    page = await show(f"/runs/{fence.run}")
    await expect(page.locator(".row.turn").last).to_be_in_viewport()
    last = await served.app.backbone.row(fence.run)
    await expect(page.get_by_role("link", name=f"Event {last.last_seq - 1}")).to_be_in_viewport()
    await expect(page.get_by_role("slider", name="Time")).to_be_enabled(timeout=60_000)
    assert await page.locator(".row").count() < 200
    await page.get_by_role("slider", name="Time").fill("100")
    await expect(page.get_by_text("turn 33")).to_be_in_viewport()
    await page.get_by_role("slider", name="Time").fill("12001")
    await expect(page.get_by_text("turn 4000", exact=True)).to_be_in_viewport()
    await expect(page.get_by_text("turn 4001", exact=True)).to_have_count(0)


HOSTILE = (
    "<script>window.taken = 1</script><img src=x onerror='window.taken = 2'><svg onload=window.taken=3>"
    "[x](javascript:window.taken=4) ![y](http://127.0.0.1:1/seen) <a href='javascript:window.taken=5'>z</a>"
    "<iframe src=//127.0.0.1:1></iframe><form action=http://127.0.0.1:1><button>q</button></form>"
    "\x1b]0;title\x07\x1b]8;;http://127.0.0.1:1\x07link\x1b]8;;\x07\x1b[2J\x1b[31m"
    " \u202egnirts\u202c \u2066isolate\u2069 \u200bnothing \ufeff\x07\x00"
)


async def test_hostile_text_is_text(served: Served, show: Show) -> None:
    fence = await served.claimed_run(HOSTILE)
    long_line = "w" * 1_000_000 + HOSTILE
    bad = Result(HOSTILE, "failed", message=HOSTILE, source=long_line[:20_000])
    diagnosis = Diagnosis(HOSTILE, 1, 0.1, tests=(bad,), tail=HOSTILE)
    await append(
        served,
        fence,
        AttemptStarted(0, HOSTILE),
        BaselineTaken((diagnosis,)),
        *turn(1, HOSTILE, long_line + "\n" * 3 + HOSTILE, HOSTILE),
        AskRaised("a-1", 0, HOSTILE, HOSTILE, 2_000_000_000, rule=HOSTILE),
        QuestionAsked("q-1", 0, "c1", HOSTILE, (HOSTILE,), HOSTILE, 2_000_000_000),
    )
    page = await show(f"/runs/{fence.run}")
    await page.locator(".row.ask").first.wait_for()
    await open_everything(page)
    await page.locator(".row.call .output").first.wait_for()
    assert "\u202e" not in await page.locator("body").inner_text()
    assert "⟨202E⟩" in await page.locator("body").inner_text()
    for pane in ("Evidence", "Diff", "Attempts", "Cost"):
        await page.get_by_role("tab", name=pane).click()
    await page.get_by_role("link", name="Runs", exact=True).click()
    await expect(page.locator(".run-line")).to_have_count(1)
    assert await page.evaluate("window.taken") is None
    assert (
        await page.locator("main iframe, main img, main form[action], main a[href^=javascript]").count() == 0
    )


HOSTILE_NAME = "<img src=x onerror='window.taken = 6'>\u202etxt.\n\"q\" \x1b[31m.md"


async def test_hostile_names_and_lines_of_a_diff_are_text(served: Served, show: Show, tmp_path: Path) -> None:
    text = HOSTILE.replace("\x00", "") + "\r\n" + "w" * 2_000_000 + "<b>end</b>\n"
    files = {HOSTILE_NAME: text, f"{'d' * 200}/{'e' * 190}.txt": "deep\n", "diff --git a/x b/x": "--- a/y\n"}
    fence, _ = await forked_run(served, tmp_path, finished=False, files=files)
    page = await show(f"/runs/{fence.run}?pane=diff")
    await expect(page.locator(".file")).to_have_count(4)
    for layout in ("One column", "Side by side"):
        await page.get_by_role("button", name=layout).click()
        await expect(page.get_by_text("⟨202E⟩txt.").first).to_be_visible()
        await expect(page.get_by_text("<script>window.taken = 1</script>").first).to_be_visible()
        await expect(page.get_by_text("more characters").first).to_be_visible()
    assert await violations(page) == []
    await page.get_by_role("button", name=re.compile("Comment on line 1 of <img")).last.click()
    await page.keyboard.type("<img src=x onerror='window.taken = 7'>")
    await page.get_by_role("button", name="Add comment").click()
    await page.get_by_role("button", name="Send to the agent").click()
    await expect(timeline(page).get_by_text("window.taken = 7")).to_be_visible()
    assert await page.evaluate("window.taken") is None
    assert await page.locator("main img, main script, main iframe").count() == 0
    (prompt,) = await said(served, fence, PromptReceived)
    assert isinstance(prompt, PromptReceived)
    assert '\\n\\"q\\"' in prompt.text and '\n"q"' not in prompt.text, "a name stays on its line"


async def test_a_line_of_ten_megabytes_as_it_comes_blocks_nothing(served: Served, show: Show) -> None:
    fence = await served.claimed_run()
    page = await show(f"/runs/{fence.run}")
    call = ToolCall("c1", "bash", {"command": "cat big"})
    await append(
        served, fence, AttemptStarted(0, "m"), ModelReplied(0, 1, "m", "x", (call,), Usage(1, 1), 0.1)
    )
    await page.get_by_role("button", name="cat big").click()
    for number in range(10):
        end = "<img src=x onerror='window.taken = 8'> the end" if number == 9 else ""
        served.app.backbone.publish(fence.run, CommandOutput(0, "c1", "out", "y" * 1_000_000 + end))
    await expect(page.locator(".output")).to_contain_text("more characters")
    await page.get_by_label("Say something to the run").fill("It still answers.")
    await page.get_by_role("button", name="Say", exact=True).click()
    await expect(timeline(page).get_by_text("It still answers.")).to_be_visible(timeout=10_000)
    assert await page.evaluate("window.taken") is None


PLACES = (
    "/",
    "/new",
    "/sandboxes",
    "/compare",
    "/policy",
    "/audit",
    "/budgets",
    "/models",
    "/tools",
    "/machine",
    "/nowhere",
)


async def open_everything(page: Page) -> None:
    await page.evaluate(
        "document.querySelectorAll('main button[aria-expanded=false]').forEach(one => one.click())"
    )


async def test_the_tools_and_skills_of_a_repository_are_shown_with_what_the_rules_say(
    show: Show, tmp_path: Path
) -> None:
    repo = SampleRepo(tmp_path / "shop")
    repo.write(".cloister/tools/count.toml", 'description = "Count <b>lines</b>."\ncommand = ["wc", "-l"]\n')
    repo.write(".cloister/tools/host.toml", 'description = "x"\ncommand = ["/bin/id"]\nwhere = "host"\n')
    repo.write(
        ".claude/skills/release/SKILL.md", "---\nname: release\ndescription: How to release.\n---\nRun it.\n"
    )
    repo.commit("base")
    page = await show("/tools")
    await page.get_by_label("Repository on the server").fill(str(repo.path))
    await page.get_by_role("button", name="Show").click()
    row = page.get_by_role("row").filter(has_text="count")
    await expect(row).to_contain_text("Count <b>lines</b>.")
    await expect(row).to_contain_text("allow tool:count")
    await expect(
        page.get_by_text("only the organisation's settings may declare a tool of the host")
    ).to_be_visible()
    await expect(page.get_by_role("listitem").filter(has_text="How to release.")).to_contain_text(
        "(repository)"
    )
    assert await violations(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_page_violates_a_rule_of_accessibility(
    served: Served, show: Show, tmp_path: Path, scheme: str
) -> None:
    fence, _ = await forked_run(served, tmp_path, finished=False)
    await append(
        served,
        fence,
        BaselineTaken((RED,)),
        *turn(9, "make", "\x1b[31mred\x1b[32mgreen\x1b[33myellow\x1b[0m", "I **look** at `it`.")[:2],
        AskRaised("a-1", 0, "bash: git tag v1", "why", 2_000_000_000),
        question("q-1", "Round how?", "up", "down"),
    )
    page = await show("/", scheme=scheme)
    found: list[str] = []
    runs = [f"/runs/{fence.run}?pane={pane}" for pane in ("evidence", "diff", "attempts", "receipt")]
    for address in (*PLACES, *runs, f"/runs/{fence.run}?at=7"):
        if address == "/nowhere":
            continue  # the server answers
        await page.goto(f"http://127.0.0.1:{served.port}{address}")
        await page.locator("#main h1, #main h2").first.wait_for()
        await open_everything(page)
        found += [f"{address} {one}" for one in await violations(page)]
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(f"http://127.0.0.1:{served.port}/runs/{fence.run}")
    await page.locator(".row.turn").first.wait_for()
    found += [f"phone {one}" for one in await violations(page)]
    await page.keyboard.press("?")
    found += [f"help {one}" for one in await violations(page)]
    assert found == [], "\n".join(found)


WORD = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft" * 3


async def test_no_page_is_wider_than_a_phone(served: Served, show: Show, tmp_path: Path) -> None:
    files = {f"{'d' * 200}/{'e' * 190}.txt": f"{WORD}\n"}
    fence, _ = await forked_run(served, tmp_path, finished=False, files=files)
    for one in (fence, *[await served.claimed_run(WORD) for _ in range(3)]):
        await append(
            served,
            one,
            AttemptStarted(0, WORD),
            BaselineTaken((RED,)),
            *turn(1, f"cat {WORD}", WORD, WORD)[:2],
            AskRaised("a-1", 0, f"bash: {WORD}", WORD, 2_000_000_000, rule=WORD),
            question("q-1", WORD, WORD, WORD),
        )
    page = await show("/")
    await page.set_viewport_size({"width": 390, "height": 844})
    panes = ("timeline", "evidence", "diff", "attempts", "receipt", "sandbox")
    runs = [f"/runs/{fence.run}?pane={pane}" for pane in panes]
    wide: list[tuple[str, int]] = []
    for address in (*PLACES[:-1], "/projects", *runs, f"/compare?a={fence.run}/0&b={fence.run}/1"):
        await page.goto(f"http://127.0.0.1:{served.port}{address}")
        await page.locator("#main h1, #main h2").first.wait_for()
        await expect(page.locator(".live")).to_contain_text("4 runs")
        await open_everything(page)
        wide.append((address, await page.evaluate("document.documentElement.scrollWidth - innerWidth")))
    assert [one for one in wide if one[1] > 0] == []


async def test_a_lost_run_and_a_wrong_input_say_what_helps(served: Served, show: Show) -> None:
    page = await show("/policy")
    await page.get_by_label("May it").fill("bash:git push")
    await page.get_by_role("button", name="Ask").click()
    await expect(page.get_by_role("status").filter(has_text=" by ")).to_contain_text("allow")
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name=re.compile("Search")).click()
    await page.keyboard.type("audit")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Verify now").click()
    await expect(page.get_by_text("It is what was written")).to_be_visible()
