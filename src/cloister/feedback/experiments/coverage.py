"""Finds out whether tests execute lines that a change touched: how to trace them, and how to read the trace. Pure.

Python has a tracer of our own, Go its profile of coverage, Jest its own coverage, and other runners in Node.js that of V8. Lines
outside of functions count as well, except for definitions and imports, which every test of the module executes.
"""

import difflib
import re
import shlex
from collections.abc import Callable, Iterable, Sequence

import msgspec

from cloister.feedback.integrity.versions import Version

_LINES = 20_000
_PARTS = 200
_SCRIPTS = (".js", ".cjs", ".mjs", ".jsx", ".ts", ".cts", ".mts", ".tsx")
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
    executed: Callable[[bytes, Sequence[str]], bool | None]
    """True if the trace has a changed line, with the files of the tests that ran; None if it does not tell."""


def tracer(root: str, place: str, changed: Sequence[Version]) -> Tracer | None:
    """The tracer for changed code of the product; None without one for its language."""
    if all(one.path.endswith(".py") for one in changed):
        text = _python(root, f"{place}/hits", changed)
        write = ("sitecustomize.py", text) if text is not None else None

        def executed(report: bytes, tests: Sequence[str]) -> bool | None:
            return _executed_python(report) if text is not None else False

        return Tracer(write, lambda line: with_path(line, place), 'cat "$1/hits"', executed)
    if all(one.path.endswith(".go") for one in changed):
        return _go(place, changed)
    if all(one.path.endswith(_SCRIPTS) for one in changed):
        return _script(root, place, changed)
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


# Go: the profile of a test binary counts the blocks of all packages of the module. A binary that crashes writes none, while
# those of other packages have zeros for the same blocks: nothing is known then.

_GO_RUN = """\
#!/bin/sh
# Runs a test binary and keeps its own profile: Go merges only those that were written, and only of one command.
file= ran=
for one; do case $one in -test.coverprofile=*) file=${one#*=} ;; esac; done
[ "$file" ] && ran=$(mktemp "${0%/*}/ran.XXXXXX")
"$@"
code=$?
[ "$ran" ] && cp "$file" "$ran.out" 2>/dev/null
exit $code
"""

_GO_BLOCK = re.compile(r"^(.+):(\d{1,7})\.\d{1,7},(\d{1,7})\.\d{1,7} \d{1,7} (\d{1,20})$")
_GO_PLAIN = re.compile(r"\s*+(?://.*+|[{}()]*+|(?:package|import)\b.*+|(?:[\w.]++\s++)?\"[^\"]++\")\s*+$")


def _go(place: str, changed: Sequence[Version]) -> Tracer:
    names = " ".join(f"-e {shlex.quote(one.path + ':')}" for one in changed)
    flags = f"-coverprofile={place}/profile -coverpkg=./... -exec={place}/run"
    each = 'for one in "$1"/ran.??????; do [ -s "$one.out" ] || echo lost; done; echo mode:'

    def line(command: str) -> str:
        return f'chmod +x {place}/run; export GOFLAGS="${{GOFLAGS:+$GOFLAGS }}{flags}"; {command}'

    def executed(report: bytes, tests: Sequence[str]) -> bool | None:
        return _executed_go(report.decode(errors="replace"), changed)

    read = f'{each}; grep -h -F {names} "$1"/ran.*.out | sort -u'
    return Tracer(("run", _GO_RUN), line, read, executed)


def _executed_go(profile: str, changed: Sequence[Version]) -> bool | None:
    """True if a block with a changed line was entered; None if a changed line is in no block, as a constant, or a profile lost."""
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


# JavaScript: Jest counts statements of the source. Elsewhere V8 counts ranges of what it compiled, which tells about a file
# only if that is the file's own text. V8 writes at the end of a process, so the files of the tests must be there, and every
# process that started. What is built from the source (ignored by git, or with a map) may hold the change in another file.

