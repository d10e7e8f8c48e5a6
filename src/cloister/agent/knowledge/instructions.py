"""The repository's own instructions for agents: AGENTS.md, CLAUDE.md and rules of editors, as its base commit has them.

Those for the whole repository are part of the task. Those of a folder, or of files that a pattern names, are given when
the model first works there, the nearest first. What an attempt changes in these files does not reach its own model.
"""

import posixpath
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from cloister.agent.knowledge.front_matter import split, text_of, words_of
from cloister.core.computer import WORK_DIR
from cloister.core.events import (
    BaseFixed,
    ContextSummarised,
    Event,
    InstructionKind,
    InstructionsGiven,
    ModelReplied,
)
from cloister.core.log import Journal, effective
from cloister.core.requests import ToolCall
from cloister.core.text import bounded, decode, inert, one_line
from cloister.forge.read import chosen_files
from cloister.policy.pattern import path_matches

NAMES = ("AGENTS.md", "CLAUDE.md")
"""In any folder. Of two with the same text, the first counts."""
NOTES = ".cloister/notes.md"
"""What earlier runs learned and a person accepted."""
_ROOT = (".claude/CLAUDE.md", *NAMES, ".cursorrules", ".github/copilot-instructions.md", NOTES)
_RULES = ".cursor/rules/"
_RULE_ENDINGS = (".md", ".mdc")
FILE_CHARS = 12_000
"""What is given of one file."""
_ALL_CHARS, _TURN_CHARS = 32_000, 24_000
"""What is given of the whole repository's files, and of those of one turn."""
MOST_FILES = 400
_IMPORT = re.compile(r"@([\w./-]{1,200})")
_IMPORTS = 20
_TOKEN = re.compile(r"[^\s'\"`;|&<>(){}$=,:]+")
_TOKENS = 400
_BRACES = re.compile(r"\{([^{}]*)\}")
_GLOBS, _ALTERNATIVES = 40, 64
_PATH_TOOLS = frozenset({"read", "write", "edit", "search"})


@dataclass(frozen=True, slots=True)
class Instruction:
    """One file of instructions."""

    path: str
    digest: str
    """The name of its content in git."""
    text: str
    folder: str = ""
    """Where it holds; empty for the whole repository."""
    globs: tuple[str, ...] = ()
    """The files that it is about, from `folder`; empty: all of them."""
    kind: InstructionKind = "instructions"

    @property
    def always(self) -> bool:
        return not self.folder and not self.globs

    def holds_for(self, path: str) -> bool:
        """True if it is about the file or folder `path` of the repository."""
        if self.folder and path != self.folder and not path.startswith(f"{self.folder}/"):
            return False
        below = path[len(self.folder) :].strip("/").split("/")
        return not self.globs or any(path_matches(one, below) for one in self._patterns)

    @property
    def _patterns(self) -> list[list[str]]:
        return [(one if "/" in one else f"**/{one}").strip("/").split("/") for one in self.globs]


def is_instruction(path: str) -> bool:
    """True if the file at `path` may hold instructions."""
    return _home(path) is not None or _is_rule(path)


def _home(path: str) -> str | None:
    """The folder that a file of instructions is about: a repository of several has its files in a folder of its own."""
    whole = f"/{path}"
    return next((whole[: -len(name) - 1].strip("/") for name in _ROOT if whole.endswith(f"/{name}")), None)


def _is_rule(path: str) -> bool:
    folder, found, inside = path.partition(_RULES)
    return bool(found) and folder[-1:] in ("", "/") and posixpath.splitext(inside)[1] in _RULE_ENDINGS


Texts = Mapping[str, tuple[str, str]]
"""The path of a file that may hold instructions → the name of its content in git, and its text."""


def instructions(found: Texts) -> tuple[Instruction, ...]:
    """What the files say, those of the whole repository first, then by path."""
    made: list[Instruction] = []
    seen: set[tuple[str, str]] = set()
    for path in sorted(found, key=lambda path: (path.count("/"), path)):
        digest, text = found[path]
        one = _rule(path, digest, text) if _is_rule(path) else _file(path, digest, text, found)
        if one is not None and (one.folder, one.text) not in seen:
            seen.add((one.folder, one.text))
            made.append(one)
    return tuple(sorted(made, key=lambda one: not one.always))


def _file(path: str, digest: str, text: str, found: Texts) -> Instruction | None:
    folder = _home(path) or ""
    told = _imported(posixpath.dirname(path), text, found).strip()
    if not told:
        return None
    return Instruction(
        path, digest, _cut(told), folder, kind="notes" if path.endswith(NOTES) else "instructions"
    )


def _imported(folder: str, text: str, found: Texts) -> str:
    """`text` with the lines `@PATH` replaced by those files, if they hold instructions of another folder.

    In the same folder they count by themselves.
    """
    lines: list[str] = []
    imports = 0
    for line in text.split("\n"):
        match = _IMPORT.fullmatch(line.strip())
        path = posixpath.normpath(posixpath.join(folder, match[1])) if match else ""
        if not path or path not in found or imports >= _IMPORTS:
            lines.append(line)
        elif posixpath.dirname(path) != folder:
            imports += 1
            lines.append(found[path][1])
    return "\n".join(lines)


def _rule(path: str, digest: str, text: str) -> Instruction | None:
    """A rule of an editor. One that only a person or a description calls up is named, and not given."""
    head, body = split(text)
    folder = path.partition(_RULES)[0].strip("/")
    if not body.strip():
        return None
    always = text_of(head.get("alwaysApply")).casefold() == "true" or not head
    globs = tuple(_alternatives(words_of(head.get("globs", ()))))[:_GLOBS]
    if always or globs:
        return Instruction(path, digest, _cut(body), folder, () if always else globs, "rules")
    if about := text_of(head.get("description")):
        told = f"About: {one_line(about, 300)} Read {path} if that is what you do."
        return Instruction(path, digest, told, folder, kind="rules")
    return None


