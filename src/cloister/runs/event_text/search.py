"""The words for the events of the repair harness. Pure; all text comes out harmless."""

from collections.abc import Iterator, Sequence
from typing import assert_never

from cloister.core import events as e
from cloister.core.text import harmless, one_line
from cloister.runs.event_text.lines import Line, Status, counted, seconds

Searching = e.FaultLocalised | e.CandidatesTried | e.PatchFound | e.PatchChosen

_SUSPECTS_SHOWN = 3
_DIFF_LINES = 16
_NAMES_SHOWN = 3
_BATCH_SECONDS = 1.0
"""Shorter batches have no line: they end with a patch, which has one."""
_PURPOSE = (
    "It finds small faults that a failing test shows: a wrong operator, bound, name or a missing guard. "
    "It cannot write new behaviour or follow instructions."
)


def started(mark: str, *, by_default: bool) -> Iterator[Line]:
    """An attempt of the repair harness; `by_default` if the request did not ask for it."""
    why = "no model is configured: " if by_default else ""
    yield Line(f"· {mark}{why}the repair harness searches by rules and tests and calls no model", "head")
    yield Line(f"  {_PURPOSE}", "dim")


def searching(body: Searching, mark: str, width: int) -> Iterator[Line | Status]:
    """`mark` names the attempt where there are several."""
    match body:
        case e.FaultLocalised():
            yield from _localised(body, mark, width)
        case e.CandidatesTried():
            found = f"{body.plausible:,} plausible" if body.plausible else "none plausible yet"
            what = f"{body.tried:,} of {counted(body.total, 'candidate')} tried: {found}"
            if body.seconds >= _BATCH_SECONDS:
                yield Line(f"· {mark}{what}  {seconds(body.seconds)}", "dim")
            yield Status(what, body.tried / max(1, body.total))
        case e.PatchFound():
            yield from _found(body, mark, width)
        case e.PatchChosen():
            where = f"{one_line(body.rule, 60)} in {one_line(body.path, 120)}"
            why = f": {one_line(body.why, 200)}" if body.why else ""
            yield Line(f"▶ {mark}writing candidate {body.number:,}, {where}{why}", "head")
            yield Status("proving the patch")
        case _:
            assert_never(body)


def _localised(body: e.FaultLocalised, mark: str, width: int) -> Iterator[Line]:
    what = f"{counted(body.lines, 'suspect line')} for {counted(len(body.failing), 'failing test')}"
    yield Line(f"◎ {mark}localised: {what}, by {one_line(body.how, 200)}  {seconds(body.seconds)}", "head")
    for one in body.suspects[:_SUSPECTS_SHOWN]:
        why = f"  {one_line(one.why, 100)}" if one.why else ""
        place = one_line(f"{one.path}:{one.line}{why}", width - 8)
        yield Line(f"  {one.score:4.2f}  {place}", "dim")


def _found(body: e.PatchFound, mark: str, width: int) -> Iterator[Line]:
    where = f"{one_line(body.path, 120)}:{body.line}"
    head = f"candidate {body.number:,} of {body.total:,}, {one_line(body.rule, 60)} at {where}"
    good = not body.broke
    yield Line(f"{'✓' if good else '~'} {mark}{head}", "good" if good else "dim")
    lines = (line.rstrip() for line in harmless(body.diff).split("\n"))
    shown = [line for line in lines if line.startswith(("+", "-")) and line[:3] not in ("+++", "---")]
    for line in shown[:_DIFF_LINES]:
        yield Line(f"  │ {line[:width]}")
    if len(shown) > _DIFF_LINES:
        yield Line(f"  │ … {len(shown) - _DIFF_LINES} more changed lines", "dim")
    yield Line(f"  made green: {_names(body.fixed)}", "good" if good else "dim")
    if body.broke:
        yield Line(f"  broke: {_names(body.broke)}", "dim")
    if body.concern:
        yield Line(f"  but: {one_line(body.concern, 200)}", "warn")


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(one_line(name, 100) for name in names[:_NAMES_SHOWN]) or "none"
    return shown + (f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else "")
