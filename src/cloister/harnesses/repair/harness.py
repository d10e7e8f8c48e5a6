"""The repair harness: localise the fault, try candidates, write the chosen patch, let the evidence decide.

It calls no model. `cloister.harnesses.repair` knows how to localise, which candidates there are and how to try them; this module
makes an attempt of it: events that people follow, the policy for every write, the proof, and the resume from the log.
"""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from itertools import islice
from typing import NamedTuple

import anyio
from anyio import to_thread
from msgspec.structs import replace

from cloister.agent.evidence.evidence import Claim, Evidence, Refused
from cloister.agent.harnesses.api import Ending, Unfinished, Workplace
from cloister.agent.harnesses.native.interrupt import interruptible, while_paused
from cloister.agent.harnesses.native.tool_calls import ToolCalls
from cloister.agent.tools.files import WRITE
from cloister.core.errors import UserError, sole
from cloister.core.events import (
    AttemptEnded,
    BaseFixed,
    CandidatesTried,
    FaultLocalised,
    FinishRefused,
    PatchChosen,
    PatchFound,
    Progress,
    PromptReceived,
    TurnEnded,
)
from cloister.core.events.repair import DIFF_CHARS, PLAUSIBLE
from cloister.core.log import Index, Journal, round_start
from cloister.core.requests import ToolCall
from cloister.core.text import bounded, one_line
from cloister.harnesses.repair.api import FLAG_WORDS, LAST, Chosen, Localised, Trial, applied
from cloister.harnesses.repair.candidates import Ordered, candidates
from cloister.harnesses.repair.choose import enough
from cloister.harnesses.repair.observe import NAME_CHARS, NAMES, localised_event, suite_for
from cloister.harnesses.repair.rules.api import facts_of
from cloister.harnesses.repair.suite import Suite
from cloister.harnesses.repair.trials import Trials
from cloister.harnesses.repair.words import (
    BROKEN,
    DENIED,
    FLAKY,
    HURRIED,
    NO_CANDIDATE,
    NO_TEST,
    NOT_RED_NOW,
    OUTSIDE,
    STOPPED,
    UNRUN,
    exhausted,
    left,
    proven_late,
    summary,
)
from cloister.harnesses.repair.worker import WORKER_LOST
from cloister.policy.api import ToolAction
from cloister.policy.decide import Decider

_BATCH_SECONDS = 4.0
"""A crash loses the trials of at most this long."""
_SHOW_SECONDS = 0.1
_NEAR_MISSES = 5
"""Candidates that repaired the failing tests and broke others: the log has the first of them."""
_ANY = 1_000_000
_CHANGE_CHARS = 160
_LOCALISE_SHARE = 0.3
"""Of the time that is left."""
_PROOF_SECONDS, _PROOF_RUNS, _PROOF_SHARE = 10.0, 4.0, 0.4
"""Kept for the choice and the proof of a patch: so many seconds and runs of the checks, at most this share of the run's time."""


class SoFar(NamedTuple):
    """The search of one attempt, by the log."""

    done: CandidatesTried | None
    """The newest batch."""
    found: tuple[PatchFound, ...]
    """The plausible patches."""
    near: int
    """Recorded candidates that were not plausible."""
    written: tuple[int, ...]
    """Patches that were written and refused, by their numbers."""
    unjudged: PatchChosen | None
    """The patch in the files whose proof was cut off by the time."""
    localised: bool

    @property
    def tried(self) -> int:
        return self.done.tried if self.done else 0


def so_far(journal: Journal, attempt: int) -> SoFar:
    """Fold the log of an attempt since its base was fixed: the search of another base was about other files.

    A patch whose turn has not ended is not written: the files are as before.
    """
    fixed = (at for at in reversed(range(len(journal.events))) if type(journal.events[at].body) is BaseFixed)
    index = Index(journal.events[next(fixed, 0) :])
    written: list[int] = []
    pending = unjudged = last = None
    for body in index.of(PatchChosen, FinishRefused, TurnEnded, AttemptEnded, attempt=attempt):
        if isinstance(body, PatchChosen):
            pending = body
        elif isinstance(body, AttemptEnded):
            unjudged = None
        elif isinstance(body, TurnEnded) and pending is not None:
            if isinstance(last, FinishRefused):
                written.append(pending.number)
            else:
                unjudged = pending
            pending = None
        last = body
    tried = index.last(CandidatesTried, attempt=attempt)
    found = index.of(PatchFound, attempt=attempt)
    newest = Index(journal.events[round_start(journal.events) :])
    return SoFar(
        done=tried,
        found=tuple(body for body in found if not body.broke),
        near=sum(bool(body.broke) for body in found),
        written=tuple(written),
        unjudged=unjudged,
        localised=newest.first(FaultLocalised) is not None,
    )