def _alternatives(globs: Iterable[str]) -> Iterator[str]:
    """Each glob once for each alternative in its braces."""
    for glob in globs:
        todo = [glob]
        for _ in range(_ALTERNATIVES):
            if not todo:
                break
            one = todo.pop(0)
            found = _BRACES.search(one)
            if found is None:
                yield one
            elif len(todo) < _ALTERNATIVES:
                todo += [one[: found.start()] + part + one[found.end() :] for part in found[1].split(",")]


def _cut(text: str) -> str:
    return bounded(inert(text), FILE_CHARS)


# Where a model works, by its tool calls.


def touched(calls: Iterable[ToolCall]) -> list[str]:
    """The paths of the repository that the calls name, in their order."""
    found: dict[str, None] = {}
    for call in calls:
        path, command = call.arguments.get("path"), call.arguments.get("command")
        if call.name in _PATH_TOOLS and isinstance(path, str):
            found[_below(path, "")] = None
        elif isinstance(command, str):
            found.update(dict.fromkeys(_of_command(command)))
    return [path for path in found if path and not path.startswith("..")]


def _of_command(command: str) -> Iterator[str]:
    """The words of a command line that may be paths, after `cd FOLDER` from there."""
    folder = ""
    words = _TOKEN.findall(command[:FILE_CHARS])[:_TOKENS]
    for at, word in enumerate(words):
        path = _below(word, folder)
        if at and words[at - 1] == "cd":
            folder = path
        yield path


def _below(path: str, folder: str) -> str:
    whole = posixpath.normpath(posixpath.join(WORK_DIR, folder, path[:1_000]))
    return posixpath.relpath(whole, WORK_DIR) if whole.startswith("/") else ""


# What an attempt is given, and when.


def shown(events: Sequence[Event], attempt: int) -> tuple[set[tuple[str, str]], list[ToolCall]]:
    """The instructions that the model still sees, by path and digest, and the calls of the turns that it still sees."""
    known: list[tuple[int, InstructionsGiven]] = []
    calls: list[tuple[int, ToolCall]] = []
    for event in events:
        match event.body:
            case BaseFixed():
                known = []
            case InstructionsGiven() as body if body.attempt == attempt:
                known.append((event.seq, body))
            case ModelReplied() as body if body.attempt == attempt:
                calls += [(event.seq, call) for call in body.calls]
            case ContextSummarised() as body if body.attempt == attempt:
                known = [one for one in known if one[1].always or one[0] > body.up_to_seq]
                calls = [one for one in calls if one[0] > body.up_to_seq]
            case _:
                pass
    return {(body.path, body.digest) for _, body in known}, [call for _, call in calls]


def due(found: Sequence[Instruction], paths: Sequence[str]) -> list[Instruction]:
    """Those of `found` that hold for the whole repository, then those for `paths`, the nearest first, as far as there is room."""
    here = [one for one in found if not one.always and any(map(one.holds_for, paths))]
    here.sort(key=lambda one: (-one.folder.count("/") if one.folder else 1, one.path))
    return [*_within([one for one in found if one.always], _ALL_CHARS), *_within(here, _TURN_CHARS)]


def _within(found: Sequence[Instruction], room: int) -> list[Instruction]:
    chosen: list[Instruction] = []
    for one in found:
        room -= len(one.text)
        if room < 0:
            break
        chosen.append(one)
    return chosen


@dataclass(slots=True)
class Guide:
    """Gives one attempt the instructions of the repository as it comes to the folders that they are about."""

    attempt: int
    journal: Journal
    load: Callable[[], Awaitable[tuple[Instruction, ...]]]
    """The instructions of the base commit."""
    _known: set[tuple[str, str]] = field(init=False, default_factory=set[tuple[str, str]])
    _summary: ContextSummarised | None = field(init=False, default=None)
    """The last one that `_known` takes into account."""
    _begun: bool = field(init=False, default=False)

    async def give(self) -> None:
        """Record what the model must be given before its next step."""
        if not (found := await self.load()):
            return
        index = self.journal.index
        summary = index.last(ContextSummarised, attempt=self.attempt)
        if not self._begun or summary != self._summary:
            self._begun, self._summary = True, summary
            self._known, calls = shown(effective(self.journal.events), self.attempt)
        else:
            reply = index.last(ModelReplied, attempt=self.attempt)
            calls = reply.calls if reply else ()
        fresh = [one for one in found if (one.path, one.digest) not in self._known]
        for one in due(fresh, touched(calls) if fresh else ()):
            self._known.add((one.path, one.digest))
            await self.journal.append(
                InstructionsGiven(
                    self.attempt, one.path, one.digest, one.text, one.folder, one.globs, one.kind
                )
            )


class Instructions:
    """The instructions of one commit, read once."""

    def __init__(self, bare: Path, commit: str, *, wanted: bool = True) -> None:
        self._bare = bare
        self._commit = commit
        self._found: tuple[Instruction, ...] | None = None if wanted else ()
        self._reading = anyio.Lock()

    async def load(self) -> tuple[Instruction, ...]:
        """Raises as git does: a repository that cannot be read ends the attempt anyway."""
        async with self._reading:
            if self._found is None:
                files = await chosen_files(self._bare, self._commit, is_instruction, most=MOST_FILES)
                self._found = instructions({path: (one.oid, decode(one.data)) for path, one in files.items()})
        return self._found
