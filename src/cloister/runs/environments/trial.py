"""Try a tool without a run: in a sandbox of the repository's environment, decided by the rules of its runs."""

import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from cloister.agent.tools.api import AnyTool, Arguments, Observation
from cloister.agent.tools.schema import arguments_problem
from cloister.agent.tools.toolset import ToolPlace, ToolSet, open_tools
from cloister.core.computer import Computer, Stream
from cloister.core.errors import UserError, sole
from cloister.core.events import AnyBody, ToolsOffered
from cloister.core.ids import RunId, SandboxId
from cloister.core.requests import NewRun
from cloister.core.text import one_line
from cloister.egress.rules import DoorEvent, Record
from cloister.forge import workspace
from cloister.log.journal import MemoryJournal
from cloister.policy.api import Decision, Policy, ToolAction
from cloister.policy.decide import Decider
from cloister.runs.environments.layers import Outlet
from cloister.runs.environments.repository import prepared
from cloister.runs.services import RunServices
from cloister.sandbox.api import Report

_RUN = RunId("r-trial")
_NAMES = 40


class Tried(NamedTuple):
    """What a call returned, and the decision about it."""

    observation: Observation
    decision: Decision
    seconds: float


async def try_tool(
    services: RunServices, record: Record, request: NewRun, name: str, arguments: Arguments, report: Report
) -> Tried:
    """Call one added tool as a run on the newest commit would. A request without a repository has an empty sandbox.

    Raises `UserError` (`no_such_tool`, `bad_arguments`, `denied`). What a person must allow is allowed: a person asks.
    """
    try:
        return await _try(services, record, request, name, arguments, report)
    except Exception as error:
        raise sole(error) from None  # from the tasks of servers


async def _try(
    services: RunServices, record: Record, request: NewRun, name: str, arguments: Arguments, report: Report
) -> Tried:
    async with _opened(services, record, request, report) as (tools, policy, computer, problems):
        tool = _named(tools, name, problems)
        given = _checked(tool, arguments)
        action = ToolAction(tool.rule_name, tool.target(given))
        decision = Decider(tools.granted(policy)).decide(action)
        if decision.effect == "deny":
            called = tool.action or f"tool:{tool.name}"
            raise UserError("denied", f"{called} is not allowed: {one_line(decision.rule, 300)}.")
        report(None, f"calling {tool.name}")
        started = time.monotonic()
        found = await tool.run(computer, given, _quiet)
        return Tried(found, decision, time.monotonic() - started)


def _quiet(stream: Stream, data: bytes) -> None:
    del stream, data


def _named(tools: ToolSet, name: str, problems: Sequence[str]) -> AnyTool:
    found = next(
        (one for one in tools.added.values() if name in (one.name, one.action, one.action[4:])), None
    )
    if found is not None:
        return found
    raise no_such_tool(name, tools.added, problems)


def no_such_tool(name: str, known: Iterable[str], problems: Sequence[str]) -> UserError:
    """Says why the tool cannot be used, or which there are."""
    about = [one for one in problems if name.partition(".")[0] in one]
    why = f" {about[0]}" if about else f" There are: {', '.join(sorted(known)[:_NAMES]) or 'none'}."
    return UserError("no_such_tool", f"There is no added tool {one_line(name, 60)!r}.{why}")


def _checked(tool: AnyTool, arguments: Arguments) -> object:
    if tool.schema is not None:
        if problem := arguments_problem(tool.schema, arguments):
            raise UserError("bad_arguments", f"Invalid arguments of {tool.name}: {problem}.")
        return arguments
    try:
        return msgspec.convert(arguments, tool.args)
    except msgspec.ValidationError as error:
        why = one_line(str(error), 300)
        raise UserError("bad_arguments", f"Invalid arguments of {tool.name}: {why}.") from None


@asynccontextmanager
async def _opened(
    services: RunServices, record: Record, request: NewRun, report: Report
) -> AsyncGenerator[tuple[ToolSet, Policy, Computer, Sequence[str]]]:
    async def enter(body: AnyBody) -> None:
        # Connections are recorded where those of sandboxes made by hand are.
        if isinstance(body, DoorEvent):
            await record(SandboxId(body.sandbox), body)

    journal = MemoryJournal(_RUN, enter)
    if request.repo:
        async with (
            prepared(services, record, request, report) as (made, base, governed, outlet, bare),
            outlet.opened(made.template.name, {}, frozenset()) as inside,
        ):
            inside.shut()
            await workspace.sync(inside.sandbox, bare, made.template.about.commit, base.commit)
            place = ToolPlace(0, journal, inside.sandbox, request, bare, base.commit, governed.policy)
            async with open_tools(services.tools, place) as tools:
                yield tools, governed.policy, inside.sandbox, _problems(journal)
        return
    policy = services.policy
    template = await services.warming.workshop.prepare(request.template, report)
    outlet = Outlet(services.host, services.doorway.outfit, policy, record, services.quota)
    async with outlet.opened(template.name, {}, frozenset()) as inside:
        inside.shut()
        place = ToolPlace(0, journal, inside.sandbox, request, Path(), "", policy)
        async with open_tools(services.tools, place) as tools:
            yield tools, policy, inside.sandbox, _problems(journal)


def _problems(journal: MemoryJournal) -> Sequence[str]:
    """What could not be used."""
    offered = journal.index.last(ToolsOffered)
    return offered.problems if offered else ()
