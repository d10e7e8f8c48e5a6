"""The verbs in this process: over an open `App`, or over a data directory alone while no server runs."""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial, wraps
from importlib import import_module
from inspect import CO_COROUTINE
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cloister.app.tokens import RANK, Caller
from cloister.app.verbs.declare import is_inside, role_of, scope_of
from cloister.core.errors import HostError, UserError
from cloister.core.system import in_thread
from cloister.log.sqlite.reader import AuditReader, LogReader
from cloister.sandbox.liveness import Owners

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable
    from pathlib import Path

    from cloister.app.people.reach import Reach, Standing
    from cloister.app.settings import Settings
    from cloister.app.verbs import api
    from cloister.app.verbs.knowledge import KnowledgeVerbs
    from cloister.app.verbs.tools import ToolVerbs
    from cloister.app.verbs.webhooks import WebhookVerbs
    from cloister.app.wiring import App
    from cloister.core.events import Delta, Event, FromOutside
    from cloister.core.ids import RunId
    from cloister.core.requests import Role
    from cloister.forge.api import RunRepositories
    from cloister.log.api import RunCount, RunFilter, RunRow, Seen, Totals
    from cloister.log.audit.details import Detail
    from cloister.log.audit.entry import AuditEntry, AuditFilter, Checkpoint
    from cloister.log.audit.verify import Verdict
    from cloister.log.hub import Direct
    from cloister.log.sqlite.backbone import SqliteBackbone

    T = TypeVar("T")
    Kind = TypeVar("Kind", bound=type)

LOOK_SECONDS = 0.2
UNCLAIMED_SECONDS = 5.0
"""How long a run may be without an owner before following it fails: between two owners there is a gap."""


class Log(Protocol):
    """What verbs need of the log."""

    async def resolve(self, prefix: str, seen: Seen | None = None) -> RunId: ...
    async def runs(
        self,
        limit: int = 100,
        *,
        before: RunId | None = None,
        only: RunFilter | None = None,
        seen: Seen | None = None,
    ) -> tuple[RunRow, ...]: ...
    async def counts(self, seen: Seen | None = None) -> tuple[RunCount, ...]: ...
    async def row(self, run: RunId, *, told: bool = True) -> RunRow: ...
    async def read(self, run: RunId, after: int = 0, limit: int = 10_000) -> tuple[Event, ...]: ...
    def follow(
        self, run: RunId, after: int = 0, *, deltas: bool = True, direct: Direct | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[Event | Delta]]: ...
    async def append_outside(self, run: RunId, body: FromOutside) -> Event: ...
    async def sent(self, run: RunId, who: str, key: str) -> Event | None: ...
    async def keyed(self, key: str) -> RunId | None: ...
    async def note(self, kind: str, who: str, detail: Detail | str) -> None: ...
    async def totals(self, read: Callable[[Totals], T]) -> T | None: ...
    async def audit(
        self, after: int = 0, limit: int = 256, run: RunId | None = None, only: AuditFilter | None = None
    ) -> tuple[AuditEntry, ...]: ...
    async def seal(self, run: RunId) -> Checkpoint | None: ...
    async def verify_audit(self, pinned: str | None = None) -> Verdict: ...
    async def rotate_audit_key(self) -> str: ...
    async def accept_audit(self, who: str, reason: str) -> None: ...


