"""Checks in a sandbox: find them, run them, diagnose their output."""

import math
import posixpath
import shlex
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import anyio
import msgspec
from anyio import to_thread

from cloister.agent.evidence.worktree import (
    Sources,
    changed_between,
    problem_matchers,
    rewritten_since,
    tree_now,
    weakened_tests,
)
from cloister.core import limits
from cloister.core.computer import Command, Computer, Exited, Output, Stream, shell
from cloister.core.diagnosis import Check, Diagnosis
from cloister.core.errors import HostError, UserError, sole
from cloister.core.repository import FILES, below, read_settings
from cloister.core.text import decode
from cloister.feedback import shards
from cloister.feedback.affected import WORTH_SECONDS, Near, batches, merged, nearest, plan
from cloister.feedback.api import CheckOutput
from cloister.feedback.check_commands import directory_of, environment, leaves_reports, specify
from cloister.feedback.compare import file_of, settled, suspects
from cloister.feedback.discover import (
    IMPORTS,
    TOOLS,
    adjusted,
    discover,
    import_roots,
    scripts_of,
    wanted,
)

Earlier = tuple[Diagnosis, ...] | Callable[[], Awaitable[tuple[Diagnosis, ...]]]
"""Earlier results, or a function that waits for them."""

ShowCheck = Callable[[str, Stream, bytes], None]
"""Called with the check's command line, the stream and new output."""


class Shards(NamedTuple):
    """How a long suite is run in parts."""

    fork: Callable[[], AbstractAsyncContextManager[Computer]]
    known: Sequence[Diagnosis]
    """Earlier results of the checks."""


_FILE_BYTES = 262_144
_MODULES = 8
_AGAIN_SECONDS = 120.0
"""After a change, a slower check does not run a second time to find flaky tests. On the base every check may."""

_KEPT = "/tmp/.cloister"  # noqa: S108  (in the sandbox, beside its working tree)
_SHORT_BYTES = 3_000
"""The tail of a diagnosis shows shorter output in full."""

_PROBE = f"""
for tool in {" ".join(TOOLS)}; do command -v "$tool" > /dev/null 2>&1 && echo "$tool"; done
python3 -c 'import pytest' 2> /dev/null && echo pytest
test -n "$PYTHONPATH" && echo "PYTHONPATH=$PYTHONPATH"
ls node_modules/.bin */node_modules/.bin */*/node_modules/.bin 2> /dev/null
git ls-files -z --cached --others --exclude-standard -- '*test*.py' | xargs -0 -r grep -l -s -E '^(import|from) unittest' | head -n 1 | grep -q . && echo unittest
true
"""


_REPORTS = 200
_JAVA_REPORTS = (
    "find . \\( -path '*/surefire-reports/TEST-*.xml' -o -path '*/failsafe-reports/TEST-*.xml' "
    "-o -path '*/test-results/*/TEST-*.xml' \\) -type f ! -exec test \"$STAMP\" -nt {} \\; -print0"
)
"""Where Maven and Gradle write reports by default."""


async def find_checks(computer: Computer) -> tuple[str, ...]:
    """The checks of the repository, as far as possible those whose tools are installed in the sandbox."""
    names = await _files(computer)
    contents = await _contents(computer, wanted(names), set(names))
    probed = await computer.run(shell(_PROBE, seconds=30))
    tools = frozenset(decode(probed.out).split())
    roots = import_roots(names, contents) if "python3" in tools else {}
    described = [":".join((root, *modules[:_MODULES])) for root, modules in roots.items()]
    hidden: list[str] = []
    if described:
        quiet = {"PYTHONDONTWRITEBYTECODE": "1"}
        found = await computer.run(Command(("python3", "-c", IMPORTS, *described), env=quiet, seconds=60))
        hidden = decode(found.out).split() if found.ok else []
    return discover(names, contents, tools, hidden)


async def _files(computer: Computer) -> list[str]:
    listed = await computer.run(
        Command(argv=("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"), seconds=30)
    )
    return [name for name in decode(listed.out).split("\0") if name]


async def _contents(computer: Computer, wanted: Sequence[str], names: set[str]) -> dict[str, str]:
    contents: dict[str, str] = {}
    for name in wanted:
        if name in names:
            try:
                contents[name] = decode(await computer.read(name, limit_bytes=_FILE_BYTES))
            except UserError:
                continue
    return contents


