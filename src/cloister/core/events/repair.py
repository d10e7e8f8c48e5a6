"""What happens in an attempt of the repair harness: localising, trying candidates, finding and choosing patches.

A search tries hundreds of candidates per second. Rejected ones are counted in batches; a candidate that makes a failing
test green has an event of its own.
"""

from typing import Annotated

import msgspec

from cloister.core.events.run import EventBody

PLAUSIBLE = "found by search, plausible, not proven correct"
"""How every patch of the repair harness is called."""
SUSPECTS = 40
"""Most lines that an event names."""
DIFF_CHARS = 8_000
"""Most characters of a diff in an event."""


class Suspect(msgspec.Struct, frozen=True):
    """A line that may hold the fault."""

    path: str
    line: int
    score: float
    """Suspicion from 0 to 1."""
    why: str = ""
    """What points at it, beside coverage: a stack trace, a value in an assertion."""


class FaultLocalised(EventBody, frozen=True):
    """The lines that failing tests reach and passing tests do not, ranked. It holds for every attempt of the run."""

    failing: tuple[str, ...]
    """The tests that failed on the base, as far as the search uses them."""
    suspects: Annotated[tuple[Suspect, ...], msgspec.Meta(max_length=SUSPECTS)]
    """The most suspicious first."""
    how: str
    """What was measured, in words."""
    lines: int
    """Suspect lines in total."""
    seconds: float


class CandidatesTried(EventBody, frozen=True):
    """Candidates up to `tried` were judged by the failing tests. A resumed search continues after them."""

    attempt: int
    tried: int
    """Since the beginning of the search."""
    total: int
    """Candidates known so far; more rules may follow."""
    plausible: int
    """How many of the tried ones passed every test."""
    seconds: float
    """Of the search since the last such event, or since its beginning."""


class PatchFound(EventBody, frozen=True):
    """A candidate made a failing test green."""

    attempt: int
    number: int
    """Its place in the order of the search, from 1."""
    total: int
    rule: str
    path: str
    line: int
    diff: str
    fixed: tuple[str, ...]
    """Tests that it made green."""
    broke: tuple[str, ...] = ()
    """Tests that it made red; such a patch is not plausible."""
    concern: str = ""
    """What speaks against it although every test passes: it deletes code, or it special-cases the test's values."""
    left: int = 0
    """Failing tests that it leaves red. The search prefers patches that leave none."""


class PatchChosen(EventBody, frozen=True):
    """The search wrote this patch into the files; the evidence decides about it next."""

    attempt: int
    number: int
    rule: str
    path: str
    why: str
    """Why it comes before the other plausible patches."""
