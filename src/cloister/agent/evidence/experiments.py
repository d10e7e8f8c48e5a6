"""Tries to refute the tests that carry a proof: canaries that must fail, and assertions that are changed and must fail.

The experiments run in the sandbox of the proof, on copies of the test files that are put back afterwards. A runner that
does not report a canary as failed cannot be trusted. A test that still passes with another expected value shows nothing.
"""

import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec
from anyio import to_thread

from cloister.agent.evidence.run_checks import ShowCheck, run_part
from cloister.agent.evidence.worktree import Changes, back_to, files_with, put_base, read_text
from cloister.core.computer import Computer
from cloister.core.diagnosis import Check, Diagnosis, Weakening
from cloister.core.text import one_line
from cloister.feedback.check_commands import may_run_tests
from cloister.feedback.experiments.canaries import Planted, canaries, silent
from cloister.feedback.experiments.mutants import Edit, Mutants, apply, mutants
from cloister.feedback.experiments.plain_programs import title
from cloister.feedback.experiments.programs import ENDINGS, WORDS, program
from cloister.feedback.experiments.select import only
from cloister.feedback.integrity.versions import has_tests, is_test_code

_ROUNDS = 3
"""Assertions of each test that are changed, one per run."""
_TESTS = 60
"""Tests of one check that are experimented with; the others share their files and runner."""
_FILES = 40
_NEAR = 8
_PROGRAMS = 6
_ANY = ("test(", "it(", "assert", "expect")
_OUTSIDE = re.compile(r"^/|(?:^|/)\.\.(?:/|$)")
_COPIED = (".py", ".js", ".cjs", ".mjs", ".jsx", ".ts", ".cts", ".mts", ".tsx")
"""Files that runners find by a pattern. Elsewhere two files with the same tests cannot be built together."""
_WHOLE_SECONDS = 10.0
"""A check that is quicker runs as a whole with its canaries if no test carries the proof."""


@dataclass(frozen=True, slots=True)
class Refutation:
    """What the experiments found."""

    deceived: tuple[Weakening, ...] = ()
    empty: tuple[str, ...] = ()
    """Tests that pass whatever they expect, or expect nothing."""


@dataclass(slots=True)
class _File:
    path: str
    text: str
    tests: dict[str, Mutants]


@dataclass(slots=True)
class _Verdicts:
    """Test → how its mutants went."""

    killed: set[str] = field(default_factory=set[str])
    survived: dict[str, dict[int, Edit]] = field(default_factory=dict[str, dict[int, Edit]])
    """The mutants with which the test still passed, by number."""


