"""The verbs over HTTP: runs, audit, tokens, templates, snapshots, models and policy."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Literal

import anyio
import msgspec

from cloister.app.verbs.api import no_report
from cloister.app.verbs.records import (
    Admitted,
    ChangePack,
    Explained,
    LocalModel,
    MadeToken,
    NewToken,
    PolicyVerdict,
    RuleContext,
    TokenInfo,
)
from cloister.cli.client.http import Group, Transport, address, check_close
from cloister.core.errors import HostError
from cloister.core.events import Delta, Event
from cloister.log.api import RunRow
from cloister.log.audit.entry import AuditEntry, Checkpoint

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from websockets.asyncio.client import ClientConnection

    from cloister.cli.client.remote_sandboxes import RemoteFiles, RemoteSandboxes
    from cloister.core.ids import RunId
    from cloister.core.requests import NewRun, Origin, Role
    from cloister.egress.packages import Meaning
    from cloister.log.audit.verify import Verdict
    from cloister.policy.api import Policy
    from cloister.runs.attempts.compare import Compared
    from cloister.runs.attempts.tree import TreeView
    from cloister.runs.budget import BudgetReport
    from cloister.runs.delivery import Removed
    from cloister.runs.receipt import Receipt
    from cloister.runs.view import RunView
    from cloister.sandbox.api import Report, SnapshotInfo
    from cloister.sandbox.templates.catalog import TemplateInfo
    from cloister.sandbox.templates.recipes import Recipe

EVENTS_PAGE = 10_000
RECONNECT_SECONDS = 30.0
SLOW_SECONDS = 300.0
"""Limit of a request that reads much: a diff, a verification, a snapshot."""
_LOOK_SECONDS = 0.3


class RemoteRuns(Group):
    """`RunVerbs` over HTTP."""

    async def submit(self, new: NewRun) -> Admitted:
        return await self._http.post(Admitted, address("runs"), new)

    async def list(self, limit: int = 100) -> tuple[RunRow, ...]:
        return await self._http.get(tuple[RunRow, ...], address("runs", limit=limit))

    async def row(self, run: str) -> RunRow:
        return await self._http.get(RunRow, address("runs", run, "row"))

    async def view(self, run: str) -> RunView:
        from cloister.runs.view import RunView

        return await self._http.get(RunView, address("runs", run))

    async def events(
        self, run: str, after: int = 0, limit: int | None = None, attempt: int | None = None
    ) -> tuple[Event, ...]:
        found: tuple[Event, ...] = ()
        while limit is None or len(found) < limit:
            most = min(EVENTS_PAGE, EVENTS_PAGE if limit is None else limit - len(found))
            path = address("runs", run, "events", after=after, limit=most, attempt=attempt)
            page = await self._http.get(tuple[Event, ...], path, SLOW_SECONDS)
            found += page
            if len(page) < most:
                break
            after = page[-1].seq
        return found

    @asynccontextmanager
    async def follow(
        self, run: str, after: int = 0, *, deltas: bool = True
    ) -> AsyncGenerator[AsyncIterator[Event | Delta]]:
        found = (await self.row(run)).id
        async with aclosing(self._follow(found, after, deltas)) as items:
            yield items

    async def _follow(self, run: RunId, after: int, deltas: bool) -> AsyncGenerator[Event | Delta]:
        deadline = anyio.current_time() + RECONNECT_SECONDS
        while True:
            try:
                async with self._http.dial(address("runs", run, "stream", after=after)) as socket:
                    async with aclosing(_messages(socket)) as messages:
                        async for item in messages:
                            deadline = anyio.current_time() + RECONNECT_SECONDS
                            if isinstance(item, Event):
                                after = item.seq
                            if deltas or isinstance(item, Event):
                                yield item
                    if socket.close_code == 1000:
                        return
            except HostError as error:
                if error.code != "server_gone":
                    raise
            if anyio.current_time() > deadline:
                raise HostError(
                    "server_gone",
                    "The server is gone. Its runs resume when it starts again (`cloister serve --background`); "
                    f"then `cloister watch {run}`.",
                )
            await anyio.sleep(_LOOK_SECONDS)

    async def say(self, run: str, text: str, origin: Origin = "user") -> Event:
        return await self._tell(run, "say", {"text": text, "origin": origin})

    async def stop(self, run: str) -> Event:
        return await self._tell(run, "stop")

    async def answer(self, run: str, ask: str, answer: Literal["allow", "deny"]) -> Event:
        return await self._tell(run, "answer", {"ask": ask, "answer": answer})

    async def use_model(self, run: str, model: str) -> Event:
        return await self._tell(run, "model", {"model": model})

    async def _tell(self, run: str, verb: str, body: object = None) -> Event:
        return await self._http.post(Event, address("runs", run, verb), body)

    async def fork(self, run: str, at: int | None = None, say: str | None = None) -> Admitted:
        return await self._http.post(Admitted, address("runs", run, "fork"), {"at": at, "prompt": say})

    async def rewind(self, run: str, to: int) -> RunId:
        reply = await self._http.post(dict[str, str], address("runs", run, "rewind"), {"to": to})
        return msgspec.convert(reply["id"], str)  # type: ignore[return-value]

    async def remove(self, run: str) -> Removed:
        from cloister.runs.delivery import Removed

        return await self._http.delete(Removed, address("runs", run), SLOW_SECONDS)

    async def diff(self, run: str, attempt: int | None = None) -> str:
        path = address("runs", run, "diff", attempt=attempt)
        return (await self._http.ask("GET", path, seconds=SLOW_SECONDS)).decode("utf-8", errors="replace")

    async def tree(self, run: str) -> TreeView:
        from cloister.runs.attempts.tree import TreeView

        return await self._http.get(TreeView, address("runs", run, "tree"))

    async def compare(self, a: str, b: str) -> Compared:
        from cloister.runs.attempts.compare import Compared

        return await self._http.get(Compared, address("compare", a=a, b=b), SLOW_SECONDS)

    async def change(self, run: str, have: str | None = None) -> ChangePack:
        return await self._http.get(ChangePack, address("runs", run, "change", have=have), SLOW_SECONDS)

    async def applied(self, run: str, where: str, branch: str) -> None:
        await self._http.ask("POST", address("runs", run, "applied"), {"where": where, "branch": branch})

    async def receipt(self, run: str) -> Receipt:
        from cloister.runs.receipt import Receipt

        return await self._http.get(Receipt, address("runs", run, "receipt"), SLOW_SECONDS)

    async def receipt_page(self, run: str) -> str:
        path = address("runs", run, "receipt", "markdown")
        return (await self._http.ask("GET", path, seconds=SLOW_SECONDS)).decode("utf-8", errors="replace")

    async def budget(self, run: str | None = None) -> BudgetReport:
        from cloister.runs.budget import BudgetReport

        return await self._http.get(BudgetReport, address("budget", run=run))


class _Message(msgspec.Struct, frozen=True):
    event: Event | None = None
    delta: Delta | None = None


async def _messages(socket: ClientConnection) -> AsyncGenerator[Event | Delta]:
    """The items of one connection until it closes. Raises the server's refusal."""
    from websockets.exceptions import ConnectionClosed

    decode = msgspec.json.Decoder(_Message).decode
    try:
        while True:
            message = decode(await socket.recv())
            if item := message.event or message.delta:
                yield item
    except ConnectionClosed:
        check_close(socket)