class FileLog:
    """The log of a data directory, opened for each call: reading makes no file, and no writer stays open."""

    def __init__(self, settings: Settings) -> None:
        self._path = settings.log_path
        self._lives = Owners(settings.data_dir / "owners").lives

    async def resolve(self, prefix: str, seen: Seen | None = None) -> RunId:
        return await self._read(lambda log: log.resolve(prefix, seen))

    async def runs(
        self,
        limit: int = 100,
        *,
        before: RunId | None = None,
        only: RunFilter | None = None,
        seen: Seen | None = None,
    ) -> tuple[RunRow, ...]:
        return await self._read(lambda log: log.rows(limit, before, only, seen=seen))

    async def counts(self, seen: Seen | None = None) -> tuple[RunCount, ...]:
        return await self._read(lambda log: log.counts(seen))

    async def row(self, run: RunId, *, told: bool = True) -> RunRow:
        return await self._read(lambda log: log.row(run, told=told))

    async def read(self, run: RunId, after: int = 0, limit: int = 10_000) -> tuple[Event, ...]:
        return await self._read(lambda log: log.events(run, after, limit))

    async def sent(self, run: RunId, who: str, key: str) -> Event | None:
        return await self._read(lambda log: log.sent(run, who, key))

    async def keyed(self, key: str) -> RunId | None:
        return await self._read(lambda log: log.keyed(key))

    async def totals(self, read: Callable[[Totals], T]) -> T | None:
        return await self._read(lambda log: log.totals(read))

    async def audit(
        self, after: int = 0, limit: int = 256, run: RunId | None = None, only: AuditFilter | None = None
    ) -> tuple[AuditEntry, ...]:
        return await read_audit(self._path, lambda audit: audit.page(after, limit, run, only))

    async def seal(self, run: RunId) -> Checkpoint | None:
        return await read_audit(self._path, lambda audit: audit.seal(run))

    async def verify_audit(self, pinned: str | None = None) -> Verdict:
        return await read_audit(self._path, lambda audit: audit.verify(pinned))

    async def rotate_audit_key(self) -> str:
        async with self._writer() as backbone:
            return await backbone.rotate_audit_key()

    async def accept_audit(self, who: str, reason: str) -> None:
        async with self._writer() as backbone:
            await backbone.accept_audit(who, reason)

    @asynccontextmanager
    async def follow(
        self, run: RunId, after: int = 0, *, deltas: bool = True, direct: Direct | None = None
    ) -> AsyncGenerator[AsyncIterator[Event | Delta]]:
        """Events only, found by polling, and none offered to `direct`. Raises `HostError` (`not_driven`) while iterating."""
        await self.row(run, told=False)
        async with aclosing(self._items(run, after)) as items:
            yield items

    async def append_outside(self, run: RunId, body: FromOutside) -> Event:
        from cloister.core.events import ChangeDelivered  # noqa: PLC0415
        from cloister.log.audit.entry import exact  # noqa: PLC0415  (most commands only read)
        from cloister.log.sqlite.transactions import append_outside, from_a_person  # noqa: PLC0415
        from cloister.log.sqlite.writer import write_now  # noqa: PLC0415

        if isinstance(body, ChangeDelivered):  # signed: that takes long to load
            async with self._writer() as backbone:
                return await backbone.append_outside(run, body)
        entry = from_a_person(body)
        work = partial(append_outside, run=run, entry=entry, at=exact(time.time()))
        return await in_thread(write_now, self._path, work)

    async def note(self, kind: str, who: str, detail: Detail | str) -> None:
        async with self._writer() as backbone:
            await backbone.note(kind, who, detail)

    def _writer(self) -> AbstractAsyncContextManager[SqliteBackbone]:
        from cloister.log.sqlite.backbone import open_backbone  # noqa: PLC0415  (most commands only read)

        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return open_backbone(self._path, owner_lives=self._lives)

    async def _items(self, run: RunId, last: int) -> AsyncGenerator[Event]:
        import anyio  # noqa: PLC0415  (most commands need no event loop)

        driven_at = anyio.current_time()
        with LogReader(self._path, self._lives) as log:
            while True:
                # The owner first: it may append its last event and end between the two.
                driven = log.driven(run)
                page = log.page(run, last)
                for event in page.events:
                    last = event.seq
                    yield event
                if page.finished and last >= page.last_seq:
                    return
                if driven or page.events:
                    driven_at = anyio.current_time()
                elif anyio.current_time() - driven_at > UNCLAIMED_SECONDS:
                    raise HostError(
                        "not_driven",
                        f"No process is driving {run}. Start `cloister serve --background` to resume it.",
                    )
                if not page.more:
                    await anyio.sleep(LOOK_SECONDS)

    async def _read(self, work: Callable[[LogReader], T]) -> T:
        # Blocks, and needs no event loop: without a server this process serves only one caller.
        with LogReader(self._path, self._lives) as log:
            return work(log)