@dataclass(frozen=True, slots=True)
class Experiments:
    """The sandbox of the proof after its checks have run."""

    computer: Computer
    show: ShowCheck
    tree: str
    changes: Changes
    found: tuple[Diagnosis, ...]

    async def refute(self, names: Collection[str]) -> Refutation:
        """Experiment with the tests in `names`, and with the runner of every check that has tests."""
        deceived: list[Weakening] = []
        empty: list[str] = []
        listed = {name for one in self.found for name in (one.check, *(test.name for test in one.tests))}
        for one in self.found:
            # Old failures may be left; a check that did not run to its end says nothing.
            ran = may_run_tests(one.check) and one.killed is None and not one.not_run
            if ran and (one.tests or one.unlisted):
                mine = [test.name for test in one.tests if test.name in names]
                # A runner that only counts passing tests does not name those that carry the proof.
                mine += [name for name in sorted(names) if one.unlisted and name not in listed]
                part = await (self._mutate(one, mine[:_TESTS]) if mine else self._only_canaries(one))
                deceived += part.deceived
                empty += part.empty
            elif ran and one.green and one.check in names:
                deceived += (await self._programs(one)).deceived
        return Refutation(tuple(deceived), tuple(empty))

    async def _mutate(self, check: Diagnosis, names: Sequence[str]) -> Refutation:
        files = await self._files(names)
        if not files:
            found = await self._programs(check)
            return found if found.deceived else await self._only_canaries(check)
        verdicts = _Verdicts()
        first, *others = ({file.path: _round(file, number) for file in files} for number in range(_ROUNDS))
        others = [chosen for chosen in others if any(chosen.values())]
        planted = await self._plant(check, files, first)
        token = secrets.token_hex(4)
        copies = _copies(files, others, token)
        done = await self._run(check, files, first, planted, copies=copies)
        if planted is not None and (lies := await self._lies(check, files, planted, done)):
            return Refutation((_lying(planted, lies),))
        _judge(verdicts, 0, done, check, first, files)
        for number, chosen in enumerate(others, 1):
            mark = f"_{token}{number}"
            mine = tuple(
                msgspec.structs.replace(test, name=test.name.replace(mark, ""))
                for test in done.tests
                if mark in test.name
            )
            again = msgspec.structs.replace(done, tests=mine)
            # A runner with a list of its files does not run copies.
            again = again if mine else await self._run(check, files, chosen, None)
            _judge(verdicts, number, again, check, chosen, files)
        return await self._settle(check, files, verdicts)

    async def _settle(self, check: Diagnosis, files: Sequence[_File], verdicts: _Verdicts) -> Refutation:
        """Tell an assertion that lies from one that is never reached, and an empty test from one without mutants."""
        tests = {name: (file, mutant) for file in files for name, mutant in file.tests.items()}
        survived = await self._twice(check, files, verdicts)
        edits: dict[str, Edit] = {}
        for name, (_, mutant) in tests.items():
            if name in survived:
                edits[name] = mutant.reached[survived[name][0]]
            elif name not in verdicts.killed and mutant.end is not None:
                edits[name] = mutant.end
        if not edits:
            return Refutation()
        chosen = {file.path: {name: edits[name] for name in file.tests if name in edits} for file in files}
        done = await self._run(check, files, chosen, None)
        failing = {test.name for test in done.failing}
        passed = {test.name for test in done.tests if test.status == "passed"}
        deceived: list[Weakening] = []
        empty: list[str] = []
        for name in edits:
            file, _ = tests[name]
            if name in survived and name in failing:
                was = survived[name][1].was
                detail = (
                    f"{one_line(name, 160)} still passes if `{one_line(was, 120)}` expects something else"
                )
                deceived.append(Weakening(file.path, "deceived", detail=detail))
            elif name in passed and name not in verdicts.killed and not _owners(name) & failing:
                detail = f"{one_line(name, 160)} passes although its last line fails"
                deceived.append(Weakening(file.path, "deceived", detail=detail))
            elif name not in verdicts.killed:
                empty.append(name)
        return Refutation(tuple(deceived), tuple(empty))

    async def _twice(
        self, check: Diagnosis, files: Sequence[_File], verdicts: _Verdicts
    ) -> dict[str, tuple[int, Edit]]:
        """The first mutant of each test that passes with it a second time: a value that was measured may differ."""
        found: dict[str, tuple[int, Edit]] = {}
        for number in sorted({number for one in verdicts.survived.values() for number in one}):
            chosen = {
                file.path: {
                    name: one[number]
                    for name, one in verdicts.survived.items()
                    if name in file.tests and number in one
                }
                for file in files
            }
            again = await self._run(check, files, chosen, None)
            once = _Verdicts()
            _judge(once, number, again, check, chosen, files)
            verdicts.killed |= once.killed
            for name, edits in once.survived.items():
                found.setdefault(name, (number, edits[number]))
        return found

    async def _programs(self, check: Diagnosis) -> Refutation:
        """Change the test programs of a check that names no test in their source: it must fail each time."""
        paths = await files_with(self.computer, WORDS)
        for path in [path for path in paths if path.endswith(ENDINGS) and _may_hold_tests(path)][:_PROGRAMS]:
            text = await read_text(self.computer, path)
            made = program(text, _ROUNDS - 1) if text is not None else None
            if made is None or await self._passes_with(check, path, made.unbuildable):
                continue
            if made.ended is not None and await self._passes_with(check, path, made.ended):
                detail = "the check passes although the program crashes in its last line"
                return Refutation((Weakening(path, "deceived", detail=detail),))
            for one in made.wrong:
                passes = await self._passes_with(check, path, one.text)
                if passes and not await self._passes_with(check, path, one.reached):
                    detail = f"the check still passes if `{one_line(one.was, 120)}` expects something else"
                    return Refutation((Weakening(path, "deceived", detail=detail),))
        return Refutation()

    async def _passes_with(self, check: Diagnosis, path: str, text: str) -> bool:
        await self.computer.write(path, text.encode())
        return (await self._run(check, (), {}, None, whole=True)).green

    async def _only_canaries(self, check: Diagnosis) -> Refutation:
        """Plant canaries beside the tests of a check that carries no proof: it must report them."""
        paths = sorted({test.file or test.name.partition("::")[0] for test in check.tests})
        near = [path for path in paths if is_test_code(path) and not _OUTSIDE.search(path)][:_NEAR]
        if not near:  # a report without files may be forged
            near = [path for path in await files_with(self.computer, _ANY) if _may_hold_tests(path)][:_NEAR]
        files = [_File(path, text, {}) for path in near if (text := await read_text(self.computer, path))]
        if not files:
            return Refutation()
        planted = await self._plant(check, files, {})
        if planted is None:
            return Refutation()
        done = await self._run(check, files, {}, planted, whole=check.seconds <= _WHOLE_SECONDS)
        lies = await self._lies(check, files, planted, done)
        return Refutation((_lying(planted, lies),)) if lies else Refutation()

    async def _lies(
        self, check: Diagnosis, files: Sequence[_File], planted: Planted, done: Diagnosis
    ) -> tuple[str, ...]:
        """The canaries that the runner does not report, unless it reported none on the base either.

        A runner with a list of its tests, or one whose exit status is ignored, does not run what it does not know.
        """
        lies = silent(planted, done)
        if not lies:
            return ()
        # A changed assertion in the same file may keep it from being built.
        alone = await self._plant(check, files, {})
        if alone is not None:
            lies = silent(alone, await self._run(check, files, {}, alone))
        if not lies:
            return ()
        try:
            if not await put_base(self.computer, self.changes):
                return lies
            there = [
                _File(one.path, text, {})
                for one in files
                if (text := await read_text(self.computer, one.path))
            ]
            on_base = await self._plant(check, there, {})
            if on_base is None:
                return lies
            before = await self._run(check, there, {}, on_base)
            return () if len(silent(on_base, before)) >= len(lies) else lies
        finally:
            await back_to(self.computer, self.tree)

    async def _files(self, names: Sequence[str]) -> list[_File]:
        """The test files that hold the tests, with their mutants."""
        paths = await files_with(self.computer, {title(name) for name in names})
        found: list[_File] = []
        for path in [path for path in paths if _may_hold_tests(path)][:_FILES]:
            text = await read_text(self.computer, path)
            if text is not None:
                made = await to_thread.run_sync(mutants, path, text, tuple(names), _ROUNDS)
                found += [_File(path, text, made)] if made else []
        return found

    async def _plant(
        self, check: Diagnosis, files: Sequence[_File], chosen: Mapping[str, Mapping[str, Edit]]
    ) -> Planted | None:
        for file in files:
            text = apply(file.text, _apart(chosen.get(file.path, {})))
            if planted := canaries(check.check, file.path, text, secrets.token_hex(4)):
                return planted
        return None

    async def _run(
        self,
        check: Diagnosis,
        files: Sequence[_File],
        chosen: Mapping[str, Mapping[str, Edit]],
        planted: Planted | None,
        *,
        whole: bool = False,
        copies: Mapping[str, str] = MappingProxyType({}),
    ) -> Diagnosis:
        """Run the tests of `files` with these edits, and `copies` of them, then restore the files of the change."""
        for file in files:
            if edits := _apart(chosen.get(file.path, {})):
                await self.computer.write(file.path, apply(file.text, edits).encode())
        if planted is not None:
            await self.computer.write(planted.path, planted.text.encode())
        for path, text in copies.items():
            await self.computer.write(path, text.encode())
        more = (planted.path,) if planted else ()
        paths = tuple(dict.fromkeys([*(file.path for file in files), *more, *copies]))
        names = [name for file in files for name in file.tests]
        names += [planted.names[0][:-2]] if planted else []

        def line(spec: Check) -> str:
            part = None if whole else only(spec, paths, names if any(file.tests for file in files) else ())
            return part or spec.run or spec.command

        place = f"proof-experiment-{secrets.token_hex(4)}"
        try:
            return await run_part(self.computer, check.check, place, self.show, line)
        finally:
            await back_to(self.computer, self.tree)


