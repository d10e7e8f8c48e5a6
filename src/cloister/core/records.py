"""What people ask for and what things are: requests, budgets, tiers, tool calls."""

import re
from typing import Annotated, Literal

import msgspec

from cloister.core import limits

TierName = Literal["container", "gvisor", "microvm"]
"""How strongly a sandbox is isolated, weakest first."""

Tier = Literal["auto", "container", "gvisor", "microvm"]
"""What may be asked for."""
Outcome = Literal["green", "red", "unproven", "budget", "stopped", "failed"]
"""How a run ended. `unproven`: the model finished and there was no check to prove it."""
State = Literal["queued", "running", "finished"]

_CREDENTIALS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/@]*:[^/@]*@")


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much a run, or each attempt of it, may spend."""

    steps: int = 60
    """Replies of the model."""
    tokens: int = 2_000_000
    """Input and output tokens together."""
    seconds: float = 3_600.0


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one sandbox may use of this machine."""

    cpus: float = 2.0
    memory_bytes: int = 2_147_483_648
    processes: int = 512
    open_files: int = 4_096
    disk_bytes: int = 10_737_418_240
    """What it may write; enforced where the store says so."""


class PoolWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sandboxes to keep warm while a server runs."""

    template: str = "default"
    tier: Tier = "auto"
    size: Annotated[int, msgspec.Meta(ge=1, le=500)] = 2
    memory_bytes: Annotated[int, msgspec.Meta(ge=8_388_608)] = 268_435_456
    """What those that wait may use together; none is added beyond it."""


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
    n: int = 1
    """Attempts, each in its own fork."""
    tier: Tier = "auto"
    template: str = "default"
    """What its sandboxes start from; a warmed template made from it is taken where there is one."""
    budget: Budget = Budget()
    allow_hosts: tuple[str, ...] = ()
    """Hosts this run asks to reach; the policy decides."""
    key: str | None = None
    """Idempotency key: the same key is the same run."""
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

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
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
    if problem := check_budget(new.budget):
        return problem
    if _CREDENTIALS.match(new.repo):
        return (
            "The repository's URL holds a password or token, which would be stored with the run: "
            "leave it out and let git's credential helper supply it."
        )
    if len(new.checks) > limits.CHECKS:
        return f"A run takes at most {limits.CHECKS} checks: join some with &&."
    if any(not check.strip() for check in new.checks):
        return "A check is empty: give the command to run."
    if len(new.asked) > limits.ASKED or any(not name.strip() or len(name) > 400 for name in new.asked):
        return f"At most {limits.ASKED} tests can be asked for, each by a name of at most 400 characters."
    return None
