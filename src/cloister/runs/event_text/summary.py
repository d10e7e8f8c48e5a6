"""The end of a run on one screen: the outcome, the proof, the change and the cost. Pure."""

import shlex
import textwrap
from collections.abc import Iterator

from cloister.core.attempts import NATIVE, REPAIR
from cloister.core.budget import amount
from cloister.core.diagnosis import Comparison, statement
from cloister.core.events import BudgetExtended
from cloister.core.events.repair import PLAUSIBLE
from cloister.core.requests import FileChange
from cloister.core.text import one_line
from cloister.runs.event_text import facts
from cloister.runs.event_text.lines import Line, Style, counted, seconds
from cloister.runs.view import RepositoryView, RunView

FILES_SHOWN = 8
NOTES_SHOWN = 8
REASON_CHARS = 400
_HEADS: dict[str, tuple[str, Style]] = {
    "proven": ("✓ proven", "good"),
    "unbroken": ("· unbroken", "warn"),
    "green": ("✓ green", "good"),
    "red": ("✗ red", "bad"),
    "unproven": ("· unproven", "warn"),
    "budget": ("✗ out of budget", "bad"),
    "stopped": ("■ stopped", "warn"),
    "failed": ("✗ failed", "bad"),
}


def summary(view: RunView, width: int) -> Iterator[Line]:
    """At most a screen of lines; the first states the outcome."""
    word, style = _HEADS.get(view.outcome or "", (view.state, "plain"))
    yield Line("")
    head = f"{word}  {one_line(view.reason or '', REASON_CHARS)}".rstrip()
    for line in textwrap.wrap(head, width, subsequent_indent="  ", break_on_hyphens=False):
        yield Line(line, style)
    yield from _proof(view)
    yield from _change(view)
    yield from _pictures(view)
    yield from _cost(view)
    yield from _next(view)


def _fact(name: str, text: str, style: Style = "plain") -> Line:
    return Line(f"  {name:<9} {text}", style)


def _standing(view: RunView) -> Comparison | None:
    """The evidence of the winning attempt, else of the one with the fewest failures."""
    found = [a for a in view.attempts if a.comparison and view.winner in (None, a.attempt)]
    best = min(found, key=lambda a: a.comparison.red if a.comparison else 0, default=None)
    return best.comparison if best else None


def _proof(view: RunView) -> Iterator[Line]:
    now = _standing(view)
    if view.checks and view.red_before is not None:
        red = view.red_before
        yield _fact("before", f"✗ {red:,} failing" if red else "✓ green", "bad" if red else "good")
        if now is not None:
            line = facts.checks(red, now)
            yield _fact("now", line.text, line.style)
            yield _fact("evidence", statement(now), "good" if now.shown and now.green else "warn")
            yield from (_fact("note", one_line(note, 300), "warn") for note in now.notes[:NOTES_SHOWN])
    for check in view.checks:
        yield _fact("check", one_line(check, 160))


def _change(view: RunView) -> Iterator[Line]:
    if view.branch is None:
        yield _fact("change", "none")
        return
    added, removed = sum(f.added for f in view.files), sum(f.removed for f in view.files)
    yield _fact("change", f"{counted(len(view.files), 'file')}, +{added:,} −{removed:,}")
    yield from (_file(file) for file in view.files[:FILES_SHOWN])
    if len(view.files) > FILES_SHOWN:
        yield Line(f"            … and {counted(len(view.files) - FILES_SHOWN, 'more file')}", "dim")
    if view.repositories:
        yield from (_repository(one) for one in view.repositories)
        return
    where = f"in {one_line(view.delivered_to, 160)}" if view.delivered_to else "kept with the run"
    yield _fact("branch", f"{one_line(view.branch, 120)}, {where}")
    if view.pull_request:
        yield _fact("pull req.", one_line(view.pull_request, 200), "good")
    if view.not_delivered:
        yield _fact("delivery", f"failed: {one_line(view.not_delivered, 300)}", "bad")


def _pictures(view: RunView) -> Iterator[Line]:
    """The pages that it looked at, and how to see them."""
    if view.pictures:
        names = ", ".join(one_line(one.name, 80) for one in view.pictures[:NOTES_SHOWN])
        yield _fact("pictures", f"{names}: cloister diff {view.id} --pictures FOLDER")


