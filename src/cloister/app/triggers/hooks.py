"""Incoming webhooks: check the sender, store the delivery durably, process it once."""

import hashlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import anyio

from cloister.app.settings import Settings
from cloister.app.triggers import slack
from cloister.app.triggers.entries import HookTrigger, LabelTrigger, MentionTrigger, SlackTrigger
from cloister.app.triggers.requests import ask_of_hook, asks_of, read_json
from cloister.app.triggers.start import PAUSED, Starter
from cloister.app.triggers.threads import Threads, task_of
from cloister.core.addresses import canonical_repository
from cloister.core.errors import OutsideError, UserError
from cloister.egress.credentials import Credential, Unreadable, Vault, token_source
from cloister.forge.hooks import event_name, genuine, repository
from cloister.forge.pulls.asks import Heard, heard
from cloister.forge.pulls.hosted import ForgePlace
from cloister.log.sqlite.inbox import Delivery, Inbox, Task
from cloister.runs.follow_up import Follower

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 30.0
"""Pause before a forge that could not be reached is asked again."""
_AGAIN = "again "
_NO_HOOK = UserError(
    "no_such_hook",
    "There is no webhook of this name: a forge needs `hook` in its table, or a trigger has this name.",
)
_FORGED = UserError("unauthorized", "The signature is missing, wrong or too old: check the webhook's secret.")


@dataclass(frozen=True, slots=True)
class Hook:
    """One address that takes webhooks."""

    kind: str
    """Who sends them: the kind of a forge, or `any`."""
    secret: Credential
    trigger: HookTrigger | SlackTrigger | None = None
    """What they start; None: they say what happens at a forge."""


def all_hooks(settings: Settings, places: tuple[ForgePlace, ...]) -> dict[str, Hook]:
    """The webhooks of the forges, by host, and of triggers, by name. Raises `UserError` (`bad_forge`, `bad_trigger`)."""
    kinds = {place.host: place.kind for place in places}
    found: dict[str, Hook] = {}
    for entry in settings.file.forge:
        if entry.hook is not None:
            host = entry.host.lower()
            try:
                found[host] = Hook(kinds[host], token_source(f"{host} hook", entry.hook))
            except ValueError as error:
                raise UserError("bad_forge", f"{settings.config_path}, forge {host!r}: {error}.") from None
    for one in settings.file.trigger:
        source = one.source if isinstance(one, HookTrigger) else None
        source = one.signing if isinstance(one, SlackTrigger) else source
        if source is not None and isinstance(one, HookTrigger | SlackTrigger):
            try:
                if one.name in found:
                    raise ValueError("a forge has this name")
                kind = "any" if isinstance(one, HookTrigger) else "slack"
                found[one.name] = Hook(kind, token_source(f"{one.name} hook", source), one)
            except ValueError as error:
                raise UserError(
                    "bad_trigger", f"{settings.config_path}, trigger {one.name!r}: {error}."
                ) from None
    return found


