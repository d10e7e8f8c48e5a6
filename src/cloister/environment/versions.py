"""Version ranges as manifests write them, and the best version that can be had."""

import re
from collections.abc import Sequence

Version = tuple[int, ...]

_NUMBER = re.compile(r"\d{1,9}")
_CLAUSE = re.compile(r"(===?|~=|!=|>=|<=|=>|=<|[<>=^~])?\s{0,4}v?(\d{1,9}(?:\.(?:\d{1,9}|[xX*])){0,4})")
_HYPHEN = re.compile(r"v?(\d[\d.]{0,40})\s{1,4}-\s{1,4}v?(\d[\d.]{0,40})")


def parse(text: str) -> Version:
    """The leading numbers of a version; empty if there are none."""
    found = re.match(r"\s{0,8}[vV]?(\d{1,9}(?:\.\d{1,9}){0,4})", text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def satisfies(version: str, wanted: str) -> bool:
    """True if a range admits a version. Reads the forms of Python, npm, Poetry and Cargo; admits what it cannot read.

    A version with fewer numbers than the range stands for its newest: `3.11` satisfies `>=3.11.4`.
    """
    have = parse(version)
    return any(_all(have, part) for part in wanted[:400].split("||"))


def _all(have: Version, clauses: str) -> bool:
    if between := _HYPHEN.search(clauses):
        low, high = parse(between[1]), parse(between[2])
        return _cmp(have, low) >= 0 and _cmp(have, high) <= 0
    return all(_holds(have, found[1] or "", found[2]) for found in _CLAUSE.finditer(clauses))


def _cmp(have: Version, other: Version) -> int:
    """Compare as far as both are written: `3.11` equals `3.11.4`."""
    length = min(len(have), len(other))
    return (have[:length] > other[:length]) - (have[:length] < other[:length])


def _holds(have: Version, operator: str, text: str) -> bool:
    other = tuple(
        int(part) for part in _NUMBER.findall(text.partition("x")[0].partition("X")[0].partition("*")[0])
    )
    order = _cmp(have, other)
    match operator:
        case ">=" | "=>":
            return order >= 0
        case "<=" | "=<":
            return order <= 0
        case ">":
            return order > 0 or (order == 0 and len(other) > len(have))
        case "<":
            return order < 0
        case "!=":
            return order != 0 or len(other) > len(have)
        case "^":
            lead = next((index for index, part in enumerate(other) if part), len(other) - 1)
            return order >= 0 and have[: lead + 1] == other[: len(have)][: lead + 1]
        case "~=":
            return order >= 0 and _cmp(have, other[:-1]) == 0
        case "~":
            return order >= 0 and _cmp(have, other[:2]) == 0
        case _:
            return order == 0


def best(wanted: str, available: Sequence[str], preferred: str) -> str | None:
    """The preferred version if the range admits it, else the newest that it admits; None if there is none."""
    if satisfies(preferred, wanted):
        return preferred
    fitting = [version for version in available if satisfies(version, wanted)]
    return max(fitting, key=parse, default=None)


def nearest(wanted: str, available: Sequence[str]) -> str:
    """Of versions that a range does not admit: the oldest that is newer than those it names, else the newest."""
    named = max((parse(found[2]) for found in _CLAUSE.finditer(wanted[:400])), default=())
    newer = [version for version in available if _cmp(parse(version), named) >= 0]
    return min(newer, key=parse) if newer else max(available, key=parse)
