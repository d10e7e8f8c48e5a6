"""Every import names a module that exists, and each one inside a function works in a process that has imported only the
command line."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
# Other packages are imported before the fork: their order among themselves is not ours.
ALONE = """
import importlib, os, sys
import anyio, httpx, litestar, msgspec, uvicorn
import cloister.cli.entry
for line in sys.stdin.read().splitlines():
    module, *names = line.split()
    if pid := os.fork():
        if os.waitpid(pid, 0)[1]:
            print(line)
        continue
    try:
        found = importlib.import_module(module)
        for name in names:
            if not hasattr(found, name):
                importlib.import_module(f"{module}.{name}")
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        os._exit(1)
    os._exit(0)
"""


def late_imports() -> Iterator[tuple[str, str]]:
    """Module and name of each `from cloister… import name` inside a function."""
    for path in SOURCE.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cloister"):
                        yield from ((str(node.module), alias.name) for alias in node.names)


def test_every_late_import_works_alone() -> None:
    wanted: defaultdict[str, set[str]] = defaultdict(set)
    for module, name in late_imports():
        wanted[module].add(name)
    assert len(wanted) > 20
    orders = "\n".join(" ".join((module, *sorted(names))) for module, names in wanted.items())
    done = subprocess.run([sys.executable, "-c", ALONE], input=orders, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_run_loads_what_takes_long_only_when_it_is_used() -> None:
    """The first request to the model waits for every module that the run imports."""
    program = (
        "import sys, cloister.cli.commands.run, cloister.app.wiring, cloister.app.verbs.local, cloister.agent.attempt\n"
        "heavy = {'pydantic', 'genai_prices', 'httpx2', 'tree_sitter', 'cryptography.x509', 'cryptography.hazmat.primitives.serialization'}\n"
        "late = {'harnesses.repair.harness', 'agent.evidence.experiments', 'runs.images.image_build', 'egress.authority'}\n"
        "print(*sorted((heavy | {f'cloister.{name}' for name in late}) & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_import_of_cloister_names_a_module_that_exists() -> None:
    """Also in tests and benches, which are not all run after each change."""
    missing: list[str] = []
    for top in ("src", "tests", "bench", "scripts"):
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module:
                    names = [node.module]
                missing += [
                    f"{path.relative_to(ROOT)} {name}"
                    for name in names
                    if name.split(".")[0] == "cloister"
                    and not (SOURCE / f"{name.replace('.', '/')}.py").is_file()
                    and not (SOURCE / name.replace(".", "/") / "__init__.py").is_file()
                ]
    assert missing == []
