"""Runs candidates against the tests: the failing tests first, then the affected ones, then all.

`Trials` holds a few warm workers in the sandbox. Each works in a private copy, so the repository's files stay as they
are. Results come in the order of the candidates, whatever worker was faster.
"""

import re
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from posixpath import dirname, join, normpath
from types import TracebackType
from typing import Self, TypeVar, cast

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream

from cloister.core.computer import Computer
from cloister.core.errors import CloisterError, UserError
from cloister.harnesses.repair.api import (
    Candidate,
    Chosen,
    Failure,
    Localised,
    Method,
    Stage,
    Suspect,
    Trial,
    applied,
)
from cloister.harnesses.repair.choose import Behaviour, choose
from cloister.harnesses.repair.localise import Covered, by_imports, by_traceback, ranked
from cloister.harnesses.repair.suite import Suite, language_of
from cloister.harnesses.repair.syntax import parses
from cloister.harnesses.repair.worker import Lines, Ready, Tried, Worker, started

_FIRST = 3
"""Failing tests of the first stage, of different functions. They run even if one fails, which shows partial repairs."""
_AFFECTED = 150
_MARGIN = (0.1, 0.4)
"""Processor time in seconds that every test may take, whatever it took before: between these, by the passing tests."""
_EACH_SECONDS = 1.0
_TRACED_SECONDS = 0.6
"""Processor time of a test in the plain run, and of one with coverage."""
_TRACE_COST = 5
"""How much longer a test takes with coverage, at most."""
_TRACED_RED = 30
_TRACED_GREEN = 300
"""Tests that run with coverage. A number and not a time, so that a search can be repeated."""
_SHARE = 4
"""Tests that are worth a second worker."""
_AGAIN = 20
"""Failing tests that run one by one if some of them pass."""
_SLOW = 4
"""Failing tests that run again with a longer limit."""
_FLAKY = 3
"""Passing tests that fail with a candidate and are repeated: a flaky one refuses nothing."""
_LOST = 5
"""Candidates in a row that cost their workers, after which the tests cannot be driven."""


T = TypeVar("T")


class _Job:
    """Work for any worker. `answer` holds the result or the error when `done` is set."""

    def __init__(self, work: Callable[[Worker], Awaitable[object]]) -> None:
        self.work = work
        self.done = anyio.Event()
        self.again = True
        """True if a worker that is lost does not end it: the next one does it again."""
        self.wanted = True
        self.error: CloisterError | None = None
        self.answer: object = None


