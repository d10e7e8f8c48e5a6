"""Runs candidates against the tests: the failing tests first, then the affected ones, then all.

`Trials` holds a few warm workers in the sandbox. Each works in a private copy, so the repository's files stay as they
are. Results come in the order of the candidates, whatever worker was faster.
"""

import re
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Self, TypeVar, cast

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream

from cloister.core.computer import Computer
from cloister.core.errors import CloisterError, UserError
from cloister.repair.api import Candidate, Chosen, Failure, Localised, Stage, Trial, applied
from cloister.repair.choose import Behaviour, choose
from cloister.repair.localise import Covered, by_imports, by_traceback, ranked
from cloister.repair.suite import Suite
from cloister.repair.worker import Worker, started

_FIRST = 3
"""Failing tests of the first stage, of different functions. They run even if one fails, which shows partial repairs."""
_AFFECTED = 150
_MARGIN = (0.1, 0.4)
"""Processor time in seconds that every test may take, whatever it took before: between these, by the passing tests."""
_EACH_SECONDS = 0.6
_AGAIN_SECONDS = 2.0
_AGAIN = 100
"""Failing tests that run twice."""
_MORE_PLAUSIBLE = 5
_MORE_CANDIDATES = (30, 200)
"""Candidates that are tried after the first plausible one: half as many as before it, between these."""


T = TypeVar("T")