async def read_audit(path: Path, work: Callable[[AuditReader], T]) -> T:
    """Call `work` in a thread with the audit in the log at `path`."""

    def look() -> T:
        with AuditReader(path) as audit:
            return work(audit)

    from anyio import to_thread  # noqa: PLC0415  (most commands need no event loop)

    return await to_thread.run_sync(look)


@dataclass(frozen=True, slots=True)
class Parts:
    """What verbs work on: settings and log always, the parts of the machine only where this process opened them."""

    settings: Settings
    log: Log
    app: App | None = None

    @property
    def repositories(self) -> RunRepositories:
        if self.app is not None:
            return self.app.storage.repositories
        from cloister.forge.host import LocalRepositories  # noqa: PLC0415  (few commands need it)

        return LocalRepositories(self.settings.data_dir)

    @asynccontextmanager
    async def machine(self) -> AsyncGenerator[App]:
        """The open `App`, or one that is opened for this block."""
        if self.app is not None:
            yield self.app
            return
        from cloister.app.wiring import open_app  # noqa: PLC0415  (most commands need no machine)

        async with open_app(self.settings, role="embedded") as app:
            yield app


class Group:
    """Verbs of one subject for one caller."""

    def __init__(self, parts: Parts, caller: Caller) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._log = parts.log
        self.caller = caller

    @property
    def reach(self) -> Reach:
        """What the caller may do with which runs."""
        from cloister.app.people.projects import people_in  # noqa: PLC0415  (an admin's commands need none)
        from cloister.app.people.reach import Reach  # noqa: PLC0415

        return Reach(people_in(self._settings.data_dir), self.caller)

    @property
    def sees_all(self) -> bool:
        """Whether the caller's role on the server counts for every run."""
        return self.caller.is_admin or self.reach.everything

    @property
    def _seen_runs(self) -> Seen | None:
        """What of the log the caller sees; None: all of it."""
        return None if self.sees_all else self.reach.sees

    def _check_repository(self, repo: str | None) -> None:
        """Raises `UserError` (`denied`) if a project keeps the repository from the caller, who would read it."""
        if repo is not None and not self.sees_all:
            self.reach.must_be("viewer", None, [repo])

    async def _resolve(self, name: str) -> RunId:
        """The run of this name among those that the caller sees. Raises `UserError` (`no_such_run`, `ambiguous_run`)."""
        return await self._log.resolve(name, self._seen_runs)

    async def standing(self, run: str, role: Role = "viewer") -> tuple[RunId, Standing]:
        """What the caller may do with a run. Raises `UserError` (`no_such_run`, `denied` without at least `role`)."""
        row = await self._log.row(await self._resolve(run), told=False)
        return row.id, self.reach.must_be(role, row.id, row.repos)

    async def _note(self, kind: str, **detail: object) -> None:
        """Enter what the caller did into the audit."""
        await self._log.note(kind, self.caller.name, detail)


def checked(interface: type) -> Callable[[Kind], Kind]:
    """Every verb of the class first checks that its caller has the role that `interface` declares for it."""

    def wrap(kind: Kind) -> Kind:
        for name, declared in vars(interface).items():
            if not name.startswith("_"):
                setattr(kind, name, _checked(getattr(kind, name), declared))
        return kind

    return wrap


