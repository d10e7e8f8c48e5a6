"""A person's permission for changes of tests, asked for when nothing else refuses the end of an attempt.

The question shows the whole difference and names the tests that are lost. A yes permits exactly these files with exactly
this content, and gives up exactly these tests, for all attempts of the run; it is in the log, and the proof runs with it.
Whatever changes or is lost later is asked about again.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from typing import NamedTuple, Protocol

import anyio

from cloister.agent.approvals import DETAIL_CHARS, answered, counts, new_ask_id
from cloister.core.diagnosis import FOR_A_PERSON, Comparison, Diagnosis
from cloister.core.events import AskAnswered, AskRaised, ChangedTests
from cloister.core.log import Index, Journal
from cloister.core.text import one_line

_NAMES = 20
_RULE = "the checks are green only if these changes of tests are accepted"
_NOT_SHOWN = "the changes of tests cannot be shown to a person, because they are binary, too long or in files without a readable name."
_TOO_MANY = "the changes of tests lose too many tests to ask a person about them."


class ChangedFiles(Protocol):
    """The files in which a commit differs from the base."""

    async def contents(self, commit: str) -> Mapping[str, str]:
        """Path → the name of its content in git; only zeros if the commit does not have it."""
        ...

    async def difference(self, commit: str, paths: Sequence[str]) -> str:
        """These files as a unified diff."""
        ...


@dataclass(frozen=True, slots=True)
class Permission:
    """Asks a person about the tests of one attempt."""

    attempt: int
    journal: Journal
    files: ChangedFiles
    allowed: tuple[str, ...]
    """Patterns of test files that the task may change anyway."""
    seconds: float
    asking: anyio.Lock
    """Of the run: one question at a time, so that attempts with the same tests ask once."""

    async def ask(self, commit: str, found: Sequence[Diagnosis], compared: Comparison) -> str | None:
        """None if a person permits the tests of `commit` as they are; else why not, empty if it is not about tests."""
        from cloister.feedback.integrity.base_tests import configures_tests  # noqa: PLC0415  (slow to load, and first needed after the first request)
        from cloister.feedback.integrity.versions import has_tests, is_allowed  # noqa: PLC0415
        from cloister.feedback.shown import refused_for_tests  # noqa: PLC0415

        if not refused_for_tests(found, compared):
            return ""
        # Product code that is compiled for tests, or can end them.
        odd = {weak.file for one in found for weak in one.weakened if weak.detail.startswith(FOR_A_PERSON)}
        tests = tuple(
            ChangedTests(path, content)
            for path, content in sorted((await self.files.contents(commit)).items())
            if path in odd or has_tests(path) or configures_tests(path)
            if not is_allowed(path, self.allowed)
        )
        if not tests:
            return ""
        async with self.asking:
            lost = dict.fromkeys((*compared.weakened, *compared.missing, *compared.skipped))
            return await self._ask(commit, tests, tuple(lost))

    async def _ask(self, commit: str, tests: tuple[ChangedTests, ...], lost: tuple[str, ...]) -> str | None:
        known = _answers(self.journal.index)
        given = _permitted(known, {*tests})
        if {*tests} <= given.tests and given.lost.issuperset(lost):
            return None
        denied = (answer for ask, answer in known if ask.tests == tests and answer.answer != "allow")
        if before := next(denied, None):
            return _refusal(before)
        if sum(map(len, lost)) > DETAIL_CHARS:
            return _TOO_MANY
        difference = await self.files.difference(commit, [one.path for one in tests])
        more = [f"# and {len(lost) - _NAMES:,} more"] if len(lost) > _NAMES else []
        detail = "\n".join([*(f"# {one_line(name, 300)}" for name in lost[:_NAMES]), *more, difference])
        unreadable = any("\ufffd" in one.path for one in tests)  # git would not find it by this name
        if unreadable or len(detail) > DETAIL_CHARS or "\nBinary files " in difference:
            return _NOT_SHOWN
        question = AskRaised(
            ask=new_ask_id(),
            attempt=self.attempt,
            action=one_line(f"change tests: {', '.join(one.path for one in tests)}"),
            detail=detail,
            deadline=time.time() + self.seconds,
            rule=_RULE,
            tests=tests,
            lost=lost,
        )
        await self.journal.append(question)
        answer = await answered(self.journal, question)
        return None if answer.answer == "allow" else _refusal(answer)


class Permitted(NamedTuple):
    """What a person permitted, of the tests of one commit."""

    tests: frozenset[ChangedTests] = frozenset()
    lost: frozenset[str] = frozenset()
    """Names of tests, and sentences about weakened ones."""

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns of the files."""
        return tuple(sorted(escape(one.path) for one in self.tests))


def permitted(index: Index, contents: Mapping[str, str]) -> Permitted:
    """What a person permitted of a commit whose files have these contents."""
    return _permitted(_answers(index), {ChangedTests(*each) for each in contents.items()})


def any_permitted(index: Index) -> bool:
    """True if a person permitted a change of tests in this run."""
    return any(answer.answer == "allow" for _, answer in _answers(index))


def _answers(index: Index) -> list[tuple[AskRaised, AskAnswered]]:
    """The answered questions about tests of all attempts."""
    asks = {body.ask: body for body in index.of(AskRaised) if body.tests}
    found: dict[str, tuple[AskRaised, AskAnswered]] = {}
    for body in index.of(AskAnswered):
        if (ask := asks.get(body.ask)) is not None and counts(body, ask):
            found.setdefault(body.ask, (ask, body))
    return list(found.values())


def _permitted(known: Sequence[tuple[AskRaised, AskAnswered]], there: set[ChangedTests]) -> Permitted:
    """A yes gives up tests only for a commit that has all files of its question as they were shown."""
    yes = [ask for ask, answer in known if answer.answer == "allow"]
    return Permitted(
        frozenset(one for ask in yes for one in ask.tests if one in there),
        frozenset(name for ask in yes if there.issuperset(ask.tests) for name in ask.lost),
    )


def _refusal(answer: AskAnswered) -> str:
    if answer.who == "deadline":
        return "only changes of tests refuse it, and no person permitted them in time. Undo them."
    who = one_line(answer.who, 60)
    return f"only changes of tests refuse it, and a person ({who}) did not permit them. Undo them."
