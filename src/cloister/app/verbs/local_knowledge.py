"""The verbs of knowledge in this process."""

# ruff: noqa: PLC0415

from __future__ import annotations

from typing import TYPE_CHECKING

from cloister.app.verbs.knowledge import KnowledgeVerbs, RunNotes, SkillInfo, SkillList, SkillText
from cloister.app.verbs.local import Group, checked
from cloister.core.errors import UserError
from cloister.core.text import decode, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloister.app.knowledge.skills import Found
    from cloister.core.events import Event


@checked(KnowledgeVerbs)
class LocalKnowledge(Group):
    """Implements `KnowledgeVerbs`."""

    async def skills(self, repo: str | None = None) -> SkillList:
        found = await self._found(repo)
        skills = tuple(
            SkillInfo(one.name, one.description, one.layer, one.source, one.digest) for one in found.skills
        )
        return SkillList(skills, found.problems)

    async def skill(self, name: str, repo: str | None = None) -> SkillText:
        from cloister.app.knowledge.skills import FILE

        found = await self._found(repo)
        one = next((one for one in found.skills if one.name == name), None)
        if one is None:
            known = ", ".join(one.name for one in found.skills) or "none"
            raise UserError(
                "no_such_skill", f"There is no skill {one_line(name, 60)!r}: there is {one_line(known, 400)}."
            )
        files = tuple(sorted(path for path in one.files if path != FILE))
        return SkillText(one.name, one.description, one.layer, one.source, one.digest, one.text, files)

    async def _found(self, repo: str | None) -> Found:
        from cloister.app.knowledge import skill_places
        from cloister.app.knowledge.skills import MOST_SKILLS, Found, is_of_skill, repository_found
        from cloister.forge.read import chosen_of_head

        own = Found()
        self._check_repository(repo)
        if repo is not None:
            _, files = await chosen_of_head(repo, is_of_skill, most=MOST_SKILLS * 20)
            own = repository_found(files)
        return await skill_places(self._settings).read(own)

    async def notes(self, run: str) -> RunNotes:
        from cloister.app.knowledge.note_tool import diff_of_notes
        from cloister.core.events import NoteProposed
        from cloister.core.log import Index, effective

        events: tuple[Event, ...] = ()
        name = await self._resolve(run)
        while page := await self._log.read(name, len(events)):
            events += page
        found = Index(effective(events)).of(NoteProposed)
        notes = tuple(dict.fromkeys(one.text for one in found))
        before = await self._file(events) if notes else ""
        lines = before.splitlines()
        written = tuple(note for note in notes if f"- {note}" in lines)
        return RunNotes(notes, written, diff_of_notes(before, notes))

    async def _file(self, events: Sequence[Event]) -> str:
        """The notes of the repository as the run leaves them."""
        from cloister.agent.knowledge.instructions import NOTES
        from cloister.core.events import BaseFixed
        from cloister.core.log import Index
        from cloister.forge.read import read_file
        from cloister.runs.attempts.work import base_commit, result_commit

        commit = result_commit(events) or base_commit(events)
        if commit is None:
            return ""
        fixed = Index(events).last(BaseFixed)
        folder = f"{fixed.parts[0].folder}/" if fixed and fixed.parts else ""
        bare = await self._parts.repositories.open(events[0].run)
        return decode(await read_file(bare, commit, folder + NOTES) or b"")
