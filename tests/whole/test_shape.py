"""The size and the layout of the code."""

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
MAX_FILE, MAX_FUNCTION, MAX_ENTRIES = 700, 60, 15
MAX_PACKAGES = 18
MAX_FILES, MAX_PACKAGE_LINES = 620, 13_500
MAX_LINES = 121_000
MIN_FILE = 60
MAY_BE_SHORT = (
    "cli/commands",
    "feedback/parsers",
    "environment/ecosystems",
    "agent/tools",
    "model/local/llama_process.py",
    "harnesses/repair/rules",
)


def _tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def test_no_file_or_function_outgrows_its_limit() -> None:
    too_long: list[str] = []
    for path in sorted(SRC.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > MAX_FILE:
            too_long.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION:
                    too_long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines")
    assert too_long == []


def _lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def test_the_product_stays_small_enough_to_read() -> None:
    files = sorted(SRC.rglob("*.py"))
    packages: Counter[str] = Counter()
    for path in files:
        packages[path.relative_to(SRC / "cloister").parts[0]] += _lines(path)
    assert len(files) <= MAX_FILES
    assert packages.total() <= MAX_LINES
    assert {name: lines for name, lines in packages.items() if lines > MAX_PACKAGE_LINES} == {}


def test_no_file_is_a_scrap_of_another() -> None:
    """Commands, parsers, tools, programs, package roots and `_spawn.py` may be short."""
    short: dict[str, int] = {}
    for path in sorted(SRC.rglob("*.py")):
        name = str(path.relative_to(SRC / "cloister"))
        if path.name.startswith("__") or path.name == "_spawn.py" or name.startswith(MAY_BE_SHORT):
            continue
        if (lines := _lines(path)) < MIN_FILE:
            short[name] = lines
    assert short == {}


def test_no_folder_of_the_code_has_more_entries_than_a_reader_can_scan() -> None:
    """Package roots (`__init__.py`, `__main__.py`, `py.typed`) are not counted."""
    crowded: dict[str, int] = {}
    for top in (
        SRC / "cloister",
        ROOT / "tests",
        ROOT / "docs",
        ROOT / "bench",
        ROOT / "scripts",
        ROOT / "guest",
    ):
        for folder in (top, *(path for path in top.rglob("*") if path.is_dir())):
            names = [path.name for path in folder.iterdir()]
            entries = [name for name in names if not name.startswith("__") and name != "py.typed"]
            if len(entries) > (MAX_PACKAGES if folder == SRC / "cloister" else MAX_ENTRIES):
                crowded[str(folder.relative_to(ROOT))] = len(entries)
    assert crowded == {}


def test_no_c_file_of_the_guest_outgrows_its_limit() -> None:
    sizes = {path.name: path.read_text().count("\n") for path in (ROOT / "guest").rglob("*.[ch]")}
    assert {name: size for name, size in sizes.items() if size > MAX_FILE} == {}


def test_there_are_no_mocks() -> None:
    words = re.compile(r"unittest\.mock|MagicMock|\bMock\(|mocker\b")
    found = [
        str(path.relative_to(ROOT))
        for path in _tracked()
        if path.suffix == ".py" and path != Path(__file__) and words.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_no_lock_file_names_an_index_or_a_download_address() -> None:
    for lock in sorted((ROOT / "requirements").glob("*.txt")):
        assert "://" not in lock.read_text(), lock.name


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in sorted(SRC.rglob("*.py"))
        if ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) is None
    ]
    assert silent == []
