"""The settings `[knowledge]` as tools: skills, documents and notes."""

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio

from cloister.agent.tools.toolset import ToolSource
from cloister.app.config import model_access
from cloister.app.knowledge.documents import DocsTool, Library
from cloister.app.knowledge.note_tool import NoteTool
from cloister.app.knowledge.skill_tool import SkillTool
from cloister.app.knowledge.skills import HOME_FOLDERS, SkillPlaces
from cloister.app.settings import Settings
from cloister.core.requests import DocsEntry
from cloister.forge import Forges
from cloister.model.meanings import Meanings

FETCHED = "documents"
"""The folder of the data directory with the repositories of documents."""


def skill_places(settings: Settings) -> SkillPlaces:
    """The folders with skills of the organisation, and of the user that Cloister runs as."""
    near, known = settings.config_path.parent, settings.file.knowledge
    own = tuple(Path(settings.home) / folder for folder in HOME_FOLDERS) if known.user_skills else ()
    return SkillPlaces(tuple(near / Path(folder).expanduser() for folder in known.skills), own)


def knowledge_tools(settings: Settings, forges: Forges) -> tuple[ToolSource, ...]:
    """What adds the tools `skill`, `docs` and `note` to attempts."""
    known = settings.file.knowledge
    folder = settings.data_dir / FETCHED
    library = Library(
        known.docs, partial(_fetch, folder, forges), settings.config_path.parent, _meanings(settings)
    )
    return SkillTool(skill_places(settings)), DocsTool(library), NoteTool(known.notes)


def _meanings(settings: Settings) -> Meanings | None:
    name = settings.file.knowledge.embeddings
    if name is None:
        return None

    async def vectors(texts: Sequence[str]) -> list[tuple[float, ...]]:
        from cloister.model.remote.embeddings import embed  # noqa: PLC0415  (its HTTP client takes long to load)

        return await embed(name, model_access(settings), texts)

    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return Meanings(vectors, settings.data_dir / FETCHED / f"vectors-{digest}")


async def _fetch(folder: Path, forges: Forges, entry: DocsEntry) -> tuple[Path, str]:
    """The newest commit of a repository of documents.

    Raises as `Forge.fetch`. No submodules: they would be other repositories than the settings name.
    """
    await anyio.Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
    bare = folder / f"{entry.name}.git"
    found = await forges.at(entry.source).fetch(entry.source, entry.ref, bare)
    return bare, found.commit
