"""The verbs of the audit, of tokens and of model files in this process. Slow imports wait until they are needed."""

# ruff: noqa: PLC0415

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import to_thread

from cloister.app.people.logins import ONCE_SECONDS, Login, Logins
from cloister.app.tokens import RANK, Tokens
from cloister.app.verbs.api import AuditVerbs, MachineVerbs, ModelVerbs, TokenVerbs
from cloister.app.verbs.declare import no_report
from cloister.app.verbs.local import Group, checked, read_audit
from cloister.app.verbs.records import (
    LocalModel,
    LoginInfo,
    MadeToken,
    Me,
    ModelFacts,
    ModelRole,
    ModelTrial,
    OneTimeLogin,
    TokenInfo,
)
from cloister.core.errors import HostError, UserError
from cloister.core.ids import RunId
from cloister.core.requests import Usage
from cloister.core.text import bounded

REASON_CHARS = 400
TRIAL_TOKENS = 256
"""Enough for one word of a model that thinks first."""

if TYPE_CHECKING:
    from typing import TypeVar

    from cloister.app.checkup import Checkup
    from cloister.core.requests import Role
    from cloister.log.api import Peer
    from cloister.log.audit.entry import AuditEntry, Checkpoint
    from cloister.log.audit.verify import Verdict
    from cloister.model.local.files import Progress, Shelf
    from cloister.model.names import Access
    from cloister.sandbox.api import Report

    T = TypeVar("T")


@checked(AuditVerbs)
class LocalAudit(Group):
    """Implements `AuditVerbs`."""

    async def page(
        self,
        after: int = 0,
        limit: int = 1_000,
        run: str | None = None,
        kind: str | None = None,
        who: str | None = None,
        newest: bool = False,
    ) -> tuple[AuditEntry, ...]:
        from cloister.log.audit.entry import AuditFilter

        return await self._log.audit(after, limit, await self._run(run), AuditFilter(kind, who, newest))

    async def checkpoints(self, after: int, until: int) -> tuple[Checkpoint, ...]:
        return await read_audit(self._settings.log_path, lambda audit: audit.checkpoints(after, until))

    async def verify(self, key: str | None = None) -> Verdict:
        from cloister.log.audit.keys import check_public

        verdict = await self._log.verify_audit(None if key is None else check_public(key))
        files = [place for place in self._settings.file.audit_heads if place.startswith("/")]
        if not files:
            return verdict
        return await to_thread.run_sync(self._with_heads, verdict, files)

    def _with_heads(self, verdict: Verdict, files: list[str]) -> Verdict:
        """Compare with the heads that were sent to files. Blocks."""
        import msgspec

        from cloister.log.audit.export import head_states, heads_in
        from cloister.log.audit.verify import PROBLEMS, Flaw, against
        from cloister.log.sqlite.reader import AuditReader

        sent, found = head_states(self._settings.data_dir), list(verdict.problems)
        for place in files:
            try:
                heads = heads_in(place)
            except OSError as error:
                if place in sent and sent[place].number >= 0:
                    found.append(Flaw(f"The heads sent to {place} cannot be read there: {error.strerror}."))
                continue
            with AuditReader(self._settings.log_path) as audit:
                pages = (audit.page(number - 1, 1) for number in {head.number for head in heads})
                hashes = {entry.number: entry.hash for page in pages for entry in page}
            found += against(heads, hashes, verdict)
        return msgspec.structs.replace(verdict, ok=not found, problems=tuple(found[:PROBLEMS]))

    async def key(self) -> str:
        from cloister.log.audit.keys import KEY_FILE, HostKey

        return await to_thread.run_sync(HostKey(self._settings.data_dir / KEY_FILE).public)

    async def rotate(self) -> str:
        return await self._log.rotate_audit_key()

    async def accept(self, reason: str) -> None:
        if not reason.strip():
            raise UserError("bad_reason", "Say why the audit differs, such as the backup that was restored.")
        await self._log.accept_audit(self.caller.name, bounded(reason.strip(), REASON_CHARS))

    async def send_logs(self, run: str | None = None, since_us: int = 0) -> int:
        from cloister.log.audit.export import Collector, check_endpoint, client, send

        if self._settings.file.otlp_endpoint is None:
            raise UserError(
                "no_collector",
                "No collector is configured: set OTEL_EXPORTER_OTLP_ENDPOINT, or otlp_endpoint in the settings.",
            )
        collector = Collector(check_endpoint(self._settings.file.otlp_endpoint), self._settings.otlp_headers)
        found, last, sent = await self._run(run), 0, 0
        async with client() as http:
            while page := await self._log.audit(last, run=found):
                last = page[-1].number
                if wanted := [entry for entry in page if entry.at_us >= since_us]:
                    await send(http, collector, wanted)
                    sent += len(wanted)
        return sent

    async def _run(self, name: str | None) -> RunId | None:
        try:
            return None if name is None else await self._resolve(name)
        except UserError as error:
            # The audit still speaks of a run that was removed.
            if (
                name is None
                or error.code != "no_such_run"
                or not await self._log.audit(limit=1, run=RunId(name))
            ):
                raise
            return RunId(name)


