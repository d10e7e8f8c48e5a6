"""Approvals: may this tool call run? The policy decides, or asks a person; only an allowed role can say yes."""

import secrets
import time
from contextlib import suppress
from typing import Any, NamedTuple

import anyio

from cloister.agent.taint import Provenance
from cloister.agent.tools.api import AnyTool
from cloister.core.computer import WORK_DIR, Command, Computer
from cloister.core.errors import CloisterError
from cloister.core.events import ActionDecided, AnyBody, AskAnswered, AskRaised, Effect
from cloister.core.log import Journal
from cloister.core.requests import ToolCall
from cloister.core.text import decode, one_line
from cloister.policy.api import Policy, ToolAction
from cloister.policy.decide import Decider
from cloister.policy.shell.parse import read_commands

DETAIL_CHARS = 20_000
"""What a person can be shown in one question."""
_REAL = """
p=$1 rest=
case $p in /*) ;; *) p=$PWD/$p ;; esac
until q=$(readlink -f -- "$p") && [ -n "$q" ]; do
  [ "$p" != / ] || exit 1
  rest=/${p##*/}$rest p=${p%/*}
  [ -n "$p" ] || p=/
done
printf '%s\\0%s' "$(pwd -P)" "$q$rest"
"""
"""Prints the work directory and the path that links lead to, also for a file that does not exist yet."""
_REAL_SECONDS = 10.0


class Ruling(NamedTuple):
    """The policy's decision about one call."""

    call: ToolCall
    decided: ActionDecided
    ask: AskRaised | None = None
    """The question to a person, if the decision is `ask`."""

    @property
    def bodies(self) -> tuple[AnyBody, ...]:
        """The events to record."""
        return (self.decided,) if self.ask is None else (self.decided, self.ask)


class Approvals:
    """Decides about the tool calls of one attempt."""

    def __init__(
        self, attempt: int, journal: Journal, computer: Computer, policy: Policy, ask_seconds: float
    ) -> None:
        self._computer = computer
        self.provenance = Provenance(attempt, journal)
        self._attempt = attempt
        self._journal = journal
        self._decider = Decider(policy)
        self._ask_seconds = ask_seconds

    async def rule(self, call: ToolCall, tool: AnyTool, args: Any) -> Ruling:
        """Ask the policy. The caller records the ruling before the call runs."""
        target = tool.target(args)
        name = tool.rule_name
        commands = await read_commands(target) if self._decider.parses(name) else None
        real = await self._real(target) if self._decider.has_paths(name) else None
        decision = self._decider.decide(
            ToolAction(name, target, commands, real), untrusted=self.provenance.untrusted
        )
        action = f"{name}: {one_line(target)}"
        effect, rule = decision.effect, decision.rule
        if effect == "ask" and len(target) > DETAIL_CHARS:
            # A person must see all of what they allow.
            effect = "deny"
            rule += (
                f"; it has {len(target):,} characters, and at most {DETAIL_CHARS:,} can be shown to a person"
            )
        decided = ActionDecided(self._attempt, call.id, action, effect, rule)
        if effect != "ask":
            return Ruling(call, decided)
        ask = AskRaised(
            ask=new_ask_id(),
            attempt=self._attempt,
            action=action,
            detail=target,
            deadline=time.time() + self._ask_seconds,
            rule=decision.rule,
            approver=decision.approver,
        )
        return Ruling(call, decided, ask)

    async def _real(self, path: str) -> str | None:
        """Where links lead, as the sandbox says; None if it cannot say. A change is judged again when it is saved."""
        inside = path.removeprefix(f"{WORK_DIR}/") or "."
        with suppress(CloisterError):  # the tool itself reports a lost sandbox
            found = await self._computer.run(
                Command(("/bin/sh", "-c", _REAL, "sh", inside), seconds=_REAL_SECONDS)
            )
            work, zero, real = decode(found.out).partition("\0")
            if found.ok and zero:
                return real.removeprefix(f"{work}/") if real.startswith(f"{work}/") else real
        return None

    async def outcome(self, ruling: Ruling) -> tuple[Effect, str]:
        """The effect and its reason. Waits for a person if the ruling asks one."""
        effect, rule = ruling.decided.effect, ruling.decided.rule
        if ruling.ask is None:
            return effect, rule
        answer = (await answered(self._journal, ruling.ask)).answer
        return answer, f"{rule}, answered {answer}"


def new_ask_id() -> str:
    return "a-" + secrets.token_hex(4)


async def answered(journal: Journal, ask: AskRaised) -> AskAnswered:
    """Wait for the answer of a person. After the deadline, record and return the default."""
    with anyio.move_on_after(max(0.0, ask.deadline - time.time())):
        seen = 0
        while True:
            for event in journal.events[seen:]:
                body = event.body
                if isinstance(body, AskAnswered) and body.ask == ask.ask and counts(body, ask):
                    return body
            seen = len(journal.events)
            await journal.changed(seen)
    answer = AskAnswered(ask.ask, ask.default, "deadline")
    await journal.append(answer)
    return answer


def counts(answer: AskAnswered, ask: AskRaised) -> bool:
    """True if the role of the answer is sufficient. The server has checked it before; the log is checked again."""
    return answer.answer == "deny" or answer.role == "admin" or answer.role == ask.approver
