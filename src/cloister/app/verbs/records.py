"""Records that verbs take and return and that no other package defines. HTTP bodies are these records as JSON."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from cloister.core import limits
from cloister.core.computer import WORK_DIR, Killed, Stream, User
from cloister.core.events import Effect
from cloister.core.ids import CommandId, RunId, SandboxId
from cloister.core.requests import Budget, BudgetWish, ModelWish, NewRun, Quota, Role, Tier

SECONDS_MAX = 3_600.0
"""Longest command that a request waits for."""
SIZE_MAX = 1_000
"""Most rows or columns of a terminal."""

Metadata = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=128)], Annotated[str, Meta(max_length=1_024)]],
    Meta(max_length=64),
]
Seconds = Annotated[float, Meta(gt=0, le=SECONDS_MAX)]
Size = Annotated[int, Meta(ge=1, le=SIZE_MAX)]


class RunWish(NewRun, frozen=True, forbid_unknown_fields=True):
    """A request for a run whose budget names only what differs from the configured one."""

    budget: BudgetWish = BudgetWish()  # pyright: ignore[reportIncompatibleVariableOverride]

    def new_run(self, usual: Budget) -> NewRun:
        """The request with its whole budget."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        fields["budget"] = self.budget.instead_of(usual, max(1, self.n, len(self.attempts)))
        return NewRun(**fields)


class Admitted(msgspec.Struct, frozen=True):
    """A run that is durable."""

    id: RunId
    made: bool
    """False when the same `key` named this run before."""


class ChangePack(msgspec.Struct, frozen=True):
    """A run's change as git objects, to be put into any checkout with `cloister.app.verbs.apply.put_change`."""

    run: RunId
    branch: str
    base: str
    """The commit that the run started from."""
    commit: str
    pack: bytes
    """A git pack; without the history of the commit that the caller has."""
    since: str | None
    """The caller's commit that the pack builds on; None when the pack is complete."""
    shallow: tuple[str, ...]
    """Commits at which the history of a complete pack is cut off."""
    receipt: str | None
    """The text of the change's git note."""
    previous: str | None = None
    """The commit of the round before, which a branch may be fast-forwarded from."""
    earlier: tuple[str, ...] = ()
    """The commits of all earlier rounds: a round may not have been applied."""


class ForgeCheck(msgspec.Struct, frozen=True):
    """Whether pull requests can be opened for one repository."""

    repository: str
    kind: str
    default_branch: str
    may: bool
    lacks: tuple[str, ...]
    """Rights that the token lacks; if `may`, for what comes after."""


class EnvironmentInfo(msgspec.Struct, frozen=True):
    """The environment of a repository."""

    template: str
    """What its runs start from."""
    built: bool
    """False if it was there, or nothing is needed."""
    seconds: float
    plan: tuple[str, ...]
    """What was detected, with the reason of each."""
    checks: tuple[str, ...]
    """What the checks said on the commit, one line each."""
    works: bool
    """Whether set-up succeeded and every check could run."""
    problem: str = ""
    """Why set-up failed, and what would help."""
    built_at: float = 0.0
    """When the template was built, in Unix seconds."""


TriggerKind = Literal["label", "mention", "hook", "schedule", "slack"]


class TriggerInfo(msgspec.Struct, frozen=True):
    """What starts runs from outside, and what it has started."""

    name: str
    on: TriggerKind
    what: str
    """The label, the name that is mentioned, the address of the webhook, or the schedule with its time zone."""
    repos: tuple[str, ...]
    paused: bool = False
    waiting: int = 0
    """Requests that have not started a run yet."""
    running: int = 0
    """Runs that it started and that are not finished."""
    last_run: RunId | None = None
    last_at: float | None = None
    """When it started its last run, in Unix seconds."""
    next_at: float | None = None
    """When its schedule is due next; None for other kinds, and while it is paused."""


