"""`bash`: run a command line in the sandbox."""

from typing import Annotated

import msgspec
from msgspec import Meta

from cloister.agent.tools.api import Observation, Show, Tool, observe
from cloister.core import limits
from cloister.core.computer import Command, Computer, Exited, Output, shell
from cloister.core.text import decode

_KEPT_BYTES = 1_048_576
"""Kept of each end of the output."""


class BashArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    command: Annotated[str, Meta(description="The command line.")]
    seconds: Annotated[float, Meta(description="Time limit in seconds.")] = limits.COMMAND_SECONDS


class _Ends:
    """Head and tail of a byte stream, in bounded memory."""

    def __init__(self) -> None:
        self.head = bytearray()
        self.tail = bytearray()
        self.lost = 0

    def add(self, data: bytes) -> None:
        room = _KEPT_BYTES - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if (extra := len(self.tail) - _KEPT_BYTES) > 0:
            del self.tail[:extra]
            self.lost += extra

    def text(self) -> str:
        middle = f"\n[… {self.lost} bytes omitted …]\n" if self.lost else ""
        return decode(bytes(self.head)) + middle + decode(bytes(self.tail))


def _ending(exited: Exited, command_seconds: float) -> str:
    match exited.killed:
        case "time":
            return f"[killed: still running after {command_seconds:g} s]"
        case "output":
            return "[killed: too much output]"
        case "cancelled" | "signal":
            return "[killed]"
        case None if exited.signal is not None:
            return f"[ended by signal {exited.signal}]"
        case None:
            return f"[exit status {exited.code}]"


async def run_shown(computer: Computer, command: Command, show: Show, stdin: bytes = b"") -> Observation:
    """Run a command, show its output as it comes, and return it with the exit status.

    `stdin` must fit into a pipe: a command need not read it.
    """
    ends = _Ends()
    exited = Exited(None)
    async with computer.start(command) as process:
        if stdin:
            await process.send(stdin)
        await process.send_eof()
        async for item in process:
            match item:
                case Output(stream, data):
                    ends.add(data)
                    show(stream, data)
                case Exited():
                    exited = item
    text = ends.text()
    if text and not text.endswith("\n"):
        text += "\n"
    return observe(exited.ok, text + _ending(exited, command.seconds), exited.code)


async def _run(computer: Computer, args: BashArgs, show: Show) -> Observation:
    seconds = min(max(args.seconds, 1.0), limits.CHECK_SECONDS)
    return await run_shown(computer, shell(args.command, seconds=seconds), show)


BASH = Tool(
    name="bash",
    description=(
        "Run a command line with bash in /work, the repository. Returns output and exit status. "
        "Each call starts a new shell without standard input."
    ),
    args=BashArgs,
    target=lambda args: args.command,
    run=_run,
    changes_files=True,
)