class RemoteAudit(Group):
    """`AuditVerbs` over HTTP."""

    async def page(
        self, after: int = 0, limit: int = 1_000, run: str | None = None
    ) -> tuple[AuditEntry, ...]:
        return await self._http.get(
            tuple[AuditEntry, ...], address("audit", after=after, limit=limit, run=run)
        )

    async def checkpoints(self, after: int, until: int) -> tuple[Checkpoint, ...]:
        path = address("audit", "checkpoints", after=after, until=until)
        return await self._http.get(tuple[Checkpoint, ...], path)

    async def verify(self, key: str | None = None) -> Verdict:
        from cloister.log.audit.verify import Verdict

        return await self._http.get(Verdict, address("audit", "verify", key=key), SLOW_SECONDS)

    async def key(self) -> str:
        return (await self._http.get(dict[str, str], address("audit", "key")))["key"]

    async def rotate(self) -> str:
        return (await self._http.post(dict[str, str], address("audit", "key")))["key"]

    async def send_logs(self, run: str | None = None, since_us: int = 0) -> int:
        body = {"run": run, "since_us": since_us}
        return (await self._http.post(dict[str, int], address("audit", "send"), body, SLOW_SECONDS))["sent"]


class RemoteTokens(Group):
    """`TokenVerbs` over HTTP."""

    async def add(self, name: str, role: Role = "viewer") -> MadeToken:
        return await self._http.post(MadeToken, address("tokens"), NewToken(name, role))

    async def list(self) -> tuple[TokenInfo, ...]:
        return await self._http.get(tuple[TokenInfo, ...], address("tokens"))

    async def remove(self, name: str) -> None:
        await self._http.ask("DELETE", address("tokens", name))


