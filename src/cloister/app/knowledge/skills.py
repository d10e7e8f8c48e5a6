"""Skills: folders with a SKILL.md, in the open format, from the organisation, the person who runs this machine and the repository.

A run pins the skills that it finds by a hash of their content. One that changes later is not opened in that run.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from cloister.agent.knowledge.front_matter import Document, split, text_of
from cloister.core.errors import UserError
from cloister.core.requests import KNOWLEDGE_NAME
from cloister.core.system import in_thread
from cloister.core.text import inert, one_line, whole
from cloister.forge.read import Content, chosen_files

FILE = "SKILL.md"
FOLDERS = (".cloister/skills", ".claude/skills", ".agents/skills")
"""Where a repository has its skills."""
HOME_FOLDERS = (".cloister/skills", ".claude/skills")
"""Where a person has them."""
MOST_SKILLS, MOST_FILES = 100, 200
SKILL_BYTES, DESCRIPTION_CHARS = 4_194_304, 1_024
_LEFT_OUT = frozenset({".git", "__pycache__", ".DS_Store"})
_IN_REPOSITORY = re.compile(rf"(?:{'|'.join(map(re.escape, FOLDERS))})/([^/]+)/.+")

SkillLayer = Literal["organisation", "user", "repository"]


class SkillFile(NamedTuple):
    """One file of a skill."""

    data: bytes
    runs: bool = False
    """True if it may be executed."""


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill that can be used."""

    name: str
    description: str
    layer: SkillLayer
    source: str
    """Its folder, for people."""
    text: str
    """SKILL.md without its front matter."""
    files: Mapping[str, SkillFile]
    """By their paths in the folder, SKILL.md among them."""
    digest: str
    """A hash of all files, with their names and whether they may be executed."""


class Found(NamedTuple):
    """The skills of some places."""

    skills: tuple[Skill, ...] = ()
    problems: tuple[str, ...] = ()
    """One sentence for each folder that cannot be used."""


def skill(name: str, files: Mapping[str, SkillFile], layer: SkillLayer, source: str) -> Skill:
    """Check a skill. Raises `UserError` (`bad_skill`) that names its source and what is wrong."""
    if FILE not in files:
        raise _bad(source, f"it has no {FILE}")
    if len(files) > MOST_FILES or sum(len(one.data) for one in files.values()) > SKILL_BYTES:
        raise _bad(source, f"it has more than {MOST_FILES} files or {SKILL_BYTES >> 20} MiB")
    head, body = _document(files[FILE].data, source)
    told, about = text_of(head.get("name")).strip(), inert(text_of(head.get("description"))).strip()
    if not re.fullmatch(KNOWLEDGE_NAME, told):
        raise _bad(source, f"the name in {FILE} has small letters, digits and -, not {told[:80]!r}")
    if told != name:
        raise _bad(source, f"the name in {FILE} is {told!r}, and the folder is {name[:80]!r}")
    if not about or len(about) > DESCRIPTION_CHARS:
        raise _bad(source, f"the description in {FILE} has 1 to {DESCRIPTION_CHARS:,} characters")
    return Skill(told, " ".join(about.split()), layer, source, body.strip(), files, digest_of(files))


def digest_of(files: Mapping[str, SkillFile]) -> str:
    """A hash of the content of a skill."""
    whole = hashlib.sha256()
    for path in sorted(files):
        one = files[path]
        whole.update(f"{path}\0{int(one.runs)}\0{hashlib.sha256(one.data).hexdigest()}\n".encode())
    return whole.hexdigest()


