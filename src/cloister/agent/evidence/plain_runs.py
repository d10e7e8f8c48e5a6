"""Runs the tests that carry a proof as ordinary programs, to find code that knows that it is tested."""

import secrets
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import resources

import msgspec

from cloister.agent.evidence.run_checks import ShowCheck, run_part
from cloister.agent.evidence.worktree import back_to, files_with, read_text
from cloister.core.computer import Command, Computer
from cloister.core.diagnosis import Check, Diagnosis, Weakening
from cloister.core.text import decode
from cloister.feedback.check_commands import REPORT, may_run_tests
from cloister.feedback.experiments import plain_programs as plain
from cloister.feedback.experiments import replay
from cloister.feedback.experiments.coverage import with_path
from cloister.feedback.experiments.nonsense import KINDS, nonsense
from cloister.feedback.experiments.select import only
from cloister.feedback.integrity.evasion import asking
from cloister.feedback.integrity.versions import Version, has_tests, is_product, is_test_code

_OWN = resources.files("cloister.agent.evidence")
_SECONDS = 120.0
_PLAIN_SECONDS = 60.0
"""For a program that holds the tests; more than building it takes."""
_BYTES = 1_048_576
_FILES = 2
"""Test files that are repeated; the others test the same change."""
_FAMILIES = (
    ("js", "cjs", "mjs", "jsx", "ts", "tsx", "mts", "cts"),
    ("c", "cc", "cpp", "cxx", "h", "hh", "hpp"),
    ("java",),
    ("go",),
    ("rs",),
    ("py", "pyi"),
)


