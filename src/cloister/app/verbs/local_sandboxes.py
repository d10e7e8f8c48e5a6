"""The verbs of sandboxes, their files, snapshots and templates in this process."""

from __future__ import annotations

import secrets
import shlex
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import anyio
import msgspec
from anyio import to_thread

from cloister.app.settings import TEMPLATE_ALIASES
from cloister.app.verbs.api import EnvironmentVerbs, FileVerbs, SandboxVerbs, SnapshotVerbs, TemplateVerbs
from cloister.app.verbs.declare import no_report
from cloister.app.verbs.local import Group, checked
from cloister.app.verbs.records import (
    BackgroundCommand,
    CommandOutput,
    EnvironmentInfo,
    Exec,
    Execute,
    Executed,
    NewCommand,
    NewContext,
    NewSandbox,
    Piece,
    PortAddress,
    RunCode,
    SandboxChange,
    SandboxToken,
)
from cloister.app.workbench.commands import Skipped
from cloister.app.workbench.metrics import measured
from cloister.core import limits
from cloister.core.addresses import without_userinfo
from cloister.core.computer import WORK_DIR, Command, Output, Pty
from cloister.core.errors import CloisterError, HostError, UserError
from cloister.core.ids import is_id
from cloister.core.requests import NewRun, check_new_run
from cloister.core.text import bounded, decode
from cloister.egress.model_endpoint import serve as endpoint
from cloister.environment.detect import detect
from cloister.log.audit.details import TEXT_CHARS
from cloister.sandbox.api import SNAPSHOT_PREFIX, SandboxSpec
from cloister.sandbox.code.contexts import DEFAULT, CodeContext, CodeResult, Told

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Generator
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import ByteStream

    from cloister.app.wiring import App
    from cloister.app.workbench.commands import Background
    from cloister.app.workbench.metrics import SandboxMetrics
    from cloister.core.computer import Change, Entry, Exited, Finished, Process, Sink
    from cloister.core.diagnosis import Diagnosis
    from cloister.core.requests import Tier
    from cloister.environment.api import Plan
    from cloister.environment.listing import Listing
    from cloister.runs.environments.repository import Outlook
    from cloister.sandbox.api import Report, Sandbox, SandboxInfo, SnapshotInfo
    from cloister.sandbox.pool import PoolInfo
    from cloister.sandbox.templates.catalog import TemplateInfo, Templates
    from cloister.sandbox.templates.recipes import Recipe

PAGE_BYTES = 1_048_576
"""Most output in one answer."""
END_SECONDS = 30.0
"""How long `kill` waits for the end of a command."""

INTERPRETERS: dict[str, tuple[str, str]] = {
    "python": ("python3", ".py"),
    "bash": ("/bin/bash", ".sh"),
    "sh": ("/bin/sh", ".sh"),
}
"""Language → interpreter in the template and the ending of the code's file."""


