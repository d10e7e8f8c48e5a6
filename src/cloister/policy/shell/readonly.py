"""Recognise obviously read-only command lines. Pure and fast.

A wrong False costs one comparison of the files. A wrong True delays the detection of a change until the next
comparison; every `finish` makes one. So only the simplest lines return True.
"""

import re
import shlex

from cloister.policy.shell.programs import word_set

_HARMLESS = word_set(
    "basename cat cd cmp cut date df diff dirname du echo egrep false fgrep grep head id ls md5sum nl od "
    "printf pwd readlink realpath rev seq sha256sum sleep stat tac tail tr true uname wc which whoami"
)
"""Programs without an option that writes a file or runs another program."""

_GIT = frozenset(("blame", "diff", "log", "ls-files", "rev-parse", "show", "status"))
_LINES = re.compile(r"\d+(,(\d+|\$))?p")
"""The scripts of `sed -n` that only print lines."""

_UNCLEAR = frozenset("`<>\\\n#")
_BETWEEN = frozenset((";", "|", "&&", "||"))
_SIGNS = frozenset("();<>|&")
_CHARS = 4_000


def only_reads(line: str) -> bool:
    """True if every command in `line` is known to modify no file."""
    if len(line) > _CHARS or not _UNCLEAR.isdisjoint(line) or "$" in line.replace(",$p", ""):
        return False
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:
        return False
    command: list[str] = []
    for word in (*words, ";"):
        if word in _BETWEEN:
            if command and not _harmless(*command):
                return False
            command = []
        elif word and not set(word) - _SIGNS:
            return False
        else:
            command.append(word)
    return bool(words)


def _harmless(program: str, *args: str) -> bool:
    match program:
        case "sed":
            return (
                args[:1] == ("-n",)
                and len(args) > 1
                and _LINES.fullmatch(args[1]) is not None
                and _names(args[2:])
            )
        case "git":
            return (
                args[:1] != ()
                and args[0] in _GIT
                and not any(arg.startswith(("--o", "--ext")) for arg in args)
            )
        case _:
            return program in _HARMLESS


def _names(args: tuple[str, ...]) -> bool:
    return not any(arg.startswith("-") for arg in args)
