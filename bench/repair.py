"""How many small bugs the repair engine fixes, how many of the patches are right, and how long it takes.

`quixbugs FOLDER` uses a checkout of the public QuixBugs benchmark (its Python programs; not part of this repository).
The search sees two of three tests of each program. A patch is right if it passes the others, too. The programs are split
by their place in the alphabet: even for training, on which the priors of the rules were set, odd for the test.

`planted FOLDER` uses packages that `bench/parts/planted.py` prepared: real packages with their own suites, and bugs planted
by cosmic-ray. Both run on plain processes of this machine, with two workers, not in a sandbox: the engine only needs a
`Computer`. With `--kept FILE` the results are in that file and are not measured again, so `--stop-after SECONDS` can measure
in parts. Each planted bug without its patch has a reason: its lines are not suspected, no rule writes the original code,
its place in the order was not reached in time, the trial refused it, or another patch was chosen.
"""

import argparse
import ast
import json
import math
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from cloister.core.errors import CloisterError, sole
from cloister.harnesses.repair.api import Candidate, Suspect, Trial, applied
from cloister.harnesses.repair.candidates import Ordered, candidates
from cloister.harnesses.repair.choose import enough
from cloister.harnesses.repair.rules.api import facts_of
from cloister.harnesses.repair.suite import suite_of
from cloister.harnesses.repair.trials import Trials
from cloister.testing.local import LocalComputer


class Given(NamedTuple):
    """What to measure."""

    folder: Path
    python: str
    only: list[str]
    part: str
    seconds: float
    """For each bug."""
    kept: Path | None
    until: float
    """No bug begins later."""


class Found(NamedTuple):
    """How one bug went."""

    name: str
    patch: Candidate | None
    right: bool | None
    seconds: float
    processor: float
    tried: int
    plausible: int
    note: str = ""
    why: str = ""
    """Why the patch of a planted bug was not found; empty if it was."""
    place: int = 0
    """The place of the right patch in the order, from 1; 0: not known, or no candidate is right."""


class Search:
    """One search, as far as it came: the limit may cut it off anywhere."""

    def __init__(self, root: Path, command: str) -> None:
        suite = suite_of(command)
        assert suite is not None
        self.suite, self.root = suite, root
        self.patch: Candidate | None = None
        self.tried = 0
        self.plausible: list[Trial] = []
        self.note = "the time was over before the search"
        self.ordered = Ordered(())
        self.suspects: tuple[Suspect, ...] = ()

    async def within(self, limit: float, hints: list[str]) -> None:
        with anyio.move_on_after(limit) as scope:
            async with Trials(LocalComputer(self.root), self.suite) as trials:
                found = await trials.localise(hints, seconds=0.3 * limit)
                if not found.failing:
                    self.note = "no failing test"
                    return
                self.suspects = found.suspects
                sources = await trials.sources(dict.fromkeys((*found.paths, *found.modules)))
                self.ordered = candidates(sources, found.suspects, facts_of(found.failing)).with_pairs()
                self.note = (
                    f"{found.method} in {found.seconds:.1f} s, {len(found.failing)} failing, "
                    f"{len(self.ordered)} candidates"
                )
                with anyio.move_on_at(scope.deadline - 2):
                    async for trial in trials.over(self.ordered, sources):
                        self.tried += 1
                        if trial.partial:
                            self.ordered.helps(trial.candidate.number, trial.made_green)
                        # The evidence refuses a patch that leaves a failing test.
                        self.plausible += [trial] if trial.plausible and not trial.partial else []
                        if enough(self.tried, self.plausible):
                            break
                if self.plausible:
                    self.patch = (await trials.choose(self.plausible, sources)).trial.candidate


def measured(search: Search, name: str, limit: float, hints: list[str] | None = None) -> Found:
    began, used = time.monotonic(), processor()
    try:
        anyio.run(search.within, limit, hints or [])
    except Exception as error:
        if not isinstance(lost := sole(error), CloisterError):
            raise
        search.note = lost.message
    took = (time.monotonic() - began, processor() - used)
    return Found(name, search.patch, None, *took, search.tried, len(search.plausible), search.note)


def processor() -> float:
    """Processor time of this process and of the processes that it waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, kinds))


# QuixBugs

_HEAD = """import types
import pytest
from {name} import {name}