class _InSandboxes(Group):
    def _app(self, sandbox: str) -> App:
        if self._parts.app is None:
            raise UserError("no_such_sandbox", f"There is no sandbox {sandbox[:64]}: no server runs here.")
        return self._parts.app

    def _sandbox(self, sandbox: str) -> Sandbox:
        """Also that of an attempt."""
        return self._app(sandbox).entered(sandbox)

    def _by_hand(self, sandbox: str) -> App:
        """Raises `UserError` (`sandbox_of_run`) for the sandbox of an attempt, whose life is the attempt's."""
        app = self._app(sandbox)
        if (found := app.of_runs.find(sandbox)) is not None:
            raise UserError(
                "sandbox_of_run",
                f"Sandbox {found.sandbox.info.id} is that of run {found.run}: fork, rewind or stop the run instead.",
            )
        return app

    def _looked_at(self, sandbox: str, path: str) -> Sandbox:
        """The sandbox to read `path` in. Raises `UserError` (`denied`) if the rules of its run deny that."""
        if (found := self._app(sandbox).of_runs.find(sandbox)) is not None:
            found.check_file("read", path)
        return self._sandbox(sandbox)

    async def _note_command(
        self, target: Sandbox, command: Command, how: str, code: str | None = None
    ) -> None:
        """Enter a command before it starts; without its environment and its input."""
        line = shlex.join(command.argv) if code is None else code
        stated = bounded(without_userinfo(line), TEXT_CHARS)
        app = self._app(target.info.id)
        if (entered := app.of_runs.find(target.info.id)) is not None:
            if how == "terminal":
                entered.check_terminal()
            else:
                await entered.check_command(line)
            kind = "terminal" if how == "terminal" else "command"
            await entered.record(app.backbone.append_outside, self.caller.name, kind, stated)
        await self._note("CommandStarted", sandbox=target.info.id, command=stated, user=command.user, how=how)

    async def _note_file(self, target: Sandbox, operation: str, path: str, to: str | None = None) -> None:
        """Enter a file operation before it is done; without the content."""
        where = {"path": bounded(path, TEXT_CHARS)} | ({} if to is None else {"to": bounded(to, TEXT_CHARS)})
        app = self._app(target.info.id)
        if (entered := app.of_runs.find(target.info.id)) is not None:
            for each in (path, *(() if to is None else (to,))):
                entered.check_file("write", each)
            what = f"{operation} {path}" if to is None else f"{operation} {path} to {to}"
            await entered.record(app.backbone.append_outside, self.caller.name, "file", what)
        await self._note("FileChanged", sandbox=target.info.id, operation=operation, **where)


