"""The verbs: everything a person can do, as one typed interface with the role that each verb needs.

`cloister.app.verbs.local` implements it in this process, the HTTP client against a server. Both check the caller's
role and the policy, write the same audit entries and raise the same error codes. A verbs object belongs to one
caller, and a verb without `needs` is for admins. `run` is always an id, a unique beginning of one, or `last`; unknown ones raise `UserError` (`no_such_run`,
`ambiguous_run`). A role that is too low raises `UserError` (`denied`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from cloister.app.verbs.declare import BUILD_SECONDS, END_SECONDS, SLOW_SECONDS, needs, no_report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import ByteStream

    from cloister.app.overview import OverviewItem
    from cloister.app.verbs.records import (
        Admitted,
        BackgroundCommand,
        ChangePack,
        CommandOutput,
        EnvironmentInfo,
        Exec,
        Execute,
        Executed,
        Explained,
        ForgeCheck,
        LocalModel,
        LoginInfo,
        MadeToken,
        Me,
        NewCommand,
        NewSandbox,
        OneTimeLogin,
        PolicyVerdict,
        RuleContext,
        TokenInfo,
        TriggerInfo,
    )
    from cloister.app.verbs.webhooks import WebhookVerbs
    from cloister.app.workbench.commands import Skipped
    from cloister.core.computer import Change, Entry, Exited, Output, Process, Pty, Sink
    from cloister.core.events import ChangeDelivered, Delta, Event
    from cloister.core.ids import RunId
    from cloister.core.requests import NewRun, Origin, Outcome, Role, State
    from cloister.egress.packages import Meaning
    from cloister.environment.api import Plan
    from cloister.environment.listing import Listing
    from cloister.log.api import RunCount, RunRow
    from cloister.log.audit.entry import AuditEntry, Checkpoint
    from cloister.log.audit.verify import Verdict
    from cloister.policy.api import Policy
    from cloister.runs.attempts.compare import Compared
    from cloister.runs.attempts.tree import TreeView
    from cloister.runs.attempts.verify import Claim, Verified
    from cloister.runs.attempts.why import LineOrigin
    from cloister.runs.budget import BudgetReport
    from cloister.runs.delivery import Removal, Removed
    from cloister.runs.receipt import Receipt
    from cloister.runs.view import RunView
    from cloister.sandbox.api import Report, SandboxInfo, SnapshotInfo
    from cloister.sandbox.pool import PoolInfo
    from cloister.sandbox.templates.catalog import TemplateInfo
    from cloister.sandbox.templates.recipes import Recipe


class RunVerbs(Protocol):
    """Runs: submit, look, steer, branch, compare, hand over."""

    @needs("operator", "POST runs", body="new")
    async def submit(self, new: NewRun) -> Admitted:
        """Admit a run; it is durable when this returns. A `RunWish` takes the missing budget from the configuration.

        Raises `UserError` (`bad_run`, `denied`, `unknown_template`, `no_model`, …).
        """
        ...

    @needs("viewer", "GET runs")
    async def list(
        self,
        limit: int = 100,
        before: str | None = None,
        state: State | None = None,
        outcome: Outcome | None = None,
        repo: str | None = None,
        who: str | None = None,
    ) -> tuple[RunRow, ...]:
        """The newest runs first; `before` is the last run of the page before, the others say which runs to list."""
        ...

    @needs("viewer", "GET counts")
    async def counts(self) -> tuple[RunCount, ...]:
        """All runs, counted by state and outcome."""
        ...

    @needs("viewer", "GET runs/{run}/row")
    async def row(self, run: str, *, told: bool = True) -> RunRow:
        """The run as lists show it. `row(name).id` resolves a name; unless `told`, without a look at its log."""
        ...

    @needs("viewer", "GET runs/{run}")
    async def view(self, run: str) -> RunView: ...

    @needs("viewer")
    async def events(
        self,
        run: str,
        after: int = 0,
        limit: int | None = None,
        attempt: int | None = None,
        before: int | None = None,
    ) -> tuple[Event, ...]:
        """Events with a `seq` above `after`, of one attempt if given; with `before`, the last ones below it.

        Raises `UserError` (`no_such_attempt`).
        """
        ...

    @needs("viewer")
    def follow(
        self, run: str, after: int = 0, *, deltas: bool = True
    ) -> AbstractAsyncContextManager[AsyncIterator[Event | Delta]]:
        """The log after `after`, then live until the run is finished. Deltas come where the driver shows them.

        An implementation reconnects by itself. Raises `HostError` (`not_driven`, `server_gone`).
        """
        ...

    @needs("viewer")
    def overview(
        self, after: int | None = None, last: int = 200
    ) -> AbstractAsyncContextManager[AsyncIterator[OverviewItem]]:
        """All runs and sandboxes as they change, without end.

        First the unfinished runs, and those that changed after `after`, the cursor of a `Synced`; with None, the
        newest `last`. Raises `HostError` (`no_server`).
        """
        ...

    @needs("operator", "POST runs/{run}/say")
    async def say(self, run: str, text: str, origin: Origin = "user", key: str | None = None) -> Event:
        """Send a message; a finished run continues with it in another round, which a driving process must take up.

        `key` here and below is the caller's id of the message: sent again with it, the message is done once, and the
        event that it caused is returned. `UserError` (`key_taken`) if it was another message, and `bad_key`.

        Raises `UserError` (`empty_message`, `too_large`, `run_removed`).
        """
        ...

    @needs("operator", "POST runs/{run}/rebase", seconds=SLOW_SECONDS)
    async def rebase(self, run: str) -> Event: ...  # also raises `not_moved`, `no_branch`, `unknown_ref`

    @needs("operator", "POST runs/{run}/stop")
    async def stop(self, run: str, key: str | None = None) -> Event:
        """Raises `UserError` (`run_finished`)."""
        ...

    @needs("operator", "POST runs/{run}/pause")
    async def pause(self, run: str, key: str | None = None) -> Event:
        """Wait before the next step until `resume`; the wait costs none of the run's time.

        Raises `UserError` (`run_finished`, `run_paused`).
        """
        ...

    @needs("operator", "POST runs/{run}/resume")
    async def resume(self, run: str, key: str | None = None) -> Event:
        """Let a run go on that a person paused. Raises `UserError` (`run_finished`, `run_not_paused`)."""
        ...

    @needs("operator", "POST runs/{run}/interrupt")
    async def interrupt(self, run: str, key: str | None = None) -> Event:
        """Stop the step at work: its model request or tool call. The run goes on, and the model learns of it.

        Raises `UserError` (`run_finished`).
        """
        ...

    @needs("operator", "POST runs/{run}/answer")
    async def answer(
        self, run: str, ask: str | None, answer: Literal["allow", "deny"], key: str | None = None
    ) -> Event:
        """Answer a question; None is the only open one.

        Raises `UserError` (`no_such_ask`, `several_asks`, `ask_answered`, `denied`).
        """
        ...

    @needs("operator", "POST runs/{run}/questions")
    async def reply(self, run: str, question: str | None, text: str, key: str | None = None) -> Event:
        """Answer a question of the model; None is the only open one. After its deadline it is sent as a message.

        Raises `UserError` (`no_such_question`, `several_questions`, `question_answered`, `empty_message`, `too_large`).
        """
        ...

    @needs("operator", "POST runs/{run}/model")
    async def use_model(self, run: str, model: str, key: str | None = None) -> Event:
        """Continue the run with another model. Raises `UserError` when it is unknown or the policy denies it."""
        ...

    @needs("operator", "POST runs/{run}/fork", say="prompt")
    async def fork(
        self, run: str, at: int | None = None, say: str | None = None, key: str | None = None
    ) -> Admitted:
        """A new run from a save point of `run`. Raises `UserError` (`no_save_point`), and as `submit`."""
        ...

    @needs("operator", "POST runs/{run}/rewind", member="id")
    async def rewind(self, run: str, to: int, key: str | None = None) -> RunId:
        """Continue from an earlier save point; a finished run is forked there. Returns the run that continues."""
        ...

    @needs("admin", "DELETE runs/{run}", seconds=SLOW_SECONDS)
    async def remove(self, run: str) -> Removed:
        """Delete a finished run's files; its log stays. Raises `UserError` (`run_not_finished`)."""
        ...

    @needs("admin", "POST gc", seconds=SLOW_SECONDS)
    async def gc(self, dry_run: bool = False) -> tuple[Removal, ...]:
        """Remove what is older than the settings keep; with `dry_run`, only say what that would be."""
        ...

    @needs("viewer", "GET runs/{run}/diff", seconds=SLOW_SECONDS)
    async def diff(self, run: str, attempt: int | None = None, at: int | None = None) -> str:
        """The change of the run, of one of its attempts, or at one of its save points.

        Raises `UserError` (`no_such_attempt`, `no_save_point`, `run_removed`).
        """
        ...

    @needs("viewer", "GET runs/{run}/why", seconds=SLOW_SECONDS)
    async def why(self, run: str, path: str, line: int) -> LineOrigin:
        """The turn that wrote one line of the result. Raises `UserError` (`no_change`, `no_such_line`, `run_removed`)."""
        ...

    @needs("viewer", "GET runs/{run}/tree")
    async def tree(self, run: str) -> TreeView: ...

    @needs("viewer", "GET compare", seconds=SLOW_SECONDS)
    async def compare(self, a: str, b: str) -> Compared:
        """Two runs or attempts (`RUN/K`). Raises `UserError` (`no_such_attempt`, `bad_attempt`, `same_twice`)."""
        ...

    @needs("operator", "GET runs/{run}/change", seconds=SLOW_SECONDS)
    async def change(self, run: str, have: str | None = None) -> ChangePack:
        """The change as git objects. `have` is a commit that the caller has, e.g. the base; the pack is then smaller.

        Raises `UserError` (`no_change`, `run_removed`).
        """
        ...

    @needs("operator", "POST runs/{run}/applied")
    async def applied(self, run: str, where: str, branch: str) -> None:
        """Record in the audit that the caller put the change into a repository."""
        ...

    @needs("operator", "POST runs/{run}/pull-request", seconds=SLOW_SECONDS)
    async def pull_request(self, run: str) -> ChangeDelivered:
        """Open a pull request with the change of a finished run, or update the one that is open.

        Raises `UserError` (`run_not_finished`, `no_change`, `no_forge`, `denied`), `OutsideError`.
        """
        ...

    @needs("operator", "POST verify")
    async def verify(
        self, repo: str, ref: str, report: Report = no_report, claim: Claim | None = None
    ) -> Verified:
        """Run the proof of a change again from nothing, by the trailers of its commits at `ref` of `repo`.

        An empty `repo` means that `ref` is a run of this server, or the address of a pull request. `claim` is that of a
        proof file, and stands in place of `ref`.

        Raises `UserError` (`no_claim`, `bad_proof`, `no_forge`, `no_repository`, `unknown_ref`), `OutsideError`.
        """
        ...

    @needs("operator", "GET forge", seconds=SLOW_SECONDS)
    async def check_forge(self, repo: str) -> ForgeCheck:
        """Whether the settings' token can open pull requests for a repository.

        Raises `UserError` (`no_forge`), `OutsideError`.
        """
        ...

    @needs("operator", "GET forge/repositories", seconds=SLOW_SECONDS)
    async def repositories(self, pattern: str) -> tuple[str, ...]:
        """The addresses of repositories at a forge of the settings, by `host/owner/pattern`.

        Raises `UserError` (`bad_query`, `no_forge`), `OutsideError`.
        """
        ...

    @needs("viewer", "GET runs/{run}/receipt", seconds=SLOW_SECONDS)
    async def receipt(self, run: str) -> Receipt: ...

    @needs("viewer", "GET runs/{run}/receipt/markdown", seconds=SLOW_SECONDS)
    async def receipt_page(self, run: str) -> str:
        """The receipt as Markdown."""
        ...

    @needs("viewer", "GET budget")
    async def budget(self, run: str | None = None) -> BudgetReport:
        """Limits and spending of every level; with a run, those above it, itself and its attempts."""
        ...


