"""Forks, ranks and verdicts of a run's attempts as lines. Pure."""

from collections.abc import Iterator
from typing import assert_never

from cloister.cli.pieces import Line, Status
from cloister.core import events as e
from cloister.core.text import one_line


def lines(
    body: e.AttemptForked | e.AttemptsRanked | e.JudgeSpoke | e.RewindRequested | e.Inherited, inherited: int
) -> Iterator[Line | Status]:
    """`inherited` is how many events of another run's conversation came so far."""
    match body:
        case e.AttemptForked():
            where = f"event {body.at_seq}" if body.at_seq else "the base"
            why = one_line(body.reason, 200)
            yield Line(
                f"⑂ attempt {body.attempt} goes on from {where} of attempt {body.parent}: {why}", "head"
            )
        case e.AttemptsRanked():
            for place, score in enumerate(body.scores, start=1):
                text = f"attempt {score.attempt} {score.outcome}  {one_line(score.why, 200)}"
                yield Line(f"{place}. {text}", "good" if place == 1 and score.outcome == "green" else "dim")
        case e.JudgeSpoke():
            chose = "chose none" if body.choice is None else f"chose attempt {body.choice}"
            yield Line(f"⚖ {one_line(body.model, 80)} {chose}: {one_line(body.text, 300)}", "head")
        case e.RewindRequested():
            yield Line(f"↶ {one_line(body.who, 40)} wants it to go on from event {body.to}", "head")
        case e.Inherited():
            if inherited == 1:
                yield Line("⑂ goes on with the conversation of another run", "dim")
            yield Status(f"inherits event {body.seq}")
        case _:
            assert_never(body)
