"""A tool: a name, a record of arguments and one coroutine."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import msgspec

from cloister.core import limits
from cloister.core.computer import Computer, Stream
from cloister.core.errors import Bug
from cloister.core.events import Effect
from cloister.core.requests import Attachment, Origin
from cloister.core.text import bounded, inert, whole
from cloister.model.api import ToolSpec

Show = Callable[[Stream, bytes], None]
"""Streams output to watchers as it arrives."""

ToolLayer = Literal["organisation", "repository"]
"""Who declared a tool."""

Args = TypeVar("Args", bound="msgspec.Struct | Arguments")
Arguments = dict[str, object]
"""The arguments of a tool with a schema: checked against it, and not decoded."""

ARGUMENTS: type[Arguments] = dict
"""`Tool.args` of a tool with a schema."""


class Observation(msgspec.Struct, frozen=True):
    """The result that the model sees. A failure is an observation too."""

    ok: bool
    text: str
    exit_code: int | None = None
    origin: Origin | None = None
    """The source of the text, if it is not the tool's."""
    pictures: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class Tool(Generic[Args]):
    """One action, usually in the sandbox."""

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
    schema: Mapping[str, object] | None = None
    """A JSON Schema in place of the record of arguments: `args` is then `ARGUMENTS`."""
    action: str = ""
    """What rules call it, if that is not its name: `mcp:SERVER.TOOL`."""
    grant: Effect | None = None
    """What holds where no rule speaks about an added tool; None: nothing is allowed."""
    source: str = "built-in"
    """Where it was declared, for people."""
    own: bool = False
    """An added tool of Cloister itself: every request lists it, however many others there are."""
    layer: ToolLayer = "organisation"
    """Of two tools with one name, a repository's gives way."""
    digest: str = ""
    """A hash of its declaration."""

    @property
    def rule_name(self) -> str:
        return self.action or self.name

    @property
    def spec(self) -> ToolSpec:
        given = parameters(self.args) if self.schema is None else dict(self.schema)
        return ToolSpec(self.name, self.description, given)


AnyTool = Tool[Any]


def arguments_text(args: Mapping[str, object]) -> str:
    """The arguments as compact JSON with sorted keys: what rules and people see of a call with a schema."""
    return msgspec.json.encode(args, order="sorted").decode()


def parameters(args: type[Any]) -> dict[str, object]:
    """The JSON schema of the arguments, without `$ref`, which some providers reject."""
    (schema,), parts = msgspec.json.schema_components([args])
    name = str(schema["$ref"]).rsplit("/", 1)[-1]
    return parts[name]


async def answered_by_the_loop(computer: Computer, args: object, show: Show) -> Observation:
    """`run` of a tool that does nothing in the sandbox: the loop answers it, and it needs no decision."""
    raise Bug("The loop answers this tool itself.")


def observe(ok: bool, text: str, exit_code: int | None = None) -> Observation:
    """An observation with inert, bounded text that an event can hold: names of files may not be UTF-8."""
    return Observation(ok, bounded(inert(whole(text)), limits.OBSERVATION_CHARS), exit_code)