def plain(value):
    if isinstance(value, types.GeneratorType):
        value = [one for one, _ in zip(value, range(10000))]
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


CASES = {cases}


@pytest.mark.parametrize("given, expected", CASES, ids=range(len(CASES)))
def test_case(given, expected):
    got = plain({name}(*given))
    if isinstance(expected, float):
        expected = pytest.approx(expected, abs=1e-2)
    assert got == expected
"""


def prepare_quixbugs(source: Path, name: str, root: Path) -> None:
    """Write `buggy`, `correct`, visible and hidden tests of one program."""
    work = root / "work"
    work.mkdir(parents=True)
    shutil.copy(source / "python_programs" / f"{name}.py", work)
    shutil.copy(source / "correct_python_programs" / f"{name}.py", root / "correct.py")
    cases = source / "json_testcases" / f"{name}.json"
    if not cases.exists():
        shutil.copy(source / "python_programs" / "node.py", work)
        text = (source / "python_testcases" / f"test_{name}.py").read_text()
        head, *tests = text.split("\ndef test")
        head = re.sub(r"if pytest\.use_correct:\n.*\nelse:\n.*\n", f"from {name} import {name}\n", head)
        parts = {
            True: [one for i, one in enumerate(tests) if i % 3 == 2],
            False: [one for i, one in enumerate(tests) if i % 3 != 2],
        }
        for hidden, chosen in parts.items():
            path = root / "hidden.py" if hidden else work / f"test_{name}.py"
            path.write_text(head + "".join("\ndef test" + one for one in chosen))
        return
    lines = [json.loads(line) for line in cases.read_text().splitlines() if line.strip()]
    every: list[list[Any]] = [
        [given if isinstance(given, list) else [given], expected] for given, expected in lines
    ]
    rows = quick(root, name, every)
    bad = failing(work, name, rows)
    shown = [index for index in range(len(rows)) if index % 3 != 2]
    if not set(shown) & set(bad) and bad:
        shown.append(bad[0])
    (work / f"test_{name}.py").write_text(_HEAD.format(name=name, cases=[rows[i] for i in sorted(shown)]))
    rest = [row for index, row in enumerate(rows) if index not in shown]
    (root / "hidden.py").write_text(_HEAD.format(name=name, cases=rest))


_ONE = """import json, signal, sys, types
sys.path.insert(0, sys.argv[1])
import importlib.util
spec = importlib.util.spec_from_file_location("m", sys.argv[2]); m = importlib.util.module_from_spec(spec); spec.loader.exec_module(m)
exec(sys.argv[4])
f = getattr(m, sys.argv[3])
def late(*_): raise TimeoutError
signal.signal(signal.SIGALRM, late)
out = []
for given, expected in json.load(sys.stdin):
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        got = plain(f(*given))
        out.append(got == expected or (isinstance(expected, float) and abs(got - expected) < 1e-2))
    except BaseException: out.append(False)
    signal.setitimer(signal.ITIMER_REAL, 0)
