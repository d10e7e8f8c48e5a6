"""Restricts a check to some of its test files, with everything else in its command line unchanged."""

import glob
import os.path
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from cloister.core.diagnosis import Check
from cloister.feedback.check_commands import specify, tool_of

_Parts = list[str]
_WORD = re.compile(r"""(?:[^\s'"\\;&|<>`$()#]|'[^']*'|"[^"$`\\]*")+""")
"""A word of a shell command, as written, without expansions other than file names."""
_PLAIN = re.compile(r"^[\w@%+=:,./-]+$")


def only(check: Check, files: Sequence[str], tests: Sequence[str] = ()) -> str | None:
    """The command line that runs only the tests in `files`, of these only `tests` where that is safe.

    It may run more than asked, never less, and does not stop at the first failing test. None if the command cannot be
    restricted.
    """
    before, joint, last = check.command.rpartition(" && ")
    parts = _words(last)
    if not parts or not files or any(_unsafe(name) for name in files) or re.search(r"\bcd\b", before):
        return None
    tool = tool_of(" ".join(re.sub(r"[^\w./=:@-]", "_", _value(part)) for part in parts))
    restricted = _TOOLS.get(tool or "", _refuse)(parts, files, tests)
    if restricted is None:
        return None
    line = " ".join(restricted)
    return before + joint + (specify(line).run or line)


def _refuse(parts: _Parts, files: Sequence[str], tests: Sequence[str]) -> _Parts | None:
    return None


def _words(command: str) -> _Parts:
    """The words as written; empty if the line is more than one simple command."""
    parts = _WORD.findall(command)
    return parts if _WORD.sub("", command).strip(" ") == "" else []


def _value(word: str) -> str:
    return shlex.split(word)[0] if "'" in word or '"' in word else word


def _unsafe(name: str) -> bool:
    """True for a path that a tool could take for an option or that leaves the repository."""
    return not name or name.startswith(("-", "/")) or ".." in name.split("/") or "\n" in name


def _quoted(words: Sequence[str]) -> _Parts:
    return [word if _PLAIN.match(word) else shlex.quote(word) for word in words]


def _after_tool(parts: _Parts, *names: str) -> int:
    """The index of the first word after the tool's name."""
    found = (index for index, part in enumerate(parts) if part.rpartition("/")[2] in names)
    return next(found, -1) + 1


def _without_paths(parts: _Parts, start: int, files: Sequence[str], flags: str) -> _Parts:
    """Drop the paths that contain the files. A word after an option stays: it may be the option's value.

    `flags` are the options that take no value.
    """
    kept = parts[:start]
    for index in range(start, len(parts)):
        part, before = parts[index], parts[index - 1] if index > start else ""
        is_value = before.startswith("-") and "=" not in before and not _is_flag(before, flags)
        if part.startswith("-") or is_value or not _holds(part, files):
            kept.append(part)
    return kept


def _is_flag(option: str, flags: str) -> bool:
    known = flags.split()
    if option in known:
        return True
    return not option.startswith("--") and all(f"-{letter}" in known for letter in option[1:])


def _holds(word: str, files: Sequence[str]) -> bool:
    path = os.path.normpath(_value(word).partition("::")[0])
    if path == "." or any(name == path or name.startswith(f"{path}/") for name in files):
        return True
    # `*` matches `/` here, as `**` does in a shell.
    return any(letter in path for letter in "*?[") and any(fnmatchcase(name, path) for name in files)


_PYTEST_FLAGS = (
    "-q -v -x -s -l -- --quiet --verbose --exitfirst --no-header --no-summary --strict-markers --lf --ff"
)


def _pytest(parts: _Parts, files: Sequence[str], tests: Sequence[str]) -> _Parts | None:
    start = _after_tool(parts, "pytest")
    return [*_without_paths(parts, start, files, _PYTEST_FLAGS), "--maxfail=0", *_quoted(files)]


_UNITTEST_FLAGS = "-q -v -b -c -f --quiet --verbose --buffer --catch --failfast --locals"


def _unittest(parts: _Parts, files: Sequence[str], tests: Sequence[str]) -> _Parts | None:
    start = _after_tool(parts, "unittest")
    rest = [part for part in parts[start:] if part not in ("-f", "--failfast")]
    bare = [part for part in rest if not _is_flag(part, _UNITTEST_FLAGS)]
    if not bare or bare[0] == "discover":
        rest = [part for part in rest if part != "discover"]
        for option in ("-p", "--pattern"):
            if option in rest[:-1]:
                at = rest.index(option)
                del rest[at : at + 2]
        return [*parts[:start], "discover", *rest, "-p", shlex.quote(_pattern(files))]
    if "-k" in rest or any(part.startswith("-") for part in bare):
        return None
    flags = [part for part in rest if part not in bare]
    if all(part.endswith(".py") for part in bare):
        return [*parts[:start], *flags, *_quoted(files)]
    return [*parts[:start], *flags, *_quoted([_module(name) for name in files])]


def _module(name: str) -> str:
    return name.removesuffix(".py").replace("/", ".")


def _pattern(files: Sequence[str]) -> str:
    """A pattern that matches the names of all files, and perhaps of more."""
    names = sorted({name.rpartition("/")[2] for name in files})
    if len(names) == 1:
        return glob.escape(names[0])
    first, last = names[0], names[-1]
    same = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), 0)
    return glob.escape(first[:same]) + "*.py"


_TOOLS: Mapping[str, Callable[[_Parts, Sequence[str], Sequence[str]], _Parts | None]] = {
    "pytest": _pytest,
    "unittest": _unittest,
}