_V8 = """\
const fs = require('fs'), path = require('path'), url = require('url'), child = require('child_process');

function read(place, root, changed) {
  const loaded = [], odd = [], ranges = [], git = ['-c', 'safe.directory=*', 'ls-files', '-z', '-c', '-o', '--exclude-standard'];
  const own = new Set(child.execFileSync('git', git, { cwd: root, maxBuffer: 2 ** 28 }).toString().split('\\0'));
  const names = fs.readdirSync(place), pids = names.map((name) => name.split('-'));
  let unknown = pids.some(([what, pid]) => what === 'started' && !pids.some((one) => one[0] === 'coverage' && one[1] === pid));
  for (const name of names.filter((name) => name.startsWith('coverage-'))) {
    for (const one of JSON.parse(fs.readFileSync(path.join(place, name), 'utf8')).result) {
      if (!one.url.startsWith('file://')) continue;
      const whole = url.fileURLToPath(one.url), file = path.relative(root, whole);
      if (/node_modules|\\/\\.pnp\\.|\\/\\.yarn\\//.test(whole) || whole.startsWith(place) || !fs.existsSync(whole)) continue;
      if (file.startsWith('..') && !whole.startsWith('/tmp/')) continue;
      const text = fs.readFileSync(whole, 'utf8');
      unknown = unknown || !own.has(file) || /^\\/\\/[#@] sourceMappingURL=/m.test(text);
      const all = one.functions.flatMap((each) => each.ranges.map((at) => [at.startOffset, at.endOffset, at.count]));
      (all.some(([start, end]) => start === 0 && end === text.length) ? loaded : odd).push(file);
      if (changed.includes(file)) ranges.push([file, all]);
    }
  }
  console.log(JSON.stringify({ loaded, odd, ranges, unknown }));
}

if (require.main === module) {
  read(process.argv[2], process.argv[3], process.argv.slice(4));
} else if (!process.execArgv.includes('--test')) { // The runner of node writes no coverage, its files do.
  const inside = process.env.JEST_WORKER_ID && !String(process.argv[1]).includes('jest-worker');
  fs.writeFileSync(path.join(__dirname, `${inside ? 'child' : 'started'}-${process.pid}`), '');
}
"""
_SCRIPT_PLAIN = re.compile(
    r"\s*+(?://.*+|/?\*.*+|[{}()\[\];,]*+|(?:['\"]use strict['\"];?)|import\b.*+|export \{.*+|"
    r"(?:const|let|var) (?:\w++|\{[\w\s,:]*+\}) = require\([^()]*+\);?|(?:module\.)?exports = \{[\w\s,]*+\};?)\s*+$"
)


_SCRIPT_DEFINES = re.compile(
    r"\s*+(?:export\s++)?(?:default\s++)?(?:(?:const|let|var)\s++\w++\s*+=\s*+|(?:module\.)?exports(?:\.\w++)?\s*+=\s*+|"
    r"\w++\s*+:\s*+|(?:(?:static|async|get|set)\s++){1,3})?"
)
"""What stands before a function in the line that defines it."""


class _V8Report(msgspec.Struct, frozen=True):
    loaded: tuple[str, ...]
    odd: tuple[str, ...]
    ranges: tuple[tuple[str, tuple[tuple[int, int, int], ...]], ...]
    unknown: bool = False
    """A file that is built was loaded, or a process ended without telling."""


class _Spot(msgspec.Struct, frozen=True):
    line: int | None = None


class _Span(msgspec.Struct, frozen=True):
    start: _Spot
    end: _Spot

    @property
    def lines(self) -> int:
        return (self.end.line or self.start.line or 0) - (self.start.line or 0)

    def has(self, line: int) -> bool:
        return 0 <= line - (self.start.line or 0) <= self.lines


class _Function(msgspec.Struct, frozen=True):
    loc: _Span
    decl: _Span


class _JestFile(msgspec.Struct, frozen=True, rename={"statements": "statementMap", "functions": "fnMap"}):
    statements: dict[str, _Span]
    functions: dict[str, _Function]
    s: dict[str, int]
    f: dict[str, int]


