"""What a tool is: a name, a record of arguments and one coroutine."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from cloister.core import limits
from cloister.core.computer import Computer, Stream
from cloister.core.requests import Origin
from cloister.core.text import bounded, inert
from cloister.model.api import ToolSpec

Show = Callable[[Stream, bytes], None]
"""Shows output to whoever watches, as it arrives."""

Args = TypeVar("Args", bound=msgspec.Struct)


class Observation(msgspec.Struct, frozen=True):
    """What the model is told. A failure is an observation too."""

    ok: bool
    text: str
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Tool(Generic[Args]):
    """One thing a model can do in the sandbox."""

    name: str
    description: str
    args: type[Args]
    target: Callable[[Args], str]
    """What the policy and the screen are shown: the command line, the path, the pattern."""
    run: Callable[[Computer, Args, Show], Awaitable[Observation]]
    """Raises only `SandboxLost`; everything else that goes wrong is an observation."""
    changes_files: bool = False
    origin: Origin = "tool"
    """Where the text that it returns comes from."""

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, self.description, parameters(self.args))


AnyTool = Tool[Any]


def parameters(args: type[msgspec.Struct]) -> dict[str, object]:
    """The JSON schema of the arguments, without references: some providers refuse them."""
    (schema,), parts = msgspec.json.schema_components([args])
    name = str(schema["$ref"]).rsplit("/", 1)[-1]
    return parts[name]


def observe(ok: bool, text: str, exit_code: int | None = None) -> Observation:
    """An observation with its text inert and bounded."""
    return Observation(ok, bounded(inert(text), limits.OBSERVATION_CHARS), exit_code)
