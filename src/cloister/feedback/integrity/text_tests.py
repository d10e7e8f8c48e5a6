"""Compares tests of other languages line by line inside the block of each test."""

import re
from collections.abc import Sequence

from cloister.core.diagnosis import HowWeakened
from cloister.feedback.integrity.versions import inserted

_HEADS: dict[str, re.Pattern[str]] = {
    "script": re.compile(
        r"^\s*(?:export )?(x?(?:it|test|specify)|f(?:it))(?:\.[\w.]{1,60})?(?:\([^)]{0,200}\))?\(\s*(['\"`])(.{1,300}?)\2"
    ),
    "python": re.compile(r"^\s*(?:async )?def (test\w{0,200})\("),
    "go": re.compile(r"^func (Test\w{0,200})\("),
    "rust": re.compile(r"^\s*(?:pub )?(?:async )?fn (\w{1,200})\s*\("),
    "java": re.compile(
        r"^\s*(?:@Test\b.{0,100})?(?:public |private |protected )?(?:void|fun) (\w{1,200}|`[^`]{1,200}`)\s*\("
    ),
    # Any function: `RUN_TEST` and the like name the tests elsewhere, and the other functions are helpers.
    "c": re.compile(
        r"^\s*(?:TEST(?:_F|_P)?\s*\(([\w, ]{1,200})\)|TEST_CASE\s*\(\s*\"(.{1,200}?)\")|"
        r"^(?:static |inline )?(?:const |unsigned |struct )?[A-Za-z_]\w{0,60}[ *]{1,4}(?:[A-Z_]{1,60} )?(\w{1,200})\s*\([^;]{0,400}$"
    ),
}
_LANGUAGES = {
    **{"py": "python", "go": "go", "rs": "rust", "java": "java", "kt": "java", "scala": "java"},
    **dict.fromkeys(("c", "cc", "cpp", "cxx", "h", "hpp"), "c"),
}
_SKIPS = re.compile(
    r"\b(?:it|test|describe|context|suite|specify)\.(?:skip|todo|fail(?:s|ing)|fixme|skipIf|runIf)\b|\bx(?:it|test|describe|context)\(|"
    r"\bskip: *(?:true|['\"])|\btodo: *(?:true|['\"])|\bthis\.skip\(|\.skip\(|"
    r"\b[tb]\.Skip(?:f|Now)?\(|#\[(?:cfg_attr\(.{1,200}\b)?(?:ignore|should_panic)\b|@(?:[\w.]{1,80}\.)?(?:Disabled|Ignore)\b|\bGTEST_SKIP\(|\bDISABLED_|\bSKIP\(|\bTEST_IGNORE(?:_MESSAGE)?\("
)
_ENDS_EARLY = re.compile(
    r"^(?:\}? *(?:else )?(?:if|for|while)\b.{0,400}[\s{)])?(?:return\b|throw\b|process\.exit|os\.Exit|std::process::exit|exit\(|"
    r"runtime\.Goexit)"
)
_CONSTRAINT = re.compile(
    r"^//(?:go:build| \+build) .{1,400}$", re.MULTILINE
)  # Go skips a file if it is not satisfied


def weakened(path: str, before: str, after: str | None) -> list[tuple[str, HowWeakened]]:
    """Each weakened test, and how."""
    language = _LANGUAGES.get(path.rpartition(".")[2], "script")
    old, new = outlines(path, before)[0], outlines(path, after or "")[0]
    if language == "go" and set(_CONSTRAINT.findall(after or "")) != set(_CONSTRAINT.findall(before)):
        return [(name, "skipped") for name in old]
    found: list[tuple[str, HowWeakened]] = []
    for name, lines in old.items():
        now = new.get(name)
        if now is None:
            found.append((name, "deleted"))
        elif any(map(_SKIPS.search, now)) and not any(map(_SKIPS.search, lines)):
            found.append((name, "skipped"))
        elif (added := inserted(lines[1:], now[1:])) is None or any(
            _ENDS_EARLY.match(now[1 + index]) for index in added
        ):
            found.append((name, "changed"))
    return found


def outlines(path: str, text: str) -> tuple[dict[str, list[str]], list[str]]:
    """The lines of each test by its title, from its head (with the attributes above it) to its end, and the lines outside."""
    language = _LANGUAGES.get(path.rpartition(".")[2], "script")
    lines = [line[:2_000] for line in text.split("\n")]
    starts = [
        (index, name) for index, line in enumerate(lines) if (name := _title(_HEADS[language].match(line)))
    ]
    if language == "rust":
        above = {start: "\n".join(lines[max(0, start - 4) : start]) for start, _ in starts}
        starts = [one for one in starts if "#[" in above[one[0]] and "test" in above[one[0]]]
    found: dict[str, list[str]] = {}
    outside: list[str] = []
    done = 0
    for (start, name), (stop, _) in zip(starts, [*starts[1:], (len(lines), "")], strict=False):
        code, end = _code(lines, start, stop)
        found.setdefault(name, [lines[start].strip(), *_marks(lines, start), *code])
        outside += _plain(lines[done:start])
        done = end
    return found, [*outside, *_plain(lines[done:])]


def _title(match: re.Match[str] | None) -> str:
    if match is None:
        return ""
    groups = [group for group in match.groups() if group and group not in ("'", '"', "`")]
    return groups[-1].strip() if groups else ""


def _marks(lines: Sequence[str], start: int) -> list[str]:
    """Attributes, annotations and decorators right above a head."""
    found: list[str] = []
    for line in reversed(lines[max(0, start - 6) : start]):
        if not line.strip().startswith(("#[", "@")):
            break
        found.append(line.strip())
    return found


def _code(lines: Sequence[str], start: int, stop: int) -> tuple[list[str], int]:
    """The body up to the line that closes it at the depth of its head, and the index of that line."""
    depth = len(lines[start]) - len(lines[start].lstrip())
    for index in range(start + 1, stop):
        line = lines[index]
        if len(line) - len(line.lstrip()) <= depth and line.strip().startswith(("}", ")")):
            return _plain(lines[start + 1 : index]), index
    return _plain(lines[start + 1 : stop]), stop


def _plain(lines: Sequence[str]) -> list[str]:
    """The lines without blank lines and comments, with single spaces."""
    bare = (" ".join(line.split()) for line in lines)
    return [line for line in bare if line and not line.startswith(("//", "/*", "*"))]
