"""Each import inside a function works in a process that has imported nothing else of Cloister but the command line."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
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