class NewSandbox(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a sandbox."""

    template: str = "default"
    tier: Tier = "auto"
    quota: Quota | None = None
    """None is the configured quota."""
    ttl_seconds: Annotated[float, Meta(ge=1, le=limits.TTL_SECONDS_MAX)] = limits.TTL_SECONDS
    """The sandbox ends by itself after this."""
    env: dict[str, str] = {}
    task_id: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    """Chosen by the caller: the same one gives the same sandbox while it lives."""
    metadata: Metadata = {}
    """What the caller writes on it, to find it again."""
    model: ModelWish | None = None
    """None: programs inside have no model. A fork has none either."""


class SandboxChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to change about a sandbox; None leaves it."""

    ttl_seconds: Annotated[float, Meta(ge=1, le=limits.TTL_SECONDS_MAX)] | None = None
    """From now on."""
    metadata: Metadata | None = None
    """In place of all that it had."""
    paused: bool | None = None
    """True stops its processes, with their memory, for a day at most. False lets them go on, with the time they had left."""


class SandboxToken(msgspec.Struct, frozen=True):
    """A token for the inside of one sandbox; its secret is shown only here."""

    sandbox: SandboxId
    token: str


class PortAddress(msgspec.Struct, frozen=True):
    """A host name of this server that leads to one port of one sandbox, without a token: the name holds a secret."""

    sandbox: SandboxId
    port: int
    host: str


class Exec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command: `argv`, or `command` for a line that bash runs; exactly one of them."""

    argv: tuple[str, ...] | None = None
    command: str | None = None
    cwd: str = WORK_DIR
    env: dict[str, str] = {}
    user: User = "agent"
    seconds: Seconds = limits.COMMAND_SECONDS
    stdin: str = ""


class Execute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program in one of the languages that the template can run."""

    language: Literal["python", "bash", "sh"]
    code: str
    cwd: str = WORK_DIR
    env: dict[str, str] = {}
    user: User = "agent"
    seconds: Seconds = limits.COMMAND_SECONDS
    stdin: str = ""


class NewContext(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for an interpreter whose variables live from one piece of code to the next."""

    language: Literal["python"] = "python"
    cwd: str = WORK_DIR
    env: dict[str, str] = {}
    user: User = "agent"


class RunCode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of code for a context."""

    code: str
    seconds: Seconds = limits.COMMAND_SECONDS
    """After this it is interrupted; the variables stay."""
    env: dict[str, str] = {}
    """Set in the interpreter from now on."""


class Executed(msgspec.Struct, frozen=True):
    """A command that ended. Its output is untrusted; invalid UTF-8 in it is replaced."""

    exit_code: int | None
    """None when a signal ended it."""
    signal: int | None
    killed: Killed | None
    """Why we ended it; None when it ended by itself."""
    stdout: str
    stderr: str
    seconds: float
    truncated: bool
    """Whether it was ended because it printed too much."""

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and self.killed is None


class Terminal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A terminal's size, in characters."""

    rows: Size = 24
    columns: Size = 80


class NewCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command: `argv`, or `command` for a line that bash runs; exactly one of them."""

    argv: tuple[str, ...] | None = None
    command: str | None = None
    cwd: str = WORK_DIR
    env: dict[str, str] = {}
    user: User = "agent"
    seconds: Seconds | None = None
    """None is as long as the sandbox lives."""
    pty: Terminal | None = None
    """With a terminal, everything arrives as stdout."""


class BackgroundCommand(msgspec.Struct, frozen=True):
    """A background command as it stands."""

    id: CommandId
    sandbox: SandboxId
    argv: tuple[str, ...]
    cwd: str
    user: User
    pty: bool
    state: Literal["running", "exited", "failed", "lost"]
    """`failed`: it could not be started. `lost`: its end was not recorded."""
    exit_code: int | None
    signal: int | None
    killed: Killed | None
    reason: str
    """Why it failed or was lost."""
    started_at: float
    ended_at: float | None
    output_begin: int
    """The offset of the oldest output that is kept."""
    output_end: int
    """The offset of what is printed next."""


class Piece(msgspec.Struct, frozen=True):
    """Some output; `data` is base64."""

    stream: Stream
    data: bytes


class CommandOutput(msgspec.Struct, frozen=True):
    """A command and a part of its output."""

    command: BackgroundCommand
    output: tuple[Piece, ...]
    skipped: int
    """Bytes from the offset on that are no longer kept."""
    next_offset: int
    """Ask from here for more."""


class TokenInfo(msgspec.Struct, frozen=True):
    """A named token without its secret."""

    name: str
    role: Role
    made_at: float
    """Unix seconds."""


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a named token."""

    name: str
    role: Role = "viewer"


class MadeToken(msgspec.Struct, frozen=True):
    """A token that was just made; `token` is its secret, which is shown only here."""

    name: str
    role: Role
    token: str


class OneTimeLogin(msgspec.Struct, frozen=True):
    """The secret of an address that logs one browser in, once."""

    secret: str
    seconds: float
    """How long it is valid."""


class LoginInfo(msgspec.Struct, frozen=True):
    """A browser that is logged in."""

    id: str
    name: str
    role: Role
    since: float
    until: float


class Me(msgspec.Struct, frozen=True):
    """Who calls."""

    name: str
    role: Role
    login: str | None
    """The id of the browser's login; None for a token."""
    known: bool = True
    """Whether `role` is one on the server; False: only projects and links let the caller in."""


class LocalModel(msgspec.Struct, frozen=True):
    """A model that the server's machine can run."""

    name: str
    title: str
    license: str
    bytes: int
    path: str
    here: bool
    """Whether its file is there."""
    sha256: str = ""
    """Empty if it is not known."""


class ModelFacts(msgspec.Struct, frozen=True):
    """A model that a role may use."""

    name: str
    """`provider:model`."""
    input_price: float | None
    """US dollars per million tokens, for a request of usual size; None if it is unknown."""
    output_price: float | None
    window: int | None
    """The context window in tokens; None if it is unknown."""
    sees: bool
    """Whether it takes pictures."""
    problem: str
    """Why it cannot be used, such as a missing key; empty if it can."""


class ModelRole(msgspec.Struct, frozen=True):
    """A role and its models, best first; each is the fallback of the one before it."""

    role: str
    models: tuple[ModelFacts, ...]
    problem: str
    """Why the role has no model; empty if it has one."""


class ModelTrial(msgspec.Struct, frozen=True):
    """One short request to a model, and what came back."""

    name: str
    ok: bool
    text: str
    """What it said, or why it failed; bounded."""
    seconds: float
    input_tokens: int
    output_tokens: int
    cost: float | None
    """US dollars; None if the price is unknown."""


class RuleContext(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which rules to look at: the layers above `repo`, and the repository's own policy file as the caller read it."""

    repo: str | None = None
    """Path or URL, for the projects that the configuration names."""
    policy: str | None = None
    """The text of the repository's `.cloister/policy.toml`; None when there is none."""
    source: str = ".cloister/policy.toml"
    """How rules of that text are named."""


class Explained(msgspec.Struct, frozen=True):
    """One action and the decision about it."""

    action: str
    effect: Effect
    rule: str
    exact: bool
    inspect: bool
    approver: Role | None
    """The lowest role that may approve; None when the rules do not ask."""
    commands: tuple[str, ...] | None
    """Of `bash`: the commands found in the line."""
    unclear: str | None


class PolicyVerdict(msgspec.Struct, frozen=True):
    """One test of a policy file."""

    ok: bool
    action: str
    expect: Effect
    effect: Effect
    rule: str
    source: str
