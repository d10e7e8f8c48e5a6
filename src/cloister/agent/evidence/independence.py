"""Finds old failures that do not depend on a change: they fail as on the base, and execute no changed line.

All of them run at once, with a tracer. Only if a changed line was executed are they halved, until it is known by which.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from cloister.agent.evidence.run_checks import ShowCheck, run_part
from cloister.agent.evidence.worktree import files_with
from cloister.core.computer import Command, Computer
from cloister.core.diagnosis import Check, Diagnosis
from cloister.core.text import decode
from cloister.feedback import shown
from cloister.feedback.experiments.coverage import tracer
from cloister.feedback.experiments.plain_programs import title
from cloister.feedback.experiments.select import only
from cloister.feedback.integrity.base_tests import own_file
from cloister.feedback.integrity.versions import Version, has_tests, is_product, is_test_code

_SECONDS = 60.0
_PLACE = "/tmp/.cloister-trace"  # noqa: S108  (in the sandbox, outside the repository)
_BYTES = 4_194_304
_RUNS = 16
"""Traced runs of one proof. An old failure that they do not tell about counts."""
_CALM = "as on the base, and no code of the product changed"
_APART = "as on the base, and executes no changed line"


@dataclass(slots=True)
class Independence:
    """The sandbox of the proof, with the change and the results of its checks."""

    computer: Computer
    show: ShowCheck
    baseline: tuple[Diagnosis, ...]
    found: tuple[Diagnosis, ...]
    _runs: int = 0

    async def excused(self, left: Sequence[str], versions: Sequence[Version]) -> dict[str, str]:
        """The old failures among `left` that do not depend on the change, each with the reason."""
        inside = {one.path: one for one in versions}
        # The change is about a test that it edits.
        same = [
            name
            for name in left
            if not own_file(name, self.baseline, inside)
            if shown.fails_the_same(name, self.baseline, self.found)
        ]
        code = [one for one in versions if is_product(one.path)]
        if not code:
            return dict.fromkeys(same, _CALM)
        groups: dict[tuple[str, str], list[str]] = {}
        for one in self.found:
            for name in (one.check, *(test.name for test in one.failing)):
                if name in same:
                    # A package in Go has a profile of its own.
                    owner = name.partition("::")[0] if code[0].path.endswith(".go") else ""
                    groups.setdefault((one.check, owner), []).append(name)
        free: list[str] = []
        for (check, _), names in groups.items():
            free += await self._apart(check, tuple(dict.fromkeys(names)), code)
        return {name: _APART for name in same if name in free}

    async def _apart(self, check: str, names: tuple[str, ...], code: Sequence[Version]) -> list[str]:
        pending, free = [names], list[str]()
        while pending and self._runs < _RUNS:
            self._runs += 1
            some = pending.pop(0)
            if await self._executes(check, some, code) is False:
                free += some
            elif len(some) > 1:
                half = len(some) // 2
                pending += [some[:half], some[half:]]
        return free

    async def _executes(self, check: str, names: Sequence[str], code: Sequence[Version]) -> bool | None:
        """True if the tests execute a changed line; None if that cannot be found out."""
        place = f"{_PLACE}-{secrets.token_hex(8)}"
        root = decode((await self.computer.run(Command(("pwd",), seconds=_SECONDS))).out).strip()
        how = tracer(root, place, code)
        if how is None:
            return None
        name, text = how.write or ("none", "")
        await self.computer.run(_bash('mkdir -p "$1" && cat > "$1/$2"', place, name), text.encode())
        paths = await files_with(self.computer, {title(name) for name in names if name != check})
        files = [path for path in paths if is_test_code(path) and has_tests(path)]

        def line(spec: Check) -> str:
            return how.line(only(spec, files, names) or spec.run or spec.command)

        ran = await run_part(self.computer, check, f"proof-trace-{secrets.token_hex(4)}", self.show, line)
        told = await self.computer.run(_bash(f'{how.read}; rm -rf "$1"', place))
        red = {ran.check, *(test.name for test in ran.failing)} if not ran.green else set[str]()
        return how.executed(told.out, files) if red.issuperset(names) else None


def _bash(script: str, *args: str) -> Command:
    return Command(("/bin/bash", "-c", script, "bash", *args), seconds=_SECONDS, limit_bytes=_BYTES)
