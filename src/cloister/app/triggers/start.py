"""Start the runs that were asked for, and tell the places that asked how they ended. Both go on after a crash."""

import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import anyio
import httpx2
import msgspec

from cloister.app.triggers import RUN_KEY
from cloister.app.triggers.entries import ScheduleTrigger, TriggerEntry
from cloister.app.triggers.requests import ASK, TELL, Ask, Tell, ask_of_tick, task, wish
from cloister.app.verbs.api import Verbs
from cloister.core.addresses import canonical_repository
from cloister.core.errors import CloisterError, OutsideError, UserError
from cloister.core.events import ChangeDelivered, DeliveryFailed, Event
from cloister.core.ids import RunId
from cloister.core.log import Index, round_start
from cloister.core.system.schedule import last_time, next_time, read_cron, read_zone
from cloister.core.text import bounded
from cloister.forge import Forges
from cloister.forge.pulls.api import Spot
from cloister.forge.pulls.hosted import client
from cloister.forge.pulls.marks import Marks
from cloister.log.api import Backbone, RunRow
from cloister.log.sqlite.inbox import Inbox, Task
from cloister.runs.pull_request import quoted

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Pause between two looks at the runs whose end must be posted."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 15.0, 600.0
"""Before a task that failed is tried again; the pause doubles."""
GIVE_UP_TRIES = 150
"""About a day."""
CLOCK_SECONDS = 60.0
"""Longest sleep of the schedule: the machine's clock may be set."""
_BATCH = 256
PAUSED, TICK, LAST = "paused ", "tick ", "last "
"""Marks: the trigger is paused; the last time of its schedule that was handled; its last run, and when."""


As = Callable[[str], Verbs]
"""The verbs of an operator with this name."""


def later(one: Task, now: float) -> Task:
    """A task that failed, with the time of its next try."""
    pause = min(FIRST_PAUSE_SECONDS * 2 ** min(one.tries, 10), LONGEST_PAUSE_SECONDS)
    return msgspec.structs.replace(one, due=now + pause, tries=one.tries + 1)