async def run_checks(  # noqa: PLR0913
    computer: Computer,
    checks: Sequence[str],
    place: str,
    show: ShowCheck,
    *,
    baseline: Earlier = (),
    cpus: float = 1.0,
    shards: Shards | None = None,
) -> tuple[Diagnosis, ...]:
    """Run each check to its end. `place` is unique per run and names its reports.

    With a `baseline`, a test that fails only now runs twice. With `shards`, long suites run in parts.
    """
    specs = await _specified(computer, checks)
    return await _run(computer, specs, _Course(place, show, baseline, cpus, shards=shards))


async def run_loosely(
    computer: Computer,
    checks: Sequence[str],
    place: str,
    show: ShowCheck,
    known: Sequence[Diagnosis],
    cpus: float,
) -> tuple[Diagnosis, ...]:
    """Like `run_checks`, but tests run even if other test files cannot be loaded."""
    specs = await _specified(computer, checks)
    return await _run(computer, specs, _Course(place, show, tuple(known), cpus, loose=True))


async def run_part(
    computer: Computer, check: str, place: str, show: ShowCheck, line: Callable[[Check], str]
) -> Diagnosis:
    """Run one check once, loosely, with the command line that `line` makes of it."""
    [spec] = await _specified(computer, (check,))
    run = _Run(computer, spec, _Course(place, show, (), 1.0, loose=True), (), 0)
    return await run.once(f"/tmp/.cloister-{place}.xml", line(spec))  # noqa: S108


async def run_on_base(  # noqa: PLR0913
    computer: Computer,
    checks: Sequence[str],
    place: str,
    show: ShowCheck,
    *,
    cpus: float = 1.0,
    seconds: float = math.inf,
    keep: Computer | None = None,
    shards: Shards | None = None,
) -> tuple[Diagnosis, ...]:
    """Like `run_checks`, on the untouched base: every failing test runs twice, to find flaky ones.

    A check that has not ended after `seconds` is not run, with that reason. `keep` gets the output of failing ones.
    """
    specs = await _specified(computer, checks)
    return await _run(
        computer, specs, _Course(place, show, None, cpus, seconds=seconds, keep=keep, shards=shards)
    )


async def run_affected(
    computer: Computer, checks: Sequence[str], since: "Since", place: str, show: ShowCheck
) -> tuple[Diagnosis, ...]:
    """Like `run_checks`, for checks that the changed files may affect. Known results stand for the others."""
    specs = await _specified(computer, checks)
    changed = await changed_between(computer, since.old, since.new)
    known = {diagnosis.check: diagnosis for diagnosis in since.known}
    touched = plan(changed, specs)
    chosen = [check for check in plan(None, specs) if check in touched or check.command not in known]
    parts = await _parts(computer, chosen, known, changed)
    ran = await _run(computer, chosen, _Course(place, show, since.baseline, since.cpus, parts))
    known.update({diagnosis.check: diagnosis for diagnosis in ran})
    # Weakened tests are determined from the current files, also for checks that did not run.
    weakened = ran[0].weakened if ran else await weakened_tests(computer)
    return tuple(msgspec.structs.replace(known[check.command], weakened=weakened) for check in specs)


@dataclass(frozen=True, slots=True)
class Since:
    """The results of the last check run, and the trees before and now."""

    old: str
    """The tree that was checked last; empty if none."""
    new: str
    known: tuple[Diagnosis, ...]
    """The results for `old`."""
    baseline: tuple[Diagnosis, ...]
    cpus: float = 1.0


@dataclass(frozen=True, slots=True)
class _Course:
    place: str
    show: ShowCheck
    baseline: Earlier | None
    """The earlier results; None on the base."""
    cpus: float
    parts: Mapping[str, tuple[Near, Diagnosis]] = field(default_factory=dict[str, tuple[Near, Diagnosis]])
    """For slow checks: the part to run first, and the known results of the whole."""
    loose: bool = False
    """Run tests even if others cannot be loaded."""
    seconds: float = math.inf
    """For all checks together."""
    keep: Computer | None = None
    """Gets the whole output of failing checks; None is the computer that runs them."""
    shards: Shards | None = None
    """Runs long suites in parts."""

    async def before(self) -> tuple[Diagnosis, ...] | None:
        """The earlier results, as soon as they exist."""
        return await self.baseline() if callable(self.baseline) else self.baseline


async def _parts(
    computer: Computer, checks: Sequence[Check], known: Mapping[str, Diagnosis], changed: Sequence[str] | None
) -> dict[str, tuple[Near, Diagnosis]]:
    slow = [check for check in checks if check.command in known]
    slow = [check for check in slow if known[check.command].seconds >= WORTH_SECONDS]
    if not slow or not changed:
        return {}
    files = await _files(computer)
    found = {check.command: nearest(check, known[check.command], changed, files) for check in slow}
    return {command: (near, known[command]) for command, near in found.items() if near}


