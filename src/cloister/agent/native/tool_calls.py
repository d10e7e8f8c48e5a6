"""One tool call: decode, decide, then act. The decision is in the log before anything is done."""

import secrets
import time
from typing import Any, NamedTuple

import msgspec

from cloister.agent.approvals import answered
from cloister.agent.shell.parse import read_commands
from cloister.agent.taint import Provenance
from cloister.agent.tools import TOOLS
from cloister.agent.tools.api import AnyTool, Observation, observe
from cloister.core.computer import Computer, Stream
from cloister.core.events import (
    ActionDecided,
    AnyBody,
    AskRaised,
    CommandOutput,
    Effect,
    ModelReplied,
    ToolReturned,
)
from cloister.core.log import Journal
from cloister.core.requests import ToolCall
from cloister.core.text import bounded, decode, one_line
from cloister.model.api import INVALID_ARGUMENTS
from cloister.policy.api import Policy, ToolAction
from cloister.policy.decide import Decider

_OF_THE_LOOP = frozenset({"finish", "recall"})
"""Tools that do nothing in the sandbox: the loop answers them, and there is nothing to decide."""


class _Decided(NamedTuple):
    """What the policy says to one call."""

    call: ToolCall
    decided: ActionDecided
    ask: AskRaised | None = None
    """The question to a person, where that is what it says."""

    @property
    def bodies(self) -> tuple[AnyBody, ...]:
        return (self.decided,) if self.ask is None else (self.decided, self.ask)


class Actor:
    """Does what the model asks, as far as the policy allows."""

    def __init__(
        self, attempt: int, journal: Journal, computer: Computer, policy: Policy, ask_seconds: float
    ) -> None:
        self._attempt = attempt
        self._journal = journal
        self._computer = computer
        self._decider = Decider(policy)
        self._provenance = Provenance(attempt, journal)
        self._ask_seconds = ask_seconds
        self._recorded: _Decided | None = None
        """The decision about the first call of the newest reply, which is in the log with the reply."""

    async def follow(self, reply: ModelReplied) -> tuple[AnyBody, ...]:
        """What is decided about the first call of `reply`. Recorded with it, it saves that call a write of its own."""
        self._recorded = None
        for call in reply.calls[:1]:
            known = _known(call)
            if isinstance(known, tuple) and call.name not in _OF_THE_LOOP:
                self._recorded = await self._judge(call, *known)
                return self._recorded.bodies
        return ()

    async def act(self, call: ToolCall) -> ToolReturned:
        """Do one call, and return what is to be recorded of it."""
        started = time.monotonic()
        observation = await self._observe(call)
        return ToolReturned(
            self._attempt,
            call.id,
            call.name,
            observation.ok,
            observation.text,
            time.monotonic() - started,
            observation.exit_code,
            self._provenance.origin(call.name),
        )

    async def _observe(self, call: ToolCall) -> Observation:
        known = _known(call)
        if isinstance(known, Observation):
            return known
        tool, args = known
        effect, rule = await self._decide(call, tool, args)
        if effect != "allow":
            return observe(False, f"Not allowed: {rule}.")

        def show(stream: Stream, data: bytes) -> None:
            self._journal.show(CommandOutput(self._attempt, call.id, stream, decode(data)))

        return await tool.run(self._computer, args, show)

    async def _decide(self, call: ToolCall, tool: AnyTool, args: Any) -> tuple[Effect, str]:
        """What the policy, or a person whom it asks, says; in the log when this returns."""
        found, self._recorded = self._recorded, None
        if found is None or found.call is not call:
            found = await self._judge(call, tool, args)
            await self._journal.append(*found.bodies)
        effect, rule = found.decided.effect, found.decided.rule
        if found.ask is None:
            return effect, rule
        answer = (await answered(self._journal, found.ask)).answer
        return answer, f"{rule}, answered {answer}"

    async def _judge(self, call: ToolCall, tool: AnyTool, args: Any) -> _Decided:
        target = tool.target(args)
        commands = await read_commands(target) if self._decider.parses(tool.name) else None
        decision = self._decider.decide(
            ToolAction(tool.name, target, commands), untrusted=self._provenance.untrusted
        )
        action = f"{tool.name}: {one_line(target)}"
        decided = ActionDecided(self._attempt, call.id, action, decision.effect, decision.rule)
        if decision.effect != "ask":
            return _Decided(call, decided)
        ask = AskRaised(
            ask="a-" + secrets.token_hex(4),
            attempt=self._attempt,
            action=action,
            detail=bounded(target, 20_000),
            deadline=time.time() + self._ask_seconds,
            rule=decision.rule,
            approver=decision.approver,
        )
        return _Decided(call, decided, ask)


def _known(call: ToolCall) -> tuple[AnyTool, Any] | Observation:
    """The tool and its decoded arguments, or what is wrong with the call."""
    tool = TOOLS.get(call.name)
    if tool is None:
        return observe(
            False, f"There is no tool {one_line(call.name, 60)}; there are {', '.join(sorted(TOOLS))}."
        )
    if set(call.arguments) == {INVALID_ARGUMENTS}:
        sent = str(call.arguments[INVALID_ARGUMENTS])
        return observe(
            False,
            f"The arguments of {tool.name} are no whole JSON object; they end with {one_line(sent[-80:], 80)!r}. If they "
            "broke off because they were too long, do it in several calls with less in each.",
        )
    try:
        return tool, msgspec.convert(call.arguments, tool.args)
    except msgspec.ValidationError as error:
        return observe(False, f"The arguments of {tool.name} were not understood: {error}.")