@dataclass(slots=True)
class Starter:
    """The tasks of triggers, while a server lives."""

    inbox: Inbox
    backbone: Backbone
    forges: Forges
    entries: Mapping[str, TriggerEntry]
    log: Callable[[RunId], Awaitable[tuple[Event, ...]]]
    """The whole log of a run."""
    who: str
    """The person in whose name the audit states what triggers do."""
    marks: Marks
    """Of our comments."""
    now: Callable[[], float] = time.time
    asked: anyio.Event = field(default_factory=anyio.Event)
    """Set when there is a new task."""
    _started: anyio.Event = field(default_factory=anyio.Event)

    async def run(self, verbs: As) -> None:
        """Never returns."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._repeat, "runs cannot be started", lambda: self._start_due(verbs))
            tasks.start_soon(self._repeat, "results cannot be posted", self._tell_due)
            if any(isinstance(one, ScheduleTrigger) for one in self.entries.values()):
                tasks.start_soon(self._repeat, "the schedule stands still", self._tick)

    async def _repeat(self, failure: str, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except Exception:
                logger.exception("triggers: %s now", failure)
                await anyio.sleep(FIRST_PAUSE_SECONDS)

    # Start.

    async def _start_due(self, verbs: As) -> None:
        """Start what is due, then wait for more."""
        self.asked, now = anyio.Event(), self.now()
        running, started = await self.inbox.counts(TELL), 0
        # Their requests wait until a run ends, and may be more than one look takes.
        full = [one.name for one in self.entries.values() if running.get(one.name, 0) >= one.at_most]
        due = await self.inbox.tasks(ASK, now, _BATCH * 8, full)
        for one in due:
            entry = self.entries.get(one.trigger)
            if entry is not None and running.get(one.trigger, 0) >= entry.at_most:
                continue
            if await self._start(one, entry, verbs):
                running[one.trigger] = running.get(one.trigger, 0) + 1
            started += 1
        if started:
            return
        later = [
            one.due for one in await self.inbox.tasks(ASK, limit=_BATCH * 8, without=full) if one.due > now
        ]
        with anyio.move_on_after(max(0.01, min(later, default=math.inf) - now)):
            await self.asked.wait()

    async def _start(self, one: Task, entry: TriggerEntry | None, verbs: As) -> bool:
        """True if a run was started. What may work later is put off."""
        ask = msgspec.json.decode(one.value, type=Ask)
        try:
            if entry is None or not await self._may(ask):
                logger.info("a request for trigger %s is left out: %s", one.trigger, one.name)
                await self.inbox.done(one)
                return False
            run = (await verbs(ask.who).runs.submit(wish(entry, ask, f"{RUN_KEY}{one.name}"))).id
        except UserError as error:
            if error.code == "too_many_attempts":
                return await self._put_off(one, error)
            await self._refuse(one, ask, error.message)
            return False
        except CloisterError as error:
            if error.code == "forge_silent":
                await self._refuse(one, ask, error.message)
                return False
            return await self._put_off(one, error)
        detail = {"trigger": one.trigger, "run": run, "repo": ask.repo}
        await self.backbone.note("TriggerStarted", ask.who, detail)
        marks: dict[str, str | None] = {LAST + one.trigger: f"{self.now():.0f} {run}"}
        await self.inbox.done(one, [task(TELL, run, one.trigger, Tell(ask.repo, ask.spot))], marks)
        self._started.set()
        return True

    async def _may(self, ask: Ask) -> bool:
        """True if the person may push to the repository, or the request was authenticated otherwise."""
        if not ask.person:
            return True
        hosted = self.forges.hosted(ask.repo)
        if hosted is None:
            return False
        async with client() as http:
            return await hosted.pulls(http, ask.repo).may_write(ask.person)

    async def _refuse(self, one: Task, ask: Ask, why: str) -> None:
        """The run cannot be: say so where it was asked for."""
        await self.backbone.note(
            "TriggerRefused", ask.who, {"trigger": one.trigger, "repo": ask.repo, "why": why}
        )
        text = f"This cannot be done: {why}"
        if ask.spot is not None:
            try:
                async with client() as http:
                    await self._say(http, ask.repo, ask.spot, f"refused {one.name}", text)
            except CloisterError as error:
                await self._put_off(one, error)
                return
        await self.inbox.done(one)

    async def _put_off(self, one: Task, error: CloisterError) -> bool:
        """Try again later, with longer pauses, for about a day."""
        logger.warning("%s is put off: %s", one.name, error.message)
        if one.tries >= GIVE_UP_TRIES:
            detail = {"trigger": one.trigger, "task": one.name, "why": error.message}
            await self.backbone.note("TriggerGivenUp", self.who, detail)
            await self.inbox.done(one)
            return False
        await self.inbox.put_off(later(one, self.now()))
        return False

    # Tell.

    async def _tell_due(self) -> None:
        """Look at each run whose end must be posted."""
        self._started = anyio.Event()
        waiting = await self.inbox.tasks(TELL, self.now(), 10_000)
        if waiting:
            async with client() as http:
                for one in waiting:
                    await self._tell(one, http)
            self.asked.set()  # a run that ended makes room for another
        with anyio.move_on_after(LOOK_SECONDS if await self.inbox.tasks(TELL, limit=1) else math.inf):
            await self._started.wait()

    async def _tell(self, one: Task, http: httpx2.AsyncClient) -> None:
        tell = msgspec.json.decode(one.value, type=Tell)
        run = RunId(one.name.removeprefix(f"{TELL} "))
        try:
            if tell.spot is not None and not tell.started:
                text = f"Run `{run}` has started. Its result follows here."
                await self._say(http, tell.repo, tell.spot, f"started {run}", text)
                tell = msgspec.structs.replace(tell, started=True)
                one = msgspec.structs.replace(one, value=msgspec.json.encode(tell), tries=0)
                await self.inbox.keep(one)
            row = await self.backbone.row(run)
            if row.state != "finished":
                return
            if tell.spot is not None:
                text = result_text(row, await self.log(run))
                await self._say(http, tell.repo, tell.spot, f"ended {run}", text)
            await self.inbox.done(one)
        except CloisterError as error:
            if error.code in ("forge_missing", "forge_refused"):  # gone, or locked
                logger.warning("the result of %s cannot be posted: %s", run, error.message)
                await self.inbox.done(one)
            else:
                await self._put_off(one, error)

    async def _say(self, http: httpx2.AsyncClient, repo: str, spot: Spot, about: str, text: str) -> None:
        """Comment once: a comment that an earlier try made is found by its mark."""
        hosted = self.forges.hosted(repo)
        if hosted is None:
            raise OutsideError("forge_missing", "The settings name this forge no more.")
        mark = self.marks.sign(canonical_repository(repo), spot, about)
        talks = hosted.pulls(http, repo)
        if not await talks.told(spot, mark):
            await talks.tell(spot, f"{mark}\n{text}")

    # The clock.

    async def _tick(self) -> None:
        """Ask for the runs whose time has come, then sleep until the next one. A time that was missed counts once."""
        ticks, paused = await self.inbox.marks(TICK), await self.inbox.marks(PAUSED)
        now = self.now()
        soon = now + CLOCK_SECONDS
        for entry in self.entries.values():
            if not isinstance(entry, ScheduleTrigger):
                continue
            cron, zone = read_cron(entry.cron), read_zone(entry.zone)
            # The clock may have been ahead when the mark was made.
            since = min(float(ticks.get(entry.name, now)), now)
            at = last_time(cron, zone, since, now)
            if entry.name not in ticks or at is not None:
                asked = [ask_of_tick(entry, at)] if at is not None and entry.name not in paused else []
                # The task and the mark in one transaction: neither without the other.
                await self.inbox.processed((), asked, {TICK + entry.name: f"{now:.6f}"})
                self.asked.set()
            soon = min(soon, next_time(cron, zone, now))
        await anyio.sleep(max(0.05, soon - self.now()))


def result_text(row: RunRow, events: tuple[Event, ...]) -> str:
    """How a run ended, as Markdown. Words of models are inert in it."""
    index = Index(events[round_start(events) :])
    sent, failed = index.last(ChangeDelivered), index.last(DeliveryFailed)
    lines = [f"Run `{row.id}` ended: **{row.outcome}**."]
    if sent is not None and sent.url:
        lines.append(f"Pull request: {sent.url}")
    elif failed is not None:
        lines.append(f"The change could not be proposed; `cloister pr {row.id}` tries again.")
    if row.reason and row.reason.strip():
        lines += ["", quoted(bounded(row.reason, 1_000))]
    return "\n".join(lines)