print(json.dumps(out))
"""
_PLAIN = _HEAD[_HEAD.index("def plain") : _HEAD.index("CASES")]


def holds(file: Path, name: str, rows: list[list[Any]]) -> list[bool]:
    done = subprocess.run(
        [sys.executable, "-c", _ONE, str(file.parent), str(file), name, _PLAIN],
        input=json.dumps(rows),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(done.stdout)


def quick(root: Path, name: str, rows: list[list[Any]]) -> list[list[Any]]:
    """The cases that the correct program passes in half a second."""
    return [row for row, good in zip(rows, holds(root / "correct.py", name, rows), strict=True) if good]


def failing(work: Path, name: str, rows: list[list[Any]]) -> list[int]:
    return [index for index, good in enumerate(holds(work / f"{name}.py", name, rows)) if not good]


def is_right(root: Path, patch: Candidate, python: str) -> bool:
    """True if the hidden tests pass with the patch."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "work"
        shutil.copytree(root / "work", copy)
        file = copy / patch.path
        file.write_text(applied(file.read_text(), patch.hunks))
        shutil.copy(root / "hidden.py", copy / "test_hidden.py")
        command = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "test_hidden.py"]
        try:
            done = subprocess.run(command, cwd=copy, capture_output=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode in (0, 5)  # 5: every test had to be shown to the search


def quixbugs(given: Given) -> None:
    source, python, limit = given.folder, given.python, given.seconds
    names = sorted(
        path.stem
        for path in (source / "python_programs").glob("*.py")
        if not path.stem.endswith("_test") and path.stem != "node"
    )
    known = results_in(given.kept)
    for label, chosen in (("training", names[::2]), ("test", names[1::2])):
        if given.part not in ("", label):
            continue
        results = [known[name] for name in chosen if name in known]
        for name in chosen:
            if name in known or (given.only and name not in given.only):
                continue
            if time.monotonic() > given.until:
                break
            with tempfile.TemporaryDirectory(prefix="quixbugs-") as folder:
                root = Path(folder)
                prepare_quixbugs(source, name, root)
                found = measured(Search(root, f"{python} -m pytest -q"), name, limit)
                if found.note == "no failing test":  # the only one was hidden: show all
                    (root / "hidden.py").rename(root / "work" / "test_more.py")
                    (root / "hidden.py").write_text("")
                    found = measured(Search(root, f"{python} -m pytest -q"), name, limit)
                if found.patch is not None:
                    found = found._replace(right=is_right(root, found.patch, python))
            keep(found, results, given.kept)
        table(f"QuixBugs, {label}", results)


def results_in(kept: Path | None) -> "dict[str, Kept]":
    """The results of an earlier, unfinished measurement."""
    lines = kept.read_text().splitlines() if kept and kept.exists() else []
    return {one.name: one for one in (Kept(*json.loads(line)) for line in lines)}


def keep(found: Found, results: "list[Kept]", kept: Path | None) -> None:
    show(found)
    results.append(kept_of(found))
    if kept:
        with kept.open("a") as file:
            file.write(json.dumps(results[-1]) + "\n")


# Planted bugs


def planted(given: Given) -> None:
    """Repair the planted bugs. Bugs whose result is kept are not repeated."""
    python, limit = given.python, given.seconds
    done = results_in(given.kept)
    results = [*done.values()]
    for number, package, known in in_turn(given.folder):
        bug = known["bugs"][number]
        label = f"{package.name.rpartition('-')[0]} {number + 1} {bug['operator'].removeprefix('core/')}"
        if label in done or (given.only and not any(label.startswith(name) for name in given.only)):
            continue
        if time.monotonic() > given.until:
            break
        with tempfile.TemporaryDirectory(prefix="planted-") as name:
            root = Path(name)
            shutil.copytree(package / "work", root / "work")
            original = (root / "work" / bug["path"]).read_text()
            (root / "work" / bug["path"]).write_text(bug["text"])
            command = " ".join(["PYTHONPATH=src:.", python, "-m", "pytest", "-q", *known["tests"]])
            began, used = time.monotonic(), processor()
            search = Search(root, command)
            found = measured(search, label, limit, red(root / "work", command))
            found = found._replace(seconds=time.monotonic() - began, processor=processor() - used)
        keep(judged(found, search, Planted(bug["path"], bug["text"], original)), results, given.kept)
    table("planted bugs (right: the original code again)", results)
    print(Counter(one.why for one in results if one.why))


def in_turn(folder: Path) -> list[tuple[int, Path, Any]]:
    """The first bug of each package, then the second of each: a part of them is a fair sample."""
    listed = [(path.parent, json.loads(path.read_text())) for path in sorted(folder.glob("*/bugs.json"))]
    found = [(n, package, known) for package, known in listed for n in range(len(known["bugs"]))]
    return sorted(found, key=lambda one: (one[0], one[1].name))


class Planted(NamedTuple):
    """A planted bug: the file with it, and without."""

    path: str
    text: str
    original: str

    @property
    def lines(self) -> range:
        """The lines that differ, from 1."""
        old, new = self.text.splitlines(), self.original.splitlines()
        changed = [one for one in SequenceMatcher(None, old, new, False).get_opcodes() if one[0] != "equal"]
        return range(changed[0][1] + 1, max(changed[-1][2], changed[0][1] + 1) + 1)

    def restored_by(self) -> Callable[[Candidate], bool]:
        wanted, near = ast.dump(ast.parse(self.original)), self.lines

        def restores(one: Candidate) -> bool:
            ends = max(hunk.line + hunk.height for hunk in one.hunks)
            if one.path != self.path or one.line > near.stop or ends < near.start:
                return False
            try:
                return ast.dump(ast.parse(applied(self.text, one.hunks))) == wanted
            except (SyntaxError, ValueError):
                return False

        return restores


def judged(found: Found, search: Search, bug: Planted) -> Found:
    """Say whether the chosen patch restores the original code, and what kept the search from that one if not."""
    restores = bug.restored_by()
    if found.patch is not None and restores(found.patch):
        return found._replace(right=True, place=found.patch.number + 1)
    place = next((one.number + 1 for one in search.ordered if restores(one)), 0)
    suspected = any(one.path == bug.path and one.line in bug.lines for one in search.suspects)
    if place and any(trial.candidate.number + 1 == place for trial in search.plausible):
        why = "another patch was chosen"
    elif place:
        why = "refused by the trial" if place <= found.tried else "not reached"
    else:
        why = "no rule writes it" if suspected else "not suspected" if search.ordered else found.note
    return found._replace(right=None if found.patch is None else False, place=place, why=why)


def red(work: Path, command: str) -> list[str]:
    """The tests that fail, as a run knows them from its baseline."""
    ran = ["/bin/sh", "-c", f"{command} --tb=no -rfE -p no:cacheprovider"]
    try:
        said = subprocess.run(ran, cwd=work, capture_output=True, text=True, timeout=240, check=False).stdout
    except subprocess.TimeoutExpired:
        return []
    lines = [line.split(" ", 1) for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return [rest.split(" - ")[0] for _, rest in lines]


def show(found: Found) -> None:
    verdict = (
        "-"
        if found.patch is None
        else "right"
        if found.right
        else "WRONG"
        if found.right is False
        else "repaired"
    )
    print(
        f"{found.name:32} {verdict:8} {found.seconds:6.1f} s ({found.processor:5.1f} s of processor time)  tried {found.tried:5}  plausible {found.plausible}  {found.note}"
    )
    if found.why:
        print(f"    {found.why}: the right patch has place {found.place or '-'}")
    if found.patch is not None:
        print(
            "\n".join(
                f"    {line}" for line in (f"[{found.patch.rule}]", *found.patch.diff.splitlines()[2:])
            ),
            flush=True,
        )


class Kept(NamedTuple):
    """What the table needs of one bug."""

    name: str
    fixed: bool
    right: bool | None
    seconds: float
    processor: float
    why: str = ""
    place: int = 0
    tried: int = 0
    diff: str = ""


def kept_of(found: Found) -> Kept:
    patch = found.patch
    times = (found.seconds, found.processor)
    diff = "" if patch is None else f"[{patch.rule}]\n{patch.diff}"
    return Kept(found.name, patch is not None, found.right, *times, found.why, found.place, found.tried, diff)


def table(title: str, results: list[Kept]) -> None:
    fixed = [one for one in results if one.fixed]
    right = [one for one in fixed if one.right]
    wrong = [one for one in fixed if one.right is False]
    seconds = [one.seconds for one in fixed] or [0.0]
    spent = [one.processor for one in fixed] or [0.0]
    print(
        f"{title}: {len(results)} bugs, {len(fixed)} repaired, {len(right)} right on unseen tests, {len(wrong)} wrong, "
        f"median {statistics.median(seconds):.1f} s, longest {max(seconds):.1f} s; processor time: median "
        f"{statistics.median(spent):.1f} s, longest {max(spent):.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("quixbugs", "planted"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with pytest")
    parser.add_argument(
        "--only", action="append", default=[], help="programs, or planted bugs as `NAME NUMBER`"
    )
    parser.add_argument("--part", choices=("training", "test"), default="")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kept", type=Path, help="a file for the results, to continue later")
    parser.add_argument("--stop-after", type=float, default=math.inf, help="begin no bug after that time")
    parsed = vars(parser.parse_args())
    kind, until = parsed.pop("kind"), time.monotonic() + parsed.pop("stop_after")
    (quixbugs if kind == "quixbugs" else planted)(Given(**parsed, until=until))


if __name__ == "__main__":
    main()
