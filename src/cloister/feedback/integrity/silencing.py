"""Detects silenced complaints: suppression comments, and changed settings of a linter.

They count if the linter failed on the base and passes now. Comments count only in files that the linter complained
about; elsewhere they may be deliberate.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from cloister.core.diagnosis import Diagnosis, Weakening
from cloister.feedback.integrity.versions import Version

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