class AuditVerbs(Protocol):
    """The audit and the key that signs it."""

    @needs("admin", "GET audit")
    async def page(
        self, after: int = 0, limit: int = 1_000, run: str | None = None
    ) -> tuple[AuditEntry, ...]:
        """Entries with a greater number, oldest first. Ask again with the last number to follow."""
        ...

    @needs("admin", "GET audit/checkpoints")
    async def checkpoints(self, after: int, until: int) -> tuple[Checkpoint, ...]:
        """The signatures over entries with numbers in `after < number <= until`."""
        ...

    @needs("admin", "GET audit/verify", seconds=SLOW_SECONDS)
    async def verify(self, key: str | None = None) -> Verdict:
        """Check every entry, signature and event. Raises `UserError` (`bad_key`)."""
        ...

    @needs("admin", "GET audit/key", member="key")
    async def key(self) -> str:
        """The public key that signs the audit."""
        ...

    @needs("admin", "POST audit/key", member="key")
    async def rotate(self) -> str:
        """Replace the key; returns the new public one."""
        ...

    @needs("admin", "POST audit/accept")
    async def accept(self, reason: str) -> None:
        """Accept the audit as it is and sign a new head, after a restore or a lost key. An entry records it.

        Raises `UserError` (`bad_reason`).
        """
        ...

    @needs("admin", "POST audit/send", member="sent", seconds=SLOW_SECONDS)
    async def send_logs(self, run: str | None = None, since_us: int = 0) -> int:
        """Send entries to the configured OpenTelemetry collector; returns how many.

        Raises `UserError` (`no_collector`), `OutsideError`.
        """
        ...