def enumerated(found: Localised, sources: Mapping[str, str], seed: int) -> Ordered:
    """All candidates in the order of the search: single changes, then pairs of the best. Pure.

    Pairs of changes that repair different failing tests come in between, as they are found (`Ordered.helps`).
    """
    return candidates(sources, found.suspects, facts_of(found.failing), seed).with_pairs()


class RepairHarness:
    """Searches for a small change that makes the failing tests pass."""

    async def drive(self, place: Workplace, evidence: Evidence) -> Ending:
        await evidence.baseline_ready()
        search = _Search(place, evidence)
        if (ending := await search.judged()) is not None:
            return ending
        suite, why = await suite_for(evidence.baseline, place.computer)
        if suite is None:
            # Without a failing test the untouched base may be all that was asked for.
            return await search.unchanged(why) if why == NO_TEST else Unfinished("red", why)
        try:
            async with Trials(
                place.computer, suite, workers=max(1, int(evidence.cpus)), seconds=max(1.0, place.clock.left)
            ) as trials:
                return await search.run(trials, suite)
        except Exception as error:
            cause = sole(error)
            if isinstance(cause, UserError) and cause.code == WORKER_LOST:
                return Unfinished("red", f"{BROKEN} {one_line(cause.message, 300)}")
            raise cause from None

    async def last_words(self, place: Workplace, evidence: Evidence, reason: str) -> str:
        known = so_far(place.journal, place.attempt)
        return left(known.done, known.unjudged)


