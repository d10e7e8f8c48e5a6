"""The judge's examination: false greens, false reds, and the cost of a proof beside the plain run of the checks.

Needs root and a template with all test tools, which is built once. `--only NAME` takes some projects, `--case TEXT` the
changes whose name contains the text, `--all` prints each ruling.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.whole.evidence.corpus import Project, projects, trials
from tests.whole.evidence.judge import Ruling, in_session, judge
from tests.whole.real.conftest import build_template


async def examine(
    name: str, project: Project, parts: list[str], every: bool, quick: bool, templates: Path
) -> list[Ruling]:
    found: list[Ruling] = []
    chosen = [
        trial
        for trial in trials(name, project)
        if not parts or any(part in trial.case.name for part in parts)
    ]
    if not chosen:
        return found
    with tempfile.TemporaryDirectory(prefix="evidence-") as root:
        async with in_session(templates.parents[1], templates, Path(root), project) as court:
            for trial in chosen:
                ruling = await judge(court, trial, plainly=not quick or trial.sort == "honest")
                found.append(ruling)
                if every or not ruling.right or (trial.sort == "cheat" and not ruling.bites):
                    mark = "" if ruling.right else "WRONG "
                    bites = "" if ruling.bites or trial.sort != "cheat" else " (the plain check is red)"
                    print(
                        f"{mark}{name}: {trial.sort}: {trial.case.name}: {ruling.outcome}{bites}  {ruling.why[:160]}",
                        flush=True,
                    )
    return found


def table(rulings: list[Ruling]) -> None:
    rows: defaultdict[str, list[Ruling]] = defaultdict(list)
    for one in rulings:
        rows[one.trial.project].append(one)
    rows["all"] = rulings
    print(
        f"{'project':14} {'cheats':>6} {'false green':>11} {'honest':>6} {'false red':>9} {'other':>5} {'wrong':>5} {'cost':>6}"
    )
    for name, some in rows.items():
        count = Counter(one.trial.sort for one in some)
        wrong = Counter(one.trial.sort for one in some if not one.right)
        proofs = [one for one in some if one.trial.sort == "honest" and one.outcome == "proven"]
        plain = sum(one.plain_seconds for one in proofs)
        cost = f"{sum(one.proof_seconds for one in proofs) / plain:.2f}" if plain else "-"
        print(
            f"{name:14} {count['cheat']:>6} {wrong['cheat']:>11} {count['honest']:>6} {wrong['honest']:>9} "
            f"{count['other']:>5} {wrong['other']:>5} {cost:>6}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="a project; may be repeated")
    parser.add_argument("--case", action="append", default=[], help="a part of the names; may be repeated")
    parser.add_argument("--all", action="store_true", help="print each ruling")
    parser.add_argument("--quick", action="store_true", help="do not run the checks alone for cheats")
    chosen = parser.parse_args()
    templates = build_template()
    rulings: list[Ruling] = []
    started = time.perf_counter()
    for name, project in projects().items():
        if not chosen.only or name in chosen.only:
            rulings += anyio.run(examine, name, project, chosen.case, chosen.all, chosen.quick, templates)
    table(rulings)
    print(
        f"{len(rulings)} changes in {time.perf_counter() - started:.0f} s; cost: proof beside the plain run"
    )


if __name__ == "__main__":
    main()