class _Job:
    """Work for any worker. `answer` holds the result or the error when `done` is set."""

    def __init__(self, work: Callable[[Worker], Awaitable[object]]) -> None:
        self.work = work
        self.done = anyio.Event()
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
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def _serve(self) -> None:
        """Do jobs with one worker; replace a lost worker."""
        jobs = self._receive.clone()
        with jobs:
            going = True
            while going:
                async with started(self._computer, self._suite, self._seconds) as worker:
                    going = await _serve_with(worker, jobs)

    async def _do(self, work: Callable[[Worker], Awaitable[T]]) -> T:
        job = _Job(work)
        await self._send.send(job)
        await job.done.wait()
        if job.error is not None:
            raise job.error
        return cast("T", job.answer)

    async def localise(self, hints: Sequence[str] = (), *, seconds: float = 60.0) -> Localised:
        """Run every test once with coverage and rank the lines. `hints`: names of tests known to fail, run first."""
        return await self._do(partial(self._localise, hints, seconds))

    async def _localise(self, hints: Sequence[str], seconds: float, first: Worker) -> Localised:
        began = anyio.current_time()
        ready = await first.opened()
        wanted = frozenset(hints)
        order = sorted(ready.tests, key=lambda name: name not in wanted) if hints else None
        notes: list[str] = []
        tests = [one async for one in first.cover(order, seconds=seconds, each=_EACH_SECONDS)]
        if len(tests) < len(ready.tests):
            notes.append(
                f"{len(ready.tests) - len(tests)} tests did not run: the time for localising was over"
            )
        tests, flaky = await self._again(first, tests)
        self._tests = {test.id: test for test in tests}
        red = {test.id for test in tests if test.status in ("failed", "late")}
        broken = [Failure(one.id, "", one.message, tuple(one.frames)) for one in ready.errors]
        suspects, method = ranked(tests, frozenset(red))
        if broken and not suspects:
            suspects, method = by_traceback(broken), "traceback"
        if not suspects and (red or broken):
            imported = await self._imported(
                sorted({name.partition("::")[0] for name in red} | {one.test for one in broken})
            )
            suspects, method = by_imports(imported), "imports"
        self._failing = (*(self._tests[name].failure for name in self._tests if name in red), *broken)
        self._cold = bool(broken)
        self._covering = _index(tests)
        usual = max((test.seconds for test in tests if test.status == "passed"), default=0.004)
        self._margin = min(_MARGIN[0] + 10 * usual, _MARGIN[1])
        if flaky:
            notes.append(f"{len(flaky)} tests failed and passed on the same files and are left out")
        passing = tuple(test.id for test in tests if test.status == "passed" and test.id not in flaky)
        took = round(anyio.current_time() - began, 3)
        return Localised(suspects, method, self._failing, passing, flaky, tuple(notes), took)

    async def _again(self, worker: Worker, tests: list[Covered]) -> tuple[list[Covered], tuple[str, ...]]:
        """Run failing tests once more without tracing, late ones with more time; return the truth and what is flaky."""
        red = [test.id for test in tests if test.status in ("late", "failed")][:_AGAIN]
        again: dict[str, Covered] = {}
        if red:
            usual = max((test.seconds for test in tests if test.status == "passed"), default=0.0)
            each = min(_AGAIN_SECONDS, 0.5 + 20 * usual)
            async for one in worker.cover(red, seconds=60.0, each=each, trace=False):
                again[one.id] = one
        flaky: list[str] = []
        kept: list[Covered] = []
        for test in tests:
            now = again.get(test.id, test)
            if test.status == "failed" and now.status == "passed":
                flaky.append(test.id)
            elif test.status == "late":
                kept.append(msgspec.structs.replace(now, lines=test.lines))
            else:
                kept.append(test)
        return kept, tuple(flaky)

    async def _imported(self, names: Sequence[str]) -> Mapping[str, int]:
        """The files that test files import, with their numbers of lines."""
        found: dict[str, int] = {}
        for name in names[:5]:
            try:
                text = (await self._computer.read(self._path(name))).decode(errors="replace")
            except CloisterError:
                continue
            for path in _imports(text):
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
        self, candidates: Iterable[Candidate], sources: Mapping[str, str], *, endless: bool = False
    ) -> AsyncGenerator[Trial]:
        """Try candidates; yield the trials in their order.

        Stops by itself a bounded number of candidates after the first plausible one, unless `endless`.
        """
        left = iter(candidates)
        pending: list[tuple[Candidate, _Job]] = []
        last: int | None = None
        tried = found = 0
        while True:
            while len(pending) < 2 * self._count and (one := next(left, None)) is not None:
                pending.append((one, _Job(partial(self._try, one, sources[one.path]))))
                await self._send.send(pending[-1][1])
            if not pending:
                return
            candidate, job = pending.pop(0)
            await job.done.wait()
            lost = Trial(candidate, "failing", reason=str(job.error))
            trial = lost if job.error is not None else cast(Trial, job.answer)
            tried, found = tried + 1, found + trial.plausible
            yield trial
            if trial.plausible and last is None:
                last = tried + min(max(_MORE_CANDIDATES[0], tried // 2), _MORE_CANDIDATES[1])
            if not endless and (found >= _MORE_PLAUSIBLE or (last is not None and tried >= last)):
                return

    async def _try(self, candidate: Candidate, source: str, worker: Worker) -> Trial:
        """The failing tests, then the affected, then all; then the failing ones again in a process that imports them again."""
        began = anyio.current_time()
        text = applied(source, candidate.hunks)
        red = [failure.test for failure in self._failing]
        late = frozenset(failure.test for failure in self._failing if failure.late)
        quick = sorted(red, key=lambda name: (name in late, self._seconds_of(name)))
        near = self._affected(candidate)
        first = list({name.partition("[")[0]: name for name in reversed(quick)}.values())[::-1]
        first = first[: 1 if quick[0] in late else _FIRST]
        others = [name for name in quick if name not in first]
        stages = [self._stage(part) for part in (first, others, near) if part]
        tried = await worker.attempt(candidate.path, text, stages, cold=self._cold)
        results = dict(tried.results)
        plausible = _all_passed(results, [*red, *near])
        stage: Stage = "syntax" if tried.stage < 0 else "affected" if set(results) & set(near) else "failing"
        if plausible:
            stage = "all"
            done = set(results)
            rest = [
                name for name, test in self._tests.items() if test.status == "passed" and name not in done
            ]
            for names, cold in ((rest, self._cold), (red, True)):
                if plausible and names and not (cold and names is red and self._cold):
                    more = await worker.attempt(candidate.path, text, [self._stage(names)], cold=cold)
                    results.update(more.results)
                    plausible = _all_passed(more.results, names)
        return Trial(
            candidate,
            stage,
            tuple(name for name in red if results.get(name) == "passed"),
            tuple(name for name in red if results.get(name) != "passed"),
            tuple(name for name, status in results.items() if status != "passed" and name not in red),
            round(anyio.current_time() - began, 4),
            plausible,
            tried.why,
        )

    def _seconds_of(self, name: str) -> float:
        test = self._tests.get(name)
        return 0.0 if test is None or test.status == "late" else test.seconds

    def _stage(self, names: Sequence[str]) -> tuple[Sequence[str], float, float]:
        """Tests with their limits: for each twice the longest with tracing, on the clock ten times all of it."""
        took = [self._seconds_of(name) for name in names]
        each = self._margin + 2 * max(took)
        return names, round(each, 3), round(2 + 10 * (each + sum(took)), 3)

    def _affected(self, candidate: Candidate) -> list[str]:
        """Passing tests that run the changed lines, quickest first."""
        places = {
            (candidate.path, line)
            for hunk in candidate.hunks
            for line in range(hunk.line - (not hunk.before), hunk.line + max(1, hunk.height))
        }
        found = {name for place in places for name in self._covering.get(place, ())}
        return sorted(found, key=lambda name: (self._seconds_of(name), name))[:_AFFECTED]

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


async def _serve_with(worker: Worker, jobs: MemoryObjectReceiveStream[_Job]) -> bool:
    """Do jobs until there are no more (False) or the worker is lost (True)."""
    async for job in jobs:
        try:
            job.answer = await job.work(worker)
        except CloisterError as error:
            job.error = error
            return True
        finally:
            job.done.set()
    return False


def _all_passed(results: Mapping[str, str], names: Iterable[str]) -> bool:
    return all(results.get(name) == "passed" for name in names)


def _index(tests: Iterable[Covered]) -> dict[tuple[str, int], list[str]]:
    """The passing tests that run each line."""
    found: dict[tuple[str, int], list[str]] = defaultdict(list)
    for test in tests:
        if test.status == "passed":
            for path, lines in test.lines.items():
                for line in lines:
                    found[path, line].append(test.id)
    return found


_IMPORT = re.compile(r"^[ \t]{0,40}(?:from|import)[ \t]{1,8}([\w.]{1,200})", re.MULTILINE)


def _imports(text: str) -> list[str]:
    """The files that a Python module may import from its repository."""
    found: list[str] = []
    for name in _IMPORT.findall(text)[:200]:
        path = name.strip(".").replace(".", "/")
        found += [f"{top}{path}{end}" for top in ("", "src/") for end in (".py", "/__init__.py")]
    return list(dict.fromkeys(found))
