"""One tool call: decode the arguments, get approval, run. The decision is in the log before the tool runs."""

import time
from typing import Any

import msgspec

from cloister.agent.approvals import Approvals, Ruling
from cloister.agent.harnesses.api import Workplace
from cloister.agent.tools.api import AnyTool, Observation, answered_by_the_loop, observe
from cloister.agent.tools.schema import arguments_problem
from cloister.agent.tools.toolset import ToolSet
from cloister.core.computer import Stream
from cloister.core.events import (
    AnyBody,
    CommandOutput,
    ModelReplied,
    SandboxOpened,
    ToolReturned,
)
from cloister.core.requests import ToolCall
from cloister.core.text import decode, one_line
from cloister.environment.installers import explain_to_model, refusals
from cloister.model.api import INVALID_ARGUMENTS


class ToolCalls:
    """Runs the calls of a model, as far as the policy allows."""

    def __init__(self, place: Workplace) -> None:
        self._attempt = place.attempt
        self._journal = place.journal
        self._computer = place.computer
        self._tools = place.tools
        self._approvals = Approvals(
            place.attempt, place.journal, place.computer, place.policy, place.ask_seconds
        )
        self._recorded: Ruling | None = None
        """The ruling about the first call of the newest reply, recorded with the reply."""

    async def follow(self, reply: ModelReplied) -> tuple[AnyBody, ...]:
        """The ruling about the first call of `reply`. Recorded with the reply, it saves a transaction."""
        self._recorded = None
        for call in reply.calls[:1]:
            known = decoded(call, self._tools)
            if isinstance(known, tuple) and known[0].run is not answered_by_the_loop:
                self._recorded = await self._approvals.rule(call, *known)
                return self._recorded.bodies
        return ()

    async def run(self, call: ToolCall) -> ToolReturned:
        """Run one call and return its result, which the caller records."""
        started = time.monotonic()
        known = decoded(call, self._tools)
        observation = known if isinstance(known, Observation) else await self._observe(call, *known)
        own = "tool" if isinstance(known, Observation) else known[0].origin
        return ToolReturned(
            self._attempt,
            call.id,
            call.name,
            observation.ok,
            observation.text,
            time.monotonic() - started,
            observation.exit_code,
            self._approvals.provenance.origin(observation.origin or own),
            observation.pictures,
        )

    async def _observe(self, call: ToolCall, tool: AnyTool, args: Any) -> Observation:
        ruling, self._recorded = self._recorded, None
        if ruling is None or ruling.call is not call:
            ruling = await self._approvals.rule(call, tool, args)
            await self._journal.append(*ruling.bodies)
        effect, why = await self._approvals.outcome(ruling)
        if effect != "allow":
            return observe(False, f"Not allowed: {why}.")

        def show(stream: Stream, data: bytes) -> None:
            self._journal.show(CommandOutput(self._attempt, call.id, stream, decode(data)))

        before = len(self._journal.events)
        observation = await tool.run(self._computer, args, show)
        return self._explained(observation, call, before)

    def _explained(self, observation: Observation, call: ToolCall, before: int) -> Observation:
        """Name the connections that were denied meanwhile: clients report them as missing packages."""
        since = (event.body for event in self._journal.events[before:])
        mine = refusals(since, self._journal.index.of(SandboxOpened), self._attempt)
        told = explain_to_model(str(call.arguments.get("command", "")), mine)
        if not told:
            return observation
        text = observe(observation.ok, f"{observation.text}\n[{told}]").text
        return msgspec.structs.replace(observation, text=text)


def decoded(call: ToolCall, tools: ToolSet) -> tuple[AnyTool, Any] | Observation:
    """The tool and its decoded arguments, or an observation that says what is wrong with the call."""
    name, arguments = tools.inner(call.name, call.arguments)
    tool = tools.get(name)
    if tool is None:
        known = ", ".join(sorted(spec.name for spec in tools.specs))
        return observe(False, f"There is no tool `{one_line(name, 60)}`. Available: {known}.")
    if set(call.arguments) == {INVALID_ARGUMENTS}:
        sent = str(call.arguments[INVALID_ARGUMENTS])
        return observe(
            False,
            f"The arguments of `{tool.name}` are not a complete JSON object (cut off at {one_line(sent[-80:], 80)!r}). "
            "Split the call if it was too long.",
        )
    if tool.schema is not None:
        problem = arguments_problem(tool.schema, arguments)
        return (
            observe(False, f"Invalid arguments of `{tool.name}`: {problem}.")
            if problem
            else (tool, arguments)
        )
    try:
        return tool, msgspec.convert(arguments, tool.args)
    except msgspec.ValidationError as error:
        return observe(False, f"Invalid arguments of `{tool.name}`: {error}.")
