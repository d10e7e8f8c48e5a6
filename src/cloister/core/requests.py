"""What people ask for and what things are: requests, budgets, tiers, tool calls."""

import re
from typing import Annotated, Literal

import msgspec

from cloister.core import limits
from cloister.core.attempts import AttemptWish, ForkedFrom, check_attempts

TierName = Literal["container", "gvisor", "microvm"]
"""How strongly a sandbox is isolated, weakest first."""

Tier = Literal["auto", "container", "gvisor", "microvm"]
"""What may be asked for."""
Outcome = Literal["green", "red", "unproven", "budget", "stopped", "failed"]
"""How a run ended. `unproven`: the model finished and there was no check to prove it."""
State = Literal["queued", "running", "finished"]
Origin = Literal["user", "repository", "tool", "issue", "review", "ci", "web", "server"]
"""Where text came from: a person, the repository, a command in the sandbox, an issue, a review comment, a CI job,
the network, a tool server."""
Role = Literal["viewer", "operator", "admin"]
"""What a caller may do, least first: look; work with runs; everything."""

_CREDENTIALS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/@]*:[^/@]*@")


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much a run, or each attempt of it, may spend."""

    steps: int = 60
    """Replies of the model."""
    tokens: int = 2_000_000
    """Input and output tokens together."""
    seconds: float = 3_600.0
    dollars: float | None = None
    """US dollars, by the prices that are known; None sets no limit."""


class BudgetWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of the usual budget is to be another."""

    steps: int | None = None
    tokens: int | None = None
    seconds: float | None = None
    dollars: float | None = None

    def instead_of(self, usual: Budget, attempts: int) -> Budget:
        """What is usual is so for one attempt; what was asked for is for all of them together."""
        return Budget(
            steps=usual.steps * attempts if self.steps is None else self.steps,
            tokens=usual.tokens * attempts if self.tokens is None else self.tokens,
            seconds=usual.seconds if self.seconds is None else self.seconds,
            dollars=usual.dollars if self.dollars is None else self.dollars,
        )


class Patience(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """After how many turns without progress an attempt counts as stuck; 0 never."""

    repeats: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 4
    """Turns in a row with the same actions and the same results."""
    alternations: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 3
    """Times that the same two turns take each other's place."""
    unchanged: Annotated[int, msgspec.Meta(ge=0)] = 8
    """Times in a row that the checks found exactly the same after files were changed."""
    idle: Annotated[int, msgspec.Meta(ge=0)] = 30
    """Turns in a row that changed no file."""
    malformed: Annotated[int, msgspec.Meta(ge=0)] = 3
    """Turns in a row in which no call could be understood."""


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one sandbox may use of this machine."""

    cpus: float = 2.0
    memory_bytes: int = 2_147_483_648
    processes: int = 512
    open_files: int = 4_096
    disk_bytes: int = 10_737_418_240
    """What it may write; enforced where the store says so."""


class DoorBounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much and how long one sandbox may use the door."""

    connections: Annotated[int, msgspec.Meta(ge=1, le=limits.DOOR_CONNECTIONS)] = limits.DOOR_CONNECTIONS
    bytes: Annotated[int, msgspec.Meta(ge=1)] = limits.DOOR_BYTES
    """Both ways together, in the sandbox's life."""
    requests_per_second: Annotated[float, msgspec.Meta(gt=0)] = limits.DOOR_REQUESTS_PER_SECOND
    requests_at_once: Annotated[int, msgspec.Meta(ge=1)] = limits.DOOR_REQUESTS_AT_ONCE
    """How many before `requests_per_second` holds; a new connection counts as one."""
    connection_seconds: Annotated[float, msgspec.Meta(gt=0)] = limits.DOOR_CONNECTION_SECONDS
    idle_seconds: Annotated[float, msgspec.Meta(gt=0)] = limits.DOOR_IDLE_SECONDS
    head_seconds: Annotated[float, msgspec.Meta(gt=0)] = limits.DOOR_HEAD_SECONDS
    dial_seconds: Annotated[float, msgspec.Meta(gt=0)] = limits.DOOR_DIAL_SECONDS


class CredentialEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"source": "from"}):
    """One `[[credential]]` table of the configuration file."""

    name: str
    source: str
    """`env:VARIABLE`, `file:PATH`, `command:PROGRAM ARGUMENT…` or `keyring:SERVICE/USER`; read on the host only."""
    host: str
    port: int = 443
    methods: tuple[str, ...] = ("*",)
    paths: tuple[str, ...] = ("/**",)
    header: str | None = None
    """Added to every request it is for, as in `Authorization: Bearer {}`."""
    basic: str | None = None
    """The user name of an `Authorization: Basic` header that is added instead, with the value as its password."""
    env: str | None = None
    """A variable inside that holds the stand-in."""


class PoolWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sandboxes to keep warm while a server runs."""

    template: str = "default"
    tier: Tier = "auto"
    size: Annotated[int, msgspec.Meta(ge=1, le=500)] = 2
    memory_bytes: Annotated[int, msgspec.Meta(ge=8_388_608)] = 268_435_456
    """What those that wait may use together; none is added beyond it."""


class RunRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule for one run; see docs/policy.md for what `action` may be."""

    action: str
    effect: Literal["allow", "deny", "ask"]


class NewRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a run."""

    prompt: str
    repo: str
    """A path on the server's machine or a git URL."""
    ref: str | None = None
    """Branch, tag or commit to start from; None is the repository's HEAD."""
    checks: tuple[str, ...] = ()
    """Commands that must be green; empty means: look for them."""
    model: str | None = None
    """`provider:name`, or `script:FILE`; None is the configured default."""
    kind: str | None = None
    """What kind of task it is, for settings that name models by it."""
    n: int = 1
    """Attempts, each in its own fork."""
    tier: Tier = "auto"
    template: str = "default"
    """What its sandboxes start from; a warmed template made from it is taken where there is one."""
    budget: Budget = Budget()
    allow_hosts: tuple[str, ...] = ()
    """Hosts this run asks to reach; the policy decides."""
    rules: tuple[RunRule, ...] = ()
    """More rules for this run: it may narrow as it likes, and open what the layers above let it open."""
    key: str | None = None
    """Idempotency key: the same key is the same run."""
    origin: Origin = "user"
    """Where the prompt's text came from; what an outsider wrote is not trusted like a person's own words."""
    attempts: tuple[AttemptWish, ...] = ()
    """Attempts that differ, each in its own fork; instead of `n`."""
    first_green: bool = False
    """Stop the other attempts as soon as one is proven."""
    search: str | None = None
    """How a stuck attempt is gone on with from its best save point: `greedy` or `beam:K`; None: not at all."""
    forked_from: ForkedFrom | None = None
    """The save point of another run that this one goes on from, with its files and its conversation."""
    asked: tuple[str, ...] = ()
    """Tests, files of tests or checks that must be green; empty means: what the prompt asks for."""


class ToolCall(msgspec.Struct, frozen=True):
    """What a model wants done. `arguments` is what it sent, decoded but not yet checked."""

    id: str
    name: str
    arguments: dict[str, object]


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one model call."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Part of `input_tokens` that was read from a cache."""
    written_tokens: int = 0
    """Part of `input_tokens` that was written to a cache."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.written_tokens + other.written_tokens,
        )

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens


class Isolation(msgspec.Struct, frozen=True):
    """What really stands between a sandbox and this machine."""

    tier: TierName
    runtime: str
    """Name and version of the OCI runtime or the emulator."""
    shares_kernel: bool
    store: str
    """Kind of copy-on-write store under its root."""
    platform: str | None = None
    """How system calls are served where not by this machine's kernel: gVisor's `systrap` or `ptrace`."""
    seccomp: bool = True
    """Whether the list of allowed system calls is in force inside."""
    accelerator: Literal["kvm", "tcg"] | None = None
    """What runs the instructions of a virtual machine; `tcg` is software emulation. None where there is none."""


class FileChange(msgspec.Struct, frozen=True):
    """One file of a change."""

    path: str
    added: int
    """Lines; 0 for binary files."""
    removed: int
    status: Literal["added", "modified", "deleted", "renamed"] = "modified"


def check_budget(budget: Budget) -> str | None:
    """Why `budget` cannot be used, as one sentence; None when it can. No number is no budget."""
    if not (budget.steps >= 1 and budget.tokens >= 1 and 0 < budget.seconds <= limits.RUN_SECONDS_MAX):
        return (
            "A budget needs at least one step, one token and some time, "
            f"at most {limits.RUN_SECONDS_MAX:,.0f} seconds."
        )
    if max(budget.steps, budget.tokens) > limits.BUDGET_MAX:
        return f"A budget has at most {limits.BUDGET_MAX:,} steps or tokens."
    if budget.dollars is not None and not 0 < budget.dollars < float("inf"):
        return "A budget in dollars is more than nothing: leave it out to set no limit."
    return None


def check_new_run(new: NewRun) -> str | None:
    """Why `new` cannot be admitted, as one sentence; None when it can."""
    if not new.prompt.strip():
        return "The prompt is empty: say what should be done."
    size = len(new.prompt.encode("utf-8", errors="replace"))
    if size > limits.PROMPT_BYTES:
        return (
            f"The prompt is {size:,} bytes and the limit is {limits.PROMPT_BYTES:,}: "
            "put the long text into a file of the repository and refer to it."
        )
    if not new.repo.strip():
        return "No repository: give a path or a git URL."
    if not 1 <= new.n <= limits.ATTEMPTS:
        return f"Attempts must be between 1 and {limits.ATTEMPTS}, not {new.n}."
    if problem := check_budget(new.budget) or check_attempts(new):
        return problem
    if _CREDENTIALS.match(new.repo):
        return (
            "The repository's URL holds a password or token, which would be stored with the run: "
            "leave it out and let git's credential helper supply it."
        )
    if len(new.rules) + len(new.allow_hosts) > limits.RUN_RULES:
        return f"A run brings at most {limits.RUN_RULES} rules along: write them into a policy file."
    return _check_evidence(new)


def _check_evidence(new: NewRun) -> str | None:
    if len(new.checks) > limits.CHECKS:
        return f"A run takes at most {limits.CHECKS} checks: join some with &&."
    if any(not check.strip() for check in new.checks):
        return "A check is empty: give the command to run."
    if len(new.asked) > limits.ASKED or any(not name.strip() or len(name) > 400 for name in new.asked):
        return f"At most {limits.ASKED} tests can be asked for, each by a name of at most 400 characters."
    return None
