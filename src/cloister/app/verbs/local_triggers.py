"""The verbs of triggers in this process: over the open inbox of a server, or over its file."""

# ruff: noqa: PLC0415

from __future__ import annotations

import time
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from cloister.app.triggers import INBOX_FILE
from cloister.app.triggers.entries import (
    HookTrigger,
    LabelTrigger,
    MentionTrigger,
    ScheduleTrigger,
    SlackTrigger,
)
from cloister.app.verbs.api import TriggerVerbs
from cloister.app.verbs.local import Group, checked
from cloister.app.verbs.records import TriggerInfo, TriggerKind
from cloister.core.errors import UserError
from cloister.core.ids import RunId
from cloister.core.text import one_line

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from cloister.app.triggers.entries import TriggerEntry
    from cloister.app.verbs.records import Admitted
    from cloister.log.sqlite.inbox import Inbox


@checked(TriggerVerbs)
class LocalTriggers(Group):
    """Implements `TriggerVerbs`."""

    async def list(self) -> tuple[TriggerInfo, ...]:
        entries = self._settings.file.trigger
        if not entries:
            return ()
        from cloister.app.triggers.requests import ASK, TELL
        from cloister.app.triggers.start import LAST, PAUSED
        from cloister.app.triggers.threads import HEARD, THREAD

        async with self._inbox() as inbox:
            paused, last = await inbox.marks(PAUSED), await inbox.marks(LAST)
            waiting = Counter(await inbox.counts(ASK)) + Counter(await inbox.counts(HEARD))
            running = Counter(await inbox.counts(TELL)) + Counter(await inbox.counts(THREAD))
        found: list[TriggerInfo] = []
        for one in entries:
            at, _, run = last.get(one.name, "").partition(" ")
            found.append(
                TriggerInfo(
                    one.name,
                    *_what(one),
                    paused=one.name in paused,
                    waiting=waiting.get(one.name, 0),
                    running=running.get(one.name, 0),
                    last_run=RunId(run) if run else None,
                    last_at=float(at) if at else None,
                    next_at=None if one.name in paused else _next(one),
                )
            )
        return tuple(one for one in found if self._sees(one.repos))

    def _sees(self, repos: tuple[str, ...]) -> bool:
        """Whether the caller may know of what happens in all of these repositories."""
        return self.sees_all or self.reach.standing(None, repos) is not None

    async def get(self, name: str) -> TriggerInfo:
        self._entry(name)
        found = next((one for one in await self.list() if one.name == name), None)
        if found is None:  # of a project of others
            raise UserError(
                "no_such_trigger", f"There is no trigger {one_line(name, 60)!r} that you may see."
            )
        return found

    async def run(self, name: str, repo: str | None = None, fields: dict[str, str] | None = None) -> Admitted:
        from cloister.app.triggers.requests import TELL, Ask, Tell, task, wish
        from cloister.app.verbs.local_runs import LocalRuns

        entry = self._entry(name)
        ask = Ask(self._repo(entry, repo), _prompt(entry, fields or {}), self.caller.name, _ref(entry))
        new = wish(entry, ask, None)
        admitted = await LocalRuns(self._parts, self.caller).submit(new)
        await self._note("TriggerStarted", trigger=name, run=admitted.id, repo=ask.repo)
        app = self._parts.app
        if app is not None and app.hooks is not None:
            from cloister.app.triggers.start import LAST

            inbox = app.hooks.inbox
            await inbox.add(task(TELL, admitted.id, name, Tell(ask.repo)))
            await inbox.mark(LAST + name, f"{time.time():.0f} {admitted.id}")
        return admitted

    async def pause(self, name: str, *, paused: bool = True) -> TriggerInfo:
        from cloister.app.triggers.start import PAUSED

        self._entry(name)
        async with self._inbox() as inbox:
            await inbox.mark(PAUSED + name, "" if paused else None)
        await self._note("TriggerPaused" if paused else "TriggerResumed", trigger=name)
        return await self.get(name)

    def _entry(self, name: str) -> TriggerEntry:
        entries = self._settings.file.trigger
        found = next((one for one in entries if one.name == name), None)
        if found is None:
            known = ", ".join(one.name for one in entries) or "none"
            raise UserError(
                "no_such_trigger", f"There is no trigger {one_line(name, 60)!r} in the settings: {known}."
            )
        return found

    def _repo(self, entry: TriggerEntry, repo: str | None) -> str:
        from cloister.app.triggers.entries import allows

        match entry:
            case HookTrigger() | ScheduleTrigger() | SlackTrigger():
                return repo or entry.repo
            case LabelTrigger() | MentionTrigger():
                if repo is None or not allows(entry, repo):
                    raise UserError(
                        "bad_run", f"Name a repository of this trigger with --repo: {', '.join(entry.repos)}."
                    )
                return repo

    @asynccontextmanager
    async def _inbox(self) -> AsyncGenerator[Inbox]:
        app = self._parts.app
        if app is not None and app.hooks is not None:
            yield app.hooks.inbox
            return
        from cloister.log.sqlite.inbox import open_inbox

        self._settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        async with open_inbox(self._settings.data_dir / INBOX_FILE) as inbox:
            yield inbox


def _prompt(entry: TriggerEntry, fields: Mapping[str, str]) -> str:
    from cloister.app.triggers.entries import fill_from

    return entry.prompt if isinstance(entry, ScheduleTrigger) else fill_from(entry.prompt, fields)


def _ref(entry: TriggerEntry) -> str | None:
    return entry.ref if isinstance(entry, HookTrigger | ScheduleTrigger | SlackTrigger) else None


def _what(entry: TriggerEntry) -> tuple[TriggerKind, str, tuple[str, ...]]:
    match entry:
        case LabelTrigger():
            return "label", entry.label, entry.repos
        case MentionTrigger():
            return "mention", f"@{entry.mention}", entry.repos
        case HookTrigger():
            return "hook", f"/v1/hooks/{entry.name}", (entry.repo,)
        case ScheduleTrigger():
            return "schedule", f"{entry.cron} {entry.zone}", (entry.repo,)
        case SlackTrigger():
            ways = [
                *(["socket"] if entry.app else []),
                *([f"/v1/hooks/{entry.name}"] if entry.signing else []),
            ]
            return "slack", ", ".join(ways), (entry.repo,)


def _next(entry: TriggerEntry) -> float | None:
    if not isinstance(entry, ScheduleTrigger):
        return None
    from cloister.core.system.schedule import next_time, read_cron, read_zone

    return next_time(read_cron(entry.cron), read_zone(entry.zone), time.time())
