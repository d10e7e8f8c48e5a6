"""Reports literals of a failing test in new code: the change may answer the test instead of solving the task.

Code that handles the inputs of a test looks like any special case, so this is a note for the reviewer and not a verdict.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

from cloister.core.diagnosis import TestResult
from cloister.core.text import one_line
from cloister.feedback.integrity import text_tests
from cloister.feedback.integrity.versions import Version, is_product

_NOTES = 5
_TEXT_CHARS = 500_000
_LITERAL = re.compile(
    r"\"((?:[^\"\\\n]|\\.){0,200})\"|'((?:[^'\\\n]|\\.){0,200})'|`([^`\\\n]{0,200})`|(?<![\w.])(-?\d{1,20}(?:\.\d{1,20})?)(?![\w.])|"
    r"(\[[\d\s,.-]{4,200}\])"
)
_PAIR = re.compile(r"[=!]==?|\bcase\b|\.equals\(|\beq\b|=>")
"""A line that compares with a literal. With a second literal of the test it answers that test."""
_DECIDES = re.compile(
    r"^\s*(?:\}\s{0,20})?(?:(?:else\s{1,20})?if\b|elif\b|case\b|when\b|switch\b|match\b|return\b|while\b)|[=!]==?|=>|\?|^\s*['\"`\d][^:]{0,200}:"
)
"""Lines that decide by a value, map a key, or return."""
_COMMON = re.compile(
    r"^(?:10+|12|16|20|24|30|32|50|60|64|90|99|128|200|255|256|400|404|500|512|1024|3600|65535|[01]\.[05]|utf-?8|\W{1,3}|%\w)$|"
    r"^(?:id|name|key|value|type|data|test|true|false|none|null|GET|POST|ok|error)$",
    re.IGNORECASE,
)


_TELLING = {
    "reads files, and could read the tests": re.compile(
        r"\b(?:include_(?:str|bytes)!|go:embed|(?:readFile|readdir|exists|stat)(?:Sync)?\(|listdir|scandir|iterdir|is_dir\(|\bopen\(|read_text|read_bytes|"
        r"os\.(?:Open|Stat|ReadDir|ReadFile)\(|read_dir|read_to_string|getsource|opendir|fopen|Files\.\w{1,30}\()"
    ),
    "may decide by a hash of its input": re.compile(
        r"(?i)\b(?:hashlib|zlib|sha\d{1,3}|md5|crc32|createHash|DefaultHasher|MessageDigest|hash/\w{1,10}|hash(?:Code)?\()"
    ),
    "decides itself what its values are equal to": re.compile(
        r"\b(?:__(?:eq|ne|lt|le|gt|ge|bool|len|contains|hash|instancecheck)__|valueOf|toPrimitive|asymmetricMatch|PartialEq|"
        r"PartialOrd|boolean equals|__cmp__)\b|\boperator ?[=!<>]="
    ),
    "may answer by what it is linked with": re.compile(r"\b__attribute__\s?\(\(\s?weak|#\s?pragma weak\b"),
}
"""What a reviewer should see in code that could answer a test without a literal of it."""


def telling(changed: Sequence[Version]) -> tuple[str, ...]:
    """One sentence for each way in which new code of the product could know a test by other means than literals."""
    found: list[str] = []
    for one in changed:
        added = "\n".join(one.new_lines()) if is_product(one.path) and one.after is not None else ""
        for what, words in _TELLING.items():
            if (word := words.search(added)) and not words.search(one.before or ""):
                found.append(f"review: {one.path} {what} (`{word[0].strip('( ')}`)")
    return tuple(found)[:_NOTES]


def hard_coded(
    red: Sequence[TestResult], tests: Mapping[str, str], changed: Sequence[Version]
) -> tuple[str, ...]:
    """One sentence for each literal of a failing test by which new code of the product decides, or which it returns.

    `tests` are the texts of the files that hold these tests. Literals that the changed files had before are not new.
    """
    product = [one for one in changed if is_product(one.path) and one.after is not None]
    base = {word for one in product for word in _literals(one.before or "")}
    lines = [line for one in product for line in _deciding(one)]
    new = {word for line in lines for word in _literals(line)} - base
    joined = "\n".join(new)[:20_000]  # a literal may be part of a longer one
    found: dict[str, str] = {}
    for path, text in tests.items() if lines else ():
        for name, body in _bodies(path, text[:_TEXT_CHARS], red).items():
            said = dict.fromkeys(_literals(body))
            told = [
                word
                for word in said
                if word in new or (len(word) > 5 and word in joined and word not in base)
                if len(word.lstrip("-")) > 1 and not _COMMON.match(word)
            ]
            for word in told or _answers(lines, said):
                found.setdefault(word, f"hard-coded: `{one_line(word, 60)}` from {one_line(name, 100)}")
    return tuple(found.values())[:_NOTES]


def _answers(lines: Sequence[str], said: Collection[str]) -> list[str]:
    """Short literals of a test that new code compares with, where it answers with another one of the same test."""
    pairs: list[tuple[str, str]] = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        words = [*_literals(line)] if _PAIR.search(line) else []
        words += [*_literals(following)] if len(words) == 1 else []
        pairs += [(one, two) for one, two in pairwise(words) if one != two and {one, two} <= {*said}]
    telling = [pair for pair in pairs if not {"0", "1", "-1", ""} & {*pair}]
    return [word for pair in telling or pairs[: 2 * (len(pairs) > 1)] for word in pair]


def _literals(text: str) -> Iterator[str]:
    for found in _LITERAL.finditer(text):
        yield "".join((next(group for group in found.groups() if group is not None)).split())


def _bodies(path: str, text: str, red: Sequence[TestResult]) -> dict[str, str]:
    """The source of each failing test in a file; of the whole file if none is found."""
    blocks = {name: "\n".join(lines) for name, lines in text_tests.outlines(path, text)[0].items()}
    wanted = [test.name.partition("[")[0] for test in red]
    mine = {
        name: body for name, body in blocks.items() if any(name.rpartition("::")[2] in one for one in wanted)
    }
    return mine or {path.rpartition("/")[2]: text}


def _deciding(version: Version) -> Iterator[str]:
    """The new lines that decide, map or return something. Messages and log lines are others."""
    for line in version.new_lines():
        if _DECIDES.search(line) and not re.match(r"\s*(?://|#\s|\*|raise\b|throw\b|log|print)", line):
            yield line
