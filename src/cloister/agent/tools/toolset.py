"""The tools of one attempt: the built-in ones, those that its sources add, and a search where these are many."""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from cloister.agent.tools import TOOLS
from cloister.agent.tools.api import AnyTool, Arguments, Observation, Show, Tool, observe
from cloister.core.computer import WORK_DIR, Computer
from cloister.core.errors import CloisterError, Fenced, SandboxLost, UserError
from cloister.core.events import BaseFixed, OfferedTool, ToolsOffered
from cloister.core.log import Journal
from cloister.core.requests import CALL_TOOL, FIND_TOOL, NewRun
from cloister.core.text import Ranking, one_line
from cloister.model.api import ToolSpec
from cloister.policy.api import Layer, Policy, Rule

LISTED_TOOLS = 30
LISTED_BYTES = 6_000
"""Added tools beyond either number are found by a search, and not listed in each request; Cloister's own do not count."""
MOST_TOOLS = 500
"""Added tools of one attempt, beside Cloister's own."""
_NAMES_CHARS = 3_000
_FOUND = 5
_PROBLEMS = 50


class FindArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    query: Annotated[str, Meta(max_length=500, description="What the tool should do, in a few words.")]


class CallArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(max_length=200)]
    arguments: dict[str, Any] = {}


class ToolSet(Mapping[str, AnyTool]):
    """What the model of one attempt may call, by name."""

    def __init__(self, added: Iterable[AnyTool] = ()) -> None:
        self.added = {tool.name: tool for tool in added}
        others = [tool for tool in self.added.values() if not tool.own]
        self._searched = others if _too_many(others) else []
        search = (self._find, self._call) if self._searched else ()
        self._tools: dict[str, AnyTool] = {**TOOLS, **{t.name: t for t in search}, **self.added}

    def __getitem__(self, name: str) -> AnyTool:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    @cached_property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What every request lists."""
        hidden = {tool.name for tool in self._searched}
        return tuple(tool.spec for name, tool in self._tools.items() if name not in hidden)

    def inner(self, name: str, arguments: Arguments) -> tuple[str, Arguments]:
        """The name and the arguments that a call is about: `call_tool` calls an added tool by its name."""
        if name != CALL_TOOL or not self._searched:
            return name, arguments
        try:
            asked = msgspec.convert(arguments, CallArgs)
        except msgspec.ValidationError:
            return name, arguments
        return (asked.name, asked.arguments) if asked.name in self.added else (name, arguments)

    def granted(self, policy: Policy) -> Policy:
        """`policy` with a layer below the built-in one that grants the added tools what their declarations say."""
        own = (*self.added.values(), *((self._find, self._call) if self._searched else ()))
        rules = [Rule(_rule(tool), tool.grant, tool.source) for tool in own if tool.grant is not None]
        if not rules:
            return policy
        return (*policy[:1], Layer("tools", tuple(rules), may_widen=True), *policy[1:])

    def offered(self, attempt: int, problems: Sequence[str]) -> ToolsOffered:
        """The event that says which tools were added."""
        tools = tuple(OfferedTool(t.name, t.source, t.digest, t.action) for t in self.added.values())
        return ToolsOffered(attempt, tools, tuple(problems))

    @cached_property
    def _ranking(self) -> Ranking:
        return Ranking([f"{tool.name} {tool.name} {tool.description}" for tool in self._searched])

    @cached_property
    def _find(self) -> AnyTool:
        names, room = "", _NAMES_CHARS
        for at, tool in enumerate(self._searched):
            if len(names) + len(tool.name) > room:
                names += f", and {len(self._searched) - at} more"
                break
            names += f"{', ' if names else ''}{tool.name}"
        return Tool(
            name=FIND_TOOL,
            description=f"Find more tools, with their arguments. Then use {CALL_TOOL}. There are: {names}.",
            args=FindArgs,
            target=lambda args: args.query,
            run=self._search,
            grant="allow",
        )

    @cached_property
    def _call(self) -> AnyTool:
        return Tool(
            name=CALL_TOOL,
            description=f"Call a tool that {FIND_TOOL} has found.",
            args=CallArgs,
            target=lambda args: args.name,
            run=_unknown,
            grant="allow",
        )

    async def _search(self, computer: Computer, args: FindArgs, show: Show) -> Observation:
        tools = self._searched
        exact = [tool for tool in tools if tool.name == args.query.strip()]
        found = exact or [tools[at] for at, _ in self._ranking.best(args.query, _FOUND)]
        if not found:
            return observe(False, "No tool fits. Try other words, or a name from the list.")
        texts = [
            f"{tool.name}: {tool.description}\narguments: {msgspec.json.encode(tool.spec.parameters).decode()}"
            for tool in found
        ]
        seen = observe(True, "\n\n".join(texts))
        outside = next((tool.origin for tool in found if tool.origin not in ("tool", "repository")), None)
        return msgspec.structs.replace(seen, origin=outside)


async def _unknown(computer: Computer, args: CallArgs, show: Show) -> Observation:
    """Runs only for a name that no added tool has: the loop replaces every other call."""
    return observe(False, f"There is no tool `{one_line(args.name, 60)}`. Use a name that {FIND_TOOL} shows.")


def _too_many(tools: Sequence[AnyTool]) -> bool:
    size = sum(len(msgspec.json.encode(tool.spec)) for tool in tools)
    return len(tools) > LISTED_TOOLS or size > LISTED_BYTES


def _rule(tool: AnyTool) -> str:
    return tool.rule_name if tool.action.startswith("mcp:") else f"tool:{tool.name}"


# Sources: what adds tools to an attempt.


@dataclass(frozen=True, slots=True)
class ToolPlace:
    """The attempt that tools are for."""

    attempt: int
    journal: Journal
    computer: Computer
    """Waits until the sandbox is there."""
    request: NewRun
    bare: Path
    """The run's repository."""
    base: str
    """The commit that the run started from."""
    policy: Policy

    @property
    def declared(self) -> tuple[str, str]:
        """The commit that declarations are read from and its place in the sandbox: of several repositories, the first."""
        fixed = self.journal.index.last(BaseFixed)
        first = fixed.parts[0] if fixed and fixed.parts else None
        return (first.commit, f"{WORK_DIR}/{first.folder}") if first else (self.base, WORK_DIR)


