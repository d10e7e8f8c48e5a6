"""Whether a command line can only look at files, as far as that is plain to see. Pure, and quick.

A wrong no costs a look at the files. A wrong yes would let a change wait for the next look, which every `finish` brings
and which decides what is handed over; so that this need not be a judgement about everything that bash can do, all but
the plainest lines are a no.
"""

import re
import shlex

_HARMLESS = frozenset(
    (
        "basename",
        "cat",
        "cd",
        "cmp",
        "cut",
        "date",
        "df",
        "diff",
        "dirname",
        "du",
        "echo",
        "egrep",
        "false",
        "fgrep",
        "grep",
        "head",
        "id",
        "ls",
        "md5sum",
        "nl",
        "od",
        "printf",
        "pwd",
        "readlink",
        "realpath",
        "rev",
        "seq",
        "sha256sum",
        "sleep",
        "stat",
        "tac",
        "tail",
        "tr",
        "true",
        "uname",
        "wc",
        "which",
        "whoami",
    )
)
"""Programs without an option that writes a file or runs another program."""

_GIT = frozenset(("blame", "diff", "log", "ls-files", "rev-parse", "show", "status"))
_LINES = re.compile(r"\d+(,(\d+|\$))?p")
"""What `sed -n` may be asked for: some lines of a file."""

_UNCLEAR = frozenset("`<>\\\n#")
_BETWEEN = frozenset((";", "|", "&&", "||"))
_SIGNS = frozenset("();<>|&")
_CHARS = 4_000


def only_reads(line: str) -> bool:
    """True when every command in `line` is known to leave all files as they are."""
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