@dataclass(slots=True)
class Hooks:
    """Takes deliveries while a server lives. `receive` is called by the route, `run` is one task."""

    inbox: Inbox
    vault: Vault
    hooks: Mapping[str, Hook]
    follower: Follower | None
    """Follows the pull requests of a forge's repositories; None without a forge."""
    starter: Starter
    threads: Threads
    now: Callable[[], float] = time.time

    def find(self, name: str) -> Hook:
        """Raises `UserError` (`no_such_hook`)."""
        if (hook := self.hooks.get(name)) is None:
            raise _NO_HOOK
        return hook

    async def receive(self, name: str, headers: Mapping[str, str], body: bytes) -> bool | str:
        """Store a genuine delivery; durable when this returns. False for a copy of an earlier one.

        A text is what Slack wants to read back.

        Raises `UserError` (`no_such_hook`, `unauthorized`), `HostError` (`hooks_full`, `no_disk`).
        """
        hook = self.find(name)
        try:
            secret = await self.vault.value(hook.secret)
        except Unreadable as error:
            raise OutsideError("no_secret", f"The secret of this webhook cannot be had: {error}.") from None
        if hook.kind == "slack":
            return await self._from_slack(name, secret, headers, body)
        key = genuine(hook.kind, secret, headers, body, self.now())
        if key is None:
            raise _FORGED
        if hook.trigger is not None:
            await self._check_hook(name, body)
        return await self.inbox.put(name, key, event_name(headers), body)

    async def _from_slack(
        self, name: str, secret: str, headers: Mapping[str, str], body: bytes
    ) -> bool | str:
        if not slack.genuine(secret, headers, body, self.now()):
            raise _FORGED
        payload = slack.payload_of(body)
        try:
            found = read_json(payload)
        except ValueError as error:
            raise UserError("bad_request", f"The body cannot be used: {error}.") from None
        if (text := slack.challenge(found)) is not None:
            return text
        # A delivery that Slack repeats has a new time and signature, and the same number.
        number = slack.number_of(found)
        key = f"own {number}" if number else f"body {hashlib.sha256(payload).hexdigest()}"
        return await self.inbox.put(name, key, "event", payload)

    async def _check_hook(self, name: str, body: bytes) -> None:
        """Tell a sender at once what would come to nothing."""
        if name in await self.inbox.marks(PAUSED):
            raise UserError("trigger_paused", "This trigger is paused: send it again later.")
        try:
            read_json(body)
        except ValueError as error:
            raise UserError("bad_request", f"The body cannot be used: {error}.") from None

    async def run(self) -> None:
        """Process deliveries, also those that an earlier process left. Never returns."""
        while True:
            self.inbox.arrived = anyio.Event()
            try:
                batch = await self.inbox.waiting()
                again = await self.inbox.marks(_AGAIN)
                await self._process(batch, again)
            except Exception:
                logger.exception("webhooks cannot be processed now")
                await anyio.sleep(AGAIN_SECONDS)
                continue
            if not batch:
                with anyio.move_on_after(AGAIN_SECONDS if again else math.inf):
                    await self.inbox.arrived.wait()

    async def _process(self, batch: tuple[Delivery, ...], again: Mapping[str, str]) -> None:
        """One look for all deliveries of the batch that are about the same repository; then the runs they ask for.

        A crash before the end processes the batch again: the run's log has the number of each comment and result, and a
        task has the number of what it came from. A repository whose forge cannot be reached is marked, and looked at
        again until that works.
        """
        touched = set(again) if not batch else set[str]()
        asked: list[Task] = []
        told: list[tuple[str, Heard]] = []
        for one in batch:
            try:
                self._sort(one, touched, asked, told)
            except ValueError as error:
                logger.warning("a delivery of %s is left out: %s", one.hook, error)
        if not touched and not batch:
            return
        failed = await self.follower.look(touched) if self.follower is not None else set[str]()
        for place in sorted(touched):
            if (place in failed) != (place in again):
                await self.inbox.mark(_AGAIN + place, "" if place in failed else None)
        marks = await self._asked_at_forges(told, asked)
        await self.inbox.processed(batch, asked, marks)
        if asked:
            self.starter.asked.set()
            self.threads.news.set()

    def _sort(
        self, one: Delivery, touched: set[str], asked: list[Task], told: list[tuple[str, Heard]]
    ) -> None:
        """Add what a delivery asks for, or which repository it is about. Raises `ValueError`."""
        hook = self.hooks.get(one.hook)
        if one.hook in self.threads.entries:
            found = task_of(one.hook, one.id, read_json(one.body))
            asked += [found] if found is not None else []
        elif hook is not None and isinstance(hook.trigger, HookTrigger):
            asked.append(ask_of_hook(hook.trigger, one))
        elif hook is not None and (path := repository(hook.kind, one.body)):
            touched.add(canonical_repository(f"https://{one.hook}/{path}"))
            if said := heard(hook.kind, one.event, one.body):
                told.append((one.hook, said))

    async def _asked_at_forges(
        self, told: list[tuple[str, Heard]], asked: list[Task]
    ) -> dict[str, str | None]:
        """Add what people asked for at forges. Return the marks of labels."""
        paused = await self.inbox.marks(PAUSED)
        entries = [
            one
            for one in self.starter.entries.values()
            if one.name not in paused and not (isinstance(one, LabelTrigger | MentionTrigger) and one.poll)
        ]
        marks: dict[str, str | None] = {}
        for host, one in told:
            # A comment at a pull request of a run of ours continues that run instead.
            place = canonical_repository(f"https://{host}/{one.path}")
            ours = one.spot.kind == "pull" and self.follower and self.follower.follows(place, one.spot.number)
            before = await self.inbox.marks("label ") if one.all else {}
            known = {f"label {name}": value for name, value in before.items()} | {
                name: value for name, value in marks.items() if value is not None
            }
            tasks, new = asks_of(() if ours else entries, host, one, known)
            asked += tasks
            marks |= new
        return marks