class RemoteTemplates(Group):
    """`TemplateVerbs` over HTTP."""

    async def list(self) -> tuple[TemplateInfo, ...]:
        from cloister.sandbox.templates.catalog import TemplateInfo

        return await self._http.get(tuple[TemplateInfo, ...], address("templates"))

    async def get(self, name: str) -> TemplateInfo:
        from cloister.sandbox.templates.catalog import TemplateInfo

        return await self._http.get(TemplateInfo, address("templates", name))

    async def describe(self, name: str, recipe: Recipe, *, replace_built_in: bool = False) -> TemplateInfo:
        from cloister.sandbox.templates.catalog import TemplateInfo

        body = {"recipe": recipe, "replace_built_in": replace_built_in}
        return await self._http.put(TemplateInfo, address("templates", name), body)

    async def build(self, name: str, *, again: bool = False, report: Report = no_report) -> TemplateInfo:
        from cloister.sandbox.templates.catalog import TemplateInfo

        path, body = address("templates", name, "build"), {"again": again, "progress": True}
        return await self._http.progress(TemplateInfo, path, body, report)

    async def log(self, name: str) -> str:
        return (await self._http.ask("GET", address("templates", name, "log"))).decode(
            "utf-8", errors="replace"
        )

    async def remove(self, name: str) -> None:
        await self._http.ask("DELETE", address("templates", name), seconds=SLOW_SECONDS)


class RemoteSnapshots(Group):
    """`SnapshotVerbs` over HTTP."""

    async def take(self, sandbox: str, name: str | None = None) -> SnapshotInfo:
        from cloister.sandbox.api import SnapshotInfo

        path = address("sandboxes", sandbox, "snapshots")
        return await self._http.post(SnapshotInfo, path, {"name": name}, SLOW_SECONDS)

    async def list(self, sandbox: str | None = None) -> tuple[SnapshotInfo, ...]:
        from cloister.sandbox.api import SnapshotInfo

        path = address("snapshots") if sandbox is None else address("sandboxes", sandbox, "snapshots")
        return await self._http.get(tuple[SnapshotInfo, ...], path)

    async def get(self, snapshot: str) -> SnapshotInfo:
        from cloister.sandbox.api import SnapshotInfo

        return await self._http.get(SnapshotInfo, address("snapshots", snapshot))

    async def remove(self, snapshot: str) -> None:
        await self._http.ask("DELETE", address("snapshots", snapshot), seconds=SLOW_SECONDS)


class RemoteModels(Group):
    """`ModelVerbs` over HTTP."""

    async def list(self) -> tuple[LocalModel, ...]:
        return await self._http.get(tuple[LocalModel, ...], address("models"))

    async def fetch(self, name: str | None = None, report: Report = no_report) -> LocalModel:
        body = {"name": name, "progress": True}
        return await self._http.progress(LocalModel, address("models", "fetch"), body, report)

    async def add(
        self, source: str, name: str | None = None, sha256: str | None = None, report: Report = no_report
    ) -> LocalModel:
        body = {"source": source, "name": name, "sha256": sha256, "progress": True}
        return await self._http.progress(LocalModel, address("models"), body, report)

    async def remove(self, name: str) -> tuple[str, ...]:
        return await self._http.delete(tuple[str, ...], address("models", name))


class RemotePolicy(Group):
    """`PolicyVerbs` over HTTP."""

    async def layers(self, context: RuleContext) -> Policy:
        from cloister.policy.api import Policy

        return await self._http.post(Policy, address("policy", "layers"), context)

    async def explain(self, action: str, context: RuleContext, *, untrusted: bool = False) -> Explained:
        body = {"action": action, "context": context, "untrusted": untrusted}
        return await self._http.post(Explained, address("policy", "explain"), body)

    async def test(self, text: str, source: str) -> tuple[PolicyVerdict, ...]:
        body = {"text": text, "source": source}
        return await self._http.post(tuple[PolicyVerdict, ...], address("policy", "test"), body)

    async def sets(self, name: str, *, again: bool = False) -> Meaning:
        from cloister.egress.packages import Meaning

        path = address("policy", "sets", name, again="true" if again else "false")
        return await self._http.get(Meaning, path, SLOW_SECONDS)


class RemoteVerbs:
    """`Verbs` over HTTP."""

    def __init__(self, transport: Transport) -> None:
        self._http = transport
        self.runs = RemoteRuns(transport)
        self.audit = RemoteAudit(transport)
        self.tokens = RemoteTokens(transport)
        self.templates = RemoteTemplates(transport)
        self.snapshots = RemoteSnapshots(transport)
        self.models = RemoteModels(transport)
        self.policy = RemotePolicy(transport)

    @property
    def sandboxes(self) -> RemoteSandboxes:
        from cloister.cli.client.remote_sandboxes import RemoteSandboxes

        return RemoteSandboxes(self._http)

    @property
    def files(self) -> RemoteFiles:
        from cloister.cli.client.remote_sandboxes import RemoteFiles

        return RemoteFiles(self._http)
