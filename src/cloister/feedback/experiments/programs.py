"""Changed versions of a test program in C that reports no tests by name: each must make the check fail."""

import re

import msgspec

_ASSERT = re.compile(
    r"^[ \t]*(?:\w{0,60}assert\w{0,60}|\w{0,60}ASSERT\w{0,60}|CHECK\w{0,60}|EXPECT\w{0,60}|REQUIRE\w{0,60})"
    r"[ \t]*\((.{1,400})\)[ \t]*;[ \t]*$",
    re.MULTILINE,
)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.){0,200}"')
_NUMBER = re.compile(r"(?<![\w.])\d{1,9}(?![\w.])")
_MAIN = re.compile(r"^(?:int|auto)\s+main\s*\(", re.MULTILINE)
_RETURN = re.compile(r"^[ \t]*return\b[^;\n]{0,200};[ \t]*$", re.MULTILINE)
_CRASH = "__builtin_trap();"
_CHARS = 500_000

ENDINGS = (".c", ".cc", ".cpp", ".cxx")
WORDS = ("assert", "ASSERT", "CHECK", "EXPECT", "REQUIRE")
"""A file with an assertion contains one of these."""


class Wrong(msgspec.Struct, frozen=True):
    """One assertion that expects something else."""

    was: str
    text: str
    """The whole file with the changed assertion."""
    reached: str
    """The whole file with a crash in its place."""


class Program(msgspec.Struct, frozen=True):
    """Versions of a file with a main function and assertions."""

    unbuildable: str
    """A check that stays green with this version does not use the file."""
    ended: str | None
    """A crash before the last statement: a program that stays green ends earlier."""
    wrong: tuple[Wrong, ...]
    """The last assertions first."""


def program(text: str, most: int) -> Program | None:
    """Changed versions of the test program `text`, for at most `most` assertions; None if it has none."""
    main = _MAIN.search(text[:_CHARS])
    asserts = list(_ASSERT.finditer(text[:_CHARS]))
    if main is None or not asserts:
        return None
    returns = list(_RETURN.finditer(text, main.end()))
    ended = f"{text[: returns[-1].start()]}{_CRASH}\n{text[returns[-1].start() :]}" if returns else None
    wrong = tuple(
        Wrong(one[0].strip(), _expects_more(text, one), f"{text[: one.start()]}{_CRASH}{text[one.end() :]}")
        for one in asserts[::-1][:most]
    )
    return Program(f"#error planted\n{text}", ended, wrong)


def _expects_more(text: str, found: re.Match[str]) -> str:
    """The file with another text or number in the assertion, the last one; with its opposite if it has none."""
    start, inner = found.start(1), found[1]
    literals = list(_STRING.finditer(inner)) or list(_NUMBER.finditer(inner))
    if not literals:
        return f"{text[:start]}!({inner}){text[found.end(1) :]}"
    last = literals[-1]
    other = f'{last[0][:-1]}~planted"' if last[0].startswith('"') else str(int(last[0]) + 17)
    return f"{text[: start + last.start()]}{other}{text[start + last.end() :]}"
