"""The proof: run the checks on the saved change alone, then try to refute the result.

Each step is an experiment in a fresh sandbox: the tests as the base has them, new tests without the change, and old
failures that the change may not have caused. `shown` lists the tests that survive.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from cloister.agent.evidence.baseline import AwaitBaseline, Proof
from cloister.agent.evidence.independence import Independence
from cloister.agent.evidence.permission import Permitted
from cloister.agent.evidence.run_checks import Earlier, Shards, ShowCheck, run_checks, run_loosely, run_part
from cloister.agent.evidence.worktree import (
    Changes,
    back_to,
    base_files,
    both_versions,
    changed_since_base,
    files_with,
    read_text,
    restore_from_base,
    rewritten_since,
    tree_now,
)
from cloister.core.computer import Command, Computer
from cloister.core.diagnosis import Check, Comparison, Diagnosis, Weakening
from cloister.feedback import shown
from cloister.feedback.check_commands import may_run_tests
from cloister.feedback.compare import compare
from cloister.feedback.experiments.plain_programs import title
from cloister.feedback.experiments.select import only
from cloister.feedback.goals import Goals
from cloister.feedback.integrity.base_tests import (
    PutBack,
    must_pass_as_before,
    own_file,
    put_back,
    spoils,
)
from cloister.feedback.integrity.literals import hard_coded, telling
from cloister.feedback.integrity.versions import (
    Version,
    has_tests,
    is_allowed,
    is_documentation,
    is_product,
    is_test_code,
)
from cloister.feedback.integrity.weakening import permitted

_SECONDS = 60.0
_SOURCES = 20


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be proven."""

    checks: tuple[str, ...]
    baseline: tuple[Diagnosis, ...]
    known: Earlier
    """Earlier results for the same files, or those of the base: a test that fails only in the proof runs twice."""
    goals: Goals | None = None
    allowed: tuple[str, ...] = ()
    """Patterns of test files that the task may change, and whose tests it may remove."""
    cpus: float = 1.0
    shards: Shards | None = None
    """Runs a long suite in parts."""
    later: AwaitBaseline | None = None
    """Waits for the baseline while its checks run beside those of the proof."""
    permitted: Permitted = field(default_factory=Permitted)
    """By a person."""

    @property
    def may_change(self) -> tuple[str, ...]:
        """Patterns of all test files whose change is allowed."""
        return (*self.allowed, *self.permitted.patterns)

    async def complete(self) -> "Task":
        """The task with its baseline."""
        if self.later is None:
            return self
        base = await self.later()
        return replace(self, baseline=base.diagnoses, goals=base.goals, later=None)


async def run_proof(computer: Computer, task: Task, show: ShowCheck) -> Proof:
    """Run the checks in a fresh sandbox that holds the change and nothing else, and try to refute them."""
    tree, changes = await tree_now(computer), await changed_since_base(computer)
    found = await run_checks(
        computer, task.checks, "proof", show, baseline=task.known, cpus=task.cpus, shards=task.shards
    )
    task = await task.complete()
    found = permitted(found, task.may_change)
    seen = shown.permit(
        compare(task.baseline, found, task.goals), task.baseline, task.allowed, task.permitted.lost
    )
    left = shown.left_over(seen, task.goals)
    if not seen.green and not left:
        return Proof(found, seen)
    if changes is None or tree is None:
        return _refuted(task, found, "the change cannot be inspected")
    proving = _Proving(computer, task, show, tree, changes, found)
    return await proving.result(seen, left)