class _Search:
    def __init__(self, place: Workplace, evidence: Evidence) -> None:
        self._place = place
        self._attempt = place.attempt
        self._journal = place.journal
        self._evidence = evidence
        self._calls = ToolCalls(place)
        self._decider = Decider(place.policy)
        self._folder = ""
        self._total = 0
        self._known = so_far(place.journal, place.attempt)
        self._shown_at = self._saved_at = anyio.current_time()
        self._begun = len(place.journal.events)
        self._at = self._count = self._late = 0

    async def unchanged(self, why: str) -> Ending:
        """End without a change, if the evidence has nothing against it."""
        ended = await self._claim(0, why)
        return Unfinished("red", why) if isinstance(ended, Refused) else ended

    async def _while_paused(self) -> None:
        await while_paused(self._journal, self._place.clock)

    async def judged(self) -> Ending | None:
        """Prove the patch in the files, if the time cut off its proof and the run has been given more."""
        if (one := self._known.unjudged) is None:
            return None
        found = next((body for body in self._known.found if body.number == one.number), None)
        text = proven_late(one, found.line if found else 0, self._known.done)
        ended = await self._claim(len(self._known.written) + 1, text)
        return Unfinished("red", one_line(ended.why, 1_000)) if isinstance(ended, Refused) else ended

    async def run(self, trials: Trials, suite: Suite) -> Ending:
        self._folder = suite.folder
        await self._while_paused()
        self._journal.show(Progress("work", None, "localising: running the tests with coverage"))
        red = [test.name for diagnosis in self._evidence.baseline for test in diagnosis.failing]
        seconds = max(5.0, self._place.clock.left * _LOCALISE_SHARE)
        took = max(
            (one.seconds for one in self._evidence.baseline if one.failing and not one.killed), default=0.0
        )
        found = await interruptible(
            self._journal, lambda: trials.localise(red, seconds=seconds, longest=took), self._begun
        )
        if found is None:
            return Unfinished("red", STOPPED.format(tried=0, total=0))
        if not self._known.localised:
            await self._evidence.record(localised_event(found, suite.folder))
        self._late = sum(one.late for one in found.failing)
        if why := _hopeless(found):
            return Unfinished("red", why)
        allowed = [path for path in dict.fromkeys((*found.paths, *found.modules)) if self._may_write(path)]
        sources = await trials.sources(allowed)
        if not set(sources) & set(found.paths):
            return Unfinished("red", DENIED.format(files=", ".join(found.paths[:3])))
        # Parsing and ordering thousands of candidates takes seconds.
        ordered = await to_thread.run_sync(enumerated, found, sources, self._place.seed)
        self._total = len(ordered)
        if not ordered:
            return Unfinished("red", NO_CANDIDATE.format(files=", ".join(found.paths[:3])))
        return await self._search(trials, ordered, sources)

    async def _search(self, trials: Trials, ordered: Ordered, sources: dict[str, str]) -> Ending:
        """Try, choose and write until the evidence accepts a patch or no candidate is left."""
        known = self._from_log(ordered)
        plausible = {n: trial for n, trial in known.items() if n not in self._known.written}
        self._at = max((self._known.tried, *(body.number for body in self._known.found)))
        self._count = len(known)
        fewest = min((body.left for body in self._known.found if body.left), default=_ANY)

        async def explore() -> bool:
            nonlocal fewest
            async with aclosing(trials.over(islice(ordered, self._at, None), sources)) as results:
                async for trial in results:
                    self._at = trial.candidate.number + 1
                    # Of patches that leave failing tests, only one that leaves fewer than those before it counts.
                    counts = trial.plausible and not (trial.partial and len(trial.still_red) >= fewest)
                    fewest = len(trial.still_red) if counts and trial.partial else fewest
                    self._count += counts
                    helps = trial.partial and ordered.helps(trial.candidate.number, _names(trial.made_green))
                    self._total = len(ordered)
                    kept = trial if counts or helps else replace(trial, plausible=False)
                    await self._tried(kept, self._count)
                    if counts:
                        plausible[self._at] = trial
                    if self._may_choose(plausible):
                        break
                    await self._while_paused()
            return True

        while True:
            if not (plausible and (self._known.written or self._may_choose(plausible))):
                went = await interruptible(self._journal, explore, self._begun)
                await self._save(self._at, self._count)
                if went is None:
                    return Unfinished("red", STOPPED.format(tried=self._at, total=self._total))
            if not plausible:
                return Unfinished("red", exhausted(self._at, self._total, self._count, self._late))
            await self._while_paused()
            chosen = await self._chosen(trials, plausible, sources)
            ended = await self._write(chosen, sources, self._at, self._count)
            if isinstance(ended, AttemptEnded):
                return ended
            del plausible[chosen.trial.candidate.number + 1]
            self._known = so_far(self._journal, self._attempt)

    def _from_log(self, ordered: Ordered) -> dict[int, Trial]:
        """The plausible trials that the log records. Candidates in another order are searched from the first one."""
        trials: dict[int, Trial] = {}
        fewest = _ANY
        for body in self._known.found:
            one = ordered[body.number - 1] if body.number <= len(ordered) else None
            known = (body.rule, body.path, body.line, body.diff)
            if one is None or known != (
                one.rule,
                self._path(one.path),
                one.line,
                bounded(one.diff, DIFF_CHARS),
            ):
                self._known = self._known._replace(done=None, found=(), near=0)
                return {}
            if body.left:
                ordered.helps(one.number, body.fixed)
            if body.left < fewest:
                trials[body.number] = Trial(one, "all", body.fixed, ("",) * body.left, plausible=True)
                fewest = body.left or fewest
        self._total = len(ordered)
        return trials

    def _may_choose(self, plausible: Mapping[int, Trial]) -> bool:
        return bool(plausible) and (enough(self._at, plausible.values()) or self._hurries())

    async def _chosen(
        self, trials: Trials, plausible: Mapping[int, Trial], sources: Mapping[str, str]
    ) -> Chosen:
        hurried = self._hurries() and not enough(self._at, plausible.values())
        chosen = await trials.choose([*plausible.values()], sources)
        return replace(chosen, reasons=(*chosen.reasons, HURRIED)) if hurried else chosen

    def _hurries(self) -> bool:
        """True if the time that is left is needed for a proof."""
        checks = sum(one.seconds for one in self._evidence.baseline)
        kept = min(_PROOF_SECONDS + _PROOF_RUNS * checks, _PROOF_SHARE * self._place.clock.limit)
        return self._place.clock.left <= kept

    async def _tried(self, trial: Trial, plausible: int) -> None:
        """Show a trial; record it if it is plausible or nearly so, and every few seconds how far the search is."""
        one, now = trial.candidate, anyio.current_time()
        number = one.number + 1
        near = bool(trial.made_green) and not trial.still_red and self._known.near < _NEAR_MISSES
        if trial.plausible or (near and trial.broke):
            self._known = self._known._replace(near=self._known.near + (not trial.plausible))
            await self._save(
                number, plausible, _found(self._attempt, trial, self._total, self._path(one.path))
            )
        elif now - self._saved_at >= _BATCH_SECONDS:
            await self._save(number, plausible)
        if now - self._shown_at >= _SHOW_SECONDS:
            self._shown_at = now
            change = one_line(f"- {one.before.strip()} + {one.after.strip()}", _CHANGE_CHARS)
            note = f"candidate {number:,} of {self._total:,}: {one.path}:{one.line} {one.rule}: {change}"
            self._journal.show(Progress("work", number / self._total, note))

    async def _save(self, tried: int, plausible: int, *found: PatchFound) -> None:
        """Record how far the search is: a resumed one continues there."""
        now = anyio.current_time()
        if tried or found:
            done = CandidatesTried(self._attempt, tried, self._total, plausible, now - self._saved_at)
            await self._evidence.record(*found, done)
        self._saved_at = now

    def _may_write(self, path: str) -> bool:
        """False if no candidate in this file could be written."""
        return self._decider.decide(ToolAction(WRITE.name, self._path(path))).effect != "deny"

    def _path(self, path: str) -> str:
        return f"{self._folder}/{path}" if self._folder else path

    # A chosen patch: write it as the policy allows, then ask the evidence; undo it if the evidence objects.

    async def _write(
        self, chosen: Chosen, sources: dict[str, str], tried: int, plausible: int
    ) -> AttemptEnded | Refused:
        one = chosen.trial.candidate
        path, step = self._path(one.path), len(self._known.written) + 1
        why = "; ".join(reason for reason in chosen.reasons[1:] if reason != PLAUSIBLE)
        await self._evidence.record(
            PatchChosen(self._attempt, one.number + 1, one.rule, path, bounded(why, 1_000))
        )
        denied = await self._put(step, path, applied(sources[one.path], one.hunks))
        told: AttemptEnded | Refused = Refused(denied)
        if not denied:
            told = await self._claim(step, summary(chosen, path, tried, self._total, plausible))
            if isinstance(told, AttemptEnded):
                return told
            await self._put(step, path, sources[one.path])
            await self._evidence.checkpoint(step)
        await self._evidence.record(FinishRefused(self._attempt, one_line(told.why)))
        await self._evidence.end_turn(step)
        return told

    async def _put(self, step: int, path: str, text: str) -> str:
        """Write a file like a tool call of a model. Return why it was not written, if so."""
        call = ToolCall(f"repair-{step}", WRITE.name, {"path": path, "content": text})
        result = await self._calls.run(call)
        self._evidence.add_result(result)
        await self._evidence.record()
        return "" if result.ok else result.text

    async def _claim(self, step: int, text: str) -> AttemptEnded | Refused:
        """Ask the evidence. A search cannot follow messages, so those that arrive meanwhile do not keep it open."""
        while True:
            seen = self._journal.events[-1].seq
            told = await self._evidence.try_finish(Claim(step, text, seen))
            later = self._journal.events[seen:]
            if not isinstance(told, Refused) or not any(isinstance(e.body, PromptReceived) for e in later):
                return told