class TokenVerbs(Protocol):
    """Named tokens for the server, and logins of browsers that come from tokens."""

    @needs("admin", "POST tokens")
    async def add(self, name: str, role: Role = "viewer") -> MadeToken:
        """Raises `UserError` (`bad_name`, `name_taken`, `too_many_tokens`)."""
        ...

    @needs("admin", "GET tokens")
    async def list(self) -> tuple[TokenInfo, ...]: ...

    @needs("admin", "DELETE tokens/{name}")
    async def remove(self, name: str) -> None:
        """Raises `UserError` (`no_such_token`)."""
        ...

    @needs("viewer", "GET me")
    async def me(self) -> Me: ...

    @needs("viewer", "POST logins")
    async def offer_login(self) -> OneTimeLogin:
        """The secret of an address that logs a browser in as the caller, once and within a minute.

        Raises `UserError` (`denied`) without a token, `HostError` (`no_server`).
        """
        ...

    @needs("viewer", "GET logins")
    async def logins(self) -> tuple[LoginInfo, ...]:
        """The caller's own logins; of an admin those of everyone."""
        ...

    @needs("viewer", "DELETE logins/{login}")
    async def end_login(self, login: str) -> None:
        """End one of the caller's logins; admins end anyone's. Raises `UserError` (`no_such_login`)."""
        ...


