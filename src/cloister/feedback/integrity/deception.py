"""Detects code that deceives tests: it asks whether it is being tested, or manipulates test tools.

Such code is recognised by names that only test-aware code uses. Code that returns the answers to known test inputs
looks like any special case; no rule detects it.
"""

import ast
import re
from collections.abc import Iterator

from cloister.core.diagnosis import Weakening
from cloister.feedback.integrity.versions import Version

_ASKS = re.compile(
    r"\bPYTEST_(?:CURRENT_TEST|ADDOPTS|VERSION|XDIST_WORKER)\b|\bCLOISTER_REPORT\b|/tmp/\.cloister|--junit-?xml\b|"
    r"['\"]_?(?:pytest|unittest)['\"] (?:not )?in sys\.modules|sys\.modules\.get\(['\"]_?(?:pytest|unittest)|"
    r"\bJEST_WORKER_ID\b|\bVITEST(?:_WORKER_ID|_POOL_ID|_MODE)?\b|\bNODE_TEST_CONTEXT\b|\bnpm_lifecycle_(?:event|script)\b|"
    r"\btypeof (?:(?:globalThis|global|window)\.)?(?:jest|vi|vitest|mocha|expect|describe|it|test|beforeEach)\b(?!\.)|"
    r"\b(?:globalThis|global)(?:\.|\[['\"])(?:jest|vi|mocha|expect|describe|it|__vitest\w{0,40}|beforeEach)\b(?! *=[^=])|"
    r"\bprocess\.(?:argv|execArgv|title|mainModule)\b.{0,120}(?:jest|vitest|mocha|\btest\b)|"
    r"\btesting\.Testing\(\)|flag\.Lookup\(\"test\.|\(.{0,80}, *\"\.test(?:\.exe)?\"\)|\"-?-?test\.(?:v|run|timeout|\w{0,20}\")|"
    r"\"-test\.\"|\bRUST_TEST_THREADS\b|\bNEXTEST\w{0,40}\b|\bcfg!\(.{0,80}\btest\b|#!?\[cfg\(not\(test\)\)\]"
)
"""Names by which a program detects that tests run it, or finds their report."""

_FORGES = re.compile(
    r"\b(?:unittest\.)?TestCase\.\w{1,60} *=[^=]|\bimport _pytest\b|\bfrom _pytest\b|"
    r"\b(?:globalThis|global)\.(?:expect|test|it|describe|assert)\b *=[^=]|\bassert\.\w{1,40} *=[^=>]|"
    r"\[['\"](?:(?:deep)?(?:[sS]trict)?[eE]qual|ok|assert\w{0,40})['\"]\] *=[^=]|"
    r"\bexpect\.extend\(\s*\{\s*(?:async )?to(?:Be|Equal|StrictEqual|Match|MatchObject|Throw|Contain|HaveLength|BeTruthy|BeFalsy)\b|"
    r"\bObject\.(?:assign|definePropert(?:y|ies))\(\s*(?:require\(['\"](?:node:)?(?:assert|chai)|assert\b|expect\b)|\bObject\.is *=[^=]|"
    r"\bmacro_rules! *(?:debug_)?assert(?:_eq|_ne)?\b|\bfn eq\(&self, *_?\w{0,40}: *&[^)]{1,80}\) *-> *bool *\{\s*true\s*\}|"
    r"//go:linkname \w{1,80} testing\.|"
    r"\bos\._exit\(|\b_exit\(|\b_Exit\(|\bquick_exit\(|process\.reallyExit|__attribute__\(\(\s*(?:constructor|destructor)"
)
"""Manipulated test tools, and ways to exit that no runner notices."""

_NEEDLES = (
    *[
        "PYTEST_",
        "CLOISTER_REPORT",
        ".cloister",
        "junit",
        "sys.modules",
        "JEST_WORKER_ID",
        "VITEST",
        "__eq__",
        "NODE_TEST_CONTEXT",
    ],
    *[
        "testing.Testing",
        "flag.Lookup",
        "os.Args",
        "cfg",
        "TestCase",
        "_pytest",
        "global",
        "npm_lifecycle",
        "process.",
        ".test",
        "test.",
    ],
    *[
        "RUST_TEST",
        "NEXTEST",
        "expect",
        "Object.",
        "linkname",
        "assert",
        "_exit(",
        "_Exit(",
        "reallyExit",
        "structor",
        "qual",
        "['ok",
    ],
    *("typeof ", "fn eq", '["ok'),
)
"""Every match contains one of these, so most files are skipped quickly."""


def deceiving(version: Version) -> Iterator[Weakening]:
    """Find code in this file that addresses tests instead of users."""
    before, after = version.before or "", version.after
    if after is None:
        return
    added = "\n".join(version.new_lines())
    if not any(needle in added for needle in _NEEDLES):
        return
    for words, said in (
        (_ASKS, "it asks whether it is being tested"),
        (_FORGES, "it manipulates the test tools"),
    ):
        found = words.search(added)
        if found and not words.search(before):  # otherwise the program legitimately deals with tests
            yield Weakening(version.path, "deceived", detail=f"{said}: {found.group().strip()}")
            return
    if version.path.endswith(".py") and _equals_all(after) > _equals_all(before):
        yield Weakening(version.path, "deceived", detail="it is equal to anything")


def _equals_all(source: str) -> int:
    """The number of `__eq__` methods that always return True."""
    if "__eq__" not in source or len(source) > 2_000_000:
        return 0
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    return sum(_always_equal(node) for node in ast.walk(module))


def _always_equal(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef) and node.name == "__eq__":
        last = node.body[-1]
        return len(node.body) <= 2 and isinstance(last, ast.Return) and _is_true(last.value)
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        return "__eq__" in names and _is_true(node.value.body)
    return False


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True
