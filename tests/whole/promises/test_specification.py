"""SPECIFICATION.md and the tests hold each other: every promise names a test that exists, or says pending."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROMISE = re.compile(r"^(\d+\.\d+)\s+(.*?)\s+\[(.+)\]$")


def _promises() -> dict[str, tuple[str, str]]:
    """Number → (promise, what holds it). A promise is one paragraph that starts with its number."""
    found: dict[str, tuple[str, str]] = {}
    for paragraph in (ROOT / "SPECIFICATION.md").read_text(encoding="utf-8").split("\n\n"):
        line = " ".join(paragraph.split())
        if match := PROMISE.match(line):
            assert match[1] not in found, f"promise {match[1]} is there twice"
            found[match[1]] = (match[2], match[3])
        else:
            assert not re.match(r"^\d+\.\d+ ", line), f"no test named: {line[:80]}"
    return found


def _functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_promise_names_tests_that_exist_or_says_pending() -> None:
    promises = _promises()
    assert len(promises) > 20
    missing: list[str] = []
    for number, (_, holds) in promises.items():
        for name in (part.strip(" `") for part in holds.split(",")):
            if name == "pending":
                continue
            file, _, function = name.partition("::")
            path = ROOT / file
            if not path.is_file() or (function and function not in _functions(path)):
                missing.append(f"{number}: {name}")
    assert missing == []
