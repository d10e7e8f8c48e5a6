"""`finish`: the model says that it is done. The loop answers it, with evidence."""

from typing import Annotated

import msgspec
from msgspec import Meta

from cloister.agent.tools.api import Observation, Show, Tool, observe
from cloister.core.computer import Computer


class FinishArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    summary: Annotated[
        str, Meta(description="What was wrong, what was changed and why, for the person who reviews it.")
    ]


async def _finish(computer: Computer, args: FinishArgs, show: Show) -> Observation:
    return observe(True, "Accepted.")


FINISH = Tool(
    name="finish",
    description=(
        "Say that the task is done. The checks decide: while they are red this is refused with what they found."
    ),
    args=FinishArgs,
    target=lambda args: args.summary,
    run=_finish,
)
