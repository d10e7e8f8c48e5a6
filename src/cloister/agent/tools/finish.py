"""`finish`: the model claims that the task is done. The loop answers, by the evidence."""

from typing import Annotated

import msgspec
from msgspec import Meta

from cloister.agent.tools.api import Tool, answered_by_the_loop


class FinishArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    summary: Annotated[str, Meta(description="What was wrong, what you changed and why, for the reviewer.")]


FINISH = Tool(
    name="finish",
    description=("Declare that the task is done. Refused while the checks are red, with their results."),
    args=FinishArgs,
    target=lambda args: args.summary,
    run=answered_by_the_loop,
)
