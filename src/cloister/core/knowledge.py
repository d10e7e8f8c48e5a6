"""What models read beside their tasks: the settings `[knowledge]`, skills and notes."""

import re
from typing import Literal

import msgspec

NAME = r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?"
"""The name of a skill, or of a collection of documents."""

DocsFrom = Literal["folder", "repository"]
Notes = Literal["propose", "write", "off"]
"""What becomes of what a run learned: proposed beside its change, written into it, or not asked for."""


class DocsEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"source": "from"}):
    """One `[[knowledge.docs]]` table of the configuration file: documents that models may search."""

    name: str
    source: str
    """A folder of this machine, or the address of a git repository."""
    ref: str | None = None
    """The branch, tag or commit of a repository; None: its HEAD."""
    below: str = ""
    """Only what is below this folder of it."""
    trusted: bool = False
    """False: a model that reads them has read untrusted text, and high-impact actions need a person."""

    @property
    def kind(self) -> DocsFrom:
        return "folder" if self.source.startswith(("/", "~")) and self.ref is None else "repository"


class Knowledge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[knowledge]` of the configuration file."""

    instructions: bool = True
    """Whether models are given the instructions of their repositories, such as AGENTS.md."""
    skills: tuple[str, ...] = ()
    """Folders with the organisation's skills, from the configuration file's directory."""
    docs: tuple[DocsEntry, ...] = ()
    notes: Notes = "propose"


def check_knowledge(found: Knowledge) -> str | None:
    """What is wrong with the settings, as one sentence; None if nothing is."""
    seen: set[str] = set()
    for one in found.docs:
        if not re.fullmatch(NAME, one.name):
            return f"the name of documents has small letters, digits and -, not {one.name[:80]!r}."
        if one.name in seen:
            return f"two collections of documents have the name {one.name!r}: rename one."
        if not one.source.strip() or one.source.startswith("-"):
            return f"the documents {one.name!r} need a folder or the address of a repository in from."
        seen.add(one.name)
    if any(not folder.strip() for folder in found.skills):
        return "a folder of skills is a path, not an empty text."
    return None
