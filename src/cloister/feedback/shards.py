"""A long suite in parts: which command line each part has, and what the parts say together. Pure.

Every test runs as in one run: one part runs whatever the others do not name.
"""

import re
import shlex
from collections.abc import Collection, Sequence

import msgspec

from cloister.core import limits
from cloister.core.diagnosis import Check, Diagnosis
from cloister.feedback.check_commands import is_source, tool_of, words

WORTH_SECONDS = 60.0
"""A shorter suite runs as a whole."""
_MOST = 8
_FILES = 400
"""Longest list of files in one command line."""
_NOTHING_COLLECTED = 5
"""What pytest exits with."""
_ALONE = ("-n", "--numprocesses", "--dist", "-x", "--exitfirst", "--maxfail", "--lf", "--ff", "--sw", "-p")
"""Options of a suite that is parallel already, or whose tests depend on the ones before."""


def lines(check: Check, known: Sequence[Diagnosis], cpus: float, files: Collection[str]) -> tuple[str, ...]:
    """The command lines of the parts, the first one for the rest; empty if the check runs as a whole.

    `known` has earlier results: whether the check is long, and which files have its tests.
    """
    before = next((one for one in known if one.check == check.command), None)
    width = min(int(cpus), _MOST)
    if width < 2 or before is None or before.seconds < WORTH_SECONDS or before.killed is not None:
        return ()
    line = check.run or check.command
    if _is_plain(check.command):
        return _pytest(line, _weights(before, files), width)
    parts = (_cut_by_itself(line, number, width) for number in range(1, width + 1))
    return tuple(part for part in parts if part)


def _cut_by_itself(line: str, number: int, width: int) -> str:
    """The command line of one part, for runners that cut their suite themselves; empty for others."""
    tool = tool_of(line.partition(" --test-reporter=")[0].rpartition(" && ")[2])
    if "shard" in line or " -- " in line.replace(" -- --", " --"):
        return ""
    if " --outputFile=" in line or " --outputFile.json=" in line:  # of jest and vitest, also through a script
        return f"{line} --shard={number}/{width}"
    # CTest could, but its tests may depend on each other.
    return (
        line.replace("--test ", f"--test --test-shard={number}/{width} ", 1) if tool == "node --test" else ""
    )


def _is_plain(command: str) -> bool:
    """True for pytest on everything: no paths, and no option that makes tests depend on each other."""
    parts = words(command)
    while parts and re.match(r"\w+=", parts[0]):
        parts = parts[1:]
    if parts[:2] in (["python3", "-m"], ["python", "-m"]):
        parts = parts[2:]
    flags = parts[1:]
    return parts[:1] == ["pytest"] and all(
        one.startswith("-") and not one.startswith(_ALONE) for one in flags
    )


def _weights(known: Diagnosis, files: Collection[str]) -> dict[str, int]:
    """The files with tests, and how many each has."""
    found: dict[str, int] = {}
    for test in known.tests:
        name = test.name.partition("::")[0]
        if is_source(name) and name in files:
            found[name] = found.get(name, 0) + 1
    return found


def _pytest(line: str, weights: dict[str, int], width: int) -> tuple[str, ...]:
    groups: list[list[str]] = [[] for _ in range(width)]
    sizes = [0] * width
    for name in sorted(weights, key=lambda name: (-weights[name], name)):
        least = sizes.index(min(sizes))
        groups[least].append(name)
        sizes[least] += weights[name]
    rest, *named = groups
    apart = [name for group in named for name in group]
    if (
        not rest
        or not all(named)
        or len(apart) > _FILES
        or any(name.startswith("-") or shlex.quote(name) != name for name in apart)
    ):
        return ()
    return (
        " ".join((line, *(f"--ignore={name}" for name in apart))),
        *(" ".join((line, *group)) for group in named),
    )


def joined(check: str, parts: Sequence[Diagnosis]) -> Diagnosis | None:
    """The result of the suite; None if a part did not run as it should."""
    ran = [one for one in parts if one.exit_code != _NOTHING_COLLECTED]
    if not ran or any(one.not_run or (one.exit_code is None and one.killed is None) for one in ran):
        return None
    if any(not one.green and not one.tests and not one.unlisted for one in ran):
        return None  # the runner does not know the option, or could not begin
    names = [name for one in ran for name in {test.name for test in one.tests}]
    if len(names) != len(set(names)):
        return None  # a test ran in two parts: the files are not what they seemed
    worst = next((one for one in ran if not one.green), ran[0])
    return msgspec.structs.replace(
        worst,
        check=check,
        seconds=sum(one.seconds for one in parts),  # as long as a run as a whole would take
        tests=tuple(test for one in ran for test in one.tests),
        unlisted=sum(one.unlisted for one in ran),
        diagnostics=tuple(found for one in ran for found in one.diagnostics)[: limits.DIAGNOSTICS_KEPT],
        flaky=tuple(name for one in ran for name in one.flaky),
    )
