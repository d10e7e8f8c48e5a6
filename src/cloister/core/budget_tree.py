"""What each level of the budget tree may spend: the `[budgets]` table of the configuration file, as records."""

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

if TYPE_CHECKING:
    from cloister.core.spending import Resource
Period = Literal["day", "month"]

_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000_000_000)]
_Amount = Annotated[float, msgspec.Meta(gt=0, le=1_000_000_000_000)]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be spent; None sets no limit."""

    steps: _Count | None = None
    tokens: _Count | None = None
    dollars: _Amount | None = None
    seconds: _Amount | None = None

    def of(self, what: "Resource") -> float | None:
        match what:
            case "steps":
                return self.steps
            case "tokens":
                return self.tokens
            case "dollars":
                return self.dollars
            case "seconds":
                return self.seconds


class PeriodLimits(Limits, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits that begin anew each day or month, by the clock of UTC."""

    period: Period = "month"


class ProjectLimits(PeriodLimits, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[budgets.project]]` table."""

    match: str
    """A pattern for the repository's path or URL, as in a shell; all that match share the budget."""


class UserLimits(PeriodLimits, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[budgets.user]]` table."""

    name: str
    """Who asks for runs; `*` is everyone that no other table names, each with a budget of their own."""


class BudgetTree(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `[budgets]` table of the configuration file."""

    warn_percent: Annotated[float, msgspec.Meta(gt=0, le=100)] = 80.0
    """A warning is given once this much of a limit is spent."""
    ask: bool = False
    """Whether a person may be asked for more when a limit is reached; else it simply ends there."""
    extend_percent: Annotated[float, msgspec.Meta(gt=0, le=1_000)] = 25.0
    """How much of the limit a yes adds to it."""
    unpriced: _Amount | None = None
    """US dollars that a million tokens count as where nobody knows the price; None leaves them out of the money."""
    organisation: PeriodLimits | None = None
    project: tuple[ProjectLimits, ...] = ()
    """The first that matches counts."""
    user: tuple[UserLimits, ...] = ()

    @property
    def outer(self) -> bool:
        """Whether anything above the run has a limit."""
        return self.organisation is not None or bool(self.project) or bool(self.user)