@dataclass(frozen=True, slots=True)
class Offer:
    """What one source adds."""

    tools: tuple[AnyTool, ...] = ()
    problems: tuple[str, ...] = ()
    """One sentence for each declaration or server that cannot be used."""


ToolSource = Callable[[ToolPlace], AbstractAsyncContextManager[Offer]]
"""Opens the tools of one attempt, within a time of its own; they work until the block ends.

Raises `SandboxLost`; any other `CloisterError` while it opens means that the attempt has none of its tools.
"""


@asynccontextmanager
async def open_tools(sources: Sequence[ToolSource], place: ToolPlace) -> AsyncGenerator[ToolSet]:
    """The tools of an attempt, recorded in its log. Of two tools with one name, none is offered, or the organisation's."""
    tools: list[AnyTool] = []
    problems: list[str] = []
    async with AsyncExitStack() as stack:
        for source in sources:
            try:
                offer = await stack.enter_async_context(source(place))
            except (SandboxLost, Fenced):
                raise
            except CloisterError as error:
                problems.append(error.message)
            else:
                tools += offer.tools
                problems += offer.problems
        usable, wrong = distinct(tools)
        chosen = ToolSet(usable)
        event = chosen.offered(place.attempt, [one_line(one, 400) for one in (*problems, *wrong)][:_PROBLEMS])
        before = place.journal.index.last(ToolsOffered, attempt=place.attempt)
        if event != before and (before is not None or event.tools or event.problems):
            await place.journal.append(event)
        yield chosen


def distinct(tools: Sequence[AnyTool]) -> tuple[list[AnyTool], list[str]]:
    """The tools whose names are their own, and one sentence for each that is not used.

    SAFETY: a repository cannot take a tool of the organisation away by declaring one of its name.
    """
    by_name: dict[str, list[AnyTool]] = {}
    for tool in tools:
        by_name.setdefault(tool.name, []).append(tool)
    problems: list[str] = []
    usable: list[AnyTool] = []
    for name, same in by_name.items():
        first = [tool for tool in same if tool.layer == "organisation"] or same
        if name in TOOLS or name in (FIND_TOOL, CALL_TOOL):
            problems.append(
                f"The tool {name!r} of {same[0].source} has the name of a built-in tool: rename it."
            )
        elif len(first) > 1:
            where = " and ".join(tool.source for tool in same[:3])
            problems.append(
                f"Two tools have the name {name!r}, in {where}: none of them is used; rename one."
            )
        elif len(usable) >= MOST_TOOLS and not first[0].own:
            problems.append(f"The tool {name!r} is left out: a run has at most {MOST_TOOLS} added tools.")
        else:
            usable += first
            problems += [
                f"The tool {name!r} of {tool.source} is not used: {first[0].source} has this name; rename one."
                for tool in same
                if tool is not first[0]
            ]
    return usable, problems


def check_name(name: str, source: str) -> str:
    """Raises `UserError` (`bad_tool`) for a name that providers or rules do not take."""
    if not name.isascii() or not name.replace("_", "").replace("-", "").isalnum() or len(name) > 64:
        raise UserError(
            "bad_tool",
            f"{source}: {one_line(name, 80)!r} is no name of a tool: use letters, digits, _ and -, at most 64.",
        )
    return name
