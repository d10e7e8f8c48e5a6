"""The tests nearest to a change, to be run before the long rest of their check."""

import re
import shlex
from collections.abc import Collection, Sequence

import msgspec

from cloister.core.diagnosis import Check, Diagnosis
from cloister.feedback.kinds import tool_of, words

_TEST = re.compile(
    r"^(?:test_(?P<a>.+)|(?P<b>.+)_test)\.py$|^(?P<c>.+)\.(?:test|spec)\.[cm]?[jt]sx?$",
)
_SCRIPT = (".js", ".jsx", ".ts", ".tsx", ".mjs", ".cjs", ".mts", ".cts")
_TOOLS = {"pytest": (".py",), "jest": _SCRIPT, "vitest": _SCRIPT}
_FILES = 20
WORTH_SECONDS = 5.0
"""A check that takes less is run whole."""


class Near(msgspec.Struct, frozen=True):
    """A part of one check."""

    line: str
    """The command line that runs it."""
    files: tuple[str, ...]


def nearest(check: Check, known: Diagnosis, changed: Sequence[str], files: Collection[str]) -> Near | None:
    """The part of `check` that looks at the changed files: tests that changed, and those named after what did.

    None where that would save nothing, or where the check cannot be asked for a part of itself.
    """
    tool = tool_of(check.command) or ""
    parts = words(check.command)
    if tool not in _TOOLS or known.seconds < WORTH_SECONDS or known.unlisted or not known.tests:
        return None
    if not parts or any(part.endswith((*_TOOLS[tool], "/")) for part in parts[1:]):
        return None  # it names files already
    stems = {_stem(name) for name in changed}
    wanted = set(changed)
    found = sorted(
        name
        for name in files
        if name.endswith(_TOOLS[tool])
        and (test := _TEST.match(name.rpartition("/")[2]))
        and (name in wanted or next(filter(None, test.groups()), "") in stems)
    )
    if not found or len(found) > _FILES:
        return None
    line = " ".join([check.run or check.command, *map(shlex.quote, found)])
    return Near(line, tuple(found))


def merged(known: Diagnosis, part: Diagnosis, files: Sequence[str]) -> Diagnosis:
    """What is known of the whole check after a red part of it: that part anew, the rest as it was."""
    anew = {test.name for test in part.tests}
    rest = [
        test for test in known.tests if test.name not in anew and test.name.partition("::")[0] not in files
    ]
    # As slow as before, so that the next look starts with a part again.
    return msgspec.structs.replace(part, tests=(*part.tests, *rest), seconds=known.seconds)


def _stem(path: str) -> str:
    name = path.rpartition("/")[2]
    return name.partition(".")[0]
