"""`cloister compare`: two runs or attempts side by side."""

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import AsJson, complete_run, open_log, settings_of

if TYPE_CHECKING:
    from cloister.runs.comparing import Compared, Side

Which = Annotated[
    str,
    typer.Argument(help="A run, or an attempt of it: RUN/K.", autocompletion=complete_run),
]


def compare(ctx: typer.Context, a: Which, b: Which, as_json: AsJson = False) -> None:
    """Compare two runs or attempts: outcome, how their changes differ, cost, steps, time. Needs no server."""
    import anyio

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
    for line in table(found):
        print(line)
    if found.diff and sys.stdout.isatty():
        from cloister.cli.diff import coloured

        coloured(harmless(found.diff))
    elif found.diff:
        sys.stdout.write(found.diff)


def table(found: "Compared") -> Iterator[str]:
    """What is compared, one line each, and what the changes have in common."""
    rows = list(zip(_cells(found.a), _cells(found.b), strict=True))
    width = max(len(text) for (_, text), _ in rows)
    for (label, left), (_, right) in rows:
        yield f"{label:<9} {left:<{width}}  {right}".rstrip()
    if found.same_change:
        yield "Both changes are the same." if found.a.files else "Neither changed anything."


def _cells(side: "Side") -> list[tuple[str, str]]:
    from cloister.cli.pieces import counted, seconds
    from cloister.core.text import one_line

    seen = side.comparison
    added, removed = sum(file.added for file in side.files), sum(file.removed for file in side.files)
    evidence = "none" if seen is None else f"{seen.red} red, {len(seen.fixed)} fixed, {seen.passed} passed"
    money = f", ${side.cost:.4f}" if side.cost is not None else ""
    return [
        ("", side.name),
        ("outcome", side.outcome or "works"),
        ("because", one_line(side.reason or "", 48)),
        ("evidence", evidence),
        ("change", f"{counted(len(side.files), 'file')}, +{added} −{removed}"),
        ("steps", f"{side.steps}"),
        ("cost", f"{side.usage.total:,} tokens{money}"),
        ("time", seconds(side.seconds)),
    ]