def _script(root: str, place: str, changed: Sequence[Version]) -> Tracer:
    paths = [one.path for one in changed if one.after is not None]

    def line(command: str) -> str:
        options = f'export NODE_OPTIONS="${{NODE_OPTIONS:+$NODE_OPTIONS }}--require={place}/read.js"'
        if " --json --outputFile=" not in command:
            return f"{options} NODE_V8_COVERAGE={shlex.quote(place)}; {command}"
        chosen = " ".join(f"--collectCoverageFrom={shlex.quote(path)}" for path in paths)
        return f"{options}; {command} --coverage --coverageReporters=json --coverageDirectory={place}/jest {chosen}"

    def executed(report: bytes, tests: Sequence[str]) -> bool | None:
        try:
            if report.startswith(b"jest"):
                return _executed_jest(
                    msgspec.json.decode(report[4:], type=dict[str, _JestFile]), root, changed
                )
            return _executed_v8(msgspec.json.decode(report, type=_V8Report), tests, changed)
        except msgspec.DecodeError:
            return None

    jest = '"$1/jest/coverage-final.json"'
    v8 = f'node "$1/read.js" "$1" {shlex.quote(root)} {" ".join(map(shlex.quote, paths))}'
    # Jest does not count programs that its tests start.
    read = f'set -- "$1" "$1"/child-*; if [ -e "$2" ]; then :; elif [ -f {jest} ]; then printf jest; cat {jest}; else {v8}; fi'
    return Tracer(("read.js", _V8), line, read, executed)


def _executed_v8(report: _V8Report, tests: Sequence[str], changed: Sequence[Version]) -> bool | None:
    """True if the innermost range around any part of a changed line was entered."""
    if not tests or not set(tests) <= set(report.loaded) or {one.path for one in changed} & {*report.odd}:
        return None
    for one in changed:
        after = (one.after or "").split("\n")
        ranges = [found for path, found in report.ranges if path == one.path]
        for number in touched_lines(one):
            text = after[number - 1]
            if not _SCRIPT_PLAIN.match(text) and ranges:
                start = _units("\n".join([*after[: number - 1], ""]))
                if any(_entered(found, start, text) for found in ranges):
                    return True
    return None if report.unknown else False


def _entered(ranges: Sequence[tuple[int, int, int]], start: int, text: str) -> bool:
    """True if V8 entered a part of a line; what stands before a function that begins there is no part of it."""
    last = start + _units(text.rstrip(" \t;,)")) - 1
    first = start + len(text) - len(text.lstrip())
    found = _SCRIPT_DEFINES.match(text)
    defined = start + (found.end() if found else 0)
    if any(one[0] == defined for one in ranges):
        first = defined
    ends = {end for one in ranges for end in one[:2] if first < end < last}
    if len(ends) > _PARTS:
        return True
    for at in {first, last, *ends}:
        around = [span for span in ranges if span[0] <= at < span[1]]
        if around and min(around, key=lambda span: span[1] - span[0])[2]:
            return True
    return False


def _units(text: str) -> int:
    """The length of a text in JavaScript."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _executed_jest(report: dict[str, _JestFile], root: str, changed: Sequence[Version]) -> bool | None:
    """True if the innermost statement of a changed line was executed; None if it is in none, or nothing of the file was."""
    unknown = False
    for one in changed:
        after = (one.after or "").split("\n")
        lines = [number for number in touched_lines(one) if not _SCRIPT_PLAIN.match(after[number - 1])]
        found = report.get(f"{root}/{one.path}")
        if found is None:
            unknown = unknown or bool(lines)
            continue
        if not any((*found.s.values(), *found.f.values())):
            # Jest says the same of a file that was never loaded, for which something built from it may have been.
            unknown = True
        for number in lines:
            spans = [(span, found.s.get(key, 1)) for key, span in found.statements.items()]
            bodies = [
                (_Span(each.decl.start, each.loc.end), found.f.get(key, 1))
                for key, each in found.functions.items()
            ]
            # A statement that holds a function is executed without it.
            parts = [part for part in (_innermost(spans, number), _innermost(bodies, number)) if part]
            if parts and all(any(part) for part in parts):
                return True
            unknown = unknown or not parts
    return None if unknown else False


def _innermost(counted: Iterable[tuple[_Span, int]], line: int) -> list[int]:
    """The counts of the shortest spans around a line."""
    around = [(span.lines, count) for span, count in counted if span.has(line)]
    least = min((size for size, _ in around), default=0)
    return [count for size, count in around if size == least]