def _hopeless(found: Localised) -> str:
    """Why a search cannot succeed; empty if it can."""
    if not found.failing and found.unrun:
        return UNRUN.format(names=", ".join(found.unrun[:3]), seconds=found.seconds)
    if not found.failing:
        return FLAKY.format(names=", ".join(found.flaky[:3])) if found.flaky else NOT_RED_NOW
    if not found.suspects:
        return OUTSIDE.format(test=one_line(found.failing[0].test, 120), error=_said(found))
    return ""


def _said(found: Localised) -> str:
    first = found.failing[0]
    text = one_line(f"{first.error}: {first.message}".strip(": "), 200)
    return f" ({text})" if text else ""


def _found(attempt: int, trial: Trial, total: int, path: str) -> PatchFound:
    one = trial.candidate
    doubts = [FLAG_WORDS[flag] for flag in one.flags if flag in LAST]
    if trial.partial:
        doubts.append(f"leaves {len(trial.still_red)} of the failing tests as they are")
    return PatchFound(
        attempt,
        one.number + 1,
        total,
        one.rule,
        path,
        one.line,
        bounded(one.diff, DIFF_CHARS),
        _names(trial.made_green),
        _names(trial.broke),
        f"it {' and '.join(doubts)}" if doubts else "",
        len(trial.still_red),
    )


def _names(tests: Sequence[str]) -> tuple[str, ...]:
    return tuple(one_line(name, NAME_CHARS) for name in tests[:NAMES])