@checked(TokenVerbs)
class LocalTokens(Group):
    """Implements `TokenVerbs`."""

    @property
    def _tokens(self) -> Tokens:
        return Tokens(self._settings.data_dir)

    async def add(self, name: str, role: Role = "viewer") -> MadeToken:
        secret = await to_thread.run_sync(self._tokens.add, name, role, self._settings.user)
        await self._note("TokenAdded", name=name, role=role)
        return MadeToken(name, role, secret)

    async def list(self) -> tuple[TokenInfo, ...]:
        found = await to_thread.run_sync(self._tokens.all)
        return tuple(TokenInfo(token.name, token.role, token.made_at) for token in found)

    async def remove(self, name: str) -> None:
        from cloister.app.people.projects import people_in

        await to_thread.run_sync(self._tokens.remove, name)
        await to_thread.run_sync(people_in(self._settings.data_dir).end_shares, (), name)
        await self._note("TokenRemoved", name=name)

    async def me(self) -> Me:
        return Me(self.caller.name, self.caller.role, self.caller.login or None, self.caller.known)

    async def offer_login(self) -> OneTimeLogin:
        if self._parts.app is None:
            raise HostError(
                "no_server", "A browser needs a server: start it with `cloister serve --background`."
            )
        secret = await to_thread.run_sync(self._logins.offer, self.caller)
        await self._note("LoginOffered", role=self.caller.role)
        return OneTimeLogin(secret, ONCE_SECONDS)

    async def logins(self) -> tuple[LoginInfo, ...]:
        found = await to_thread.run_sync(self._visible)
        return tuple(LoginInfo(one.id, one.name, one.role, one.since, one.until) for one in found)

    async def end_login(self, login: str) -> None:
        found = await to_thread.run_sync(self._visible)
        if all(one.id != login for one in found):
            raise UserError("no_such_login", f"There is no login {login[:60]!r} of yours.")
        await to_thread.run_sync(self._logins.end, login)
        await self._note("LoginEnded", login=login)

    @property
    def _logins(self) -> Logins:
        return Logins(self._settings.data_dir)

    def _visible(self) -> list[Login]:
        caller = self.caller
        if caller.guest:  # all browsers that one link let in have the same name
            return [one for one in self._logins.all() if one.id == caller.login]
        every = RANK[caller.role] >= RANK["admin"]
        return [one for one in self._logins.all() if every or one.name == caller.name]


