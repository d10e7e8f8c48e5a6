"""Detects code that deceives tests: it asks whether it is being tested, or manipulates test tools.

Such code is recognised by names that only test-aware code uses. Code that returns the answers to known test inputs
looks like any special case; no rule detects it.
"""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from cloister.core.diagnosis import Diagnosis, Weakening
from cloister.feedback.integrity.versions import Version

_ASKS = re.compile(
    r"\bPYTEST_(?:CURRENT_TEST|ADDOPTS|VERSION|XDIST_WORKER)\b|\bCLOISTER_REPORT\b|/tmp/\.cloister|--junit-?xml\b|"
    r"['\"]_?(?:pytest|unittest)['\"] (?:not )?in sys\.modules|sys\.modules\.get\(['\"]_?(?:pytest|unittest)|"
    r"\bJEST_WORKER_ID\b|\bVITEST(?:_WORKER_ID|_POOL_ID|_MODE)?\b|\bNODE_TEST_CONTEXT\b|\bnpm_lifecycle_(?:event|script)\b|"
    r"\btypeof (?:(?:globalThis|global|window)\.)?(?:jest|vi|vitest|mocha|expect|describe|it|test|beforeEach)\b(?!\.)|"
    r"\b(?:globalThis|global)(?:\.|\[['\"])(?:jest|vi|mocha|expect|describe|it|__vitest\w{0,40}|beforeEach)\b(?! *=[^=])|"
    r"\bprocess\.(?:argv|execArgv|title|mainModule)\b.{0,120}(?:jest|vitest|mocha|\btest\b)|"
    r"\btesting\.Testing\(\)|flag\.Lookup\(\"test\.|\bRUST_TEST_THREADS\b|\bNEXTEST\w{0,40}\b"
)
"""Names by which a program detects that tests run it, or finds their report."""

_OWN_COMMAND = re.compile(r"\bos\.(?:Args|Executable)\b|/proc/self|\bflag\.CommandLine\b")
_TEST_BINARY = re.compile(r"\"(?:-{0,2}test\.[\w=.]{0,40}|\.test(?:\.exe)?)\"")
"""In Go, code may handle flags of tests for others. Only with its own command line does it ask about itself."""

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

_COMMENT = re.compile(r"\s*(?://(?!go:)|\*\s)")
_NAMES = (
    "PYTEST_ CLOISTER_REPORT .cloister junit sys.modules JEST_WORKER_ID VITEST __eq__ "
    "NODE_TEST_CONTEXT testing.Testing flag.Lookup os.Args cfg TestCase _pytest global "
    "npm_lifecycle process. .test test. RUST_TEST NEXTEST expect Object. linkname assert "
    "_exit( _Exit( reallyExit structor qual ['ok"
)
_NEEDLES = (*_NAMES.split(), "typeof ", "fn eq", '["ok')
"""Every match contains one of these, so most files are skipped quickly."""


def deceiving(version: Version) -> Iterator[Weakening]:
    """Find code in this file that addresses tests instead of users."""
    before, after = version.before or "", version.after
    if after is None:
        return
    if fork := _forks(version):
        detail = f"it is compiled differently for tests, which a person must allow: {fork}"
        yield Weakening(version.path, "deceived", detail=detail)
        return
    added = "\n".join(line for line in version.new_lines() if not _COMMENT.match(line))
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
    if _OWN_COMMAND.search(added) and (found := _TEST_BINARY.search(added)):
        yield Weakening(
            version.path, "deceived", detail=f"it asks whether it is being tested: {found.group()}"
        )
    if version.path.endswith(".py") and _equals_all(after) > _equals_all(before):
        yield Weakening(version.path, "deceived", detail="it is equal to anything")


# Conditional compilation: Rust and C can build other code for tests. No run of the tests shows the difference.

