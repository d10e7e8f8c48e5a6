"""The tool `note`: what a run learned, proposed to the people who keep the repository. Nothing is kept silently."""

import difflib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from cloister.agent.knowledge.instructions import NOTES
from cloister.agent.tools.api import Observation, Show, Tool, observe
from cloister.agent.tools.toolset import Offer, ToolPlace
from cloister.core import requests
from cloister.core.computer import Computer
from cloister.core.errors import UserError
from cloister.core.events import Event, NoteProposed
from cloister.core.log import Index, effective
from cloister.core.text import decode, harmless, lines_of

NOTE = "note"
MOST_NOTES = 10
"""Of one attempt."""
_HEAD = "# Notes for agents\n\nWhat runs learned about this repository. They are read at the start of each run.\n\n"
_FILE_BYTES = 1_048_576


class NoteArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=500,
            description="One fact that later runs need: a command that works, a flaky test, how to start a service.",
        ),
    ]


@dataclass(frozen=True, slots=True)
class NoteTool:
    """A `ToolSource`: `note`, unless the settings or the run turn it off."""

    usual: requests.Notes = "propose"

    @asynccontextmanager
    async def __call__(self, place: ToolPlace) -> AsyncGenerator[Offer]:
        mode = place.request.notes or self.usual
        if mode == "off":
            yield Offer()
            return

        async def run(computer: Computer, args: NoteArgs, show: Show) -> Observation:
            return await _note(place, computer, args.text, writes=mode == "write")

        where = f"It becomes a line of {NOTES}." if mode == "write" else "People decide whether it is kept."
        yield Offer(
            (
                Tool(
                    name=NOTE,
                    description=f"Note what you learned about the repository for later runs. {where} Rarely.",
                    args=NoteArgs,
                    target=lambda args: args.text,
                    run=run,
                    changes_files=mode == "write",
                    grant="allow",
                    own=True,
                    source="notes",
                ),
            )
        )


async def _note(place: ToolPlace, computer: Computer, text: str, *, writes: bool) -> Observation:
    line = " ".join(harmless(text).split())
    known = of_attempt(place.journal.events, place.attempt)
    if line in known:
        return observe(True, "This is noted already.")
    if len(known) >= MOST_NOTES:
        return observe(False, f"An attempt has at most {MOST_NOTES} notes.")
    if writes:
        file = f"{place.declared[1]}/{NOTES}"
        try:
            await computer.write(file, with_notes(await _file(computer, file), [line]).encode())
        except UserError as error:
            return observe(False, f"The note cannot be written: {error.message}")
    await place.journal.append(NoteProposed(place.attempt, line, writes))
    return observe(True, f"Written into {NOTES}." if writes else "Noted: people decide whether it is kept.")


async def _file(computer: Computer, file: str) -> str:
    try:
        return decode(await computer.read(file, limit_bytes=_FILE_BYTES))
    except UserError as error:
        if error.code == "not_found":
            return ""
        raise


def of_attempt(events: Sequence[Event], attempt: int | None) -> list[str]:
    """The notes of an attempt, or of all attempts, in their order."""
    found = Index(effective(events)).of(NoteProposed, attempt=attempt)
    return list(dict.fromkeys(body.text for body in found))


def with_notes(text: str, notes: Sequence[str]) -> str:
    """The file of notes with these notes at its end; those that it has already are left out."""
    lines = {line.rstrip("\r\n") for line in lines_of(text)}
    fresh = [f"- {note}" for note in notes if f"- {note}" not in lines]
    if not fresh:
        return text
    before = text if text.strip() else _HEAD
    return before + ("" if before.endswith("\n") else "\n") + "".join(f"{line}\n" for line in fresh)


def diff_of_notes(text: str, notes: Sequence[str]) -> str:
    """The change that adds these notes to the file `text`, as a patch of the repository; empty if it has them all."""
    after = with_notes(text, notes)
    if after == text:
        return ""
    lines = difflib.unified_diff(
        lines_of(text),
        lines_of(after),
        f"a/{NOTES}" if text else "/dev/null",
        f"b/{NOTES}",
    )
    made = "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
    new = "" if text else "new file mode 100644\n"
    return f"diff --git a/{NOTES} b/{NOTES}\n{new}{made}"
