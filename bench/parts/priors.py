"""Measures how often each repair rule writes the right text, on training bugs only.

Usage: priors.py PLANTED QUIXBUGS [PER_MODULE], with an interpreter that has cosmic-ray and Cloister. PLANTED is a folder of
`bench/parts/planted.py` with packages that are not in the test set; QUIXBUGS is a checkout of that benchmark, of which the
training half is used. Each module gets random mutations (fixed seed). The place of a mutation is known, so no test runs: a
rule is right if one of its candidates at the changed lines is the original code again. The table has, for each rule, the
places where it applied, its candidates there, how often one was right, the mean place of the right one among them, and the
share of places at which it was right. Before it, the bugs of each kind, and those that no rule repairs.
"""

import ast
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from planted import SEED, modules

from cloister.harnesses.repair.rules.api import Facts, Rule
from cloister.harnesses.repair.rules.table import RULES
from cloister.harnesses.repair.syntax import Cut, File, own

MODULES = 8
"""Most modules of one package. With eight mutations in each, ten packages take a few minutes."""


def mutations(file: Path, count: int, chance: random.Random) -> list[tuple[str, str]]:
    mutate: Any = import_module("cosmic_ray.mutating").mutate_code
    plugins: Any = import_module("cosmic_ray.plugins")
    trees: Any = import_module("cosmic_ray.ast")
    names = sorted(name for name in plugins.operator_names() if "Variable" not in name)
    kinds = sorted({name.split("_")[0] for name in names})
    text, nodes = file.read_text(), list(trees.ast_nodes(trees.get_ast_from_path(file)))
    found: list[tuple[str, str]] = []
    for _ in range(4 * count):
        kind = chance.choice(kinds)
        name = chance.choice([one for one in names if one.split("_")[0] == kind])
        operator = plugins.get_operator(name)()
        places = sum(len(list(operator.mutation_positions(node))) for node in nodes)
        changed = mutate(text, operator, chance.randrange(places)) if places else None
        if changed is not None and shape(changed) != shape(text):
            found.append((kind, changed))
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
        self.tried: dict[str, Counter[int]] = defaultdict(Counter)
        self.right: dict[str, Counter[int]] = defaultdict(Counter)
        self.ranks: list[int] = []
        self.kinds: dict[str, list[int]] = defaultdict(list)
        """The places of the right texts by the kind of bug; -1 if no rule writes it."""
        self.missed: dict[str, list[str]] = defaultdict(list)

    def add(self, kind: str, wrong: str, right: str) -> None:
        """Count what each rule does at the statement in which two texts differ."""
        old, new, want = wrong.split("\n"), right.split("\n"), shape(right)
        first = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0) + 1
        file, squeezed = File("m.py", wrong), plain(right)
        made = sorted(
            ((prior, rule.name, index, cut) for rule, prior, index, cut in texts(file, first)),
            key=lambda one: -one[0],
        )
        self.bugs += 1
        found = False
        for rank, (_, name, index, cut) in enumerate(made):
            self.tried[name][index] += 1
            # To parse each text would take minutes: most differ in more than white space and parentheses.
            text = (file.data[: cut[0]] + cut[2].encode() + file.data[cut[1] :]).decode()
            if not found and plain(text) == squeezed and shape(text) == want:
                found = True
                self.right[name][index] += 1
                self.ranks.append(rank)
        self.reached += found
        self.kinds[kind].append(self.ranks[-1] if found else -1)
        if not found:
            self.missed[kind].append(f"{old[first - 1].strip()}  ->  {new[first - 1].strip()}")

    def by_kind(self) -> None:
        """Print how many bugs of each kind are within reach, and those that are not."""
        for kind, places in sorted(self.kinds.items()):
            near = sorted(one for one in places if one >= 0)
            print(
                f"{kind:34} {len(near):3} of {len(places):3}, median place {near[len(near) // 2] if near else '-'}"
            )
            print("".join(f"    {one[:180]}\n" for one in self.missed[kind]), end="")

    def table(self) -> None:
        print(f"{self.bugs} training bugs, {self.reached} within reach of one rule; the right candidate is")
        ranks = sorted(self.ranks) or [0]
        print(
            f"at place {ranks[len(ranks) // 2]} of its statement (median), {ranks[len(ranks) * 9 // 10]} (90 %)"
        )
        print(f"{'rule':34} prior  tried  right  first tried  first right  share of first, in percent")
        for rule in RULES:
            tried, right = self.tried[rule.name], self.right[rule.name]
            share = 100 * right[0] / tried[0] if tried[0] else 0.0
            print(
                f"{rule.name:34} {rule.prior:5.2f} {tried.total():6} {right.total():6} {tried[0]:12} {right[0]:12} {share:8.1f}"
            )


def plain(text: str) -> str:
    return text.translate(_SPACE)


_SPACE = str.maketrans("", "", " \t\n()")


def texts(file: File, line: int) -> Iterator[tuple[Rule, float, int, Cut]]:
    """What the rules write at the statements of a line and of its neighbours, which a missing statement is between."""
    for statement in file.statements:
        nodes = list(own(statement))
        if not {node.start_point[0] for node in nodes} & {line - 1, line, line + 1}:
            continue
        for node in nodes:
            for rule in RULES:
                if rule.place == "expression" or node == statement:
                    for index, (prior, cut) in enumerate(rule.changes(node, file, Facts())):
                        yield rule, prior, index, cut


def main() -> None:
    planted, quixbugs = Path(sys.argv[1]), Path(sys.argv[2])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 8
    counts = Counts()
    for work in sorted(planted.glob("*/work")):
        known = modules(work)
        for file in random.Random(f"{SEED}{work.parent.name}").sample(known, min(len(known), MODULES)):
            for kind, wrong in mutations(file, count, random.Random(f"{SEED}{file.name}")):
                counts.add(kind.removeprefix("core/"), wrong, file.read_text())
    names = sorted(one.stem for one in (quixbugs / "python_programs").glob("*.py"))
    names = [name for name in names if not name.endswith("_test") and name != "node"]
    for name in names[::2]:
        wrong, right = (
            quixbugs / folder / f"{name}.py" for folder in ("python_programs", "correct_python_programs")
        )
        counts.add("QuixBugs", wrong.read_text(), right.read_text())
    counts.by_kind()
    counts.table()


if __name__ == "__main__":
    main()