def _repository(one: RepositoryView) -> Line:
    """One repository of several, and where its change went."""
    name = one_line(one.folder, 60)
    if one.commit is None:
        return _fact("repo", f"{name}: no change", "dim")
    if one.not_delivered:
        return _fact("repo", f"{name}: not delivered: {one_line(one.not_delivered, 300)}", "bad")
    if one.pull_request:
        return _fact("repo", f"{name}: {one_line(one.pull_request, 200)}", "good")
    if one.delivered_to:
        return _fact(
            "repo", f"{name}: {one_line(one.branch or '', 120)}, in {one_line(one.delivered_to, 160)}"
        )
    return _fact("repo", f"{name}: commit {one.commit[:12]}, kept with the run")


def _file(file: FileChange) -> Line:
    status = "" if file.status == "modified" else f"  ({file.status})"
    return Line(f"            {one_line(file.path, 120)}  +{file.added:,} −{file.removed:,}{status}", "dim")


def _cost(view: RunView) -> Iterator[Line]:
    usage = view.usage
    spent = [
        counted(view.steps, "step"),
        f"{usage.total:,} tokens ({usage.input_tokens:,} in, {usage.output_tokens:,} out)",
        seconds(view.seconds),
    ]
    if view.attempts and all(one.harness == REPAIR for one in view.attempts):
        spent = ["no model call", seconds(view.seconds)]
    if view.cost is not None:
        spent.insert(2, f"${view.cost:,.2f}")
    if view.rounds > 1:
        spent.insert(0, f"{view.rounds} rounds")
    elif len(view.attempts) > 1:
        won = "no attempt" if view.winner is None else f"attempt {view.winner}"
        spent.insert(0, f"{won} of {len(view.attempts)} won")
    yield _fact("spent", " · ".join(spent))
    yield from _budget(view)
    for model in view.models:
        yield _model(model)
    if any(one.harness == REPAIR and one.attempt == view.winner for one in view.attempts):
        yield _fact("harness", f"repair: {PLAUSIBLE if view.branch else 'a search by rules and tests'}")
    inside = {one.harness: None for one in view.attempts if one.harness not in (None, NATIVE, REPAIR)}
    for name in inside:
        yield _fact("harness", f"{one_line(name or '', 100)}, in the sandbox")
    if view.isolation is not None:
        yield _fact("isolation", facts.isolation(view.isolation))


def _budget(view: RunView) -> Iterator[Line]:
    """The budgets that are nearly or wholly spent, as the newest warning states them."""
    last = {
        (note.level, note.name, note.what): note
        for note in view.budget_notes
        if not isinstance(note, BudgetExtended)
    }
    for note in last.values():
        whose = (
            note.level if note.level in ("run", "organisation") else f"{note.level} {one_line(note.name, 60)}"
        )
        spent = f"{amount(note.what, note.spent)} of {amount(note.what, note.limit)}"
        yield _fact("budget", f"{whose}: {spent}", "warn")


def _model(name: str) -> Line:
    if name.startswith("script:"):
        file = one_line(name.removeprefix("script:"), 160)
        return _fact("model", f"scripted model: replies come from {file}", "warn")
    return _fact("model", one_line(name, 160))


def _next(view: RunView) -> Iterator[Line]:
    if view.branch is None:
        yield _fact("next", f"cloister log {view.id}")
    else:
        yield _fact("next", f"cloister diff {view.id}")
        if view.notes:
            word = counted(len(view.notes), "note")
            yield Line(f"            cloister diff --notes {view.id}   shows {word} for later runs")
        if view.not_delivered:
            yield Line(f"            cloister pr {view.id}   tries again")
        if view.repositories:
            kept = [one for one in view.repositories if one.commit and not one.delivered_to]
            yield from (
                Line(f"            cloister apply {view.id} --repo PATH --only {one.folder}") for one in kept
            )
        elif view.delivered_to is None:
            yield Line(f"            cloister apply {view.id}")
        elif view.pull_request:
            pass
        else:
            yield Line(f"            git switch {shlex.quote(one_line(view.branch, 120))}")
    if len(view.attempts) > 1:
        yield Line(f"            cloister tree {view.id}   shows all attempts")
