"""`search`: find a pattern in the files of the sandbox."""

from typing import Annotated

import msgspec
from msgspec import Meta

from cloister.agent.tools.api import Observation, Show, Tool, observe
from cloister.core.computer import Command, Computer
from cloister.core.text import decode

_NO_MATCH = 1
"""ripgrep's exit code."""


class SearchArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pattern: Annotated[str, Meta(description="A regular expression.")]
    path: Annotated[str, Meta(description="File or directory to search.")] = "."


async def _search(computer: Computer, args: SearchArgs, show: Show) -> Observation:
    layout = ("--line-number", "--no-heading", "--color=never", "--sort=path")
    limits = ("--max-columns=300", "--max-count=50")
    argv = ("rg", *layout, *limits, "--regexp", args.pattern, "--", args.path)
    finished = await computer.run(Command(argv=argv, seconds=30))
    code = finished.exited.code
    if code == _NO_MATCH:
        return observe(True, "No match.", code)
    if code == 0:
        return observe(True, decode(finished.out), code)
    return observe(False, decode(finished.err) or "The search was interrupted.", code)


SEARCH = Tool(
    name="search",
    description="Search files with a regular expression (ripgrep). Files that git ignores are skipped.",
    args=SearchArgs,
    target=lambda args: args.pattern,
    run=_search,
    origin="repository",
)