async def _specified(computer: Computer, checks: Sequence[str]) -> list[Check]:
    """How to run each command: with a report if the tool has one, and the repository's time limit."""
    contents = await _contents(computer, FILES, set(FILES))
    own, found = list(read_settings(contents).checks), list[Check]()
    for folder in {directory_of(check).partition("/")[0] for check in checks} - {""}:
        # One of several repositories, with settings of its own.
        names = [f"{folder}/{name}" for name in FILES]
        inside = read_settings(below(folder, await _contents(computer, names, set(names)))).checks
        own += [
            msgspec.structs.replace(one, command=f"cd {shlex.quote(folder)} && {one.command}")
            for one in inside
        ]
    for check in checks:
        package, go = (posixpath.join(directory_of(check), name) for name in ("package.json", "go.mod"))
        if package not in contents:
            contents |= {package: "{}", **await _contents(computer, (package, go), {package, go})}
        spec = specify(check, scripts_of(contents[package]), go=go in contents)
        found.append(adjusted(spec, tuple(own)))
    return found


async def _run(computer: Computer, specs: Sequence[Check], course: _Course) -> tuple[Diagnosis, ...]:
    if not specs:
        return ()
    # Before any check runs, because a check could change the files.
    weakened = await weakened_tests(computer)
    matchers = await problem_matchers(computer)
    found: dict[str, Diagnosis] = {}

    async def one(number: int, check: Check) -> None:
        report = f"/tmp/.cloister-{course.place}-{number}.xml"  # noqa: S108
        run = _Run(computer, check, course, matchers, number)
        near = course.parts.get(check.command)
        if near is not None:
            part = await run.once(f"{report}.part", near[0].line)
            if part.failing and part.killed is None:
                whole = merged(near[1], part, near[0].files)
                found[check.command] = msgspec.structs.replace(whole, weakened=weakened)
                return
        diagnosis = await run.in_parts(report) or await run.once(report)
        # If the second run does not end in time, the first one counts.
        found[check.command] = msgspec.structs.replace(diagnosis, weakened=weakened)
        diagnosis = await run.settled(diagnosis, report)
        found[check.command] = msgspec.structs.replace(diagnosis, weakened=weakened)

    numbers = {check.command: number for number, check in enumerate(specs)}
    with anyio.move_on_after(course.seconds):
        for group in batches(plan(None, specs), int(course.cpus)):
            try:
                async with anyio.create_task_group() as tasks:
                    for check in group:
                        tasks.start_soon(one, numbers[check.command], check)
            except Exception as error:
                raise sole(error) from None
    late = f"the checks on the base did not end within {course.seconds:,.0f} s"
    for check in specs:
        found.setdefault(check.command, Diagnosis(check.command, None, course.seconds, not_run=late))
    sources = Sources(computer)
    return tuple([await sources.add(found[check.command]) for check in specs])


def _diagnosed(output: CheckOutput) -> Diagnosis:
    from cloister.feedback.diagnose import diagnose  # noqa: PLC0415  (its parsers load beside the first request)

    return diagnose(output)


def _wavers(now: Diagnosis, baseline: Sequence[Diagnosis] | None) -> bool:
    """True if a second run is worthwhile: tests fail that did not, and the check ended by itself.

    On the base it must also leave the run half of its time.
    """
    if baseline is None:
        most = (anyio.current_effective_deadline() - anyio.current_time()) / 2
    else:
        most = _AGAIN_SECONDS
    return now.killed is None and now.seconds <= most and bool(suspects(now, baseline))


