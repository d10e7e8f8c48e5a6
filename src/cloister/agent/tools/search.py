"""`search`: find a pattern in the files of the sandbox."""

from typing import Annotated

import msgspec
from msgspec import Meta

from cloister.agent.tools.api import Observation, Show, Tool, observe
from cloister.core.computer import Command, Computer
from cloister.core.text import decode

_NOTHING, _WRONG = 1, 2
"""ripgrep's exit codes."""


class SearchArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pattern: Annotated[str, Meta(description="A regular expression.")]
    path: Annotated[str, Meta(description="File or directory to look in.")] = "."


async def _search(computer: Computer, args: SearchArgs, show: Show) -> Observation:
    finished = await computer.run(
        Command(
            argv=(
                "rg",
                "--line-number",
                "--no-heading",
                "--color=never",
                "--max-columns=300",
                "--max-count=50",
                "--sort=path",
                "--regexp",
                args.pattern,
                "--",
                args.path,
            ),
            seconds=30,
        )
    )
    code = finished.exited.code
    if code == _NOTHING:
        return observe(True, "No match.", code)
    if code == 0:
        return observe(True, decode(finished.out), code)
    return observe(False, decode(finished.err) or "The search did not end.", code)


SEARCH = Tool(
    name="search",
    description="Search files with a regular expression (ripgrep). Ignored files are left out.",
    args=SearchArgs,
    target=lambda args: args.pattern,
    run=_search,
    origin="repository",
)
