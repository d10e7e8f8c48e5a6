"""Measures how often each repair rule writes the right text, on training bugs only.

Usage: priors.py PLANTED QUIXBUGS [PER_MODULE], with an interpreter that has cosmic-ray and Cloister. PLANTED is a folder of
`bench/parts/planted.py` with packages that are not in the test set; QUIXBUGS is a checkout of that benchmark, of which the
training half is used. Each module gets random mutations (fixed seed). The place of a mutation is known, so no test runs: a
rule is right if one of its candidates at the changed lines is the original code again. The table has, for each rule, the
places where it applied, its candidates there, how often one was right, the mean place of the right one among them, and the
share of places at which it was right.
"""

import ast
import random
import sys
from collections import Counter, defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

from planted import SEED, modules

from cloister.repair.api import Suspect, applied
from cloister.repair.candidates import candidates
from cloister.repair.rules.api import Facts
from cloister.repair.rules.table import RULES


def mutations(file: Path, count: int, chance: random.Random) -> list[str]:
    mutate: Any = import_module("cosmic_ray.mutating").mutate_code
    plugins: Any = import_module("cosmic_ray.plugins")
    trees: Any = import_module("cosmic_ray.ast")
    names = sorted(name for name in plugins.operator_names() if "Variable" not in name)
    kinds = sorted({name.split("_")[0] for name in names})
    text, nodes = file.read_text(), list(trees.ast_nodes(trees.get_ast_from_path(file)))
    found: list[str] = []
    for _ in range(4 * count):
        kind = chance.choice(kinds)
        name = chance.choice([one for one in names if one.split("_")[0] == kind])
        operator = plugins.get_operator(name)()
        places = sum(len(list(operator.mutation_positions(node))) for node in nodes)
        changed = mutate(text, operator, chance.randrange(places)) if places else None
        if changed is not None and shape(changed) != shape(text):
            found.append(changed)
        if len(found) == count:
            break
    return found


def shape(text: str) -> str:
    try:
        return ast.dump(ast.parse(text))
    except SyntaxError:
        return ""


class Counts:
    def __init__(self) -> None:
        self.bugs = self.reached = 0
        self.places, self.tried, self.right = Counter[str](), Counter[str](), Counter[str]()
        self.index: dict[str, list[int]] = defaultdict(list)
        self.ranks: list[int] = []

    def add(self, wrong: str, right: str) -> None:
        """Count what each rule does at the lines in which two texts differ."""
        old, new, want = wrong.split("\n"), right.split("\n"), shape(right)
        first = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0) + 1
        suspects = [Suspect("m.py", first, 1.0, "")]
        ordered = candidates({"m.py": wrong}, suspects, Facts())
        near = [one for one in ordered[:3000] if abs(one.line - first) <= 2]
        self.bugs += 1
        seen, rank = Counter[str](), None
        for place, one in enumerate(near):
            if rank is None and shape(applied(wrong, one.hunks)) == want:
                rank = place
                self.right[one.rule] += 1
                self.index[one.rule].append(seen[one.rule])
            seen[one.rule] += 1
        self.places.update(dict.fromkeys(seen, 1))
        self.tried.update(seen)
        self.reached += rank is not None
        self.ranks += [] if rank is None else [rank]

    def table(self) -> None:
        print(f"{self.bugs} training bugs, {self.reached} within reach of one rule; the right candidate is")
        ranks = sorted(self.ranks) or [0]
        print(
            f"at place {ranks[len(ranks) // 2]} of its statement (median), {ranks[len(ranks) * 9 // 10]} (90 %)"
        )
        print(f"{'rule':34} prior  places  tried  right  mean place  share")
        for rule in RULES:
            places, right = self.places[rule.name], self.right[rule.name]
            mean = sum(self.index[rule.name]) / right if right else 0.0
            share = right / places if places else 0.0
            print(
                f"{rule.name:34} {rule.prior:5.2f} {places:7} {self.tried[rule.name]:6} {right:6} {mean:11.1f} {share:6.3f}"
            )


def main() -> None:
    planted, quixbugs = Path(sys.argv[1]), Path(sys.argv[2])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 40
    counts = Counts()
    for work in sorted(planted.glob("*/work")):
        for file in modules(work):
            for wrong in mutations(file, count, random.Random(f"{SEED}{file.name}")):
                counts.add(wrong, file.read_text())
    names = sorted(one.stem for one in (quixbugs / "python_programs").glob("*.py"))
    names = [name for name in names if not name.endswith("_test") and name != "node"]
    for name in names[::2]:
        wrong, right = (
            quixbugs / folder / f"{name}.py" for folder in ("python_programs", "correct_python_programs")
        )
        counts.add(wrong.read_text(), right.read_text())
    counts.table()


if __name__ == "__main__":
    main()