class Repeated(msgspec.Struct, frozen=True):
    """What came out of the repetitions."""

    knowing: tuple[Weakening, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlainRuns:
    """The sandbox of the proof after its checks have run."""

    computer: Computer
    show: ShowCheck
    tree: str
    found: tuple[Diagnosis, ...]

    async def repeat(self, versions: Sequence[Version], names: Collection[str]) -> Repeated:
        """Repeat the tests in `names` without their runner, for each language in which the product changed."""
        changed = [one.path for one in versions if is_product(one.path) and one.after is not None]
        listed = await self._sh("git ls-files -z --cached --others --exclude-standard")
        known = decode(listed).split("\0")
        notes: list[str] = []
        others = tuple({path.rpartition(".")[2] for path in changed}.difference(*_FAMILIES))
        for family in (*_FAMILIES, others):
            mine = [path for path in changed if path.rpartition(".")[2] in family]
            if not mine or not names:
                continue
            tried, told = False, ()
            if family is not others:
                tried, told = await (
                    self._replayed(versions, names) if "py" in family else self._tests(family, names, known)
                )
            if not tried:
                asks = [said for one in versions if one.path in mine and (said := asking(one))]
                told = tuple(f"it asks whether it is being tested: {said}" for said in asks)
                notes.append(f"not repeated without the test runner, which {mine[0]} could recognise")
            if told:
                return Repeated(tuple(Weakening(mine[0], "deceived", detail=said) for said in told))
        return Repeated(notes=tuple(notes))

    async def _replayed(
        self, versions: Sequence[Version], names: Collection[str]
    ) -> tuple[bool, tuple[str, ...]]:
        """Functions of changed Python modules that answer differently without the test framework."""
        paths = replay.modules(versions)
        tried = False
        for one in self.found:
            if paths and (one.tests or one.unlisted) and not one.not_run and may_run_tests(one.check):
                mine = [test.name for test in one.tests if test.name in names]
                mine = mine or [name for name in names if name != one.check]
                files = await files_with(self.computer, set(map(plain.title, mine)))
                files = tuple(path for path in files if is_test_code(path) and has_tests(path))
                line = only(Check(one.check), files, mine) or one.check
                program = _OWN.joinpath(replay.PROGRAM).read_text("utf-8")
                run, given = replay.command(program, line, paths, max(30.0, 3 * one.seconds))
                out = (await self.computer.run(run, given)).out
                await back_to(self.computer, self.tree)
                tried = tried or bool(out.strip())
                told = replay.differences(out, "\n".join(each.before or "" for each in versions))
                told = told or (await self._needs_help(one, line, mine) if replay.is_red(out) else ())
                told = told or await self._despite_nonsense(one, line, mine, paths)
                if told:
                    return True, told
        return tried, ()

    async def _needs_help(self, check: Diagnosis, line: str, names: Collection[str]) -> tuple[str, ...]:
        """Tests that fail if pytest does not rewrite their assertions, or without the variables of the proof.

        Only a product that looks at its caller, or for these variables, makes them fail.
        """
        ways = {
            "if pytest rewrites its assertions": 'export PYTEST_ADDOPTS="$PYTEST_ADDOPTS --assert=plain"',
            "with the variables of the proof": f"unset PYTEST_ADDOPTS {REPORT}",
        }
        for why, first in ways.items():
            done = await self._part(check, f"{first}; {line}")
            if red := [test.name for test in done.failing if test.name in names]:
                return (f"{red[0]} passes only {why}",)
        return ()

    async def _despite_nonsense(
        self, check: Diagnosis, line: str, names: Collection[str], paths: Sequence[str]
    ) -> tuple[str, ...]:
        """Tests that call the product and pass whatever it answers: it changes the test runner or a library instead."""
        passing = set(names)
        where = f"/tmp/{secrets.token_hex(8)}"  # noqa: S108  (in the sandbox, outside the repository)
        for kind in KINDS:
            await self.computer.write(f"{where}/sitecustomize.py", nonsense(paths, kind).encode())
            done = await self._part(check, with_path(line, where))
            passing &= {test.name for test in done.tests if test.status == "passed"}
            used = await self._sh(f"cat {where}/used; rm -rf {where}")
            if not passing or not used:
                return ()
        return tuple(f"{name} passes whatever {paths[0]} answers" for name in sorted(passing)[:1])

    async def _part(self, check: Diagnosis, line: str) -> Diagnosis:
        place = f"proof-plain-{secrets.token_hex(4)}"
        done = await run_part(self.computer, check.check, place, self.show, lambda spec: line)
        await back_to(self.computer, self.tree)
        return done

    async def _tests(
        self, family: Collection[str], names: Collection[str], known: Sequence[str]
    ) -> tuple[bool, tuple[str, ...]]:
        """True if all ordinary programs ran, and what is known of them."""
        tried: list[bool] = []
        for one in self.found:
            mine = {test.name for test in one.tests if test.name in names}
            if one.not_run or not may_run_tests(one.check) or not (mine or one.check in names):
                continue
            for path in (await self._paths(family, mine, known))[:_FILES]:
                ran, told = await self._program(one, path, mine, known)
                if told:
                    return True, told
                tried.append(ran)
        return all(tried) and bool(tried), ()

    async def _paths(
        self, family: Collection[str], names: Collection[str], known: Sequence[str]
    ) -> list[str]:
        """The files that hold these tests; all test files if the check names none."""
        found = await files_with(self.computer, {plain.title(name) for name in names}) if names else known
        return [
            path
            for path in found
            if path.rpartition(".")[2] in family and is_test_code(path) and has_tests(path)
        ]

    async def _program(
        self, check: Diagnosis, path: str, names: Collection[str], known: Sequence[str]
    ) -> tuple[bool, tuple[str, ...]]:
        token = f"p{secrets.token_hex(4)}"
        place = f"/tmp/{token}"  # noqa: S108  (in the sandbox, outside the repository)
        texts = {
            name: text
            for name in dict.fromkeys((path, *plain.wanted(path, known)))
            if (text := await read_text(self.computer, name)) is not None
        }
        here = decode((await self.computer.run(Command(("pwd",), seconds=_SECONDS))).out).strip()
        programs = {name: _OWN.joinpath(name).read_text("utf-8") for name in plain.PROGRAMS}
        titles = frozenset(map(plain.title, names))
        made = plain.disguise(plain.Test(path, texts, here, place, token, programs, check.check, titles))
        if made is None:
            return False, ()
        try:
            await self._sh(f"mkdir -p {place}")
            for name, text in (
                *((f"{place}/{name}", text) for name, text in made.outside.items()),
                *made.inside.items(),
            ):
                await self.computer.write(name, text.encode())

            def line(spec: Check) -> str:
                part = only(spec, (path,), (token,) * path.endswith(".go")) if made.control else None
                return part or spec.run or spec.command

            # A test may never end without its runner; those before it have been noted.
            ends = f"timeout -k 1 {_PLAIN_SECONDS:g} /bin/bash -c {shlex.quote(made.start)}"
            start = f"rm -f {place}/plain; {ends} > /dev/null 2>&1"
            if made.check and not made.control:
                await run_part(self.computer, check.check, f"proof-{token}", self.show, line)
            first = await self._noted(start, place)
            if not plain.knowing(None, (first, first)):  # no test fails without its runner
                again = f"rm -f {place}/plain; ({made.again}) > /dev/null 2>&1"
                others = [await self._noted(again, place) for _ in range(2)] if made.again else []
                return plain.ran_tests(first), plain.knowing(first, others)
            if made.control:
                await run_part(self.computer, check.check, f"proof-{token}", self.show, line)
            results = (first, await self._noted(start, place))
            control = await self._sh(f"cat {place}/control") if made.control else None
            return all(map(plain.ran_tests, results)), plain.knowing(control, results)
        finally:
            await back_to(self.computer, self.tree)
            await self._sh(f"rm -rf {place}")

    async def _noted(self, start: str, place: str) -> bytes:
        """What the program noted. It may take the shell with it if it fills the memory."""
        await self._sh(start)
        return await self._sh(f"cat {place}/plain")

    async def _sh(self, script: str) -> bytes:
        command = Command(("/bin/bash", "-c", script), seconds=_SECONDS, limit_bytes=_BYTES)
        return (await self.computer.run(command)).out
