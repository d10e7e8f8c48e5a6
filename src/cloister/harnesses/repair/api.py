"""The records of a repair: what is suspicious, what is tried, how it went.

A harness uses them in this order:

    suite = suite_of("python3 -m pytest -q")                  # None: no rules for this runner
    async with Trials(computer, suite, seed=1) as trials:
        found = await trials.localise()                       # Localised: failing tests, suspects
        ordered = candidates(sources, found.suspects, facts, seed)
        async for trial in trials.over(islice(ordered, n, None), sources)   # until `enough`; n: to resume
        patch = await trials.choose(plausible)                # Chosen: the patch and the reasons in words

All records are JSON-serialisable. The same files, seed and test results give the same candidates in the same order,
so a log of candidate numbers is enough to resume.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from cloister.core.text import lines_of

Language = Literal["python", "script", "go"]
Method = Literal["coverage", "traceback", "imports"]
Flag = Literal["special_case", "deletes_code", "weakens_check", "pair"]
Stage = Literal["syntax", "failing", "affected", "all"]
Status = Literal["passed", "failed", "skipped", "late"]
"""`late`: stopped by its time limit."""

FLAG_WORDS: Mapping[str, str] = {
    "special_case": "special-cases a value of the tests",
    "deletes_code": "deletes code",
    "weakens_check": "weakens a check",
    "pair": "combines two changes",
}
LAST: frozenset[str] = frozenset(("special_case", "deletes_code", "weakens_check"))
"""Flags of patches that are ranked last."""


class Suspect(msgspec.Struct, frozen=True):
    """One line that may be wrong."""

    path: str
    line: int
    score: float
    """Between 0 and 1."""
    why: str


class Failure(msgspec.Struct, frozen=True):
    """One failing test and what it said."""

    test: str
    error: str = ""
    """The name of the exception."""
    message: str = ""
    frames: tuple[tuple[str, int], ...] = ()
    """Path and line of the frames inside the repository, outermost first."""
    late: bool = False


class Localised(msgspec.Struct, frozen=True):
    """Where the cause may be, best first."""

    suspects: tuple[Suspect, ...]
    method: Method
    failing: tuple[Failure, ...] = ()
    passing: tuple[str, ...] = ()
    flaky: tuple[str, ...] = ()
    """Failed once and passed once on the same files. Never part of the search."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    modules: tuple[str, ...] = ()
    """Files that were imported. Their code at module level has no coverage."""
    unrun: tuple[str, ...] = ()
    """Tests that are known to fail and did not run in time."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The suspicious files, best first."""
        return tuple(dict.fromkeys(suspect.path for suspect in self.suspects))


class Hunk(msgspec.Struct, frozen=True):
    """Whole lines that replace whole lines. An insertion has the line it is put before, and an empty `before`."""

    line: int
    before: str
    after: str

    @property
    def height(self) -> int:
        return len(lines_of(self.before))


class Candidate(msgspec.Struct, frozen=True):
    """One change of one file."""

    number: int
    """The place in the order, from 0."""
    rule: str
    path: str
    hunks: tuple[Hunk, ...]
    prior: float
    score: float
    """Suspicion × prior."""
    flags: tuple[Flag, ...] = ()

    @property
    def line(self) -> int:
        return self.hunks[0].line

    @property
    def before(self) -> str:
        return "".join(hunk.before for hunk in self.hunks)

    @property
    def after(self) -> str:
        return "".join(hunk.after for hunk in self.hunks)

    @property
    def diff(self) -> str:
        """The change as a unified diff without context lines."""
        parts = [f"--- a/{self.path}\n+++ b/{self.path}\n"]
        shift = 0
        for hunk in self.hunks:
            old, new = lines_of(hunk.before), lines_of(hunk.after)
            start = hunk.line if old else hunk.line - 1
            parts.append(f"@@ -{start},{len(old)} +{hunk.line + shift},{len(new)} @@\n")
            parts.extend("-" + line.removesuffix("\n") + "\n" for line in old)
            parts.extend("+" + line.removesuffix("\n") + "\n" for line in new)
            shift += len(new) - len(old)
        return "".join(parts)

    @property
    def size(self) -> int:
        """How much is changed: characters that are not shared at the ends of the hunks."""
        return sum(_differing(hunk.before, hunk.after) for hunk in self.hunks)


class Trial(msgspec.Struct, frozen=True):
    """How one candidate went."""

    candidate: Candidate
    stage: Stage
    """The last stage that ran."""
    made_green: tuple[str, ...] = ()
    still_red: tuple[str, ...] = ()
    broke: tuple[str, ...] = ()
    seconds: float = 0.0
    plausible: bool = False
    """Failing tests pass, and no other test of the suite fails."""
    reason: str = ""
    """Why it was stopped early: does not parse, too slow, the worker was lost."""

    @property
    def partial(self) -> bool:
        """True if it repairs just some of the failing tests."""
        return self.plausible and bool(self.still_red)


class Chosen(msgspec.Struct, frozen=True):
    """The patch that won, and why, in words."""

    trial: Trial
    reasons: tuple[str, ...]
    others: tuple[int, ...] = ()
    """Numbers of the other plausible candidates, best first."""


def applied(source: str, hunks: tuple[Hunk, ...]) -> str:
    """Return the source with the hunks applied. Raises `ValueError` if the source has other lines there."""
    lines = lines_of(source)
    for hunk in sorted(hunks, key=lambda one: one.line, reverse=True):
        start, end = hunk.line - 1, hunk.line - 1 + hunk.height
        if "".join(lines[start:end]) != hunk.before:
            raise ValueError(f"line {hunk.line} is not what the candidate expects")
        lines[start:end] = [hunk.after]
    return "".join(lines)


def _differing(before: str, after: str) -> int:
    shortest = min(len(before), len(after))
    head = next((i for i in range(shortest) if before[i] != after[i]), shortest)
    rest = shortest - head
    tail = next((i for i in range(rest) if before[-1 - i] != after[-1 - i]), rest)
    return max(len(before), len(after)) - head - tail
