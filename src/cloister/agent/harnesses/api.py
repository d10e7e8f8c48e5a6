"""The harness seam: what drives an attempt, what it is given, and how it may end.

A harness talks to a model, or to another agent in the sandbox, until the task is done. It does not judge its own work:
only `Evidence` accepts a change. `agent/attempt.py` runs any harness and records the end.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from cloister.agent.budget.metering import BudgetedModels, Clock
from cloister.agent.context.messages import Attached
from cloister.agent.evidence.evidence import Evidence
from cloister.agent.knowledge.instructions import Guide
from cloister.agent.progress import Progress, Progressing
from cloister.agent.tools.toolset import ToolSet
from cloister.core.attempts import Escalate
from cloister.core.computer import Computer
from cloister.core.errors import Bug
from cloister.core.events import AttemptEnded
from cloister.core.log import Journal
from cloister.core.requests import Budget, Patience
from cloister.policy.api import Policy


@dataclass(slots=True)
class Workplace:
    """Everything a harness works with, beside the evidence."""

    attempt: int
    journal: Journal
    computer: Computer
    models: BudgetedModels
    """Steps use the role `code`. Every call is paid for: other models are rejected."""
    policy: Policy
    budget: Budget
    ask_seconds: float
    """How long a person has to answer an ask."""
    patience: Patience = field(default_factory=Patience)
    """The limits of the stuck detection."""
    escalate: Escalate | None = None
    """Decides how a stuck attempt continues; None switches to the next model of the chain."""
    seed: int = 0
    """Of a search."""
    tools: ToolSet = field(default_factory=ToolSet)
    """What the model may call."""
    guide: Guide | None = None
    """Gives the instructions of the repository; None: there are none."""
    attached: Attached = lambda _: None
    """Reads the attachments of prompts."""
    clock: Clock = field(init=False)
    _progressing: Progressing = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.models, BudgetedModels):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Bug("A harness was given models that spend without a budget.")
        self._progressing = Progressing(self.attempt)
        self.clock = Clock(self.budget, self.models, self.progress().seconds)

    def progress(self) -> Progress:
        """How far the attempt is, by the log."""
        return self._progressing.over(self.journal.events)


class Unfinished(NamedTuple):
    """The harness stopped without an accepted change."""

    outcome: Literal["red", "failed"]
    reason: str


class OutOfBudget(NamedTuple):
    """A budget has no room for the next call."""

    reason: str


Ending = AttemptEnded | Unfinished | OutOfBudget
"""How a drive ends. `AttemptEnded` comes from `Evidence.try_finish`, which has recorded it."""


class Harness(Protocol):
    """Promises checked by `tests.whole.conformance.suites.harness`."""

    async def drive(self, place: Workplace, evidence: Evidence) -> Ending:
        """Work until the evidence accepts the change, the budget is spent or the harness gives up.

        Resume from the log: do not ask again for a recorded reply; repeat the calls of an unfinished turn.
        Record each turn with `evidence.end_turn`. The call is cancelled when the time is over or a person stops the
        attempt; after a time-out it may be called again.
        """
        ...

    async def last_words(self, place: Workplace, evidence: Evidence, reason: str) -> str:
        """What is left to do when a budget is spent, for `reason`; empty: the check results say it."""
        ...
