"""People in the sandboxes of runs: a terminal, commands, files and ports of the sandbox that an attempt works in.

A sandbox is listed from the moment that its attempt has it, so never one in which a baseline or a proof is taken: the
baseline is a fork from before, and the proof is a fresh sandbox with the saved commit. What a person does is recorded in
the log of the run before it happens, and it can change nothing but the files that the next save point holds.
"""

import posixpath
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from cloister.core.computer import WORK_DIR
from cloister.core.errors import UserError
from cloister.core.events import SandboxUsed
from cloister.core.ids import RunId, SandboxId
from cloister.core.text import bounded, one_line
from cloister.policy.api import Commands, Policy, ToolAction
from cloister.policy.decide import Decider
from cloister.policy.shell.parse import read_commands
from cloister.sandbox.api import Sandbox, SandboxInfo

_WHAT_CHARS = 400

Record = Callable[[RunId, SandboxUsed], Awaitable[object]]
"""Appends to the log of a run. Raises `UserError` (`run_finished`)."""


@dataclass(frozen=True, slots=True)
class RunSandbox:
    """The sandbox of an attempt, as people enter it."""

    run: RunId
    attempt: int
    sandbox: Sandbox
    decider: Decider
    """Decides by the rules of the run."""
    _previews: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    """Who has looked at which port: a page is many requests."""

    @property
    def info(self) -> SandboxInfo:
        metadata = {"run": self.run, "attempt": str(self.attempt)}
        return msgspec.structs.replace(self.sandbox.info, metadata=metadata)

    async def check_command(self, line: str) -> None:
        """Raises `UserError` (`denied`). A rule that asks is answered: a person does it."""
        self._check(ToolAction("bash", line, await read_commands(line)))

    def check_terminal(self) -> None:
        """As `check_command`, for a shell whose lines are not known: it is denied where `bash` is."""
        self._check(ToolAction("bash", "bash", Commands((("bash",),))))

    def check_file(self, tool: Literal["read", "write"], path: str) -> None:
        """Raises `UserError` (`denied`). A change is judged again when it is saved."""
        full = posixpath.normpath(posixpath.join(WORK_DIR, path))
        self._check(ToolAction(tool, full.removeprefix(f"{WORK_DIR}/")))

    def _check(self, action: ToolAction) -> None:
        decision = self.decider.decide(action)
        if decision.effect == "deny":
            rule = one_line(decision.rule, 200)
            raise UserError("denied", f"A rule of run {self.run} forbids this in its sandbox: {rule}.")

    async def record(
        self, record: Record, who: str, how: Literal["terminal", "command", "file"], what: str
    ) -> None:
        """Enter what a person is about to do into the log of the run."""
        body = SandboxUsed(self.attempt, self.sandbox.info.id, how, bounded(what, _WHAT_CHARS), who)
        await record(self.run, body)

    async def record_preview(self, record: Record, who: str, port: int) -> None:
        """As `record`, once for each person and port."""
        if (who, port) not in self._previews:
            self._previews.add((who, port))
            await record(self.run, SandboxUsed(self.attempt, self.sandbox.info.id, "port", str(port), who))


class RunSandboxes:
    """The sandboxes that attempts of this process work in now."""

    def __init__(self) -> None:
        self._open: dict[SandboxId, RunSandbox] = {}

    @contextmanager
    def listed(self, run: RunId, attempt: int, sandbox: Sandbox, policy: Policy) -> Generator[None]:
        """People may enter `sandbox` while the block lasts."""
        name = sandbox.info.id
        self._open[name] = RunSandbox(run, attempt, sandbox, Decider(policy))
        try:
            yield
        finally:
            del self._open[name]

    def find(self, sandbox: str) -> RunSandbox | None:
        return self._open.get(SandboxId(sandbox))

    def of_run(self, run: RunId) -> tuple[RunSandbox, ...]:
        """Those of one run, by attempt."""
        return tuple(
            sorted((one for one in self._open.values() if one.run == run), key=lambda one: one.attempt)
        )