@dataclass(slots=True)
class _Proving:
    """The experiments after the checks have run."""

    computer: Computer
    task: Task
    show: ShowCheck
    tree: str
    """The files of the change."""
    changes: Changes
    found: tuple[Diagnosis, ...]

    async def result(self, seen: Comparison, left: tuple[str, ...]) -> Proof:
        # These take long to load, and the first request to the model comes long before the first proof.
        from cloister.agent.evidence.experiments import Experiments, Refutation  # noqa: PLC0415
        from cloister.agent.evidence.plain_runs import PlainRuns  # noqa: PLC0415

        task = self.task
        rewritten = await rewritten_since(self.computer, self.tree)
        if rewritten is None or not await back_to(self.computer, self.tree):
            return _refuted(task, self.found, "the change cannot be inspected")
        if spoilt := spoils((*self.changes.changed, *self.changes.new), rewritten):
            return _doubted(task, self.found, spoilt)
        versions = await both_versions(self.computer, self.changes.changed, self.changes.new)
        if versions is None:
            return _refuted(task, self.found, "the change is too large to inspect")
        if weak := await self._as_on_the_base(versions, seen.fixed):
            return _doubted(task, self.found, weak)
        hidden, edited = await self._passing_as_on_the_base(versions)
        if hidden:
            return _doubted(task, self.found, hidden)
        old = shown.base_shows(seen.shown, task.baseline, versions)
        new = await self._new_tests(versions)
        tried = Refutation()
        if old or new or not all(map(is_documentation, (*self.changes.changed, *self.changes.new))):
            experiments = Experiments(self.computer, self.show, self.tree, self.changes, self.found)
            tried = await experiments.refute({*old, *new})
        if tried.deceived:
            return _doubted(task, self.found, tried.deceived)
        runs = PlainRuns(self.computer, self.show, self.tree, self.found)
        repeated = await runs.repeat(versions, {*old, *new})
        if repeated.knowing:
            return _doubted(task, self.found, repeated.knowing)
        # A test of the base that has no assertion to change did fail without the change.
        empty = set(tried.empty).difference(old)
        names = (*old, *(name for name in new if name not in empty))
        notes = tuple(edited)
        notes += tuple(f"{name} shows nothing: no assertion of it can fail" for name in sorted(empty))
        tests = [one.path for one in versions if has_tests(one.path) and not is_product(one.path)]
        given = [one.path for one in versions if is_allowed(one.path, task.permitted.patterns)]
        notes += tuple(
            f"changed with permission: {path}"
            for path in dict.fromkeys((*tests, *given))
            if is_allowed(path, task.may_change)
        )
        notes += (
            *await self._hard_coded(versions, names),
            *(telling(versions) if names else ()),
            *repeated.notes,
        )
        trace = Independence(self.computer, self.show, task.baseline, self.found)
        excused = await trace.excused(left, versions) if left else {}
        comparison = shown.excuse(seen, excused) if left else seen
        notes = (*comparison.notes, *notes)
        return Proof(self.found, msgspec.structs.replace(comparison, shown=names, notes=notes))

    async def _as_on_the_base(
        self, versions: tuple[Version, ...], fixed: Sequence[str]
    ) -> tuple[Weakening, ...]:
        """Restore the tests and settings of the base. A fixed test that fails with those was weakened."""
        baseline = self.task.baseline
        decisive, lacking = must_pass_as_before(baseline, fixed)
        inside = {one.path: one for one in versions if not is_allowed(one.path, self.task.may_change)}
        own = {name: path for name in lacking if (path := own_file(name, baseline, inside))}
        if own and (weak := await self._holds({*own}, (PutBack(tuple(sorted({*own.values()}))),))):
            return weak
        if not decisive:
            return ()
        known = await base_files(self.computer)
        ways = put_back(self.changes.changed, self.changes.new, known, baseline, inside, self.task.may_change)
        return await self._holds(decisive, ways)

    async def _holds(self, decisive: set[str], ways: Sequence[PutBack]) -> tuple[Weakening, ...]:
        """Restore files of the base in these ways until the tests pass. Those that never do were weakened."""
        baseline = self.task.baseline
        before = tuple(
            one
            for one in baseline
            if not one.green and may_run_tests(one.check)
            if decisive & {one.check, *(test.name for test in one.failing)}
        )
        red = tuple(one.check for one in before)
        for number, way in enumerate(ways):
            if not await self._put(way.restore, way.remove, way.write):  # each way builds on the one before
                return (Weakening(".", "base", detail="the tests of the base could not be restored"),)
            if way.rebuilds:  # programs that git ignores were built with the settings of the change
                await self.computer.run(_bash("git ls-files -z | xargs -0 -r touch -c --"))
            put = await tree_now(self.computer)
            # The tests in question first, and everything only if one of them fails: it may need others, or be flaky.
            some = [test for one in before for test in one.failing if test.name in decisive]
            again = [
                await self._part(
                    one.check, [test.name for test in some if test in one.failing], f"base-{number}"
                )
                for one in before
            ]
            if not decisive <= {*compare(before, again).fixed}:
                again = await self._again(red, f"base-{number}")
            rewritten = await rewritten_since(self.computer, put) if put is not None else None
            if rewritten is None:
                return (Weakening(".", "base", detail="the tests cannot be inspected"),)
            if spoilt := spoils((), rewritten):
                return spoilt
            calm = compare(before, again)
            decisive.difference_update(calm.fixed, calm.flaky)
            if not decisive:
                break
        if ways and not await back_to(self.computer, self.tree):
            return (Weakening(".", "base", detail="the change could not be restored"),)
        return tuple(Weakening(name, "base") for name in sorted(decisive)) if ways else ()

    async def _passing_as_on_the_base(
        self, versions: tuple[Version, ...]
    ) -> tuple[tuple[Weakening, ...], tuple[str, ...]]:
        """Tests that passed on the base and were edited or moved must pass as they were: that can hide a regression."""
        baseline, allowed = self.task.baseline, self.task.may_change
        inside = {one.path: one for one in versions if not is_allowed(one.path, allowed)}
        free = [one for one in versions if one.path not in inside]
        names = shown.edited_tests(baseline, self.found, tuple(inside.values()), free)
        names = {name: check for name, check in names.items() if name not in self.task.permitted.lost}
        if not names:
            return (), ()
        known = await base_files(self.computer)
        ways = put_back(self.changes.changed, self.changes.new, known, baseline, inside, allowed)
        for way in ways[-1:]:
            if not await self._put(way.restore, way.remove, way.write):
                return (Weakening(".", "base", detail="the tests of the base could not be restored"),), ()
        # A check that only counts some of its passing tests need not name this one either.
        counting = {one.check for one in self.found if one.unlisted}
        gone = {name for name, check in names.items() if check not in counting}
        gone.difference_update(test.name for one in self.found for test in one.tests)
        again = await self._each(names, names, "edited")
        red, notes = shown.hidden_by_edits(names, again, versions, gone, all_restored=not free)
        if red:  # once more, as one may be flaky
            again = await self._each(red, names, "edited")
            red, _ = shown.hidden_by_edits(red, again, versions, gone, all_restored=not free)
        if not await back_to(self.computer, self.tree):
            return (Weakening(".", "base", detail="the change could not be restored"),), ()
        return tuple(Weakening(name, "base") for name in red), notes

    async def _hard_coded(self, versions: tuple[Version, ...], names: Sequence[str]) -> tuple[str, ...]:
        """Notes on literals of the tests that carry the proof, in new code."""
        red = [test for one in self.task.baseline for test in one.failing if test.name in names]
        if not red and not any(one.check in names for one in self.task.baseline):
            return ()
        inside = {one.path: one.before for one in versions}
        texts: dict[str, str] = {}
        known = await base_files(self.computer)
        paths = await files_with(self.computer, {title(test.name) for test in red}) if red else known
        for path in [path for path in paths if has_tests(path) and path in known][:_SOURCES]:
            if text := inside.get(path) or await read_text(self.computer, path):
                texts[path] = text
        return hard_coded(red, texts, versions)

    async def _new_tests(self, versions: tuple[Version, ...]) -> tuple[str, ...]:
        """New tests that pass with the change, and fail on the base for want of it."""
        new = shown.new_tests(self.task.baseline, self.found)
        away = shown.without_change(versions, self.changes.new)
        if not new or not (away.restore or away.remove):
            return ()
        if not await self._put(away.restore, away.remove, away.write):
            return ()
        again = await self._each(new, new, "without")
        if not await back_to(self.computer, self.tree):
            return ()
        names = shown.fails_for_want_of(new, again, versions)
        return await self._still_passing(names, new) if names else ()

    async def _still_passing(self, names: Sequence[str], checks: Mapping[str, str]) -> tuple[str, ...]:
        """The tests that pass again with the change: a test that fails the second time shows nothing."""
        passed: set[str] = set()
        for again in await self._each(names, checks, "again"):
            passed |= {test.name for test in again.tests if test.status == "passed"}
        await back_to(self.computer, self.tree)
        return tuple(name for name in names if name in passed)

    async def _each(self, names: Iterable[str], checks: Mapping[str, str], place: str) -> list[Diagnosis]:
        """Run these tests, each with its check."""
        mine: dict[str, list[str]] = {}
        for name in names:
            mine.setdefault(checks[name], []).append(name)
        return [await self._part(check, some, place) for check, some in mine.items()]

    async def _part(self, check: str, names: Sequence[str], place: str) -> Diagnosis:
        """Run a check, restricted to these tests if that is possible."""
        paths = await files_with(self.computer, {title(name) for name in names})
        files = [path for path in paths if is_test_code(path) and has_tests(path)]

        def line(spec: Check) -> str:
            return only(spec, files, names) or spec.run or spec.command

        return await run_part(self.computer, check, f"proof-{place}-{secrets.token_hex(4)}", self.show, line)

    async def _again(self, checks: tuple[str, ...], place: str) -> tuple[Diagnosis, ...]:
        task = self.task
        return await run_loosely(self.computer, checks, f"proof-{place}", self.show, self.found, task.cpus)

    async def _put(
        self, restore: Sequence[str], remove: Sequence[str], write: Sequence[tuple[str, str]]
    ) -> bool:
        if restore and not await restore_from_base(self.computer, restore):
            return False
        for name, text in write:
            await self.computer.write(name, text.encode())
        if remove:
            done = await self.computer.run(Command(("rm", "-f", "--", *remove), seconds=_SECONDS))
            return done.ok
        return True


def _bash(script: str, *args: str) -> Command:
    return Command(("/bin/bash", "-c", script, "bash", *args), seconds=_SECONDS)


def _refuted(task: Task, found: tuple[Diagnosis, ...], why: str) -> Proof:
    return _doubted(task, found, (Weakening(".", "base", detail=why),))


def _doubted(task: Task, found: tuple[Diagnosis, ...], weak: tuple[Weakening, ...]) -> Proof:
    doubted = tuple(msgspec.structs.replace(one, weakened=(*one.weakened, *weak)) for one in found)
    return Proof(doubted, compare(task.baseline, doubted, task.goals))
