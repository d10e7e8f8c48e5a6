"""One tool call: decode, decide, then act. Each step is in the log before the next."""

import secrets
import time

import msgspec

from cloister.agent.asking import answered
from cloister.agent.provenance import Provenance
from cloister.agent.shell.read import read_commands
from cloister.agent.tools import TOOLS
from cloister.agent.tools.api import AnyTool, Observation, observe
from cloister.core.commands import Computer, Stream
from cloister.core.events import (
    ActionDecided,
    AskRaised,
    CommandOutput,
    Effect,
    ToolReturned,
)
from cloister.core.journal import Journal
from cloister.core.records import ToolCall
from cloister.core.text import bounded, decode, one_line
from cloister.policy.api import Policy, ToolAction
from cloister.policy.decide import Decider


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

    async def act(self, call: ToolCall) -> None:
        """Do one call; its `ToolReturned` is in the log when this returns."""
        started = time.monotonic()
        observation = await self._observe(call)
        await self._journal.append(
            ToolReturned(
                self._attempt,
                call.id,
                call.name,
                observation.ok,
                observation.text,
                time.monotonic() - started,
                observation.exit_code,
                self._provenance.origin(call.name),
            )
        )

    async def _observe(self, call: ToolCall) -> Observation:
        tool = TOOLS.get(call.name)
        if tool is None:
            return observe(
                False, f"There is no tool {one_line(call.name, 60)}; there are {', '.join(sorted(TOOLS))}."
            )
        try:
            args = msgspec.convert(call.arguments, tool.args)
        except msgspec.ValidationError as error:
            return observe(False, f"The arguments of {tool.name} were not understood: {error}.")
        effect, rule = await self._decide(call, tool, tool.target(args))
        if effect != "allow":
            return observe(False, f"Not allowed: {rule}.")

        def show(stream: Stream, data: bytes) -> None:
            self._journal.show(CommandOutput(self._attempt, call.id, stream, decode(data)))

        return await tool.run(self._computer, args, show)

    async def _decide(self, call: ToolCall, tool: AnyTool, target: str) -> tuple[Effect, str]:
        commands = await read_commands(target) if self._decider.parses(tool.name) else None
        decision = self._decider.decide(
            ToolAction(tool.name, target, commands), untrusted=self._provenance.untrusted
        )
        action = f"{tool.name}: {one_line(target)}"
        decided = ActionDecided(self._attempt, call.id, action, decision.effect, decision.rule)
        if decision.effect != "ask":
            await self._journal.append(decided)
            return decision.effect, decision.rule
        ask = AskRaised(
            ask="a-" + secrets.token_hex(4),
            attempt=self._attempt,
            action=action,
            detail=bounded(target, 20_000),
            deadline=time.time() + self._ask_seconds,
            rule=decision.rule,
            approver=decision.approver,
        )
        await self._journal.append(decided, ask)
        answer = (await answered(self._journal, ask)).answer
        return answer, f"{decision.rule}, answered {answer}"
