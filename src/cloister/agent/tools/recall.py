"""`recall`: show an elided observation again, from the log. The loop answers; nothing runs in the sandbox."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from cloister.agent.tools.api import Observation, Tool, answered_by_the_loop, observe
from cloister.core import events as e
from cloister.core.diagnosis import Diagnosis

PAGE_CHARS = 10_000


class RecallArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[
        str,
        Meta(description="The id from an [elided: …], such as e57; or checks for the last check results."),
    ]
    page: Annotated[int, Meta(description="Page number, from 1.")] = 1


def recalled(events: Sequence[e.Event], attempt: int, args: RecallArgs) -> Observation:
    """One page of the observation `args.id` of this attempt. Pure."""
    text = _text(events, attempt, args.id.strip())
    if text is None:
        return observe(
            False, f"There is nothing to recall with id {args.id[:40]!r}. Use an id from an [elided: …]."
        )
    pages = max(1, -(-len(text) // PAGE_CHARS))
    if not 1 <= args.page <= pages:
        return observe(False, f"There is no page {args.page}. {args.id[:40]} has {pages}.")
    part = text[(args.page - 1) * PAGE_CHARS : args.page * PAGE_CHARS]
    head = f"[page {args.page} of {pages}]\n" if pages > 1 else ""
    return observe(True, head + (part or "[empty]"))


def _text(events: Sequence[e.Event], attempt: int, name: str) -> str | None:
    if name == "checks":
        return next((text for event in reversed(events) if (text := _checks(event, attempt))), None)
    digits = name.removeprefix("e")
    if not digits.isascii() or not digits.isdigit() or not 1 <= int(digits[:9]) <= len(events):
        return None
    event = events[int(digits[:9]) - 1]
    match event.body:
        case e.ToolReturned() as body if body.attempt == attempt:
            return body.text
        case e.ModelReplied() as body if body.attempt == attempt:
            return body.text
        case _:
            return _checks(event, attempt)


def _checks(event: e.Event, attempt: int) -> str | None:
    match event.body:
        case e.BaselineTaken(diagnoses=found) | e.BaselineSampled(diagnoses=found):
            return "\n".join(_whole(found))
        case (e.ChecksRan() | e.ProofTaken()) as body if body.attempt == attempt:
            return "\n".join(_whole(body.diagnoses))
        case _:
            return None


def _whole(diagnoses: Sequence[Diagnosis]) -> Iterator[str]:
    """Everything on record, without limits."""
    for one in diagnoses:
        ended = one.killed or f"exit status {one.exit_code}"
        yield f"$ {one.check}\n[{ended}, {one.seconds:.1f} s]"
        for test in one.failing:
            where = "" if test.file is None else f" at {test.file}:{test.line or 1}"
            yield f"{test.status.upper()} {test.name}{where}\n{test.message or ''}".rstrip()
        for each in one.diagnostics:
            where = ":".join(str(part) for part in (each.file, each.line, each.column) if part is not None)
            yield f"{where}: {each.severity}: {each.message}" + (f" [{each.code}]" if each.code else "")
        if one.tail:
            yield f"The output ends with:\n{one.tail}"


RECALL = Tool(
    name="recall",
    description="Show an elided result again, or the full results of the last checks. In pages.",
    args=RecallArgs,
    target=lambda args: args.id,
    run=answered_by_the_loop,
)


# `finish`: the model claims that the task is done. The loop answers, by the evidence.


class FinishArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    summary: Annotated[str, Meta(description="What was wrong, what you changed and why, for the reviewer.")]


FINISH = Tool(
    name="finish",
    description=("Declare that the task is done. Refused while the checks are red, with their results."),
    args=FinishArgs,
    target=lambda args: args.summary,
    run=answered_by_the_loop,
)
