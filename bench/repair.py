"""How many small bugs the repair engine fixes, how many of the patches are right, and how long it takes.

`quixbugs FOLDER` uses a checkout of the public QuixBugs benchmark (its Python programs; not part of this repository).
The search sees two of three tests of each program. A patch is right if it passes the others, too. The programs are split
by their place in the alphabet: even for training, on which the priors of the rules were set, odd for the test.

`planted FOLDER` uses packages that `bench/parts/planted.py` prepared: real packages with their own suites, and bugs planted
by cosmic-ray. Both run on plain processes of this machine, with two workers, not in a sandbox: the engine only needs a
`Computer`.
"""

import argparse
import ast
import json
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from cloister.agent.harnesses.repair.api import Candidate, Trial, applied
from cloister.agent.harnesses.repair.candidates import candidates
from cloister.agent.harnesses.repair.choose import enough
from cloister.agent.harnesses.repair.rules.api import facts_of
from cloister.agent.harnesses.repair.suite import suite_of
from cloister.agent.harnesses.repair.trials import Trials
from cloister.testing.local import LocalComputer


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
    others: tuple[Candidate, ...] = ()
    """The plausible patches."""
    among: bool | None = None
    """True if one of these is right; None if only the chosen one was judged."""


async def search(
    root: Path, command: str, limit: float, hints: list[str]
) -> tuple[Candidate | None, int, int, str, list[Trial]]:
    """The chosen patch, how many were tried, how many were plausible, and these."""
    suite = suite_of(command)
    assert suite is not None
    tried = 0
    plausible: list[Trial] = []
    with anyio.move_on_after(limit) as scope:
        async with Trials(LocalComputer(root), suite) as trials:
            found = await trials.localise(hints)
            if not found.failing:
                return None, 0, 0, "no failing test", []
            sources = await trials.sources(dict.fromkeys((*found.paths, *found.modules)))
            ordered = candidates(sources, found.suspects, facts_of(found.failing)).with_pairs()
            note = f"{found.method} in {found.seconds:.1f} s, {len(found.failing)} failing, {len(ordered)} candidates"
            with anyio.move_on_at(scope.deadline - 2):
                async for trial in trials.over(ordered, sources):
                    tried += 1
                    # The evidence refuses a patch that leaves a failing test.
                    plausible += [trial] if trial.plausible and not trial.partial else []
                    if enough(tried, plausible):
                        break
            if not plausible:
                return None, tried, 0, note, []
            chosen = await trials.choose(plausible, sources)
            return chosen.trial.candidate, tried, len(plausible), note, plausible
    return None, tried, len(plausible), "the time was over", plausible


def measured(name: str, root: Path, command: str, limit: float, hints: list[str] | None = None) -> Found:
    began, used = time.monotonic(), processor()
    patch, tried, plausible, note, trials = anyio.run(search, root, command, limit, hints or [])
    others = tuple(trial.candidate for trial in trials)
    return Found(
        name, patch, None, time.monotonic() - began, processor() - used, tried, plausible, note, others
    )


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


def quixbugs(source: Path, python: str, only: list[str], part: str, limit: float, kept: Path | None) -> None:
    names = sorted(
        path.stem
        for path in (source / "python_programs").glob("*.py")
        if not path.stem.endswith("_test") and path.stem != "node"
    )
    known = results_in(kept)
    for label, chosen in (("training", names[::2]), ("test", names[1::2])):
        if part not in ("", label):
            continue
        results = [known[name] for name in chosen if name in known]
        for name in chosen:
            if name in known or (only and name not in only):
                continue
            with tempfile.TemporaryDirectory(prefix="quixbugs-") as folder:
                root = Path(folder)
                prepare_quixbugs(source, name, root)
                found = measured(name, root, f"{python} -m pytest -q", limit)
                if found.note == "no failing test":  # the only one was hidden: show all
                    (root / "hidden.py").rename(root / "work" / "test_more.py")
                    (root / "hidden.py").write_text("")
                    found = measured(name, root, f"{python} -m pytest -q", limit)
                if found.patch is not None:
                    found = found._replace(right=is_right(root, found.patch, python))
            keep(found, results, kept)
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


def planted(folder: Path, python: str, only: list[str], limit: float, kept: Path | None) -> None:
    """Repair the planted bugs. With `kept`, bugs whose result is in that file are not repeated."""
    done = results_in(kept)
    results = [*done.values()]
    for listed in sorted(folder.glob("*/bugs.json")):
        package, known = listed.parent.name, json.loads(listed.read_text())
        for number, bug in enumerate(known["bugs"]):
            label = f"{package.rpartition('-')[0]} {number + 1} {bug['operator'].removeprefix('core/')}"
            if label in done or (only and not any(label.startswith(name) for name in only)):
                continue
            with tempfile.TemporaryDirectory(prefix="planted-") as name:
                root = Path(name)
                shutil.copytree(listed.parent / "work", root / "work")
                file = root / "work" / bug["path"]
                original = file.read_text()
                file.write_text(bug["text"])
                command = " ".join(["PYTHONPATH=src:.", python, "-m", "pytest", "-q", *known["tests"]])
                began, used = time.monotonic(), processor()
                hints = red(root / "work", command)
                found = measured(label, root, command, limit, hints)
                found = found._replace(seconds=time.monotonic() - began, processor=processor() - used)
                if found.patch is not None:
                    wanted = ast.dump(ast.parse(original))

                    def restores(one: Candidate, bug: dict[str, str] = bug, wanted: str = wanted) -> bool:
                        same = one.path == bug["path"]
                        return same and ast.dump(ast.parse(applied(bug["text"], one.hunks))) == wanted

                    found = found._replace(
                        right=restores(found.patch), among=any(map(restores, found.others))
                    )
            keep(found, results, kept)
    table("planted bugs (right: the original code again)", results)


def red(work: Path, command: str) -> list[str]:
    """The tests that fail, as a run knows them from its baseline."""
    ran = ["/bin/sh", "-c", f"{command} --tb=no -rfE -p no:cacheprovider"]
    said = subprocess.run(ran, cwd=work, capture_output=True, text=True, timeout=240, check=False).stdout
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
    if found.right is False and found.among is not None:
        print(f"    the right patch was{'' if found.among else ' not'} among the plausible ones")
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


def kept_of(found: Found) -> Kept:
    return Kept(found.name, found.patch is not None, found.right, found.seconds, found.processor)


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
    given = parser.parse_args()
    if given.kind == "quixbugs":
        quixbugs(given.folder, given.python, given.only, given.part, given.seconds, given.kept)
    else:
        planted(given.folder, given.python, given.only, given.seconds, given.kept)


if __name__ == "__main__":
    main()