class TemplateVerbs(Protocol):
    """Templates that sandboxes start from. Unknown ones raise `UserError` (`no_such_template`)."""

    @needs("viewer", "GET templates")
    async def list(self) -> tuple[TemplateInfo, ...]:
        """All of them, without the tests of their baselines. Viewers see no values of arguments and environments."""
        ...

    @needs("viewer", "GET templates/{name}")
    async def get(self, name: str) -> TemplateInfo: ...

    @needs("admin", "PUT templates/{name}")
    async def describe(self, name: str, recipe: Recipe, *, replace_built_in: bool = False) -> TemplateInfo:
        """Store a recipe. Raises `UserError` (`bad_template`, `built_in_template`)."""
        ...

    @needs("admin", "POST templates/{name}/build")
    async def build(self, name: str, *, again: bool = False, report: Report = no_report) -> TemplateInfo:
        """Build a template unless it is ready, or `again`; returns when it is ready."""
        ...

    @needs("admin", "POST environments")
    async def set_up(
        self,
        repo: str,
        ref: str | None = None,
        setup: str = "auto",
        report: Report = no_report,
        settings: str = "",
    ) -> EnvironmentInfo:
        """Detect, build and check the environment of a repository, as a run would; a failure is a part of the result.

        `settings` is the text of a `.cloister/config.toml` that takes the place of the committed one.
        """
        ...

    @needs("operator", "GET templates/{name}/log")
    async def log(self, name: str) -> str:
        """The output of the last build, which may print values of arguments: viewers do not see those."""
        ...

    @needs("admin", "DELETE templates/{name}", seconds=SLOW_SECONDS)
    async def remove(self, name: str) -> None:
        """Remove a template and its recipe. Raises `UserError` (`template_in_use`)."""
        ...


