"""`cloister compare`: two runs or attempts side by side."""

import sys
import time
from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import AsJson, complete_run, open_log, settings_of

if TYPE_CHECKING:
    from cloister.runs.comparing import Compared, Side

Which = Annotated[
    str,
    typer.Argument(help="A run, or an attempt of it: RUN/K.", autocompletion=complete_run),
]


_LABEL = 9
_REASON = 160
"""What is shown of why each of them ended."""


def compare(ctx: typer.Context, a: Which, b: Which, as_json: AsJson = False) -> None:
    """Compare two runs or attempts: outcome, how their changes differ, cost, steps, time. Needs no server."""
    import anyio

    from cloister.cli.terminal import columns
    from cloister.core.text import harmless
    from cloister.runs.comparing import Subject, compare_runs, parse_subject

    settings = settings_of(ctx)
    sides: list[Subject] = []
    with open_log(settings) as log:
        for text in (a, b):
            name, attempt = parse_subject(text)
            sides.append(Subject(log.events(log.resolve(name)), attempt))
    found = anyio.run(compare_runs, settings.data_dir, sides[0], sides[1], time.time())
    if as_json:
        from cloister.cli.jsonl import put_json

        put_json(found)
        return
    for line in table(found, columns(120)):
        print(line)
    if found.diff and sys.stdout.isatty():
        from cloister.cli.diff import coloured

        coloured(harmless(found.diff))
    elif found.diff:
        sys.stdout.write(found.diff)


def table(found: "Compared", columns: int) -> Iterator[str]:
    """What is compared, side by side within so many columns, and what the changes have in common."""
    from textwrap import wrap

    most = max(24, (columns - _LABEL - 4) // 2)
    sides = [
        [(label, wrap(text, most) or [""]) for label, text in _cells(side)] for side in (found.a, found.b)
    ]
    width = max(len(line) for _, lines in sides[0] for line in lines)
    for (label, left), (_, right) in zip(*sides, strict=True):
        for place, (one, other) in enumerate(zip_longest(left, right, fillvalue="")):
            yield f"{'' if place else label:<{_LABEL}} {one:<{width}}  {other}".rstrip()
    if found.same_change:
        yield "Both changes are the same." if found.a.files else "Neither changed anything."


def _cells(side: "Side") -> list[tuple[str, str]]:
    from cloister.cli.pieces import counted, seconds
    from cloister.core.text import one_line

    added, removed = sum(file.added for file in side.files), sum(file.removed for file in side.files)
    money = f", ${side.cost:.4f}" if side.cost is not None else ""
    return [
        ("", side.name),
        ("outcome", side.outcome or "works"),
        ("because", one_line(side.reason or "", _REASON)),
        ("evidence", _evidence(side)),
        ("change", f"{counted(len(side.files), 'file')}, +{added} −{removed}"),
        ("steps", f"{side.steps}"),
        ("cost", f"{side.usage.total:,} tokens{money}"),
        ("time", seconds(side.seconds)),
    ]


def _evidence(side: "Side") -> str:
    from cloister.agent.tournament import lost

    seen = side.comparison
    if seen is None:
        return "none"
    counts = [(seen.red, "red"), (len(seen.fixed), "fixed"), (seen.passed, "passed")]
    rare = [(len(seen.new), "new"), (lost(seen), "deleted, skipped or weakened")]
    return ", ".join(f"{number:,} {word}" for number, word in (*counts, *(one for one in rare if one[0])))