def _document(data: bytes, source: str) -> Document:
    try:
        return split(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise _bad(source, f"{FILE} is not UTF-8") from None


def _bad(source: str, what: str) -> UserError:
    return UserError("bad_skill", f"The skill in {one_line(source, 200)} is not used: {one_line(what, 200)}.")


# Reading.


@dataclass(frozen=True, slots=True)
class SkillPlaces:
    """Where skills are beside those of a repository."""

    organisation: tuple[Path, ...] = ()
    user: tuple[Path, ...] = ()

    async def read(self, repository: Found = Found()) -> Found:  # noqa: B008  (immutable)
        """All skills, those of `repository` last. Of two with one name the first counts."""
        near = await in_thread(self._read)
        return _distinct((*near.skills, *repository.skills), (*near.problems, *repository.problems))

    def _read(self) -> Found:
        found: list[Skill] = []
        problems: list[str] = []
        places: tuple[tuple[SkillLayer, tuple[Path, ...]], ...] = (
            ("organisation", self.organisation),
            ("user", self.user),
        )
        for layer, folders in places:
            for folder in folders:
                if not folder.is_dir():
                    if layer == "organisation":
                        problems.append(f"There is no folder {folder}, which the settings name for skills.")
                    continue
                for path in _below(folder, problems):
                    if path.is_dir() and not path.name.startswith("."):
                        try:
                            found.append(skill(path.name, _files(path), layer, str(path)))
                        except UserError as error:
                            problems.append(error.message)
        return Found(tuple(found), tuple(problems))


def _below(folder: Path, problems: list[str]) -> list[Path]:
    """What a folder of skills holds."""
    try:
        found = sorted(folder.iterdir())[: MOST_SKILLS * 2]
    except OSError as error:
        problems.append(f"The folder {folder} for skills cannot be read: {error.strerror}.")
        return []
    problems += [
        f"The skill {path.name!r} is not used: its name is not UTF-8."
        for path in found
        if not _is_text(path.name)
    ]
    return [path for path in found if _is_text(path.name)]


def _is_text(name: str) -> bool:
    """False for a name of the file system that is not UTF-8, which no event and no sandbox can hold."""
    return whole(name) == name


def _files(folder: Path) -> dict[str, SkillFile]:
    """The files of a folder of this machine. Raises `UserError` (`bad_skill`)."""
    found: dict[str, SkillFile] = {}
    size = 0
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        for name in sorted(names):
            path = Path(at) / name
            where = str(path.relative_to(folder))
            if name in _LEFT_OUT:
                continue
            if not _is_text(where):
                raise _bad(str(folder), f"the name {where!r} is not UTF-8")
            try:
                # SAFETY: a link could lead to any file of this machine, which a sandbox must not see.
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                with os.fdopen(descriptor, "rb") as file:
                    about = os.fstat(descriptor)
                    if not stat.S_ISREG(about.st_mode):
                        raise _bad(str(folder), f"{where} is no regular file")
                    data = file.read(SKILL_BYTES - size + 1)
            except OSError as error:
                raise _bad(str(folder), f"{where} is a link or cannot be read ({error.strerror})") from None
            size += len(data)
            found[where] = SkillFile(data, bool(about.st_mode & 0o111))
            if size > SKILL_BYTES or len(found) > MOST_FILES:
                raise _bad(str(folder), f"it has more than {MOST_FILES} files or {SKILL_BYTES >> 20} MiB")
    return found


async def repository_skills(bare: Path, commit: str) -> Found:
    """The skills of a commit of a bare repository of ours."""
    return repository_found(await chosen_files(bare, commit, is_of_skill, most=MOST_SKILLS * 20))


def is_of_skill(path: str) -> bool:
    """True if the file at `path` of a repository belongs to a skill."""
    return _IN_REPOSITORY.fullmatch(path) is not None


def repository_found(files: Mapping[str, Content]) -> Found:
    """The skills in files of a repository."""
    by_folder: dict[str, dict[str, SkillFile]] = {}
    for path, one in files.items():
        folder = "/".join(path.split("/")[:3])
        by_folder.setdefault(folder, {})[path[len(folder) + 1 :]] = SkillFile(one.data, one.runs)
    found: list[Skill] = []
    problems: list[str] = []
    for folder in sorted(by_folder, key=lambda path: (FOLDERS.index(path.rpartition("/")[0]), path)):
        try:
            found.append(skill(folder.rpartition("/")[2], by_folder[folder], "repository", folder))
        except UserError as error:
            problems.append(error.message)
    return Found(tuple(found), tuple(problems))


def _distinct(skills: Iterable[Skill], problems: Sequence[str]) -> Found:
    by_name: dict[str, Skill] = {}
    wrong = list(problems)
    for one in skills:
        before = by_name.setdefault(one.name, one)
        if before is one:
            continue
        if before.digest != one.digest:
            wrong.append(
                f"The skill {one.name!r} in {one.source} is not used: {before.source} ({before.layer}) has one of that "
                "name; rename one."
            )
    kept = tuple(by_name.values())[:MOST_SKILLS]
    if len(by_name) > MOST_SKILLS:
        wrong.append(f"{len(by_name) - MOST_SKILLS} skills are left out: a run has at most {MOST_SKILLS}.")
    return Found(kept, tuple(wrong))


def text_for_model(one: Skill, at: str) -> str:
    """SKILL.md for a model, with where the other files are."""
    others = sorted(path for path in one.files if path != FILE)
    listed = "\n".join(f"- {at}/{one_line(path, 200)}" for path in others[:40])
    more = f"\n- and {len(others) - 40} more" if len(others) > 40 else ""
    where = f"\n\nIts other files are in the sandbox:\n{listed}{more}" if others else ""
    return f"Skill {one.name}, from {one.source} ({one.layer}):\n\n{one.text}{where}"
