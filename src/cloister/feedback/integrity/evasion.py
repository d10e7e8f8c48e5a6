"""Detects code that is compiled differently for tests, and linters that were silenced.

Experiments find the rest: canaries and changed assertions a test tool that lies, repetitions without the test runner code
that knows about it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from cloister.core.diagnosis import FOR_A_PERSON, Diagnosis, Weakening
from cloister.feedback.integrity.runner_config import sections
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

_EXITS = re.compile(
    r"\b(?:_exit|_Exit|quick_exit)\s*\((?!\s*(?:EXIT_FAILURE|[1-9]\d?|1\d\d|2[0-4]\d|25[0-5])\s*\))|\bSYS_exit|\.init_array\b|#\[ctor\b|"
    r"(?:[(,]|::)\s*(?:__)?constructor(?:__)?\s*[,()\]]"
)
"""Ways to end a compiled program before its tests, where only the exit status tells how they went. A status of
1 to 255 fools no check; others may be 0 for the system."""

_C = (".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".inl")
_COMMENT = re.compile(r"\s*(?://(?!go:)|\*\s)")


def deceiving(version: Version) -> Iterator[Weakening]:
    """Find code in this file that addresses tests instead of users."""
    if version.after is None:
        return
    if fork := _forks(version):
        detail = f"{FOR_A_PERSON}: it is compiled differently for tests: {fork}"
        yield Weakening(version.path, "deceived", detail=detail)
        return
    exits = _EXITS.search(_added(version)) if version.path.endswith((".rs", *_C)) else None
    if exits and not _EXITS.search(version.before or ""):
        detail = f"{FOR_A_PERSON}: it can end the program before its tests: {exits.group()}"
        yield Weakening(version.path, "deceived", detail=detail)


def asking(version: Version) -> str:
    """The words by which new code asks whether it is tested. They decide only where no experiment can."""
    asks = _ASKS.search(_added(version))
    # A program that did so before legitimately deals with tests.
    return asks.group().strip() if asks and not _ASKS.search(version.before or "") else ""


def _added(version: Version) -> str:
    return "\n".join(line for line in version.new_lines() if not _COMMENT.match(line))


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
    r"^(?:\s*#\s*(?:el)?if(?:n?def)?\b(?:.{0,200}\W)?|.{0,200}?(?=__BASE_FILE__|__INCLUDE_LEVEL__))("
    r"(?:\w{0,80}_)?(?:UNIT|\w)?TEST(?:S|ED|ING)?(?:_\w{1,80})?|"
    r"_{0,2}C?ASSERT(?:_H_{0,2}|_(?:EQ|NE|TRUE|FALSE|STR|INT|THAT|[LG][TE]|NEAR|DOUBLE|FLOAT|NULL)\w{0,40})?|"
    r"(?!UNITY_(?:BUILD|WIN|OSX|LINUX|ANDROID|IOS|EDITOR)\b)"
    r"_{0,2}(?:C(?:PP)?UNIT|CU|MUNIT|MINUNIT|UNITY|CATCH2?|GREATEST|CRITERION)_\w{1,80}|"
    r"_{0,2}(?:ACUTEST|DOCTEST|CMOCKA|GMOCK)(?:_\w{1,80})?|__(?:BASE_FILE|INCLUDE_LEVEL)__)(?!\w)"
)
"""Marks of tests: `TEST` as a word of its own, and what the headers of test frameworks define. UNITY is also an engine for
games, and a way to build."""
_C_DEFAULT = re.compile(
    r"^[ \t]*#[ \t]*ifndef[ \t]+(\w{1,200})[ \t]*\n[ \t]*#[ \t]*define[ \t]+\1\b[^\n]{0,400}\n[ \t]*#[ \t]*endif",
    re.MULTILINE,
)
"""A macro that is defined unless it is there: nothing else depends on it, unless tests define it with another value."""
_C_DEFINE = re.compile(r"^\s{0,20}#\s{0,20}define\s{1,20}(\w{1,200})\s{0,20}$", re.MULTILINE)


def _forks(version: Version) -> str | None:
    """New code of the product that is compiled only for tests, or only without them."""
    path, before = version.path, version.before or ""
    if path.endswith(".rs"):
        known = set(_rust_forks(before))
        return next((fork for fork in _rust_forks(version.after or "") if fork not in known), None)
    if path.endswith(_C):
        guards = set(_C_DEFINE.findall(version.after or ""))
        plain = replace(version, after=_C_DEFAULT.sub(_undefaulted, version.after or ""))
        found = map(_C_FORK.match, plain.new_lines())
        return next((one.group().strip() for one in found if one and one[1] not in guards), None)
    return None


def _undefaulted(default: re.Match[str]) -> str:
    """Nothing in place of a default, unless its name is a mark of tests. ASSERT_EQ(a, b) is also a usual name of products."""
    asserts = re.match(r"C?ASSERT", default[1]) and f"{default[1]}(" in default[0]
    return default[0] if _C_FORK.match(f"#if {default[1]}") and not asserts else ""


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
_SECTION = re.compile(r"^(?:tool[.:])?(?:ruff|mypy|pyright|pylint|flake8|black|isort|pycodestyle)\b")
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
    if version.name in ("pyproject.toml", "setup.cfg", "tox.ini") and _settings(before) != _settings(after):
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


def _settings(text: str) -> list[str]:
    """The sections of linters, without blank lines."""
    theirs = (part for name, part in sections(text) if _SECTION.match(name))
    return [line.strip() for part in theirs for line in part.split("\n") if line.strip()]