class SnapshotVerbs(Protocol):
    """Files of sandboxes, kept. Unknown ones raise `UserError` (`no_such_snapshot`)."""

    @needs("admin", "POST sandboxes/{sandbox}/snapshots", seconds=SLOW_SECONDS)
    async def take(self, sandbox: str, name: str | None = None) -> SnapshotInfo:
        """Raises `UserError` (`no_such_sandbox`, `bad_name`, `name_taken`)."""
        ...

    async def list(self, sandbox: str | None = None) -> tuple[SnapshotInfo, ...]:
        """The oldest first; with `sandbox`, only those of that sandbox id."""
        ...

    @needs("admin", "GET snapshots/{snapshot}")
    async def get(self, snapshot: str) -> SnapshotInfo:
        """By name or id."""
        ...

    @needs("admin", "DELETE snapshots/{snapshot}", seconds=SLOW_SECONDS)
    async def remove(self, snapshot: str) -> None: ...


class Steered(Protocol):
    """What can be done to a running command; see `Process`."""

    async def send(self, data: bytes) -> None: ...
    async def send_eof(self) -> None: ...
    async def signal(self, number: int) -> None: ...
    async def resize(self, size: Pty) -> None: ...
    async def kill(self) -> None: ...


class Attached(Steered, Protocol):
    """A background command that the caller follows and steers; leaving does not end it."""

    def __aiter__(self) -> AsyncIterator[Output | Skipped | Exited]: ...