class Trials:
    """An async context manager over the workers of one suite. Raises `UserError` (`worker_lost`) if none can start."""

    def __init__(self, computer: Computer, suite: Suite, *, workers: int = 2, seconds: float = 600.0) -> None:
        self._computer, self._suite = computer, suite
        self._count, self._seconds = max(1, workers), seconds
        self._stack = AsyncExitStack()
        self._send, self._receive = anyio.create_memory_object_stream[_Job](4 * self._count)
        self._tests: dict[str, Covered] = {}
        self._failing: tuple[Failure, ...] = ()
        self._covering: dict[tuple[str, int], list[str]] = {}
        self._cold = False
        self._margin = _MARGIN[1]

    async def __aenter__(self) -> Self:
        tasks = await self._stack.enter_async_context(anyio.create_task_group())
        for _ in range(self._count):
            tasks.start_soon(self._serve)
        self._stack.callback(self._send.close)
        self._stack.callback(self._receive.close)
        self._stack.callback(tasks.cancel_scope.cancel)  # ends jobs that are left over
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def _serve(self) -> None:
        """Do jobs with one worker; replace a lost worker, and do its job once more."""
        jobs = self._receive.clone()
        with jobs:
            going, left = True, None
            while going:
                async with started(self._computer, self._suite, self._seconds) as worker:
                    going, left = await _serve_with(worker, jobs, left)

    async def _do(self, work: Callable[[Worker], Awaitable[T]]) -> T:
        job = _Job(work)
        await self._send.send(job)
        await job.done.wait()
        if job.error is not None:
            raise job.error
        return cast("T", job.answer)

    async def localise(
        self,
        hints: Sequence[str] = (),
        *,
        seconds: float = 60.0,
        passing: int | None = None,
        longest: float = 0.0,
    ) -> Localised:
        """Run every test, then those that fail and some of the others with coverage, and rank the lines.

        `hints`: names of tests that are known to fail. Others that fail here do so for a reason of their own.
        `passing`: beside those, run at most so many; all if no test has such a name.
        `longest`: no test of `hints` took longer before it failed.
        """
        began = anyio.current_time()
        ready = await self._do(Worker.opened)
        end = began + seconds
        named = not frozenset(hints).isdisjoint(ready.tests)
        wanted = _near(ready.tests, hints, passing) if named and passing is not None else ready.tests
        tests = await self._cover(wanted, end, each=_EACH_SECONDS, trace=False)
        slow = [name for name in hints if name in ready.tests and _stopped(tests.get(name))]
        if slow and longest:
            tests.update(await self._slowly(slow[:_SLOW], min(longest, seconds / 3)))
        notes: list[str] = []
        if len(tests) < len(wanted):
            why = "the time was over, or their names change from process to process"
            notes.append(f"{len(wanted) - len(tests)} tests did not run: {why}")
        bad = [name for name, test in tests.items() if test.status in ("failed", "late")]
        red = [name for name in bad if name in frozenset(hints)] or bad
        if len(red) < len(bad):
            notes.append(f"{len(bad) - len(red)} other tests fail only in the search and are left out")
        usual = max((test.seconds for test in tests.values() if test.status == "passed"), default=0.004)
        self._margin = min(_MARGIN[0] + 10 * usual, _MARGIN[1])
        traced = await self._traced(_spread(red, _TRACED_RED), tests, end)
        flaky = tuple(name for name, test in traced.items() if test.status == "passed" != tests[name].status)
        red = [name for name in red if name not in flaky]
        for name in red:
            if name in traced:
                tests[name] = msgspec.structs.replace(tests[name], lines=traced[name].lines)
        suspects, method = await self._suspected(ready, tests, red, end)
        green = tuple(name for name, test in tests.items() if test.status == "passed")
        unrun = tuple(name for name in slow if name not in tests)
        if flaky:
            notes.append(f"{len(flaky)} tests failed and passed on the same files and are left out")
        took = round(anyio.current_time() - began, 3)
        known = (self._failing, green, flaky, tuple(notes), took, tuple(ready.modules), unrun)
        return Localised(suspects, method, *known)

    async def _suspected(
        self, ready: Ready, tests: dict[str, Covered], red: Sequence[str], end: float
    ) -> tuple[tuple[Suspect, ...], Method]:
        """Rank the lines that failing tests run; remember which tests run them."""
        only = _union(tests[name] for name in red)
        green = [name for name, test in tests.items() if test.status == "passed"]
        near = _spread(_nearest(green, red), _TRACED_GREEN) if only else []
        for name, test in (await self._cover(near, end, each=_TRACED_SECONDS, only=only)).items():
            tests[name] = msgspec.structs.replace(tests[name], lines=test.lines)
        broken = [Failure(one.id, "", one.message, tuple(one.frames)) for one in ready.errors]
        suspects, method = ranked([tests[name] for name in (*red, *near)], frozenset(red))
        if broken and not suspects:
            suspects, method = by_traceback(broken), "traceback"
        if not suspects and (red or broken):
            names = sorted({name.partition("::")[0] for name in red} | {one.test for one in broken})
            suspects, method = by_imports(await self._imported(names)), "imports"
        self._tests, self._cold = tests, bool(broken)
        self._failing = (*(tests[name].failure for name in red), *broken)
        self._covering = _index(tests[name] for name in (*red, *near))
        return suspects, method

    async def _slowly(self, names: Sequence[str], longest: float) -> dict[str, Covered]:
        """Run failing tests that the plain run did not reach, or stopped although they end."""
        each = max(_EACH_SECONDS, longest)
        return await self._cover(names, anyio.current_time() + 2 * each + 5, each=each, trace=False)

    async def _traced(
        self, red: Sequence[str], tests: Mapping[str, Covered], end: float
    ) -> dict[str, Covered]:
        each = max((_TRACED_SECONDS, *(_TRACE_COST * _seconds(tests.get(name)) for name in red)))
        return await self._cover(red, max(end, anyio.current_time() + each), each=each)

    async def _cover(
        self, names: Sequence[str], end: float, *, each: float, trace: bool = True, only: Lines | None = None
    ) -> dict[str, Covered]:
        """Run tests in all workers at once."""
        found: dict[str, Covered] = {}
        errors: list[CloisterError] = []

        async def some(worker: Worker, part: Sequence[str]) -> None:
            left = max(1.0, end - anyio.current_time())
            async for one in worker.cover(part, seconds=left, each=each, trace=trace, only=only):
                found[one.id] = one

        async def share(part: Sequence[str]) -> None:
            try:
                await self._do(lambda worker: some(worker, part))
            except CloisterError as error:
                errors.append(error)

        size = max(_SHARE, -(-len(names) // self._count))
        async with anyio.create_task_group() as tasks:
            for start in range(0, len(names), size):
                tasks.start_soon(share, names[start : start + size])
        if errors:
            raise errors[0]
        return {name: found[name] for name in names if name in found}

    async def _imported(self, names: Sequence[str]) -> Mapping[str, int]:
        """The files that test files import, with their numbers of lines."""
        found: dict[str, int] = {}
        for name in names[:5]:
            try:
                text = (await self._computer.read(self._path(name))).decode(errors="replace")
            except CloisterError:
                continue
            for path in _imports(text, name):
                try:
                    data = await self._computer.read(self._path(path), limit_bytes=1_000_000)
                except CloisterError:
                    continue
                found[path] = data.count(b"\n") + 1
        return found

    def _path(self, name: str) -> str:
        return f"{self._suite.folder}/{name}" if self._suite.folder else name

    async def sources(self, paths: Iterable[str]) -> dict[str, str]:
        """The text of files, without those that are no UTF-8."""
        found: dict[str, str] = {}
        for path in paths:
            try:
                found[path] = (await self._computer.read(self._path(path), limit_bytes=2_000_000)).decode()
            except (CloisterError, UnicodeDecodeError):
                continue
        return found

    async def over(
        self, candidates: Iterable[Candidate], sources: Mapping[str, str]
    ) -> AsyncGenerator[Trial]:
        """Try candidates; yield the trials in their order."""
        left = iter(candidates)
        pending: list[tuple[Candidate, _Job]] = []
        lost = 0
        try:
            while True:
                while len(pending) < 2 * self._count and (one := next(left, None)) is not None:
                    pending.append((one, _Job(partial(self._try, one, sources[one.path]))))
                    await self._send.send(pending[-1][1])
                if not pending:
                    return
                candidate, job = pending.pop(0)
                await job.done.wait()
                lost = lost + 1 if job.error is not None else 0
                if job.error is not None and lost == _LOST:
                    raise job.error
                trial = job.answer or Trial(candidate, "failing", reason=str(job.error))
                yield cast(Trial, trial)
        finally:
            for _, job in pending:
                job.wanted = False

    async def _try(self, candidate: Candidate, source: str, worker: Worker) -> Trial:
        """The failing tests that reach the change, then the affected, then all; then once more in a process that imports it.

        A candidate that repairs just some of the failing tests goes the same way with those.
        """
        began = anyio.current_time()
        text = applied(source, candidate.hunks)
        if not parses(candidate.path, source, text):
            return Trial(candidate, "syntax", reason="does not parse")
        red = reached = self._reached(candidate)
        first = list({name.partition("[")[0]: name for name in reversed(red)}.values())[::-1]
        first = first[: 1 if self._tests[red[0]].status == "late" else _FIRST] if not self._cold else red
        near = self._affected(candidate)
        run = partial(self._run, worker, candidate.path, text)
        tried = await run(first, [name for name in red if name not in first], near)
        results = dict(tried.results)
        plausible = _all_passed(results, [*red, *near])
        stage: Stage = "syntax" if tried.stage < 0 else "affected" if set(results) & set(near) else "failing"
        if not plausible and stage == "failing" and "passed" in results.values() and len(red) > 1:
            for name in [name for name in red if name not in results][:_AGAIN]:
                results.update((await run([name])).results)
            red = [name for name in red if results.get(name) == "passed"]
            if near:
                results.update((await run(near)).results)
            plausible = _all_passed(results, [*red, *near])
        if plausible:
            stage = "all"
            rest = [name for name in self._passing() if name not in results]
            # Only a worker of Python keeps what it imported, and what the import did with the old code.
            others = [one.test for one in self._failing if one.test not in reached and not one.late]
            again = [*reached, *others] if self._suite.language == "python" and not self._cold else []
            for names, needed, cold in ((rest, rest, self._cold), (again, red, True)):
                if plausible and names:
                    more = await run(names, cold=cold)
                    results.update(more.results)
                    plausible = _all_passed(more.results, needed)
        every = [failure.test for failure in self._failing]
        return Trial(
            candidate,
            stage,
            tuple(name for name in every if results.get(name) == "passed"),
            tuple(name for name in every if results.get(name) != "passed"),
            tuple(name for name, status in results.items() if status != "passed" and name not in every),
            round(anyio.current_time() - began, 4),
            plausible,
            tried.why,
        )

    async def _run(
        self, worker: Worker, path: str, text: str, *parts: Sequence[str], cold: bool = False
    ) -> Tried:
        """The results of tests with a candidate. A passing test that fails and then passes is flaky: it counts as passed."""
        cold, names = cold or self._cold, [name for part in parts for name in part]
        tried = await worker.attempt(path, text, self._stages(parts), cold=cold)
        results = dict(tried.results)
        while bad := [name for name, status in results.items() if status != "passed"]:
            green = [name for name in bad if (was := self._tests.get(name)) and was.status == "passed"]
            if len(green) < len(bad) or len(bad) > _FLAKY:
                break
            more = await worker.attempt(path, text, self._stages([bad]), cold=cold)
            if not _all_passed(more.results, bad):
                break
            rest = [name for name in names if name not in results]
            results.update(more.results)
            if rest:
                more = await worker.attempt(path, text, self._stages([rest]), cold=cold)
                results.update(more.results)
        return Tried(results, tried.stage, tried.why)

    def _passing(self) -> list[str]:
        return [name for name, test in self._tests.items() if test.status == "passed"]

    def _reached(self, candidate: Candidate) -> list[str]:
        """Failing tests that run the changed lines, quickest first and looping ones last; all, if coverage knows none."""
        every = [failure.test for failure in self._failing]
        places = [self._covering.get(place, ()) for place in _places(candidate)]
        near = {name for names in places for name in names}
        late = frozenset(failure.test for failure in self._failing if failure.late)
        reached = (
            [name for name in every if name in near or not self._tests[name].lines]
            if not self._cold
            else every
        )
        return sorted(
            reached if near.intersection(every) else every,
            key=lambda name: (name in late, self._seconds_of(name)),
        )

    def _seconds_of(self, name: str) -> float:
        return _seconds(self._tests.get(name))

    def _stages(self, parts: Sequence[Sequence[str]]) -> list[tuple[Sequence[str], float, float]]:
        """Tests with their limits: for each a few times the longest, on the clock ten times all of it."""
        stages: list[tuple[Sequence[str], float, float]] = []
        for names in parts:
            if names:
                took = [self._seconds_of(name) for name in names]
                each = self._margin + 3 * max(took)
                stages.append((names, round(each, 3), round(2 + 10 * (each + sum(took)), 3)))
        return stages

    def _affected(self, candidate: Candidate) -> list[str]:
        """The quickest passing tests that run the changed lines, in the order of the suite: some need those before them."""
        found = {name for place in _places(candidate) for name in self._covering.get(place, ())}
        green = [name for name in found if self._tests[name].status == "passed"]
        near = frozenset(sorted(green, key=lambda name: (self._seconds_of(name), name))[:_AFFECTED])
        return [name for name in self._tests if name in near]

    async def choose(self, plausible: Sequence[Trial], sources: Mapping[str, str]) -> Chosen:
        """Pick one of several plausible patches, after a run of old and new on inputs near those of the tests."""
        behaviours: dict[int, Behaviour] = {}
        tests = [failure.test for failure in self._failing if not failure.late][:20]
        old: dict[str, dict[str, str]] = {}
        for trial in plausible if tests and not self._cold else ():
            path, number = trial.candidate.path, trial.candidate.number
            near = [*tests, *self._affected(trial.candidate)[:20]]
            try:
                if path not in old:
                    old[path] = await self._do(lambda worker, p=path, t=near: worker.call(p, None, t))
                text = applied(sources[path], trial.candidate.hunks)
                new = await self._do(lambda worker, p=path, x=text, t=near: worker.call(p, x, t))
            except UserError:
                continue
            behaviours[number] = Behaviour.of(old[path], new)
        return choose(plausible, behaviours)


async def _serve_with(
    worker: Worker, jobs: MemoryObjectReceiveStream[_Job], first: _Job | None
) -> tuple[bool, _Job | None]:
    """Do `first`, then jobs until there are no more (False) or the worker is lost (True, and the job to do again)."""
    while True:
        try:
            job = first or await jobs.receive()
        except anyio.EndOfStream:
            return False, None
        first = None
        try:
            job.answer = await job.work(worker) if job.wanted else None
        except CloisterError as error:
            again, job.again = job.again, False
            if not again:
                job.error = error
                job.done.set()
            return True, job if again else None
        job.done.set()


def _stopped(test: Covered | None) -> bool:
    """True for a test that did not run, or ran over its limit."""
    return test is None or test.status == "late"


def _seconds(test: Covered | None) -> float:
    return 0.0 if test is None or test.status == "late" else test.seconds


def _all_passed(results: Mapping[str, str], names: Iterable[str]) -> bool:
    return all(results.get(name) == "passed" for name in names)


def _places(candidate: Candidate) -> set[tuple[str, int]]:
    return {
        (candidate.path, line)
        for hunk in candidate.hunks
        for line in range(hunk.line - (not hunk.before), hunk.line + max(1, hunk.height))
    }


def _spread(names: Sequence[str], most: int) -> list[str]:
    """At most so many of them: the first half of that, and the others evenly from the rest."""
    half = most // 2
    rest = names[half:]
    return [*names[:half], *rest[:: max(1, -(-len(rest) // (most - half)))]]


def _near(tests: Sequence[str], red: Sequence[str], most: int) -> list[str]:
    """The failing tests and some of the others, in the order of the suite."""
    known = frozenset(red)
    found = {*known, *_spread(_nearest([name for name in tests if name not in known], red), most)}
    return [name for name in tests if name in found]


def _nearest(green: Sequence[str], red: Sequence[str]) -> list[str]:
    """Tests of the same files as the failing ones first."""
    files = {name.partition("::")[0] for name in red}
    return sorted(green, key=lambda name: name.partition("::")[0] not in files)


def _union(tests: Iterable[Covered]) -> dict[str, list[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for test in tests:
        for path, lines in test.lines.items():
            found[path].update(lines)
    return {path: sorted(lines) for path, lines in found.items()}


def _index(tests: Iterable[Covered]) -> dict[tuple[str, int], list[str]]:
    """The tests that run each line."""
    found: dict[tuple[str, int], list[str]] = defaultdict(list)
    for test in tests:
        for path, lines in test.lines.items():
            for line in lines:
                found[path, line].append(test.id)
    return found


_IMPORT = re.compile(r"^[ \t]{0,40}(?:from|import)[ \t]{1,8}([\w.]{1,200})", re.MULTILINE)
_REQUIRE = re.compile(r"""(?:from|import|require\()[ \t]{0,8}["'](\.[^"'\n]{1,200})["']""")


def _imports(text: str, importer: str) -> list[str]:
    """The files that a test may import from its repository."""
    found: list[str] = []
    if language_of(importer) == "script":
        for name in _REQUIRE.findall(text)[:200]:
            path = normpath(join(dirname(importer), name))
            found += [
                path,
                *(f"{path}{end}" for end in (".js", ".ts", ".tsx", ".jsx", ".mjs", "/index.js", "/index.ts")),
            ]
            found += [f"{path.removesuffix('.js')}.ts"]
        return [path for path in dict.fromkeys(found) if language_of(path)]
    for name in _IMPORT.findall(text)[:200]:
        path = name.strip(".").replace(".", "/")
        found += [f"{top}{path}{end}" for top in ("", "src/") for end in (".py", "/__init__.py")]
    return list(dict.fromkeys(found))
