"""The attempts of one run, each in its own sandbox: started, rebuilt when their sandbox dies, ended."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

from cloister.agent.checks import run_checks
from cloister.agent.loop import Workplace, work
from cloister.agent.progress import progress
from cloister.core.commands import Computer, Stream
from cloister.core.diagnosis import Diagnosis
from cloister.core.errors import Bug, SandboxLost, sole
from cloister.core.events import (
    AttemptEnded,
    AttemptStarted,
    CommandOutput,
    RunResumed,
    SandboxClosed,
    SandboxOpened,
)
from cloister.core.history import effective
from cloister.core.ids import RunId
from cloister.core.journal import Journal
from cloister.core.records import NewRun
from cloister.core.text import decode
from cloister.feedback.asked import asked
from cloister.forge import workspace
from cloister.model.api import Model
from cloister.runs.means import Means
from cloister.sandbox.api import Sandbox

_LIVES = 3
"""Sandboxes one attempt may use up before its run fails."""


@dataclass(frozen=True, slots=True)
class Course:
    """What every attempt of a run starts from."""

    run: RunId
    request: NewRun
    base: str
    bare: Path
    model: Model
    checks: tuple[str, ...]
    baseline: tuple[Diagnosis, ...]
    template: str = "default"


@dataclass(frozen=True, slots=True)
class _SavedFiles:
    """The repository inside one sandbox and where its save points go."""

    computer: Computer
    course: Course
    attempt: int

    async def tree(self) -> str:
        return await workspace.tree(self.computer, self.course.bare, self.course.base)

    async def save(self) -> str:
        ref = f"refs/cloister/attempt/{self.attempt}"
        return await workspace.save(self.computer, self.course.bare, self.course.base, ref)


class Attempts:
    """All attempts of one run."""

    def __init__(self, means: Means, journal: Journal, course: Course) -> None:
        self._means = means
        self._journal = journal
        self._course = course

    async def run(self, sandbox: Sandbox) -> tuple[AttemptEnded, ...]:
        """Run them all to their ends. A single one works in `sandbox` itself, several in forks of it."""
        count = self._course.request.n
        ended: dict[int, AttemptEnded] = {}
        async with AsyncExitStack() as stack:
            # Forked before any of them works, so that all start from the same files.
            places = [sandbox]
            if count > 1:
                places = [await stack.enter_async_context(sandbox.fork()) for _ in range(count)]

            async def one(number: int) -> None:
                ended[number] = await self._attempt(number, places[number])

            async with anyio.create_task_group() as tasks:
                for number in range(count):
                    tasks.start_soon(one, number)
        return tuple(ended[number] for number in range(count))

    async def _attempt(self, number: int, first: Sandbox) -> AttemptEnded:
        so_far = progress(effective(self._journal.events), number)
        if so_far.ended is not None:
            return so_far.ended
        if not any(
            isinstance(event.body, AttemptStarted) and event.body.attempt == number
            for event in self._journal.events
        ):
            await self._journal.append(AttemptStarted(number, self._course.model.name))
        for life in range(_LIVES):
            try:
                async with self._place(number, first if life == 0 else None) as sandbox:
                    return await self._work(number, sandbox)
            except Exception as error:
                cause = sole(error)
                if not isinstance(cause, SandboxLost) or life == _LIVES - 1:
                    raise cause from None
                last = self._journal.events[-1].seq
                await self._journal.append(RunResumed(last, number))
        raise Bug("an attempt without a life")

    @asynccontextmanager
    async def _place(self, number: int, first: Sandbox | None) -> AsyncGenerator[Sandbox]:
        """A sandbox whose files are those of the attempt's last save point."""
        commit = progress(effective(self._journal.events), number).commit
        if first is not None:
            if commit is not None and commit != self._course.base:
                await self._restore(first, commit)
            yield first
            return
        request = self._course.request
        door = self._means.door(request, self._journal)
        spec = self._means.sandbox_spec(request, self._course.template)
        async with self._means.host.open(spec, door) as sandbox:
            info = sandbox.info
            await self._journal.append(SandboxOpened(info.id, info.isolation, number, info.template))
            await self._restore(sandbox, commit or self._course.base)
            yield sandbox
        await self._journal.append(SandboxClosed(sandbox.info.id, f"attempt {number} ended"))

    async def _prove(self, number: int, commit: str) -> tuple[Diagnosis, ...]:
        """The checks on `commit` in a sandbox like the one in which the baseline was taken."""
        request = self._course.request

        def show(check: str, stream: Stream, data: bytes) -> None:
            self._journal.show(CommandOutput(number, check, stream, decode(data)))

        door = self._means.door(request, self._journal)
        spec = self._means.sandbox_spec(request, self._course.template)
        async with self._means.host.open(spec, door) as sandbox:
            await self._restore(sandbox, commit)
            course, cpus = self._course, self._means.quota.cpus
            return await run_checks(
                sandbox, course.checks, "proof", show, baseline=course.baseline, cpus=cpus
            )

    async def _restore(self, sandbox: Sandbox, commit: str) -> None:
        await workspace.restore(sandbox, self._course.bare, self._course.base, commit)

    async def _work(self, number: int, sandbox: Sandbox) -> AttemptEnded:
        course = self._course
        return await work(
            Workplace(
                attempt=number,
                journal=self._journal,
                computer=sandbox,
                model=course.model,
                policy=self._means.run_policy(course.request),
                budget=course.request.budget,
                files=_SavedFiles(sandbox, course, number),
                prove=partial(self._prove, number),
                base=course.base,
                checks=course.checks,
                baseline=course.baseline,
                ask_seconds=self._means.ask_seconds,
                asked=asked(
                    course.request.prompt, course.baseline, course.request.checks, course.request.asked
                ),
                cpus=self._means.quota.cpus,
            )
        )