_PLACED = re.compile(r"Snapshot|__file__|__filename|__dirname|import\.meta")
"""Words of a test that depends on the name of its file."""


def _copies(
    files: Sequence[_File], rounds: Sequence[Mapping[str, Mapping[str, Edit]]], token: str
) -> dict[str, str]:
    """Path → text of copies of the files, one for each round, so that one run is enough.

    None if a runner might mix up the results: their names must contain the name of the file.
    """
    stems = {file.path: file.path.rpartition("/")[2].partition(".")[0] for file in files}
    named = all(stems[file.path] in name for file in files for name in file.tests)
    if not named or not all(file.path.endswith(_COPIED) and not _PLACED.search(file.text) for file in files):
        return {}
    found: dict[str, str] = {}
    for number, chosen in enumerate(rounds, 1):
        for file in files:
            folder, slash, name = file.path.rpartition("/")
            if edits := _apart(chosen[file.path]):
                stem, _, ending = name.partition(".")
                tail = "_test" if stem.endswith("_test") else ""
                name = f"{stem.removesuffix('_test')}_{token}{number}{tail}.{ending}"
                found[f"{folder}{slash}{name}"] = apply(file.text, edits)
    return found


def _owners(name: str) -> set[str]:
    """The tests that a subtest is part of: one fails if a line of its own fails."""
    parts = name.split("/")
    return {"/".join(parts[:end]) for end in range(1, len(parts))}


