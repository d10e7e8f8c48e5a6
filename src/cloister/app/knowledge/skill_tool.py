"""The tool `skill`: opens a skill of the run, with its files in the sandbox."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta

from cloister.agent.tools.api import Observation, Show, Tool, observe
from cloister.agent.tools.toolset import Offer, ToolPlace
from cloister.app.knowledge.skills import (
    FILE,
    Found,
    Skill,
    SkillPlaces,
    repository_skills,
    text_for_model,
)
from cloister.core.computer import Computer
from cloister.core.errors import UserError
from cloister.core.events import BaseFixed, ModelReplied, PinnedSkill, SkillsPinned, ToolReturned
from cloister.core.log import Journal
from cloister.core.text import one_line

SKILL = "skill"
PLACE = "/tmp/skills"  # noqa: S108  (in the sandbox, outside the repository)


class SkillArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(max_length=100, description="One of the skills that the task lists.")]


@dataclass(frozen=True, slots=True)
class SkillTool:
    """A `ToolSource`: `skill`, if there is one. What the first attempt finds is pinned in the log."""

    places: SkillPlaces = field(default_factory=SkillPlaces)

    @asynccontextmanager
    async def __call__(self, place: ToolPlace) -> AsyncGenerator[Offer]:
        commit, _ = place.declared
        own = await repository_skills(place.bare, commit) if commit else Found()
        found = await self.places.read(own)
        pinned = await _pinned(place, found)
        if not pinned.skills:
            yield Offer()
            return
        opened = _Opened(pinned, {one.name: one for one in found.skills})
        for name in _opened_before(place.journal, place.attempt):
            if isinstance(one := opened.get(name), Skill):
                await _put(place.computer, one)
        yield Offer(
            (
                Tool(
                    name=SKILL,
                    description="Open a skill: how to do something here, with its scripts. Do that before the work it is for.",
                    args=SkillArgs,
                    target=lambda args: args.name,
                    run=opened.open,
                    grant="allow",
                    own=True,
                    source="skills",
                ),
            )
        )


async def _pinned(place: ToolPlace, found: Found) -> SkillsPinned:
    """The skills that the log has for this base, whatever attempt found them; else those that are found."""
    index = place.journal.index
    fixed = max((event.seq for event, _ in index.events(BaseFixed)), default=0)
    known = [body for event, body in index.events(SkillsPinned) if event.seq > fixed]
    if own := [body for body in known if body.attempt == place.attempt]:
        return own[-1]
    skills = tuple(
        PinnedSkill(one.name, one.description, one.layer, one.source, one.digest) for one in found.skills
    )
    made = SkillsPinned(place.attempt, skills, tuple(one_line(why, 400) for why in found.problems[:20]))
    if known:
        made = msgspec.structs.replace(known[0], attempt=place.attempt)
    if made.skills or made.problems:
        await place.journal.append(made)
    return made


def _opened_before(journal: Journal, attempt: int) -> list[str]:
    """The skills whose files the sandbox had before it was replaced."""
    done = {
        body.call
        for body in journal.index.of(ToolReturned, attempt=attempt)
        if body.ok and body.tool == SKILL
    }
    calls = (call for body in journal.index.of(ModelReplied, attempt=attempt) for call in body.calls)
    names = (call.arguments.get("name") for call in calls if call.name == SKILL and call.id in done)
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))


async def _put(computer: Computer, one: Skill) -> None:
    for path, file in one.files.items():
        if path != FILE:
            await computer.write(f"{PLACE}/{one.name}/{path}", file.data, mode=0o755 if file.runs else 0o644)


@dataclass(frozen=True, slots=True)
class _Opened:
    pinned: SkillsPinned
    there: dict[str, Skill]

    def get(self, name: str) -> Skill | str:
        """The skill as the run pinned it, or why there is none."""
        wanted = next((one for one in self.pinned.skills if one.name == name), None)
        if wanted is None:
            known = ", ".join(one.name for one in self.pinned.skills)
            return f"There is no skill {one_line(name, 60)!r}. There are: {one_line(known, 1_000)}."
        one = self.there.get(name)
        if one is None:
            return f"The skill {name!r} is gone from {one_line(wanted.source, 200)} since the run pinned it."
        if one.digest != wanted.digest:
            return (
                f"The skill {name!r} in {one_line(wanted.source, 200)} changed after the run pinned it "
                f"({wanted.digest[:12]} then, {one.digest[:12]} now), so it is not opened. A new run uses it as it is now."
            )
        return one

    async def open(self, computer: Computer, args: SkillArgs, show: Show) -> Observation:
        one = self.get(args.name)
        if not isinstance(one, Skill):
            return observe(False, one)
        try:
            await _put(computer, one)
        except UserError as error:
            return observe(False, f"The files of the skill cannot be written: {error.message}")
        return observe(True, text_for_model(one, f"{PLACE}/{one.name}"))
