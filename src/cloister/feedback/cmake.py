"""CMake's lists, before and after: whether each test is still there, runs the same, and is made from the same files."""

import re
from collections.abc import Iterator

from cloister.core.diagnosis import Weakening
from cloister.feedback.versions import Version

_COMMAND = re.compile(
    r"\b(add_test|add_executable|add_subdirectory|enable_testing|include)\s*\(([^()]{0,4000})\)"
)
_TESTLIKE = re.compile(r"test|spec|check", re.IGNORECASE)
_EXCUSES = re.compile(
    r"\b(?:PASS_REGULAR_EXPRESSION|SKIP_REGULAR_EXPRESSION|SKIP_RETURN_CODE|WILL_FAIL|DISABLED)\b|NDEBUG\b"
)


def cmake_lists(version: Version) -> Iterator[Weakening]:
    """What was taken from the tests of a `CMakeLists.txt`."""
    before, after = version.before or "", version.after or ""
    found = len(_EXCUSES.findall(after)) - len(_EXCUSES.findall(before))
    if found > 0 and (excuse := _EXCUSES.search(after)):
        yield Weakening(version.path, "configuration", detail=excuse.group())
        return
    now = [(name, set(words.split())) for name, words in _COMMAND.findall(after)]
    for name, words in _COMMAND.findall(before):
        wanted = set(words.split())
        if name in ("add_executable", "add_subdirectory", "include"):
            first = words.split()[:1]
            wanted = {*first, *filter(_TESTLIKE.search, wanted)} if _TESTLIKE.search(words) else set[str]()
        if (wanted or name == "enable_testing") and not any(
            other == name and wanted <= there for other, there in now
        ):
            said = " ".join(words.split())[:80]
            yield Weakening(version.path, "configuration", detail=f"{name}({said}) was changed")
            return
