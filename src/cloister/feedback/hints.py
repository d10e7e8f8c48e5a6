"""What CI runs, as a hint: the `run:` lines of workflows that start a tool we know and change nothing."""

import re
from collections.abc import Iterator, Mapping

from cloister.core.text import one_line
from cloister.feedback.kinds import kind_of, tool_of, words

_RUN = re.compile(r"^(\s*)(?:- )?run:\s*(.*)$")
_BLOCK = re.compile(r"^[|>][+-]?\d?$")
_CHANGES = re.compile(r"(?:^| )(?:--fix|--write|-w|install|publish|deploy|push|upload|release|ci)(?: |$)")
_LINES = 2_000
_HINTS = 4


def hinted(workflows: Mapping[str, str], contents: Mapping[str, str]) -> list[str]:
    """Commands of the workflows that check something, tests first. Expressions of the CI make a line unusable."""
    makefile = contents.get("Makefile", "")
    found: dict[str, None] = {}
    for name in sorted(workflows):
        for line in _commands(workflows[name].split("\n")[:_LINES]):
            if _checks(line, makefile):
                found.setdefault(one_line(line, 300))
    ordered = sorted(found, key=lambda line: kind_of(line) != "test")
    return ordered[:_HINTS]


def _checks(line: str, makefile: str) -> bool:
    if not words(line) or _CHANGES.search(line) or "${{" in line:
        return False
    if line.startswith("make "):
        return kind_of(line) == "test" and f"{line[5:].strip()}:" in makefile
    return tool_of(line) is not None and kind_of(line) == "test"


def _commands(lines: list[str]) -> Iterator[str]:
    """The commands below `run:`, on its line or in the block under it."""
    index = 0
    while index < len(lines):
        run = _RUN.match(lines[index][:2_000])
        index += 1
        if run is None:
            continue
        said = run[2].strip()
        if not _BLOCK.match(said):
            yield said.strip("'\"")
            continue
        depth = len(run[1]) + 1
        while index < len(lines) and (not lines[index].strip() or _indent(lines[index]) >= depth):
            yield lines[index].strip()
            index += 1


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
