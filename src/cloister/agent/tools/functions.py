"""Tools that installed Python packages bring: functions of the entry point group `cloister.tools`, run on the host."""

import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast, get_type_hints

import anyio
import msgspec
from anyio import to_thread

from cloister.agent.tools.api import AnyTool, Observation, Show, Tool, arguments_text, observe
from cloister.agent.tools.toolset import Offer, ToolPlace, check_name
from cloister.core.computer import Computer
from cloister.core.errors import SandboxLost, UserError
from cloister.core.text import bounded, harmless, one_line

GROUP = "cloister.tools"
SECONDS = 120.0
"""Limit of one call."""
_DESCRIPTION_CHARS = 1_000

_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@asynccontextmanager
async def function_tools(place: ToolPlace) -> AsyncGenerator[Offer]:
    """A `ToolSource`: the functions that are installed here. Each needs a rule that allows `tool:NAME`."""
    del place
    yield await to_thread.run_sync(installed)


def installed() -> Offer:
    """The tools of all installed packages. Importing them runs their code on the host, as any package's."""
    tools: list[AnyTool] = []
    problems: list[str] = []
    for point in entry_points(group=GROUP):
        source = _source(point)
        try:
            check_name(point.name, source)
            tools.append(_tool(point.name, point.load(), source))
        except UserError as error:
            problems.append(error.message)
        except Exception as error:
            problems.append(f"{source} cannot be loaded: {type(error).__name__}: {one_line(str(error), 200)}")
    return Offer(tuple(tools), tuple(problems))


def _source(point: EntryPoint) -> str:
    package = point.dist.name if point.dist is not None else point.value
    return f"the package {one_line(package, 60)} ({one_line(point.value, 100)})"


def _tool(name: str, function: object, source: str) -> AnyTool:
    if isinstance(function, Tool):
        return replace(cast("AnyTool", function), name=name, source=source, grant=None, action="", own=False)
    if not callable(function):
        raise UserError("bad_tool", f"{source} is no function.")
    description = inspect.getdoc(function) or ""
    if not description:
        raise UserError("bad_tool", f"{source} has no docstring, which the model needs.")
    return Tool(
        name=name,
        description=harmless(bounded(description, _DESCRIPTION_CHARS)),
        args=_arguments(name, function, source),
        target=lambda args: arguments_text(msgspec.to_builtins(args)),
        run=_Call(function).run,
        origin="server",
        source=source,
    )


def _arguments(name: str, function: Callable[..., object], source: str) -> type[msgspec.Struct]:
    """The record of the arguments, from the annotations of the parameters."""
    fields: list[Any] = []
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in _KINDS or parameter.name not in hints:
            raise UserError(
                "bad_tool", f"{source}: the parameter {parameter.name!r} needs a name and a type."
            )
        given = () if parameter.default is parameter.empty else (parameter.default,)
        fields.append((parameter.name, hints[parameter.name], *given))
    try:
        made = msgspec.defstruct(name, fields, frozen=True, forbid_unknown_fields=True, kw_only=True)
        msgspec.json.schema_components([made])
    except (TypeError, ValueError) as error:
        raise UserError("bad_tool", f"{source}: {one_line(str(error), 200)}.") from None
    return made


class _Call:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    async def run(self, computer: Computer, args: msgspec.Struct, show: Show) -> Observation:
        del computer, show
        given = {field: getattr(args, field) for field in args.__struct_fields__}
        try:
            with anyio.fail_after(SECONDS):
                return observe(True, _shown(await self._result(given)))
        except TimeoutError:
            return observe(False, f"It took more than {SECONDS:g} s.")
        except SandboxLost:
            raise
        except Exception as error:
            return observe(False, f"It failed: {type(error).__name__}: {one_line(str(error), 1_000)}")

    async def _result(self, given: Mapping[str, object]) -> object:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(**given)
        return await to_thread.run_sync(lambda: self._function(**given), abandon_on_cancel=True)


def _shown(result: object) -> str:
    if isinstance(result, str):
        return result
    return msgspec.json.encode(result).decode()