def _checked(verb: Callable[..., Any], declared: Callable[..., object]) -> Callable[..., Any]:
    role, within, scope = role_of(declared), is_inside(declared), scope_of(declared)
    waits = bool(declared.__code__.co_flags & CO_COROUTINE)

    async def with_run(self: Group, *args: Any, **more: Any) -> Any:
        # The verb gets the id: another run may be `last` by then.
        run, _ = await self.standing(args[0] if args else more.pop("run"), role)
        return await verb(self, run, *args[1:], **more)

    @wraps(verb)
    def check(self: Group, *args: Any, **more: Any) -> Any:
        needs_run = scope == "run" and (args[0] if args else more.get("run"))
        if scope == "server" or self.sees_all or (scope == "run" and not needs_run):
            self.caller.must_be(role)
        else:
            self.caller.must_hold()
            highest = self.reach.highest
            if highest is None or RANK[highest] < RANK[role]:
                raise UserError("denied", f"{self.caller.name} may not do this: it needs the role {role}.")
            if needs_run and waits:
                return with_run(self, *args, **more)
        if (own := self.caller.sandbox) and not (
            within and own == (args[0] if args else more.get("sandbox"))
        ):
            raise UserError("denied", f"This token reaches the inside of {own} only.")
        return verb(self, *args, **more)

    return check


class LocalVerbs:
    """`Verbs` in this process. Each group is imported when it is first used."""

    def __init__(self, parts: App | Parts, caller: Caller) -> None:
        self._parts = parts if isinstance(parts, Parts) else Parts(parts.settings, parts.backbone, parts)
        self.caller = caller

    @property
    def runs(self) -> api.RunVerbs:
        return self._group("runs", "LocalRuns")

    @property
    def audit(self) -> api.AuditVerbs:
        return self._group("admin", "LocalAudit")

    @property
    def tokens(self) -> api.TokenVerbs:
        return self._group("admin", "LocalTokens")

    @property
    def webhooks(self) -> WebhookVerbs:
        return self._group("webhooks", "LocalWebhooks")

    @property
    def templates(self) -> api.TemplateVerbs:
        return self._group("sandboxes", "LocalTemplates")

    @property
    def snapshots(self) -> api.SnapshotVerbs:
        return self._group("sandboxes", "LocalSnapshots")

    @property
    def sandboxes(self) -> api.SandboxVerbs:
        return self._group("sandboxes", "LocalSandboxes")

    @property
    def files(self) -> api.FileVerbs:
        return self._group("sandboxes", "LocalFiles")

    @property
    def models(self) -> api.ModelVerbs:
        return self._group("admin", "LocalModels")

    @property
    def machine(self) -> api.MachineVerbs:
        return self._group("admin", "LocalMachine")

    @property
    def policy(self) -> api.PolicyVerbs:
        return self._group("policy", "LocalPolicy")

    @property
    def environments(self) -> api.EnvironmentVerbs:
        return self._group("sandboxes", "LocalEnvironments")

    @property
    def knowledge(self) -> KnowledgeVerbs:
        return self._group("knowledge", "LocalKnowledge")

    @property
    def tools(self) -> ToolVerbs:
        return self._group("policy", "LocalTools")

    @property
    def triggers(self) -> api.TriggerVerbs:
        return self._group("triggers", "LocalTriggers")

    @property
    def people(self) -> api.PeopleVerbs:
        from cloister.app.people.verbs import LocalPeople  # noqa: PLC0415  (few commands need it)

        return LocalPeople(self._parts, self.caller)

    def _group(self, module: str, name: str) -> Any:
        found = import_module(f"cloister.app.verbs.local_{module}")
        return getattr(found, name)(self._parts, self.caller)


def local_caller(settings: Settings) -> Caller:
    """The person who types a command on the machine itself: an admin under their own name."""
    return Caller(settings.user, "admin")


def local_verbs(settings: Settings, caller: Caller | None = None) -> LocalVerbs:
    """Verbs over a data directory without a server. Building and snapshots open the machine for one call.

    Runs are not driven: `submit` raises `HostError` (`not_driven`). Use `open_local` to drive them.
    """
    return LocalVerbs(Parts(settings, FileLog(settings)), caller or local_caller(settings))


@asynccontextmanager
async def open_local(settings: Settings, caller: Caller | None = None) -> AsyncGenerator[LocalVerbs]:
    """Verbs that also drive the runs that they submit, until the block ends."""
    from cloister.app.wiring import open_app  # noqa: PLC0415  (most commands need no machine)

    async with open_app(settings, role="embedded") as app:
        yield LocalVerbs(app, caller or local_caller(settings))