@checked(SandboxVerbs)
class LocalSandboxes(_InSandboxes):
    """Implements `SandboxVerbs`."""

    async def create(self, wish: NewSandbox, report: Report = no_report) -> tuple[SandboxInfo, bool]:
        app = self._parts.app
        if app is None:
            raise HostError(
                "no_server", "Sandboxes live in a server. Start `cloister serve --background` first."
            )
        spec = SandboxSpec(
            template=self._unaliased(app, wish.template),
            tier=wish.tier,
            quota=wish.quota or self._settings.file.quota,
            ttl_seconds=wish.ttl_seconds,
            env=wish.env if wish.model is None else endpoint.ENV | wish.env,
        )
        beside = None if wish.model is None else app.sandboxes.models.giving(wish.model, self.caller.name)
        if not spec.template.startswith(SNAPSHOT_PREFIX):
            await app.workshop.prepare(spec.template, report)
        info, made = await app.sandboxes.create(spec, wish.task_id, wish.metadata, beside)
        if made:
            about = {"template": info.template, "tier": info.isolation.tier, "model": wish.model}
            await self._note("SandboxCreated", sandbox=info.id, **about)
        return info, made

    def _unaliased(self, app: App, template: str) -> str:
        """The template that a name stands for; a template of that name takes precedence over the alias."""
        alias = (TEMPLATE_ALIASES | self._settings.file.template_aliases).get(template)
        return template if alias is None or app.workshop.templates.knows(template) else alias

    async def list(self, metadata: str | None = None) -> tuple[SandboxInfo, ...]:
        found = self._parts.app.sandboxes.list() if self._parts.app else ()
        wanted = metadata_of(metadata or "").items()
        return tuple(info for info in found if wanted <= info.metadata.items())

    async def get(self, sandbox: str) -> SandboxInfo:
        app = self._app(sandbox)
        found = app.of_runs.find(sandbox)
        return app.sandboxes.info(sandbox) if found is None else found.info

    async def change(self, sandbox: str, change: SandboxChange) -> SandboxInfo:
        info = await self._by_hand(sandbox).sandboxes.change(
            sandbox, change.ttl_seconds, change.metadata, change.paused
        )
        changed = {"ttl_seconds": change.ttl_seconds, "metadata": change.metadata, "paused": change.paused}
        await self._note(
            "SandboxChanged", sandbox=info.id, **{k: v for k, v in changed.items() if v is not None}
        )
        return info

    async def metrics(self, sandbox: str) -> SandboxMetrics:
        return await measured(self._sandbox(sandbox))

    async def token(self, sandbox: str) -> SandboxToken:
        info, secret, new = self._app(sandbox).sandboxes.issue(sandbox, self.caller)
        if new:  # clients of other services ask for it each time they look
            await self._note("SandboxTokenMade", sandbox=info.id)
        return SandboxToken(info.id, secret)

    async def address(self, sandbox: str, port: int) -> PortAddress:
        if not 1 <= port <= 65_535:
            raise UserError("bad_port", f"There is no port {port}: ports are 1 to 65,535.")
        info, secret, new = self._app(sandbox).sandboxes.share(sandbox, port, self.caller)
        if new:
            await self._note("PortAddressMade", sandbox=info.id, port=port)
        return PortAddress(info.id, port, f"{port}-{info.id}-{secret}.localhost")

    async def resolve(self, name: str) -> SandboxInfo:
        return await resolved(self, name)

    async def of_run(self, run: str) -> tuple[SandboxInfo, ...]:
        found = await self._resolve(run)
        return tuple(one.info for one in self._parts.app.of_runs.of_run(found)) if self._parts.app else ()

    async def fork(self, sandbox: str, count: int = 1) -> tuple[SandboxInfo, ...]:
        forks = await self._by_hand(sandbox).sandboxes.fork(sandbox, count)
        await self._note("SandboxForked", sandbox=sandbox, forks=[info.id for info in forks])
        return forks

    async def destroy(self, sandbox: str) -> None:
        await self._by_hand(sandbox).sandboxes.close(sandbox)
        await self._note("SandboxDestroyed", sandbox=sandbox)

    async def pool(self) -> tuple[PoolInfo, ...]:
        return self._parts.app.pool.info() if self._parts.app else ()

    async def exec(self, sandbox: str, command: Exec) -> Executed:
        target = self._sandbox(sandbox)
        line = _command(argv_of(command.argv, command.command), command)
        await self._note_command(target, line, "exec", command.command)
        return _executed(await target.run(line, command.stdin.encode()))

    async def execute(self, sandbox: str, program: Execute) -> Executed:
        """The code goes in as a file: it is never part of a command line, and stdin stays free."""
        target = self._sandbox(sandbox)
        interpreter, ending = INTERPRETERS[program.language]
        path = f"/tmp/code-{secrets.token_hex(8)}{ending}"  # noqa: S108 (the guest's /tmp, not ours)
        command = _command((interpreter, path), program)
        await self._note_command(target, command, program.language, program.code)
        await target.write(path, program.code.encode())
        try:
            done = await target.run(command, program.stdin.encode())
        finally:
            with anyio.move_on_after(5, shield=True):
                await target.run(Command(("rm", "-f", path), cwd="/"))
        return _executed(done)

    def process(self, sandbox: str, command: NewCommand) -> AbstractAsyncContextManager[Process]:
        target = self._sandbox(sandbox)
        return self._process(target, command_of(command), command.command)

    @asynccontextmanager
    async def _process(self, target: Sandbox, command: Command, line: str | None) -> AsyncGenerator[Process]:
        await self._note_command(target, command, "process" if command.pty is None else "terminal", line)
        async with target.start(command) as process:
            yield process

    async def start(self, sandbox: str, command: NewCommand) -> BackgroundCommand:
        target = self._sandbox(sandbox)
        wanted = command_of(command)
        await self._note_command(target, wanted, "background", command.command)
        return _shown(await self._app(sandbox).commands.start(target.info.id, target, wanted))

    async def commands(self, sandbox: str) -> tuple[BackgroundCommand, ...]:
        known = self._app(sandbox).commands
        found = known.list(sandbox)
        if not found:
            self._sandbox(sandbox)
        return tuple(_shown(known.get(sandbox, record.id)) for record in found)

    async def output(self, sandbox: str, command: str, offset: int = 0) -> CommandOutput:
        found = self._app(sandbox).commands.get(sandbox, command)
        if offset > found.spool.end:
            raise UserError("bad_offset", f"offset is beyond the output, which ends at {found.spool.end}.")
        # The state first: a caller who stops at "exited" must not miss output that is printed meanwhile.
        shown = _shown(found)
        pieces, after = await to_thread.run_sync(found.read, offset, PAGE_BYTES)
        return CommandOutput(
            shown,
            tuple(Piece(piece.stream, piece.data) for piece in pieces if isinstance(piece, Output)),
            sum(piece.size for piece in pieces if isinstance(piece, Skipped)),
            after,
        )

    @asynccontextmanager
    async def _attach(self, found: Background, offset: int) -> AsyncGenerator[_Attachment]:
        async with found.follow(offset) as items:
            yield _Attachment(found, items)

    def attach(self, sandbox: str, command: str, offset: int = 0) -> AbstractAsyncContextManager[_Attachment]:
        return self._attach(self._app(sandbox).commands.get(sandbox, command), offset)

    async def kill(self, sandbox: str, command: str) -> BackgroundCommand:
        found = self._app(sandbox).commands.get(sandbox, command)
        await self._note("CommandKilled", sandbox=found.record.sandbox, command=found.record.id)
        await found.kill()
        with anyio.fail_after(END_SECONDS):
            await found.ended()
        return _shown(found)

    async def new_context(self, sandbox: str, wish: NewContext) -> CodeContext:
        target = self._sandbox(sandbox)
        await self._note_command(target, Command(("python3",), user=wish.user), "context")
        contexts = self._app(sandbox).sandboxes.contexts
        return await contexts.make(target.info.id, target, cwd=wish.cwd, env=wish.env, user=wish.user)

    async def contexts(self, sandbox: str) -> tuple[CodeContext, ...]:
        return self._app(sandbox).sandboxes.contexts.list(self._sandbox(sandbox).info.id)

    async def run_code(
        self, sandbox: str, context: str, code: RunCode, told: Told | None = None
    ) -> CodeResult:
        target, contexts = self._sandbox(sandbox), self._app(sandbox).sandboxes.contexts
        if context == DEFAULT and not any(one.id == DEFAULT for one in contexts.list(sandbox)):
            await contexts.make(sandbox, target, cwd=WORK_DIR, env={}, user="agent", name=DEFAULT)
        await self._note_command(target, Command(("python3",)), "context", code.code)
        return await contexts.run(sandbox, context, code.code, code.seconds, code.env, told)

    async def restart_context(self, sandbox: str, context: str) -> CodeContext:
        target = self._sandbox(sandbox)
        await self._note_command(target, Command(("python3",)), "context")
        return await self._app(sandbox).sandboxes.contexts.restart(target.info.id, context, target)

    async def remove_context(self, sandbox: str, context: str) -> None:
        target = self._sandbox(sandbox)
        await self._app(sandbox).sandboxes.contexts.remove(target.info.id, context)
        await self._note("ContextRemoved", sandbox=target.info.id, context=bounded(context, TEXT_CHARS))

    @asynccontextmanager
    async def _dial(self, target: Sandbox, port: int) -> AsyncGenerator[ByteStream]:
        await self._app(target.info.id).previewed(target.info.id, self.caller.name, port)
        async with await target.dial(port) as stream:
            yield stream

    def dial(self, sandbox: str, port: int) -> AbstractAsyncContextManager[ByteStream]:
        return self._dial(self._sandbox(sandbox), port)


