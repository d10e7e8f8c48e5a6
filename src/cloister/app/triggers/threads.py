"""Threads of Slack and their runs: a mention starts one, replies go to it, its state, questions and result come back."""

import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import anyio
import httpx2
import msgspec

from cloister.app.triggers import RUN_KEY
from cloister.app.triggers.entries import SlackTrigger, fill_from
from cloister.app.triggers.requests import Ask, read_json, wish
from cloister.app.triggers.slack import (
    Place,
    Pressed,
    Said,
    ask_blocks,
    end_blocks,
    heard,
    number_of,
    state_blocks,
)
from cloister.app.triggers.slack_api import Slack, listen
from cloister.app.triggers.start import GIVE_UP_TRIES, LAST, LOOK_SECONDS, PAUSED, As, later
from cloister.core.errors import CloisterError, OutsideError, UserError
from cloister.core.events import Event, PromptReceived
from cloister.core.ids import RunId
from cloister.core.log import Index
from cloister.egress.credentials import Unreadable, Vault, token_source
from cloister.log.api import Backbone
from cloister.log.sqlite.inbox import Inbox, Task
from cloister.runs.view import fold

logger = logging.getLogger(__name__)

HEARD, THREAD = "slack", "thread"
"""Kinds of tasks: something that a person did; a thread whose run has not ended."""
_FULL = 5.0
"""How many looks later a mention is tried again whose trigger has as many runs as it may."""
_REPLY_TRIES = 4
"""How often a reply waits for the run of its thread."""


class Shown(msgspec.Struct, frozen=True):
    """What a thread shows of its run."""

    place: Place
    first: str = ""
    """The message with the run's state."""
    asks: dict[str, str] = {}
    """Open question → its message."""


