"""Plants bugs with cosmic-ray in real packages, for `bench/repair.py planted`.

Usage: planted.py SDISTS FOLDER [PER_PACKAGE [SEED]], with an interpreter that has cosmic-ray, pytest and what the suites need.
SDISTS is a folder with source distributions (`pip download --no-binary :all: --no-deps`). For each package, mutations at
random places (fixed seed) of random modules are tried until the package's own suite notices enough of them. All operators
of cosmic-ray count the same, except those that need arguments.
"""

import ast
import json
import random
import shutil
import subprocess
import sys
import tarfile
from importlib import import_module
from pathlib import Path
from typing import Any

SEED = 20261118
SECONDS = 240


def prepare(archive: Path, folder: Path) -> Path | None:
    """Unpack a source distribution; None if its suite is not green here."""
    target = folder / archive.name.removesuffix(".tar.gz")
    shutil.rmtree(target, ignore_errors=True)
    with tarfile.open(archive) as packed:
        packed.extractall(target, filter="data")
    (top,) = [path for path in target.iterdir() if path.is_dir()]
    top.rename(target / "work")
    return target if suite(target / "work") == 0 else None


def suite(work: Path) -> int:
    """The exit status of the suite; -1 if it takes too long."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests(work)]
    try:
        done = subprocess.run(
            command, cwd=work, env=environment(), capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return -1
    return done.returncode


def environment() -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": "src:.", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp"}


def tests(work: Path) -> list[str]:
    """Where the suite is, if it has a usual name."""
    names = [name for name in ("tests", "test") if (work / name).is_dir()]
    return names or [path.name for path in sorted(work.glob("test_*.py"))]


def modules(work: Path) -> list[Path]:
    """The product's files that are worth a mutation."""
    top = work / "src" if (work / "src").is_dir() else work
    found = [
        path
        for path in sorted(top.rglob("*.py"))
        if not {"tests", "test", "docs", "doc", "examples", "benchmarks"} & set(path.relative_to(work).parts)
        and not path.name.startswith(("test_", "conf", "setup", "_version", "noxfile"))
    ]
    return [path for path in found if path.stat().st_size > 2_000]


def plant(work: Path, count: int, chance: random.Random) -> list[dict[str, str]]:
    # Not a dependency of Cloister: the interpreter that runs this has it.
    mutate_code: Any = import_module("cosmic_ray.mutating").mutate_code
    plugins: Any = import_module("cosmic_ray.plugins")
    trees: Any = import_module("cosmic_ray.ast")
    tree, nodes = trees.get_ast_from_path, trees.ast_nodes

    bugs: list[dict[str, str]] = []
    names: list[str] = sorted(name for name in plugins.operator_names() if "Variable" not in name)
    kinds = sorted({name.split("_")[0] for name in names})
    files = modules(work)
    if not files:
        return bugs
    for _ in range(40 * count):
        if len(bugs) == count:
            break
        file, kind = chance.choice(files), chance.choice(kinds)
        name = chance.choice([one for one in names if one.split("_")[0] == kind])
        text, operator = file.read_text(), plugins.get_operator(name)()
        places = sum(len(list(operator.mutation_positions(node))) for node in nodes(tree(file)))
        changed = mutate_code(text, operator, chance.randrange(places)) if places else None
        if changed is None or ast.dump(ast.parse(changed)) == ast.dump(ast.parse(text)):
            continue
        file.write_text(changed)
        noticed = suite(work) == 1
        file.write_text(text)
        if noticed:
            bugs.append({"path": str(file.relative_to(work)), "operator": name, "text": changed})
            print(f"{work.parent.name}: {name} in {file.name}", flush=True)
    return bugs


def main() -> None:
    archives, folder = Path(sys.argv[1]), Path(sys.argv[2])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 6
    seed = sys.argv[4] if len(sys.argv) > 4 else SEED
    for archive in sorted(archives.glob("*.tar.gz")):
        if (folder / archive.name.removesuffix(".tar.gz") / "bugs.json").exists():
            continue
        target = prepare(archive, folder)
        if target is None:
            print(f"{archive.name}: its suite is not green here", flush=True)
            continue
        bugs = plant(target / "work", count, random.Random(f"{seed}{archive.name.split('-')[0]}"))
        (target / "bugs.json").write_text(json.dumps({"tests": tests(target / "work"), "bugs": bugs}))


if __name__ == "__main__":
    main()
