"""Finds the block of each test in a source file, by its head and its indent."""

import re
from collections.abc import Sequence

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
_CLASS = re.compile(r"^\s*class (\w{1,200})")


def outlines(path: str, text: str) -> tuple[dict[str, list[str]], list[str]]:
    """The lines of each test by its title, from its head (with the attributes above it) to its end, and the lines outside."""
    language = _LANGUAGES.get(path.rpartition(".")[2], "script")
    lines = [line[:2_000] for line in text.split("\n")]
    starts = [
        (index, name) for index, line in enumerate(lines) if (name := _title(_HEADS[language].match(line)))
    ]
    if language == "python":
        starts = _owned(lines, starts)
    if language == "rust":
        above = {start: "\n".join(lines[max(0, start - 4) : start]) for start, _ in starts}
        starts = [one for one in starts if "#[" in above[one[0]] and "test" in above[one[0]]]
    found: dict[str, list[str]] = {}
    outside: list[str] = []
    done = 0
    for (start, name), (stop, _) in zip(starts, [*starts[1:], (len(lines), "")], strict=False):
        code, end = _code(lines, start, stop, language)
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


def _code(lines: Sequence[str], start: int, stop: int, language: str) -> tuple[list[str], int]:
    """The body up to the line that closes it at the depth of its head, and the index of that line."""
    depth = _depth(lines[start])
    for index in range(start + 1, stop):
        bare = lines[index].strip()
        closes = bare[:1] in "})" if language != "python" else bare[:1] not in "#)"
        if bare and closes and _depth(lines[index]) <= depth:
            return _plain(lines[start + 1 : index]), index
    return _plain(lines[start + 1 : stop]), stop


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _owned(lines: Sequence[str], starts: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """The heads with the names of their classes, as in `TestA::test_b`."""
    heads, around = dict(starts), list[tuple[int, str]]()
    found: list[tuple[int, str]] = []
    for index, line in enumerate(lines):
        head = _CLASS.match(line)
        if head is None and index not in heads:
            continue
        while around and around[-1][0] >= _depth(line):
            around.pop()
        if head is None:
            found.append((index, "::".join([*(name for _, name in around[:8]), heads[index]])))
        else:
            around.append((_depth(line), head[1]))
    return found


def _plain(lines: Sequence[str]) -> list[str]:
    """The lines without blank lines and comments, with single spaces."""
    bare = (" ".join(line.split()) for line in lines)
    return [line for line in bare if line and not line.startswith(("//", "/*", "*", "# "))]
