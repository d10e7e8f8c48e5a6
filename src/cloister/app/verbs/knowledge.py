"""The verbs of knowledge: the skills that runs have, and the notes that runs propose. See `api.py` for the others."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from cloister.app.verbs.declare import needs


class SkillInfo(msgspec.Struct, frozen=True):
    """A skill as lists show it."""

    name: str
    description: str
    layer: Literal["organisation", "user", "repository"]
    source: str
    """Its folder."""
    digest: str
    """A hash of its content, which runs pin."""


class SkillList(msgspec.Struct, frozen=True):
    """The skills that a run would have."""

    skills: tuple[SkillInfo, ...]
    problems: tuple[str, ...]
    """One sentence for each folder that cannot be used."""


class SkillText(msgspec.Struct, frozen=True):
    """One skill with what a model reads of it."""

    name: str
    description: str
    layer: Literal["organisation", "user", "repository"]
    source: str
    digest: str
    text: str
    """SKILL.md without its front matter."""
    files: tuple[str, ...]
    """Its other files."""


class RunNotes(msgspec.Struct, frozen=True):
    """What a run learned about its repository."""

    notes: tuple[str, ...]
    written: tuple[str, ...]
    """Those that are in the change of the run already."""
    diff: str
    """The patch that adds the others to `.cloister/notes.md`; empty if there are none."""


class KnowledgeVerbs(Protocol):
    """What models read beside their tasks."""

    @needs("operator", "GET skills")
    async def skills(self, repo: str | None = None) -> SkillList:
        """The skills of the organisation, of the user that Cloister runs as, and of the HEAD of a directory.

        Raises `UserError` (`no_repository`).
        """
        ...

    @needs("operator", "GET skills/{name}")
    async def skill(self, name: str, repo: str | None = None) -> SkillText:
        """One of them. Raises `UserError` (`no_such_skill`, `no_repository`)."""
        ...

    @needs("viewer", "GET runs/{run}/notes")
    async def notes(self, run: str) -> RunNotes:
        """The notes that a run proposes for later runs. Nothing but a person, or the settings, puts them there."""
        ...