@checked(ModelVerbs)
class LocalModels(Group):
    """Implements `ModelVerbs`."""

    @property
    def _shelf(self) -> Shelf:
        from cloister.app.config import model_shelf

        return model_shelf(self._settings)

    async def list(self) -> tuple[LocalModel, ...]:
        return tuple(self._model(name) for name in self._shelf.names())

    async def fetch(self, name: str | None = None, report: Report = no_report) -> LocalModel:
        from cloister.model.local.fetch import fetch

        wanted = self._shelf.catalog_name(name)
        await fetch(self._shelf, wanted, self._settings.file.model_hub, _progress(report, wanted))
        await self._note("ModelFetched", model=wanted)
        return self._model(wanted)

    async def add(
        self, source: str, name: str | None = None, sha256: str | None = None, report: Report = no_report
    ) -> LocalModel:
        from cloister.model.local.fetch import add

        file = await add(self._shelf, source, name, sha256, _progress(report, name or "model"))
        await self._note("ModelAdded", model=file.name, sha256=file.sha256, source=file.hub_path)
        return self._model(file.name)

    async def remove(self, name: str) -> tuple[str, ...]:
        if name in self._shelf.own:
            place = self._shelf.place(name)
            raise UserError("own_file", f"{place} is yours (local_models): remove it yourself.")
        removed = self._shelf.parts(name)
        if not removed:
            self._shelf.entry(name)
        for path in removed:
            path.unlink(missing_ok=True)
        if removed:
            await self._note("ModelRemoved", model=name)
        return tuple(map(str, removed))

    async def roles(self, repo: str | None = None) -> tuple[ModelRole, ...]:
        from typing import get_args

        from cloister.app.config import model_access
        from cloister.model.api import Role as ModelRoleName
        from cloister.model.catalog import load_prices
        from cloister.model.roles import Job, chosen, skipped

        access, job, found = model_access(self._settings), Job(repo or ""), list[ModelRole]()
        for role in get_args(ModelRoleName):
            try:
                names = chosen(access, role, job)
                unusable = skipped(access, role, job)
            except UserError as error:
                found.append(ModelRole(role, (), error.message))
                continue
            for name in names:
                await to_thread.run_sync(load_prices, name)
            usable = [_facts(name, access, "") for name in names]
            found.append(
                ModelRole(role, (*usable, *(_facts(name, access, why) for name, why in unusable.items())), "")
            )
        return tuple(found)

    async def try_out(self, name: str) -> ModelTrial:
        import time

        from cloister.app.config import model_access, rule_files, usual_model
        from cloister.model.api import Reply, Request, UserMessage
        from cloister.model.roles import Job, open_models
        from cloister.runs.run_rules import check_allowed

        full = usual_model(self._settings, name)
        check_allowed(await to_thread.run_sync(rule_files(self._settings).above, None), models=(full,))
        request = Request("Answer with one word.", (UserMessage("Say: ready"),), (), max_tokens=TRIAL_TOKENS)
        begun, end = time.monotonic(), None
        async with (
            open_models(model_access(self._settings), Job("", full)) as models,
            models.named(full).stream(request) as items,
        ):
            async for item in items:
                end = item
        seconds = time.monotonic() - begun
        reply = end if isinstance(end, Reply) else None
        said = reply.text if reply else getattr(end, "message", "It said nothing.")
        usage = reply.usage if reply else Usage()
        await self._note("ModelTried", model=full, ok=reply is not None)
        return ModelTrial(
            full,
            reply is not None,
            bounded(said, REASON_CHARS),
            seconds,
            usage.input_tokens,
            usage.output_tokens,
            reply and reply.cost,
        )

    def _model(self, name: str) -> LocalModel:
        file, place = self._shelf.entry(name), self._shelf.place(name)
        return LocalModel(
            name, file.title, file.license, file.bytes, str(place), place.is_file(), file.sha256
        )


def _facts(name: str, access: Access, problem: str) -> ModelFacts:
    from cloister.model.catalog import cost, sees, window

    entries, some = access.routes.entry, 10_000

    def price(usage: Usage) -> float | None:
        found = cost(name, usage, entries)
        return None if found is None else round(found * 1_000_000 / some, 6)

    return ModelFacts(
        name,
        price(Usage(input_tokens=some)),
        price(Usage(output_tokens=some)),
        window(name, entries, access.shelf),
        sees(name, entries),
        problem,
    )


@checked(MachineVerbs)
class LocalMachine(Group):
    """Implements `MachineVerbs`."""

    async def doctor(self) -> Checkup:
        from cloister.app.checkup import Checkup, Finding, checkup, pool_finding

        app = self._parts.app
        if app is None:
            server = Finding("server", False, "not running", "cloister serve --background", needed=False)
            return Checkup.of(await checkup(self._settings, server))
        server = Finding("server", True, "it answers", needed=False)
        warm = (pool_finding(app.pool.info()),) if self._settings.file.pool else ()
        return Checkup.of(await checkup(self._settings, server, warm))

    async def all(self) -> tuple[Peer, ...]:
        app = self._parts.app
        return () if app is None or app.storage.others is None else await app.storage.others.all()

    async def drain(self, machine: str, on: bool) -> None:
        app = self._parts.app
        if app is None or app.storage.others is None:
            raise UserError(
                "no_such_machine", "No server of a cluster runs here: only its machines can be drained."
            )
        await app.storage.others.drain(machine, on)
        await self._note("MachineDrained", machine=machine, on=on)


def _progress(report: Report, note: str) -> Progress:
    def progress(done: int, whole: int) -> None:
        report(done / whole if whole else None, note)

    return progress
