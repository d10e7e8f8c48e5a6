"""Labels and mentions at forges whose webhooks cannot reach this machine: the server asks them from time to time."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
import httpx2
import msgspec

from cloister.app.forges import find_repositories
from cloister.app.triggers.entries import LabelTrigger, MentionTrigger
from cloister.app.triggers.requests import ASK, ask_at, label_mark, task
from cloister.app.triggers.start import PAUSED, Starter
from cloister.core.addresses import canonical_repository
from cloister.core.errors import CloisterError
from cloister.forge.pulls.api import Saying, Talks, Topic
from cloister.forge.pulls.asks import Heard, mentions
from cloister.forge.pulls.hosted import Hosted, client
from cloister.forge.pulls.marks import looks_marked
from cloister.log.sqlite.inbox import Inbox, Task
from cloister.runs.follow_up import Follower

logger = logging.getLogger(__name__)

POLL = "poll "
"""Marks: how far a trigger has read a repository."""
_LISTED_SECONDS = 600.0
"""How long the list of repositories that fit a pattern is used."""
_FAILED_SECONDS = 30.0
_CLOCKS_SECONDS = 86_400.0
"""More than the clock of a forge is off."""


class _Read(msgspec.Struct, frozen=True):
    """How far a repository was read."""

    since: float
    """By the forge's clock, from the first look on."""
    seen: tuple[str, ...] = ()
    """What was read of the time `since`, whose second may have more."""