_RUST_FORK = re.compile(
    r"\bcfg!\(.{0,80}\btest\b|\bcfg\(.{0,80}\bnot\(\s*test\s*\)|\bcfg_attr\(.{0,80}\btest\b.{0,200}\bpath\b"
)
_RUST_MARK = re.compile(r"#!?\[cfg\((?:.{0,200}\W)?test\b[^\]]{0,200}\]\s*")
_RUST_ITEM = re.compile(
    r"(?:pub(?:\([\w: ]{1,60}\))? )?(?:(?:async|const|unsafe|default) ){0,4}"
    r"(?:mod|fn|use|impl|struct|enum|union|trait|type|static|const|extern|macro_rules!)\b|$|[}/#]"
)
_C_FORK = re.compile(
    r"^\s*#\s*(?:el)?if(?:n?def)?\b(?:.{0,200}\W)?((?:\w{1,80}_)?(?:[A-Z]?UNIT|\w?TEST(?:S|ED|ING)?|GREATEST|ACUTEST|DOCTEST|UNITY|"
    r"CATCH2?|CMOCKA|CRITERION|GMOCK)(?:_\w{1,80})?)\b"
)


def _forks(version: Version) -> str | None:
    """New code of the product that is compiled only for tests, or only without them."""
    path, before = version.path, version.before or ""
    if path.endswith(".rs"):
        known = set(_rust_forks(before))
        return next((fork for fork in _rust_forks(version.after or "") if fork not in known), None)
    if path.endswith((".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".inl")):
        guards = set(
            re.findall(
                r"^\s{0,20}#\s{0,20}define\s{1,20}(\w{1,200})\s{0,20}$", version.after or "", re.MULTILINE
            )
        )
        found = map(_C_FORK.match, version.new_lines())
        return next((one.group().strip() for one in found if one and one[1] not in guards), None)
    return None


def _rust_forks(text: str) -> Iterator[str]:
    lines = [line[:2_000] for line in text.split("\n")]
    inside: list[int] = []
    for index, line in enumerate(lines):
        bare = line.strip()
        depth = len(line) - len(line.lstrip())
        while bare and inside and depth <= inside[-1]:
            inside.pop()
        if re.match(r"(?:pub(?:\([\w: ]{1,60}\))? )?(?:(?:async|const|unsafe) ){0,3}fn\b", bare):
            inside.append(depth)
        if bare.startswith("//"):
            continue
        if found := _RUST_FORK.search(bare):
            yield found.group()
        elif found := _RUST_MARK.search(bare):
            rest = bare[found.end() :] or next(
                (lines[at].strip() for at in range(index + 1, len(lines)) if lines[at].strip()), ""
            )
            if (inside and depth > inside[-1]) or not _RUST_ITEM.match(rest):
                yield f"{found.group().strip()} {rest}"


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


# Detects silenced complaints: suppression comments, and changed settings of a linter.
#
# They count if the linter failed on the base and passes now. Comments count only in files that the linter complained
# about; elsewhere they may be deliberate.


_COMMENTS: dict[str, re.Pattern[str]] = {
    "noqa": re.compile(r"#\s{0,4}(?:noqa|ruff: *noqa|flake8: *noqa|pylint: *disable|fmt: *(?:off|skip))\b"),
    "type: ignore": re.compile(
        r"#\s{0,4}(?:type: *ignore|pyright: *(?:ignore|basic)|mypy: *(?:ignore|disable))"
    ),
    "eslint-disable": re.compile(r"\b(?:eslint-disable|oxlint-disable|biome-ignore|prettier-ignore)"),
    "@ts-ignore": re.compile(r"@ts-(?:ignore|expect-error|nocheck)\b"),
    "allow": re.compile(r"#!?\[(?:allow|rustfmt::skip)\b"),
    "nolint": re.compile(r"//\s?nolint\b|\bNOLINT"),
    "shellcheck disable": re.compile(r"#\s{0,4}shellcheck disable"),
    "SuppressWarnings": re.compile(r"@SuppressWarnings\b"),
}
_OWN = re.compile(
    r"(?:^|/)(?:\.?ruff\.toml|\.flake8|\.?mypy\.ini|pyrightconfig\.json|\.?pylintrc(?:\.toml)?|"
    r"\.eslintrc(?:\.\w{2,5})?|\.eslintignore|eslint\.config\.\w{2,4}|\.oxlintrc\.json|biome\.jsonc?|\.prettierrc(?:\.\w{2,5})?|"
    r"\.prettierignore|\.golangci\.ya?ml|\.?clippy\.toml|\.clang-tidy|\.clang-format|\.shellcheckrc|\.pre-commit-config\.yaml)$"
)
_TABLES = ("ruff", "mypy", "pyright", "pylint", "flake8", "black", "isort")
_SECTION = re.compile(r"^\[(?:tool:)?(flake8|mypy|pylint|isort|pycodestyle)[\w.:*-]{0,80}\]")
_LAX = re.compile(
    r"[\"'](?:strict\w{0,40}|no(?:Implicit|Unchecked|Unused|Fallthrough)\w{1,40}|exactOptionalPropertyTypes|checkJs)[\"']\s{0,4}:\s{0,4}false|"
    r"[\"'](?:skipLibCheck|allowUnreachableCode|allowUnusedLabels)[\"']\s{0,4}:\s{0,4}true|[\"']exclude[\"']"
)
_STRICT = re.compile(
    r"[\"'](?:strict\w{0,40}|no(?:Implicit|Unchecked|Unused)\w{1,40}|checkJs)[\"']\s{0,4}:\s{0,4}true"
)


def may_silence(path: str) -> bool:
    """True if the file holds settings of a linter or type checker."""
    return bool(_OWN.search(path)) or _is_tsconfig(path)


def silencing(version: Version) -> Iterator[Weakening]:
    """Find changes in this file that silence a linter."""
    before, after = version.before or "", version.after or ""
    if _is_tsconfig(version.path):
        lax = len(_LAX.findall(after)) > len(_LAX.findall(before))
        if lax or len(_STRICT.findall(after)) < len(_STRICT.findall(before)):
            yield Weakening(version.path, "silenced", detail="settings")
        return
    if _OWN.search(version.path):
        if before.strip() != after.strip():
            yield Weakening(version.path, "silenced", detail="settings")
        return
    if version.name == "pyproject.toml" and _tables(before) != _tables(after):
        yield Weakening(version.path, "silenced", detail="settings")
    if version.name in ("setup.cfg", "tox.ini") and _sections(before) != _sections(after):
        yield Weakening(version.path, "silenced", detail="settings")
    for word, comment in _COMMENTS.items():
        if len(comment.findall(after)) > len(comment.findall(before)):
            yield Weakening(version.path, "silenced", detail=word)
            return


def hushed(one: Weakening, baseline: Sequence[Diagnosis], now: Mapping[str, Diagnosis]) -> bool:
    """True if a linter failed on the base and passes now, and this may be the reason."""
    for before in baseline:
        after = now.get(before.check)
        if before.green or before.failing or before.unlisted or after is None or not after.green:
            continue
        files = {complaint.file for complaint in before.diagnostics}
        if before.diagnostics and (one.detail == "settings" or one.file in files):
            return True
    return False


def _is_tsconfig(path: str) -> bool:
    return re.search(r"(?:^|/)[jt]sconfig(?:\.\w{1,40})?\.json$", path) is not None


def _tables(text: str) -> dict[str, object]:
    try:
        tool = tomllib.loads(text).get("tool", {})
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}
    if not isinstance(tool, dict):
        return {}
    tables = cast("dict[str, object]", tool)
    return {name: tables[name] for name in _TABLES if name in tables}


def _sections(text: str) -> list[str]:
    kept: list[str] = []
    inside = False
    for line in text.split("\n"):
        if line.startswith("["):
            inside = _SECTION.match(line) is not None
        if inside and line.strip():
            kept.append(line.strip())
    return kept
