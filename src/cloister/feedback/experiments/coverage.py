"""Finds out whether tests execute lines that a change touched: how to trace them, and how to read the trace. Pure.

Python only: another language has no tracer that needs no installation. Module-level lines count as well, except for
definitions and imports, which every test of the module executes.
"""

import difflib
import re
from collections.abc import Sequence

import msgspec

from cloister.feedback.integrity.versions import Version

_LINES = 20_000
_DEFINES = re.compile(r"^(?:\s|@|def\b|class\b|async def\b|import\b|from\b|#|[rbu]?[\"']|\)|$)")

_SCRIPT = """\
import atexit
import json
import os
import sys
import threading

_REPORT = {report}
_WANTED = {{os.path.realpath(path): frozenset(lines) for path, lines in json.loads({wanted}).items()}}
_hit = set()
_known = {{}}


def _line(frame, event, arg):
    if event == "line" and frame.f_lineno in _known[frame.f_code.co_filename]:
        _hit.add((frame.f_code.co_filename, frame.f_lineno))
    return _line


def _trace(frame, event, arg):
    name = frame.f_code.co_filename
    if name not in _known:
        _known[name] = _WANTED.get(os.path.realpath(name), frozenset())
    if not _known[name]:
        return None
    return _line(frame, "line", None)


def _end(pid=os.getpid()):
    if os.getpid() == pid:
        with open(_REPORT, "a") as file:
            file.write(json.dumps({{"traced": sys.gettrace() is _trace, "hit": sorted(_hit)}}) + "\\n")


threading.settrace(_trace)
sys.settrace(_trace)
atexit.register(_end)
"""


class _Told(msgspec.Struct, frozen=True):
    """One process of the traced run."""

    traced: bool
    """False if the program took the tracer away."""
    hit: tuple[tuple[str, int], ...]


def changed_lines(version: Version) -> frozenset[int]:
    """The lines of the file now that differ from the base, and those beside a deletion."""
    before, after = (version.before or "").split("\n"), (version.after or "").split("\n")
    if version.after is None or max(len(before), len(after)) > _LINES:
        return frozenset()
    found: set[int] = set()
    for tag, _, _, start, stop in difflib.SequenceMatcher(None, before, after).get_opcodes():
        if tag == "delete":
            found.update((start, start + 1))
        elif tag != "equal":
            found.update(range(start + 1, stop + 1))
    return frozenset(
        line for line in found if 1 <= line <= len(after) and not _DEFINES.match(_flat(after, line))
    )


def _flat(lines: Sequence[str], number: int) -> str:
    """The line if it is at module level; an indented line is always of interest, so it is returned without indent."""
    line = lines[number - 1]
    return "x" if line[:1].isspace() and line.strip() else line


def python_tracer(root: str, report: str, changed: Sequence[Version]) -> str | None:
    """A `sitecustomize.py` that records which changed lines are executed; None if no Python line changed."""
    lines = {f"{root}/{one.path}": sorted(changed_lines(one)) for one in changed if one.path.endswith(".py")}
    wanted = {path: found for path, found in lines.items() if found}
    if not wanted:
        return None
    return _SCRIPT.format(report=repr(report), wanted=repr(msgspec.json.encode(wanted).decode()))


def executed(report: bytes) -> bool | None:
    """True if a changed line was executed; None if the trace does not tell."""
    told: list[_Told] = []
    for line in report.splitlines():
        try:
            told.append(msgspec.json.decode(line, type=_Told))
        except msgspec.DecodeError:
            return None
    if any(one.hit for one in told):
        return True
    return False if told and all(one.traced for one in told) else None


def with_path(command: str, directory: str) -> str:
    """The command with `directory` first on Python's path, also if the command sets one."""
    if "PYTHONPATH=" in command:
        return command.replace("PYTHONPATH=", f"PYTHONPATH={directory}:")
    return f'export PYTHONPATH="{directory}${{PYTHONPATH:+:$PYTHONPATH}}"; {command}'