@dataclass(slots=True)
class Poller:
    """Asks the forges, while a server lives, for the triggers that say so."""

    inbox: Inbox
    starter: Starter
    follower: Follower
    now: Callable[[], float] = time.time
    _due: dict[str, float] = field(default_factory=dict[str, float])
    """Trigger → when it is due, by the monotonic clock."""
    _listed: dict[str, tuple[float, tuple[str, ...]]] = field(
        default_factory=dict[str, tuple[float, tuple[str, ...]]]
    )
    """Pattern → until when its repositories are known, and which they are."""

    async def run(self) -> None:
        """Never returns."""
        while True:
            try:
                await self.look()
            except Exception:
                logger.exception("forges cannot be asked now")
                await anyio.sleep(_FAILED_SECONDS)
            soon = min(self._due.values(), default=anyio.current_time() + _FAILED_SECONDS)
            await anyio.sleep(max(0.01, soon - anyio.current_time()))

    async def look(self) -> None:
        """Look once for each trigger that is due."""
        paused = await self.inbox.marks(PAUSED)
        await self.follower.update()
        async with client() as http:
            for entry in self.starter.entries.values():
                if not isinstance(entry, LabelTrigger | MentionTrigger) or not entry.poll:
                    continue
                if self._due.get(entry.name, 0.0) > anyio.current_time():
                    continue
                for address in () if entry.name in paused else await self._addresses(entry):
                    await self._look_at(entry, address, http)
                self._due[entry.name] = anyio.current_time() + entry.poll

    async def _addresses(self, entry: LabelTrigger | MentionTrigger) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for pattern in entry.repos:
            until, listed = self._listed.get(pattern, (0.0, ()))
            if "*" not in pattern:
                listed = (f"https://{pattern}",)
            elif until < anyio.current_time():
                try:
                    listed = await find_repositories(self.starter.forges, pattern)
                    self._listed[pattern] = (anyio.current_time() + _LISTED_SECONDS, listed)
                except CloisterError as error:  # what was known is asked meanwhile
                    logger.warning("the repositories of trigger %s: %s", entry.name, error.message)
            found |= dict.fromkeys(listed)
        return tuple(found)

    async def _look_at(
        self, entry: LabelTrigger | MentionTrigger, address: str, http: httpx2.AsyncClient
    ) -> None:
        """Read the news of one repository; what cannot be read now is read the next time."""
        hosted = self.starter.forges.hosted(address)
        if hosted is None:
            logger.warning("trigger %s: the settings name no forge for %s", entry.name, address)
            return
        mark = f"{POLL}{entry.name} {address}"
        kept = (await self.inbox.marks(mark)).get("")
        before = msgspec.json.decode(kept, type=_Read) if kept else None
        try:
            at = _Place(hosted, address, hosted.pulls(http, address))
            if isinstance(entry, LabelTrigger):
                asked, marks = await self._labels(entry, at, first=before is None)
                after = before or _Read(self.now())
            else:
                asked, after = await self._mentions(entry, at, before)
                marks = dict[str, str | None]()
        except CloisterError as error:
            logger.warning("trigger %s cannot look at %s now: %s", entry.name, address, error.message)
            return
        if asked or marks or after != before:
            # The requests and how far was read in one transaction: neither without the other.
            marks[mark] = msgspec.json.encode(after).decode()
            await self.inbox.processed((), asked, marks)
        if asked:
            self.starter.asked.set()

    async def _labels(
        self, entry: LabelTrigger, at: "_Place", *, first: bool
    ) -> tuple[list[Task], dict[str, str | None]]:
        """Ask for what has the label since the last look. At the first look the label is old everywhere."""
        beginning = f"label {entry.name} {at.address} "
        known = {beginning + one for one in await self.inbox.marks(beginning)}
        there = {label_mark(entry, at.address, one.spot): one for one in await at.talks.labelled(entry.label)}
        asked, marks = list[Task](), dict[str, str | None]()
        for mark in known - there.keys():
            marks[mark] = None
        for mark, topic in there.items():
            if mark in known:
                continue
            marks[mark] = "there"
            if first or self._is_ours(at, topic):
                continue
            by = await at.talks.labeller(topic, entry.label)
            if by is None:
                logger.warning("trigger %s: %s does not say who set the label", entry.name, topic.url)
            else:
                asked.append(_request(entry, at, topic, by))
        return asked, marks

    async def _mentions(
        self, entry: MentionTrigger, at: "_Place", before: _Read | None
    ) -> tuple[list[Task], _Read]:
        """Ask for what mentions the name since the last look. The first look only begins, by the forge's own clock."""
        start = before or _Read(self.now() - _CLOCKS_SECONDS)
        asked, said, newest = list[Task](), dict[str, float](), start.since
        for topic in await at.talks.changed(start.since):
            newest = max(newest, topic.updated)
            begun = (topic.opened,) if topic.spot.kind == "issue" else ()
            for one in (*begun, *await at.talks.said(topic)):
                name = f"{topic.spot.kind} {topic.spot.number} {one.id}"
                if int(one.at) < int(start.since) or name in start.seen:
                    continue
                said[name] = one.at
                meant = mentions(one.text, entry.mention) and not looks_marked(one.text)
                if meant and before is not None and not self._is_ours(at, topic):
                    asked.append(_request(entry, at, topic, one))
        if newest == start.since:
            return asked, _Read(newest, (*start.seen, *said))
        return asked, _Read(newest, tuple(name for name, when in said.items() if int(when) >= int(newest)))

    def _is_ours(self, at: "_Place", topic: Topic) -> bool:
        """True for the pull request of a run: what is said there continues that run."""
        place = canonical_repository(at.address)
        return topic.spot.kind == "pull" and self.follower.follows(place, topic.spot.number)


@dataclass(frozen=True, slots=True)
class _Place:
    hosted: Hosted
    address: str
    talks: Talks


def _request(entry: LabelTrigger | MentionTrigger, at: _Place, topic: Topic, by: Saying) -> Task:
    heard = Heard(
        at.hosted.path(at.address),
        topic.spot,
        by.person,
        by.who,
        f"{topic.spot.kind} {topic.spot.number} {by.id}",
        title=topic.title,
        body=topic.opened.text,
        said=by.text,
        url=topic.url,
        ref=topic.ref,
    )
    return task(ASK, f"{entry.name} {at.address} {heard.id}", entry.name, ask_at(entry, at.address, heard))