class SandboxVerbs(Protocol):
    """Sandboxes made by hand. They live in a server; without one there are none.

    `sandbox` is an id; unknown ones raise `UserError` (`no_such_sandbox`).
    """

    async def create(self, wish: NewSandbox, report: Report = no_report) -> tuple[SandboxInfo, bool]:
        """Open a sandbox, building its template first if need be. False: the same `task_id` named it before."""
        ...

    @needs("viewer", "GET sandboxes")
    async def list(self) -> tuple[SandboxInfo, ...]: ...

    @needs("admin", "GET sandboxes/{sandbox}")
    async def get(self, sandbox: str) -> SandboxInfo: ...

    @needs("viewer")
    async def resolve(self, name: str) -> SandboxInfo:
        """By id or a unique beginning of it. Raises `UserError` (`no_such_sandbox`, `ambiguous_sandbox`)."""
        ...

    @needs("admin", "POST sandboxes/{sandbox}/fork", seconds=BUILD_SECONDS, count="n")
    async def fork(self, sandbox: str, count: int = 1) -> tuple[SandboxInfo, ...]: ...

    @needs("admin", "DELETE sandboxes/{sandbox}", seconds=END_SECONDS)
    async def destroy(self, sandbox: str) -> None: ...

    @needs("viewer", "GET pool")
    async def pool(self) -> tuple[PoolInfo, ...]:
        """The sandboxes that are kept warm."""
        ...

    async def exec(self, sandbox: str, command: Exec) -> Executed:
        """Run a command to its end. Raises `UserError` (`bad_command`)."""
        ...

    async def execute(self, sandbox: str, program: Execute) -> Executed:
        """Run code to its end."""
        ...

    def process(self, sandbox: str, command: NewCommand) -> AbstractAsyncContextManager[Process]:
        """A live command; leaving the block before its end kills it. Raises `UserError` (`bad_command`)."""
        ...

    @needs("admin", "POST sandboxes/{sandbox}/commands", body="command")
    async def start(self, sandbox: str, command: NewCommand) -> BackgroundCommand:
        """Start a background command."""
        ...

    @needs("admin", "GET sandboxes/{sandbox}/commands")
    async def commands(self, sandbox: str) -> tuple[BackgroundCommand, ...]:
        """The background commands, also of a sandbox that is gone; the oldest first."""
        ...

    @needs("admin", "GET sandboxes/{sandbox}/commands/{command}")
    async def output(self, sandbox: str, command: str, offset: int = 0) -> CommandOutput:
        """Raises `UserError` (`no_such_command`, `bad_offset`)."""
        ...

    def attach(self, sandbox: str, command: str, offset: int = 0) -> AbstractAsyncContextManager[Attached]:
        """Follow and steer a background command. Raises `UserError` (`no_such_command`, `bad_offset`)."""
        ...

    @needs("admin", "DELETE sandboxes/{sandbox}/commands/{command}", seconds=END_SECONDS)
    async def kill(self, sandbox: str, command: str) -> BackgroundCommand:
        """End a background command; its record stays."""
        ...

    def dial(self, sandbox: str, port: int) -> AbstractAsyncContextManager[ByteStream]:
        """A connection to a port of the loopback inside. Raises `UserError` (`no_such_port`, …)."""
        ...