@dataclass(frozen=True, slots=True)
class _Run:
    computer: Computer
    check: Check
    course: _Course
    matchers: tuple[bytes, ...]
    number: int
    """The index of the check, which makes its files unique."""

    async def once(self, report: str, line: str | None = None, *, keep: bool = True) -> Diagnosis:
        out, err = bytearray(), bytearray()
        exited = Exited(None)
        check = self.check
        line = line or check.run or check.command
        command = shell(line, env=environment(report, loose=self.course.loose), seconds=check.seconds)
        stamp = await self._stamp(report)
        async with self.computer.start(command) as process:
            await process.send_eof()
            async for item in process:
                match item:
                    case Output(stream, data):
                        (out if stream == "out" else err).extend(data)
                        self.course.show(check.command, stream, data)
                    case Exited():
                        exited = item
        output = CheckOutput(
            command=check.command,
            exit_code=exited.code,
            killed=exited.killed,
            seconds=exited.seconds,
            out=bytes(out),
            err=bytes(err),
            reports=await self._reports(report, stamp, bytes(out)),
            matchers=self.matchers,
        )
        diagnosis = await to_thread.run_sync(_diagnosed, output)  # megabytes of text: not on the event loop
        return msgspec.structs.replace(diagnosis, log=await self._kept(diagnosis, output) if keep else None)

    async def in_parts(self, report: str) -> Diagnosis | None:
        """The result of parts that run in forks at the same time; None if only a run as a whole says enough."""
        course = self.course
        if course.shards is None or self.check.kind != "test":
            return None
        lines = shards.lines(self.check, course.shards.known, course.cpus, await _files(self.computer))
        if not lines or (tree := await tree_now(self.computer)) is None:
            return None
        try:
            found = await self._beside(lines, report, tree, course.shards)
        except (HostError, UserError):
            return None  # no room for forks here
        except Exception as error:
            raise sole(error) from None
        return (
            shards.joined(self.check.command, [one for one in found if one is not None])
            if all(found)
            else None
        )

    async def _beside(
        self, lines: Sequence[str], report: str, tree: str, using: Shards
    ) -> list[Diagnosis | None]:
        """The results of the parts, each None if tests rewrote files of the repository."""
        found: list[Diagnosis | None] = [None] * len(lines)

        async def part(number: int, computer: Computer) -> None:
            run = replace(self, computer=computer)
            done = await run.once(f"{report}.{number}", lines[number])
            if await rewritten_since(computer, tree) == ():
                found[number] = done

        async with AsyncExitStack() as opened:
            places = [await opened.enter_async_context(using.fork()) for _ in lines]
            async with anyio.create_task_group() as tasks:
                for number, computer in enumerate(places):
                    tasks.start_soon(part, number, computer)
        return found

    async def settled(self, first: Diagnosis, report: str) -> Diagnosis:
        """`first` with its flaky tests marked: suspects run again, and a suspect that passes alone with all the others.

        A test that passes alone may have failed because of another one: that is not flaky.
        """
        baseline = await self.course.before()
        if not _wavers(first, baseline):
            return first
        doubtful = suspects(first, baseline)
        if line := self._only(first, doubtful):
            part = await self.once(f"{report}.alone", line, keep=False)
            red = {test.name for test in part.failing}
            if part.killed is None and doubtful <= red:
                return first
        return settled(first, await self.once(f"{report}.again"), baseline)

    def _only(self, first: Diagnosis, suspects: Collection[str]) -> str | None:
        """The command line for the files of the suspects, if the check has others too."""
        from cloister.feedback.experiments.select import only  # noqa: PLC0415  (slow to load, and first needed after the first request)

        files = {file_of(test) for test in first.failing if test.name in suspects}
        others = {file_of(test) for test in first.tests} - files
        return only(self.check, sorted(files), sorted(suspects)) if others or first.unlisted else None

    async def _stamp(self, report: str) -> str | None:
        """A file older than any report of this run, for tools that choose the place of their reports."""
        if not leaves_reports(self.check.command):
            return None
        await self.computer.write(f"{report}.stamp", b"")
        return f"{report}.stamp"

    async def _reports(self, report: str, stamp: str | None, out: bytes) -> tuple[bytes, ...]:
        names = [report]
        if stamp is not None:
            listed = await self.computer.run(shell(_JAVA_REPORTS, {"STAMP": stamp}, seconds=30))
            names += [name for name in decode(listed.out).split("\0") if name][:_REPORTS]
            from cloister.feedback.parsers.test_runners.java import untouched  # noqa: PLC0415

            if directories := untouched(out):
                find = (
                    "find",
                    *directories,
                    "-maxdepth",
                    "1",
                    "-name",
                    "TEST-*.xml",
                    "-type",
                    "f",
                    "-print0",
                )
                listed = await self.computer.run(Command(argv=find, seconds=30))
                names += [name for name in decode(listed.out).split("\0") if name][:_REPORTS]
        found = [await self._read(name) for name in dict.fromkeys(names)]
        return tuple(data for data in found if data is not None)

    async def _read(self, path: str) -> bytes | None:
        try:
            return await self.computer.read(path, limit_bytes=limits.JUNIT_BYTES)
        except UserError:
            return None

    async def _kept(self, diagnosis: Diagnosis, output: CheckOutput) -> str | None:
        """Keep the whole output of a failing check for the model; not in a short-lived sandbox."""
        if (
            diagnosis.green
            or self.course.place.startswith(("proof", "warm"))
            or len(output.out) + len(output.err) <= _SHORT_BYTES
        ):
            return None
        path = f"{_KEPT}/{self.course.place}-{self.number}.log"
        try:
            await (self.course.keep or self.computer).write(
                path, b"$ " + output.command.encode() + b"\n" + output.out + output.err
            )
        except UserError:
            return None
        return path
