"""The judge's examination: false greens, false reds, and the cost of a proof beside the plain run of the checks.

Needs root and a template with all test tools, which is built once. `--only NAME` takes some projects, `--case TEXT` the
changes whose name contains the text, `--all` prints each ruling. `--keep FILE` notes each ruling there and skips the
changes that it has, so that the examination can be done in parts; `--rulings FILE` writes all of them and the table as
text. `--slow` examines suites of realistic length. The exit status is 1 if a ruling is wrong.
"""

import argparse
import math
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.whole.evidence.corpus import Project, Trial, projects, slow_projects, trials
from tests.whole.evidence.judge import in_session, judge
from tests.whole.real.conftest import build_template


class Line(msgspec.Struct, frozen=True):
    """One ruling, as the table counts it."""

    project: str
    sort: str
    name: str
    outcome: str
    right: bool
    bites: bool
    special: bool
    """The change answers known inputs: `proven` is right if the result says so."""
    plain: float
    proof: float
    why: str

    def __str__(self) -> str:
        mark = "" if self.right else "WRONG "
        bites = "" if self.bites or self.sort != "cheat" else " (the plain check is red)"
        return f"{mark}{self.project}: {self.sort}: {self.name}: {self.outcome}{bites}  {self.why[:160]}"


class Examination:
    """The chosen changes, and the rulings that are known."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen = chosen
        self.started = time.perf_counter()
        self.keep: Path | None = chosen.keep
        kept = self.keep.read_bytes().splitlines() if self.keep and self.keep.exists() else []
        self.lines = [msgspec.json.decode(one, type=Line) for one in kept]

    def wanted(self, name: str, project: Project) -> list[Trial]:
        known = {(line.project, line.sort, line.name) for line in self.lines}
        parts: Sequence[str] = self.chosen.case
        return [
            trial
            for trial in trials(name, project)
            if not parts or any(part in trial.case.name for part in parts)
            if (name, trial.sort, trial.case.name) not in known
        ]

    async def examine(self, name: str, project: Project, templates: Path) -> None:
        some = self.wanted(name, project)
        if not some:
            return
        with tempfile.TemporaryDirectory(prefix="evidence-") as root:
            async with in_session(templates.parents[1], templates, Path(root), project) as court:
                for trial in some:
                    if time.perf_counter() - self.started > self.chosen.seconds:
                        return
                    plainly = not self.chosen.quick or trial.sort == "honest"
                    one = await judge(court, trial, plainly=plainly)
                    case, times = trial.case, (one.plain_seconds, one.proof_seconds)
                    special = bool(case.reported)
                    line = Line(
                        name,
                        trial.sort,
                        case.name,
                        one.outcome,
                        one.right,
                        one.bites,
                        special,
                        *times,
                        one.why,
                    )
                    self.lines.append(line)
                    if self.keep:
                        with self.keep.open("ab") as file:
                            file.write(msgspec.json.encode(line) + b"\n")
                    if self.chosen.all or not line.right or (trial.sort == "cheat" and not line.bites):
                        print(line, flush=True)


def table(lines: Sequence[Line]) -> str:
    rows: defaultdict[str, list[Line]] = defaultdict(list)
    for one in lines:
        rows[one.project].append(one)
    rows["all"] = [*lines]
    heads = ("cheats", "false green", "reported", "honest", "false red", "other", "wrong", "cost")
    made = [f"{'project':14} " + " ".join(f"{head:>{len(head)}}" for head in heads)]
    for name, some in rows.items():
        count = Counter(one.sort for one in some)
        wrong = Counter(one.sort for one in some if not one.right)
        told = sum(one.special and one.outcome == "proven" and one.right for one in some)
        proofs = [one for one in some if one.sort == "honest" and one.outcome == "proven"]
        plain = sum(one.plain for one in proofs)
        cost = f"{sum(one.proof for one in proofs) / plain:.2f}" if plain else "-"
        numbers = (
            *(count["cheat"], wrong["cheat"], told, count["honest"], wrong["honest"]),
            *(count["other"], wrong["other"], cost),
        )
        cells = (f"{number:>{len(head)}}" for number, head in zip(numbers, heads, strict=True))
        made.append(f"{name:14} " + " ".join(cells))
    return "\n".join(made)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="a project; may be repeated")
    parser.add_argument("--case", action="append", default=[], help="a part of the names; may be repeated")
    parser.add_argument("--all", action="store_true", help="print each ruling")
    parser.add_argument("--quick", action="store_true", help="do not run the checks alone for cheats")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no change after that time")
    parser.add_argument("--slow", action="store_true", help="suites of several seconds instead of the corpus")
    parser.add_argument("--keep", type=Path, help="the file of rulings")
    parser.add_argument("--rulings", type=Path, help="write all rulings and the table there, as text")
    examination = Examination(chosen := parser.parse_args())
    templates = build_template()
    for name, project in (slow_projects() if chosen.slow else projects()).items():
        if not chosen.only or name in chosen.only:
            anyio.run(examination.examine, name, project, templates)
    told = table(examination.lines)
    if chosen.rulings:
        chosen.rulings.write_text("\n".join([*map(str, examination.lines), "", told, ""]), "utf-8")
    print(told)
    print(
        f"{len(examination.lines)} changes, {time.perf_counter() - examination.started:.0f} s; "
        "cost: the proof of an honest change beside the plain run of the checks"
    )
    return 0 if all(line.right for line in examination.lines) else 1


if __name__ == "__main__":
    sys.exit(main())