class _Attachment:
    """Implements `Attached`."""

    def __init__(self, found: Background, items: AsyncIterator[Output | Skipped | Exited]) -> None:
        self._items = items
        self.send, self.send_eof, self.signal = found.send, found.send_eof, found.signal
        self.resize, self.kill = found.resize, found.kill

    def __aiter__(self) -> AsyncIterator[Output | Skipped | Exited]:
        return self._items


@checked(FileVerbs)
class LocalFiles(_InSandboxes):
    """Implements `FileVerbs`."""

    def read(
        self, sandbox: str, path: str, *, offset: int = 0, limit_bytes: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._looked_at(sandbox, path).read_stream(path, offset=offset, limit_bytes=limit_bytes)

    def write(self, sandbox: str, path: str, *, mode: int = 0o644) -> AbstractAsyncContextManager[Sink]:
        target = self._sandbox(sandbox)
        return self._into(target, "write", path, target.write_stream(path, mode=_checked_mode(mode)))

    @asynccontextmanager
    async def _into(
        self, target: Sandbox, operation: str, path: str, opening: AbstractAsyncContextManager[Sink]
    ) -> AsyncGenerator[Sink]:
        await self._note_file(target, operation, path)
        async with opening as sink:
            yield sink

    async def list(self, sandbox: str, path: str = ".") -> tuple[Entry, ...]:
        return await self._looked_at(sandbox, path).list(path)

    async def stat(self, sandbox: str, path: str) -> Entry:
        return await self._looked_at(sandbox, path).stat(path)

    async def move(self, sandbox: str, path: str, to: str) -> None:
        target = self._sandbox(sandbox)
        await self._note_file(target, "move", path, to)
        await target.move(path, to)

    async def remove(self, sandbox: str, path: str, *, recursive: bool = False) -> None:
        target = self._sandbox(sandbox)
        await self._note_file(target, "remove", path)
        await target.remove(path, recursive=recursive)

    async def mkdir(self, sandbox: str, path: str, *, mode: int = 0o755) -> None:
        target = self._sandbox(sandbox)
        wanted = _checked_mode(mode)
        await self._note_file(target, "mkdir", path)
        await target.mkdir(path, mode=wanted)

    def download(self, sandbox: str, path: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._looked_at(sandbox, path).download(path)

    def upload(self, sandbox: str, path: str) -> AbstractAsyncContextManager[Sink]:
        target = self._sandbox(sandbox)
        return self._into(target, "upload", path, target.upload(path))

    def watch(self, sandbox: str, path: str = ".") -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        return self._sandbox(sandbox).watch(path)


@checked(SnapshotVerbs)
class LocalSnapshots(_InSandboxes):
    """Implements `SnapshotVerbs`."""

    async def take(self, sandbox: str, name: str | None = None) -> SnapshotInfo:
        info = await self._by_hand(sandbox).sandboxes.get(sandbox).snapshot(name)
        await self._note("SnapshotTaken", snapshot=info.id, name=info.name, sandbox=info.sandbox)
        return info

    async def list(self, sandbox: str | None = None) -> tuple[SnapshotInfo, ...]:
        async with self._parts.machine() as app:
            return tuple(info for info in await app.host.snapshots() if sandbox in (None, info.sandbox))

    async def get(self, snapshot: str) -> SnapshotInfo:
        from cloister.sandbox.providers import which  # noqa: PLC0415  (brings every tier)

        with _named("snapshot"):
            return which(snapshot, await self.list())

    async def remove(self, snapshot: str) -> None:
        with _named("snapshot"):
            async with self._parts.machine() as app:
                await app.host.delete_snapshot(snapshot)
        await self._note("SnapshotRemoved", snapshot=snapshot)


@checked(EnvironmentVerbs)
class LocalEnvironments(Group):
    """Implements `EnvironmentVerbs`."""

    async def plan(self, listing: Listing) -> Plan:
        return await to_thread.run_sync(detect, listing)

    async def look(self, repo: str, ref: str | None = None, tier: Tier = "auto") -> Outlook:
        from cloister.runs.environments.repository import Outlook  # noqa: PLC0415  (brings the agent)

        request = NewRun("look", repo, ref, tier=tier)
        if problem := check_new_run(request):
            raise UserError("bad_run", problem)
        self.reach.must_be("operator", None, [repo])
        async with self._parts.machine() as app:
            try:
                found, start = await app.look(request)
            except CloisterError as error:
                return Outlook(problem=error.message)
            if found.ready:
                app.pool.warm(start)
        return found


@checked(TemplateVerbs)
class LocalTemplates(Group):
    """Implements `TemplateVerbs`."""

    @property
    def _templates(self) -> Templates:
        if self._parts.app is not None:
            return self._parts.app.workshop.templates
        from cloister.sandbox.templates.catalog import Templates  # noqa: PLC0415

        return Templates(self._settings.data_dir / "templates", self._settings.path)

    async def list(self) -> tuple[TemplateInfo, ...]:
        return tuple(self._seen(_brief(info)) for info in self._templates.all())

    async def get(self, name: str) -> TemplateInfo:
        with _named("template"):
            return self._seen(self._templates.info(name))

    def _seen(self, info: TemplateInfo) -> TemplateInfo:
        """What the caller may see of it."""
        if self.caller.role != "viewer":
            return info
        from cloister.sandbox.templates.recipes import without_values  # noqa: PLC0415

        about = info.about and msgspec.structs.replace(info.about, env=dict.fromkeys(info.about.env, "…"))
        return msgspec.structs.replace(info, recipe=without_values(info.recipe), about=about)

    async def describe(self, name: str, recipe: Recipe, *, replace_built_in: bool = False) -> TemplateInfo:
        self._templates.keep_recipe(name, recipe, replace_built_in=replace_built_in)
        await self._note("TemplateDescribed", template=name)
        return _brief(self._templates.info(name))

    async def build(self, name: str, *, again: bool = False, report: Report = no_report) -> TemplateInfo:
        with _named("template"):
            self._templates.recipe(name)
            async with self._parts.machine() as app:
                await app.workshop.prepare(name, report, again=again, strict=True)
            info = _brief(self._templates.info(name))
        await self._note("TemplateBuilt", template=name, again=again)
        return info

    async def set_up(
        self,
        repo: str,
        ref: str | None = None,
        setup: str = "auto",
        report: Report = no_report,
        settings: str = "",
    ) -> EnvironmentInfo:
        request = NewRun("set-up", repo, ref, setup=setup)
        if problem := check_new_run(request):
            raise UserError("bad_run", problem)
        async with self._parts.machine() as app:
            made, found = await app.set_up(request, report, settings)
        works = not made.problem and not any(one.not_run for one in found)
        name = made.template.name
        await self._note("EnvironmentPrepared", template=name, repo=repo, problem=made.problem)
        return EnvironmentInfo(
            name,
            made.built,
            made.seconds,
            made.told,
            tuple(map(_said, found)),
            works,
            made.problem,
            made.template.about.built_at,
        )

    async def log(self, name: str) -> str:
        with _named("template"):
            return self._templates.log(name)

    async def remove(self, name: str) -> None:
        from cloister.runs.templates import forget, repositories  # noqa: PLC0415  (brings the agent)

        with _named("template"):
            await forget(self._templates, repositories(self._settings.data_dir), name)
        await self._note("TemplateRemoved", template=name)


def _said(one: Diagnosis) -> str:
    """A check in one line."""
    if one.not_run:
        return f"{one.check}: could not run: {one.not_run}"
    passed = one.unlisted + sum(test.status == "passed" for test in one.tests)
    told = f"{passed:,} passing, {len(one.failing):,} failing" if one.tests or one.unlisted else ""
    return f"{one.check}: {told or ('green' if one.green else 'red')} ({one.seconds:.1f} s)"


def metadata_of(query: str) -> dict[str, str]:
    """The metadata that the query of a URL names. Raises `UserError` (`bad_metadata`)."""
    try:
        pairs = (
            parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=64) if query else []
        )
    except ValueError:
        raise UserError("bad_metadata", "Metadata is asked for as KEY=VALUE, joined by &.") from None
    return dict(pairs)


@contextmanager
def _named(kind: str) -> Generator[None]:
    """Where a thing is named by the caller, an unknown one is `no_such_…`; as a part of a request it is `unknown_…`."""
    try:
        yield
    except UserError as error:
        if error.code != f"unknown_{kind}":
            raise
        raise UserError(f"no_such_{kind}", error.message) from None


async def resolved(sandboxes: SandboxVerbs, name: str) -> SandboxInfo:
    """The sandbox that `name` means: an id, the start of one, or a run, as `RUN` or `RUN/ATTEMPT`."""
    run, _, attempt = name.partition("/")
    if run == "last" or run.startswith("r-"):
        found = [
            info for info in await sandboxes.of_run(run) if attempt in ("", info.metadata.get("attempt", ""))
        ]
        if not found:
            raise UserError(
                "no_such_sandbox",
                f"{name[:64]} works in no sandbox now: it has ended, waits, or runs elsewhere.",
            )
        if len(found) > 1:
            numbers = ", ".join(info.metadata.get("attempt", "") for info in found)
            raise UserError(
                "ambiguous_sandbox", f"{run[:64]} has attempts {numbers}: name one as {run[:64]}/K."
            )
        return found[0]
    known = await sandboxes.list()
    if is_id(name) and all(info.id != name for info in known):
        with suppress(UserError):  # the sandbox of a run, if there is one, and the caller may enter it
            return await sandboxes.get(name)
    return find_sandbox(name, known)


def find_sandbox(name: str, known: tuple[SandboxInfo, ...]) -> SandboxInfo:
    """The sandbox whose id is or begins with `name`. Raises `UserError` (`no_such_sandbox`, `ambiguous_sandbox`)."""
    found = [info for info in known if info.id.startswith((name, f"s-{name}"))] if name else []
    exact = [info for info in found if info.id == name]
    if len(found) > 1 and not exact:
        names = ", ".join(info.id for info in found[:3])
        raise UserError("ambiguous_sandbox", f"{name!r} is the start of several sandboxes ({names} …).")
    if not found:
        raise UserError(
            "no_such_sandbox", f"There is no sandbox {name[:64]!r}: `cloister sandbox ls` lists them."
        )
    return (exact or found)[0]


def argv_of(argv: tuple[str, ...] | None, line: str | None) -> tuple[str, ...]:
    """The one of both that is given. Raises `UserError` (`bad_command`)."""
    match argv, line:
        case None, str() if line.strip():
            return ("/bin/bash", "-c", line)
        case tuple(), None if argv:
            return argv
        case _:
            raise UserError("bad_command", "Give either argv, a list of words, or command, a line for bash.")


def command_of(wanted: NewCommand) -> Command:
    """A command whose output has no limit. Raises `UserError` (`bad_command`)."""
    return Command(
        argv_of(wanted.argv, wanted.command),
        cwd=wanted.cwd,
        env=wanted.env,
        user=wanted.user,
        seconds=limits.ENDLESS_SECONDS if wanted.seconds is None else wanted.seconds,
        limit_bytes=limits.ENDLESS_BYTES,
        pty=None if wanted.pty is None else Pty(wanted.pty.rows, wanted.pty.columns),
    )


def _command(argv: tuple[str, ...], request: Exec | Execute) -> Command:
    return Command(argv, cwd=request.cwd, env=request.env, user=request.user, seconds=request.seconds)


def _executed(finished: Finished) -> Executed:
    exited = finished.exited
    return Executed(
        exit_code=exited.code,
        signal=exited.signal,
        killed=exited.killed,
        stdout=decode(finished.out),
        stderr=decode(finished.err),
        seconds=exited.seconds,
        truncated=exited.killed == "output",
    )


def _shown(found: Background) -> BackgroundCommand:
    record, exited = found.record, found.record.exited
    return BackgroundCommand(
        id=record.id,
        sandbox=record.sandbox,
        argv=record.argv,
        cwd=record.cwd,
        user=record.user,
        pty=record.pty,
        state=record.state,
        exit_code=exited.code if exited else None,
        signal=exited.signal if exited else None,
        killed=exited.killed if exited else None,
        reason=record.reason,
        started_at=record.started_at,
        ended_at=record.ended_at,
        output_begin=found.spool.begin,
        output_end=found.spool.end,
    )


def _brief(info: TemplateInfo) -> TemplateInfo:
    """Without the tests of its baseline, which can be thousands."""
    if info.about is None:
        return info
    return msgspec.structs.replace(info, about=msgspec.structs.replace(info.about, baseline=()))


def _checked_mode(mode: int) -> int:
    if not 0 <= mode <= 0o777:
        raise UserError("bad_mode", "mode is three octal digits, like 644: special bits are not set here.")
    return mode