@dataclass(slots=True)
class Threads:
    """The conversations of all Slack triggers, while a server lives."""

    inbox: Inbox
    backbone: Backbone
    vault: Vault
    entries: Mapping[str, SlackTrigger]
    log: Callable[[RunId], Awaitable[tuple[Event, ...]]]
    say: Callable[[RunId, PromptReceived], Awaitable[None]]
    """Continue a run with a message."""
    now: Callable[[], float] = time.time
    news: anyio.Event = field(default_factory=anyio.Event)
    """Set when there is a new task."""

    async def run(self, verbs: As) -> None:
        """Never returns."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._work, verbs)
            for entry in self.entries.values():
                if entry.app is not None:
                    tasks.start_soon(self._listen, entry, entry.app)

    def _slack(self, http: httpx2.AsyncClient, entry: SlackTrigger, source: str) -> Slack:
        credential = token_source(f"{entry.name} slack", source)

        async def token() -> str:
            try:
                return await self.vault.value(credential)
            except Unreadable as error:
                raise OutsideError("slack_denied", f"The token cannot be had: {error}.") from None

        return Slack(http, entry.api, token)

    async def _listen(self, entry: SlackTrigger, source: str) -> None:
        async def store(payload: bytes) -> None:
            try:
                own = number_of(read_json(payload))
            except ValueError:
                return
            if own:
                await self.inbox.put(entry.name, f"own {own}", "socket", payload)

        await listen(lambda http: self._slack(http, entry, source), store)

    async def _work(self, verbs: As) -> None:
        while True:
            self.news = anyio.Event()
            try:
                done = await self._hear_due(verbs)
                open_threads = await self._show_due()
            except Exception:
                logger.exception("threads of Slack stand still now")
                await anyio.sleep(LOOK_SECONDS)
                continue
            if not done:
                waiting = open_threads or await self.inbox.tasks(HEARD, limit=1)
                with anyio.move_on_after(LOOK_SECONDS if waiting else math.inf):
                    await self.news.wait()

    # What people do.

    async def _hear_due(self, verbs: As) -> bool:
        """True if something was done."""
        paused, work = await self.inbox.marks(PAUSED), await self.inbox.counts(THREAD)
        done = False
        for one in await self.inbox.tasks(HEARD, self.now()):
            entry, what = self.entries.get(one.trigger), heard(msgspec.json.decode(one.value))
            try:
                match what:
                    case Said() if entry is not None and _may(entry.people, what.user):
                        if one.trigger not in paused or not what.mention:
                            done |= await self._said(one, entry, what, verbs, work)
                            continue
                    case Pressed() if entry is not None and _may(entry.approvers or entry.people, what.user):
                        await self._pressed(entry, what, verbs)
                    case _:
                        logger.info("something in Slack is left out: %s", one.name)
                await self.inbox.done(one)
                done = True
            except UserError as error:
                logger.warning("%s is refused: %s", one.name, error.message)
                await self._refuse(one, entry, what, error.message)
                done = True
            except CloisterError as error:
                logger.warning("%s is put off: %s", one.name, error.message)
                await self._put_off(one)
        return done

    async def _said(
        self, one: Task, entry: SlackTrigger, said: Said, verbs: As, work: dict[str, int]
    ) -> bool:
        run, first = await self._run_of(entry, said.place)
        who = f"{said.user} (Slack)"
        if run is not None:
            if said.ts == first:  # Slack sends a mention in a thread as a message, too
                await self.inbox.done(one)
                return True
            if said.text.casefold() == "stop":
                await verbs(who).runs.stop(run)
            else:
                await self._reply(run, said, who)
            shown = Task(f"{THREAD} {run}", THREAD, entry.name, msgspec.json.encode(Shown(said.place)))
            await self.inbox.done(one, [shown])  # an ended run continues, and its thread hears of it
            return True
        if not said.mention:
            if one.tries < _REPLY_TRIES:  # the mention before it may not have started its run yet
                await self._put_off(one)
                return False
            await self.inbox.done(one)
            return True
        if work.get(entry.name, 0) >= entry.at_most:
            # Later than what is due now: mentions that wait must not hide replies.
            await self.inbox.put_off(msgspec.structs.replace(one, due=self.now() + _FULL * LOOK_SECONDS))
            return False
        prompt = fill_from(entry.prompt, {"said": said.text, "who": said.user})
        key = f"{RUN_KEY}slack {entry.name} {said.place.channel} {said.place.thread}"
        made = await verbs(who).runs.submit(wish(entry, Ask(entry.repo, prompt, who, entry.ref), key))
        work[entry.name] = work.get(entry.name, 0) + 1
        await self.backbone.note(
            "TriggerStarted", who, {"trigger": entry.name, "run": made.id, "repo": entry.repo}
        )
        shown = Task(f"{THREAD} {made.id}", THREAD, entry.name, msgspec.json.encode(Shown(said.place)))
        mark = _mark(entry.name, said.place)
        marks: dict[str, str | None] = {
            mark: f"{made.id} {said.ts}",
            LAST + entry.name: f"{self.now():.0f} {made.id}",
        }
        await self.inbox.done(one, [shown], marks)
        return True

    async def _reply(self, run: RunId, said: Said, who: str) -> None:
        ref = f"slack {said.place.channel} {said.ts}"
        known = {one.ref for one in Index(await self.log(run)).of(PromptReceived)}
        if ref not in known and said.text:
            await self.say(run, PromptReceived(said.text, who, "user", ref))

    async def _pressed(self, entry: SlackTrigger, pressed: Pressed, verbs: As) -> None:
        run, _ = await self._run_of(entry, pressed.place)
        if run == pressed.run:  # a thread answers for its own run only
            await verbs(f"{pressed.user} (Slack)").runs.answer(pressed.run, pressed.ask, pressed.answer)

    async def _run_of(self, entry: SlackTrigger, place: Place) -> tuple[RunId | None, str]:
        """The run of a thread, and the message that started it."""
        run, _, ts = (await self.inbox.marks(_mark(entry.name, place))).get("", "").partition(" ")
        return (RunId(run) if run else None), ts

    async def _refuse(self, one: Task, entry: SlackTrigger | None, what: object, why: str) -> None:
        """Say in the thread why there is no run; an answer that came too late needs none."""
        if entry is not None and isinstance(what, Said):
            try:
                async with httpx2.AsyncClient(timeout=30) as http:
                    text = f"This cannot be done: {why}"
                    blocks = state_blocks("", text)
                    await self._slack(http, entry, entry.bot).post(what.place, text, blocks)
            except CloisterError as error:
                logger.warning("a refusal cannot be posted: %s", error.message)
        await self.inbox.done(one)

    async def _put_off(self, one: Task) -> None:
        if one.tries >= GIVE_UP_TRIES:
            await self.inbox.done(one)
        else:
            await self.inbox.put_off(later(one, self.now()))

    # What threads show.

    async def _show_due(self) -> bool:
        """Bring each thread up to date. True if some run has not ended."""
        due = await self.inbox.tasks(THREAD, self.now(), 10_000)
        if due:
            async with httpx2.AsyncClient(timeout=30, follow_redirects=False) as http:
                for one in due:
                    try:
                        await self._show(one, http)
                    except CloisterError as error:
                        logger.warning("a thread is not up to date: %s", error.message)
                        if error.code == "slack_gone":
                            await self.inbox.done(one)
                        else:
                            await self._put_off(one)
        return bool(await self.inbox.tasks(THREAD, limit=1))

    async def _show(self, one: Task, http: httpx2.AsyncClient) -> None:
        entry = self.entries.get(one.trigger)
        if entry is None:
            await self.inbox.done(one)
            return
        slack, run = self._slack(http, entry, entry.bot), RunId(one.name.removeprefix(f"{THREAD} "))
        shown = msgspec.json.decode(one.value, type=Shown)
        row = await self.backbone.row(run)
        if not shown.first:
            first = await slack.post(shown.place, f"Run {run} has started", state_blocks(run, "at work"))
            shown = msgspec.structs.replace(shown, first=first)
            one = await self._keep(one, shown)
        if row.asks or shown.asks:
            one, shown = await self._questions(one, shown, slack, run)
        if row.state == "finished":
            view = fold(await self.log(run), self.now())
            outcome = str(row.outcome)
            blocks = end_blocks(run, outcome, view.reason or "", view.pull_request)
            await slack.change(shown.place, shown.first, f"Run {run}: {outcome}", state_blocks(run, outcome))
            await slack.post(shown.place, f"Run {run} ended: {outcome}", blocks)
            await self.inbox.done(one)

    async def _questions(self, one: Task, shown: Shown, slack: Slack, run: RunId) -> tuple[Task, Shown]:
        """Post new questions with buttons, and take the buttons from those that are closed."""
        there = {ask.ask: ask for ask in fold(await self.log(run), self.now()).asks}
        asks = dict(shown.asks)
        # Kept after each message: when a later one fails, the next try does not post this one again.
        for name, ask in there.items():
            if name not in asks:
                blocks = ask_blocks(run, name, ask.action, ask.detail)
                asks[name] = await slack.post(shown.place, f"Run {run} asks", blocks)
                shown = msgspec.structs.replace(shown, asks=dict(asks))
                one = await self._keep(one, shown)
        for name in [name for name in asks if name not in there]:
            closed = state_blocks(run, "the question is answered")
            await slack.change(shown.place, asks.pop(name), "answered", closed)
            shown = msgspec.structs.replace(shown, asks=dict(asks))
            one = await self._keep(one, shown)
        return one, shown

    async def _keep(self, one: Task, shown: Shown) -> Task:
        kept = msgspec.structs.replace(one, value=msgspec.json.encode(shown), tries=0)
        await self.inbox.keep(kept)
        return kept


def _may(people: tuple[str, ...], user: str) -> bool:
    return user in people or "*" in people


def _mark(trigger: str, place: Place) -> str:
    """The mark whose value is the run of a thread, and the message that started it."""
    return f"thread {trigger} {place.channel} {place.thread}"


def task_of(trigger: str, number: int, payload: object) -> Task | None:
    """What a person did in Slack, as a task; None for anything else."""
    if heard(payload) is None:
        return None
    return Task(f"{HEARD} {trigger} {number}", HEARD, trigger, msgspec.json.encode(payload))