class FileVerbs(Protocol):
    """Files inside a sandbox; paths are absolute or relative to the work directory. See `Computer` for errors."""

    def read(
        self, sandbox: str, path: str, *, offset: int = 0, limit_bytes: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]: ...

    def write(self, sandbox: str, path: str, *, mode: int = 0o644) -> AbstractAsyncContextManager[Sink]:
        """The file is replaced when the block ends well. Raises `UserError` (`bad_mode`), and as `Computer.write`."""
        ...

    @needs("admin", "GET sandboxes/{sandbox}/files/list")
    async def list(self, sandbox: str, path: str = ".") -> tuple[Entry, ...]: ...

    @needs("admin", "GET sandboxes/{sandbox}/files/stat")
    async def stat(self, sandbox: str, path: str) -> Entry: ...

    @needs("admin", "POST sandboxes/{sandbox}/files/move")
    async def move(self, sandbox: str, path: str, to: str) -> None: ...

    @needs("admin", "POST sandboxes/{sandbox}/files/remove")
    async def remove(self, sandbox: str, path: str, *, recursive: bool = False) -> None: ...

    async def mkdir(self, sandbox: str, path: str, *, mode: int = 0o755) -> None: ...

    def download(self, sandbox: str, path: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A directory as a tar archive."""
        ...

    def upload(self, sandbox: str, path: str) -> AbstractAsyncContextManager[Sink]:
        """Unpack a tar archive into a directory."""
        ...

    def watch(self, sandbox: str, path: str = ".") -> AbstractAsyncContextManager[AsyncIterator[Change]]: ...


class ModelVerbs(Protocol):
    """Model files on the server's machine."""

    @needs("viewer", "GET models")
    async def list(self) -> tuple[LocalModel, ...]: ...

    @needs("admin", "POST models/fetch")
    async def fetch(self, name: str | None = None, report: Report = no_report) -> LocalModel:
        """Download or verify a model's file; None is the first of the list. Raises `UserError` (`unknown_model`)."""
        ...

    @needs("admin", "POST models")
    async def add(
        self, source: str, name: str | None = None, sha256: str | None = None, report: Report = no_report
    ) -> LocalModel:
        """Keep a GGUF file under a name: `source` is a URL, or a path on the server's machine.

        Raises `UserError` (`bad_source`, `bad_sum`, `bad_name`, `name_taken`, `bad_model_file`), `OutsideError`.
        """
        ...

    @needs("admin", "DELETE models/{name}")
    async def remove(self, name: str) -> tuple[str, ...]:
        """Remove a downloaded or added file; returns the removed paths. Raises `UserError` (`own_file`, `unknown_model`)."""
        ...


class PolicyVerbs(Protocol):
    """The rules of the server's machine. Raises `UserError` (`bad_policy`, `bad_action`)."""

    @needs("operator", "POST policy/layers", body="context")
    async def layers(self, context: RuleContext) -> Policy:
        """Every layer above a run, the widest first."""
        ...

    @needs("operator", "POST policy/explain")
    async def explain(self, action: str, context: RuleContext, *, untrusted: bool = False) -> Explained:
        """The decision about one action, e.g. `bash:git push`."""
        ...

    @needs("operator", "POST policy/test")
    async def test(self, text: str, source: str) -> tuple[PolicyVerdict, ...]:
        """Run the tests of a policy file against that file and the built-in rules."""
        ...

    @needs("admin", "GET policy/sets/{name}", seconds=SLOW_SECONDS)
    async def sets(self, name: str, *, again: bool = False) -> Meaning:
        """The hosts that a named set stands for on the server's machine. Raises `UserError` (`no_such_set`)."""
        ...


class EnvironmentVerbs(Protocol):
    """The environments that repositories need."""

    @needs("operator", "POST environments/plan", body="listing")
    async def plan(self, listing: Listing) -> Plan:
        """Detect the environment of a repository from its file names and manifests, which the caller has."""
        ...


class TriggerVerbs(Protocol):
    """What starts runs from outside. The settings declare it; unknown names raise `UserError` (`no_such_trigger`)."""

    @needs("viewer", "GET triggers")
    async def list(self) -> tuple[TriggerInfo, ...]: ...

    @needs("viewer", "GET triggers/{name}")
    async def get(self, name: str) -> TriggerInfo: ...

    @needs("operator", "POST triggers/{name}/run")
    async def run(self, name: str, repo: str | None = None, fields: dict[str, str] | None = None) -> Admitted:
        """Start its run now, with these values in its prompt. Raises `UserError` (`bad_run`), and as `submit`."""
        ...

    @needs("admin", "POST triggers/{name}/pause")
    async def pause(self, name: str, *, paused: bool = True) -> TriggerInfo:
        """Start no more runs, or, if not `paused`, start them again; what was asked meanwhile is lost."""
        ...


class Verbs(Protocol):
    """Everything one caller can do."""

    @property
    def runs(self) -> RunVerbs: ...
    @property
    def audit(self) -> AuditVerbs: ...
    @property
    def tokens(self) -> TokenVerbs: ...
    @property
    def webhooks(self) -> WebhookVerbs: ...
    @property
    def templates(self) -> TemplateVerbs: ...
    @property
    def snapshots(self) -> SnapshotVerbs: ...
    @property
    def sandboxes(self) -> SandboxVerbs: ...
    @property
    def files(self) -> FileVerbs: ...
    @property
    def models(self) -> ModelVerbs: ...
    @property
    def policy(self) -> PolicyVerbs: ...
    @property
    def environments(self) -> EnvironmentVerbs: ...
    @property
    def triggers(self) -> TriggerVerbs: ...