def _round(file: _File, number: int) -> dict[str, Edit]:
    return {name: one.edits[number] for name, one in file.tests.items() if number < len(one.edits)}


def _apart(edits: Mapping[str, Edit]) -> list[Edit]:
    """The edits that do not overlap, each once: several tests may share a helper."""
    kept: list[Edit] = []
    for edit in sorted(set(edits.values()), key=lambda edit: (edit.start, edit.end)):
        if not kept or edit.start >= kept[-1].end:
            kept.append(edit)
    return kept


def _judge(
    verdicts: _Verdicts,
    number: int,
    done: Diagnosis,
    check: Diagnosis,
    chosen: Mapping[str, Mapping[str, Edit]],
    files: Iterable[_File],
) -> None:
    status = {test.name: test.status for test in done.tests}
    for file in files:
        applied = set(_apart(chosen[file.path]))
        for name, edit in chosen[file.path].items():
            if edit not in applied:
                continue
            seen = status.get(name) or ("passed" if done.killed is None and check.unlisted else None)
            if seen in ("failed", "error"):
                verdicts.killed.add(name)
            elif seen == "passed":
                verdicts.survived.setdefault(name, {})[number] = edit


def _lying(planted: Planted, lies: Sequence[str]) -> Weakening:
    detail = f"the test runner does not report a test that must fail: {one_line('; '.join(lies), 200)}"
    return Weakening(planted.path, "deceived", detail=detail)


def _may_hold_tests(path: str) -> bool:
    return is_test_code(path) and has_tests(path)
