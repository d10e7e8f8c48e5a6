"""Finds out whether tests execute lines that a change touched: how to trace them, and how to read the trace. Pure.

Python has a tracer of our own, Go its profile of coverage, and Node.js the coverage of V8. Lines outside of functions count
as well, except for definitions and imports, which every test of the module executes.
"""

import difflib
import re
import shlex
from collections.abc import Callable, Iterable, Sequence

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


class Tracer(msgspec.Struct, frozen=True):
    """How to trace one run of tests. `place` is a new directory outside of the repository."""

    write: tuple[str, str] | None
    """A file of the place, and its text."""
    line: Callable[[str], str]
    """The command line of a check with the tracer."""
    read: str
    """A shell script that prints the trace; `$1` is the place."""
    executed: Callable[[bytes], bool | None]
    """True if the trace has a changed line; None if it does not tell."""


def tracer(root: str, place: str, changed: Sequence[Version]) -> Tracer | None:
    """The tracer for changed code of the product; None without one for its language."""
    if all(one.path.endswith(".py") for one in changed):
        text = _python(root, f"{place}/hits", changed)
        write = ("sitecustomize.py", text) if text is not None else None

        def executed(report: bytes) -> bool | None:
            return _executed_python(report) if text is not None else False

        return Tracer(write, lambda line: with_path(line, place), 'cat "$1/hits"', executed)
    if all(one.path.endswith(".go") for one in changed):
        return _go(place, changed)
    return None


def touched_lines(version: Version) -> Iterable[int]:
    """The lines of the file now that differ from the base, and those beside a deletion."""
    before, after = (version.before or "").split("\n"), (version.after or "").split("\n")
    if version.after is None:
        return ()
    if max(len(before), len(after)) > _LINES:
        return range(1, len(after) + 1)
    found: set[int] = set()
    for tag, _, _, start, stop in difflib.SequenceMatcher(None, before, after).get_opcodes():
        if tag == "delete":
            found.update((start, start + 1))
        elif tag != "equal":
            found.update(range(start + 1, stop + 1))
    return sorted(line for line in found if 1 <= line <= len(after))


def changed_lines(version: Version) -> frozenset[int]:
    """The touched lines of a Python file without definitions and imports at module level."""
    after = (version.after or "").split("\n")
    return frozenset(line for line in touched_lines(version) if not _DEFINES.match(_flat(after, line)))


def _flat(lines: Sequence[str], number: int) -> str:
    """The line if it is at module level; an indented line is always of interest, so it is returned without indent."""
    line = lines[number - 1]
    return "x" if line[:1].isspace() and line.strip() else line


def _python(root: str, report: str, changed: Sequence[Version]) -> str | None:
    """A `sitecustomize.py` that records which changed lines are executed; None if no Python line changed."""
    lines = {f"{root}/{one.path}": sorted(changed_lines(one)) for one in changed}
    wanted = {path: found for path, found in lines.items() if found}
    if not wanted:
        return None
    return _SCRIPT.format(report=repr(report), wanted=repr(msgspec.json.encode(wanted).decode()))


def _executed_python(report: bytes) -> bool | None:
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


# Go: the profile of a test binary counts the blocks of all packages of the module. A binary that crashes writes none.

_GO_BLOCK = re.compile(r"^(.+):(\d{1,7})\.\d{1,7},(\d{1,7})\.\d{1,7} \d{1,7} (\d{1,20})$")
_GO_PLAIN = re.compile(r"^\s*(?://.*|[{}()]*|(?:package|import)\b.*|(?:[\w.]+\s+)?\"[^\"]+\")\s*$")


def _go(place: str, changed: Sequence[Version]) -> Tracer:
    names = " ".join(f"-e {shlex.quote(one.path + ':')}" for one in changed)
    flags = f"-coverprofile={place}/profile -coverpkg=./..."

    def line(command: str) -> str:
        return f'export GOFLAGS="${{GOFLAGS:+$GOFLAGS }}{flags}"; {command}'

    def executed(report: bytes) -> bool | None:
        return _executed_go(report.decode(errors="replace"), changed)

    return Tracer(None, line, f'grep -F -e mode: {names} "$1/profile"', executed)


def _executed_go(profile: str, changed: Sequence[Version]) -> bool | None:
    """True if a block with a changed line was entered; None if a changed line is in no block, as a constant."""
    first, *lines = profile.splitlines() or [""]
    if not first.startswith("mode:"):
        return None
    blocks = [found.groups() for line in lines if (found := _GO_BLOCK.match(line))]
    unknown = False
    for one in changed:
        known = {file for file, *_ in blocks if f"/{file}".endswith(f"/{one.path}")}
        mine = [block for block in blocks if known and block[0] == min(known, key=len)]
        after = (one.after or "").split("\n")
        for number in touched_lines(one):
            counts = [int(count) for _, start, end, count in mine if int(start) <= number <= int(end)]
            if any(counts):
                return True
            unknown = unknown or not (counts or _GO_PLAIN.match(after[number - 1]))
    return None if unknown else False
