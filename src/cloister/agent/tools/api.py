"""A tool: a name, a record of arguments and one coroutine."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from cloister.core import limits
from cloister.core.computer import Computer, Stream
from cloister.core.errors import Bug
from cloister.core.requests import Origin
from cloister.core.text import bounded, inert
from cloister.model.api import ToolSpec

Show = Callable[[Stream, bytes], None]
"""Streams output to watchers as it arrives."""

Args = TypeVar("Args", bound=msgspec.Struct)


class Observation(msgspec.Struct, frozen=True):
    """The result that the model sees. A failure is an observation too."""

    ok: bool
    text: str
    exit_code: int | None = None
    origin: Origin | None = None
    """The source of the text, if it is not the tool's."""


@dataclass(frozen=True, slots=True)
class Tool(Generic[Args]):
    """One action in the sandbox."""

    name: str
    description: str
    args: type[Args]
    target: Callable[[Args], str]
    """The command line, path or pattern, for the policy and the screen."""
    run: Callable[[Computer, Args, Show], Awaitable[Observation]]
    """Raises only `SandboxLost`; every other failure is an observation."""
    changes_files: bool = False
    origin: Origin = "tool"
    """The source of the returned text."""

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, self.description, parameters(self.args))


AnyTool = Tool[Any]


def parameters(args: type[msgspec.Struct]) -> dict[str, object]:
    """The JSON schema of the arguments, without `$ref`, which some providers reject."""
    (schema,), parts = msgspec.json.schema_components([args])
    name = str(schema["$ref"]).rsplit("/", 1)[-1]
    return parts[name]


async def answered_by_the_loop(computer: Computer, args: object, show: Show) -> Observation:
    """`run` of a tool that does nothing in the sandbox: the loop answers it, and it needs no decision."""
    raise Bug("The loop answers this tool itself.")


def observe(ok: bool, text: str, exit_code: int | None = None) -> Observation:
    """An observation with inert, bounded text."""
    return Observation(ok, bounded(inert(text), limits.OBSERVATION_CHARS), exit_code)
