"""Why a line of the result is there: the turn that wrote it, with its request, its words and its tool calls."""

import tempfile
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec

from cloister.core.errors import UserError
from cloister.core.events import (
    BaseFixed,
    Event,
    ModelReplied,
    PatchChosen,
    PromptReceived,
    RunFinished,
    TurnEnded,
)
from cloister.core.log import Index, attempts_of, effective, request_of, seen_by
from cloister.core.requests import ToolCall
from cloister.core.text import bounded, decode, harmless, one_line
from cloister.forge.host import in_bare, must, oid
from cloister.runs.attempts.work import result_commit

_WORDS_CHARS = 2_000
_CALLS = 20
_NAMES = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Cloister"), ("EMAIL", "cloister@localhost"), ("DATE", "@1 +0000"))
}


class LineOrigin(msgspec.Struct, frozen=True):
    """The turn that wrote one line of a run's result."""

    run: str
    path: str
    line: int
    text: str
    base: bool
    """True if the line was in the repository before the run."""
    attempt: int | None = None
    step: int | None = None
    seq: int | None = None
    """The save point after that turn: `cloister fork RUN --at SEQ` continues from there."""
    model: str = ""
    """The model that wrote it, or the rule of the repair harness."""
    prompt: str = ""
    """The newest message of a person before that turn."""
    said: str = ""
    """The words of the model."""
    calls: tuple[str, ...] = ()


async def why(bare: Path, events: Sequence[Event], path: str, line: int) -> LineOrigin:
    """The origin of one line of the run's newest result. Raises `UserError` (`no_change`, `no_such_line`)."""
    run, result = events[0].run, result_commit(events)
    base = next((e.body.commit for e in events if isinstance(e.body, BaseFixed)), None)
    if base is None or result is None or not attempts_of(events):
        raise UserError("no_change", f"Run {run} has changed nothing yet.")
    last = events[-1].body
    chosen = last.attempt if isinstance(last, RunFinished) and last.attempt is not None else None
    number = attempts_of(events)[-1] if chosen is None else chosen
    own = effective(seen_by(events, number))
    turns = [event for event, body in Index(own).events(TurnEnded) if body.changed]
    with tempfile.TemporaryDirectory(prefix="cloister-why-") as objects:
        # What a rebase brought along is the base's.
        moved = {event.seq + 1 for event, _ in list(Index(own).events(BaseFixed))[1:]}
        found, text = await _blamed(bare, base, (turns, moved, result), (path, line), objects)
    if found is None:
        return LineOrigin(run, path, line, text, base=True)
    return _described(own, found, LineOrigin(run, path, line, text, base=False))


async def _blamed(
    bare: Path,
    base: str,
    work: tuple[Sequence[Event], AbstractSet[int], str],
    place: tuple[str, int],
    objects: str,
) -> tuple[Event | None, str]:
    """The turn that wrote the line, None for the base, and the line's text. New objects go to a directory that is deleted."""
    env = {
        **_NAMES,
        "GIT_OBJECT_DIRECTORY": objects,
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(bare / "objects"),
    }
    turns, moved, result = work
    path, line = place
    tip, tree, writers = base, await _tree(bare, base), dict[str, Event | None]()
    # Save points all have the base as their parent: a chain of them is what blame can walk.
    for turn in (*turns, None):
        commit = turn.body.commit if turn is not None and isinstance(turn.body, TurnEnded) else result
        if (next_tree := await _tree(bare, commit)) == tree:
            continue
        tree = next_tree
        made = await in_bare(bare, "commit-tree", tree, "-p", tip, stdin=b"turn\n", env=env)
        tip = oid(must(made, "order the save points"))
        writer = turn or (turns[-1] if turns else None)
        writers[tip] = None if writer is None or writer.seq in moved else writer
    args = ("blame", "--porcelain", "-w", f"-L{line},{line}", tip, "--", path)
    blamed = await in_bare(bare, *args, env=env)
    if not blamed.ok:
        raise UserError(
            "no_such_line", f"The result has no line {line} in {one_line(path, 200)}: see `cloister diff`."
        )
    lines = decode(blamed.out).split("\n")
    text = next((one[1:] for one in lines if one.startswith("\t")), "")
    return writers.get(lines[0].split(" ")[0]), one_line(harmless(text), 400)


async def _tree(bare: Path, commit: str) -> str:
    found = await in_bare(bare, "rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}")
    if not found.ok:
        raise UserError("save_points_removed", "The save points of this run were removed by age.")
    return oid(found.out)


def _described(own: Sequence[Event], turn: Event, about: LineOrigin) -> LineOrigin:
    assert isinstance(turn.body, TurnEnded)  # noqa: S101 - only turns are writers
    before = [event for event in own if event.seq < turn.seq]
    replies = [e.body for e in before if isinstance(e.body, ModelReplied) and e.body.step == turn.body.step]
    patch = next((e.body for e in reversed(before) if isinstance(e.body, PatchChosen)), None)
    prompts = [e.body.text for e in before if isinstance(e.body, PromptReceived)]
    reply = replies[-1] if replies else None
    model = reply.model if reply else f"repair: {patch.rule}" if patch else ""
    return msgspec.structs.replace(
        about,
        attempt=turn.body.attempt,
        step=turn.body.step,
        seq=turn.seq,
        model=model,
        prompt=bounded(harmless(prompts[-1] if prompts else request_of(own).prompt), _WORDS_CHARS),
        said=bounded(harmless(reply.text), _WORDS_CHARS) if reply else "",
        calls=tuple(_call(one) for one in reply.calls[:_CALLS]) if reply else (),
    )


def _call(call: ToolCall) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    return one_line(harmless(f"{call.name}({arguments})"), 400)
