"""Documents that models may search: folders and repositories of text, cut into passages, ranked by BM25."""

import hashlib
import os
import re
import stat
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

import anyio
import msgspec
from msgspec import Meta

from cloister.agent.tools.api import Observation, Show, Tool, observe
from cloister.agent.tools.toolset import Offer, ToolPlace
from cloister.core.computer import Computer
from cloister.core.errors import CloisterError, UserError
from cloister.core.requests import DocsEntry
from cloister.core.system import in_thread
from cloister.core.text import Ranking, decode, inert, one_line
from cloister.forge.read import chosen_files
from cloister.model.meanings import Meanings

DOCS = "docs"
ENDINGS = (".md", ".mdx", ".markdown", ".rst", ".txt", ".adoc", ".asciidoc", ".org")
MOST_FILES, FILE_BYTES, ALL_BYTES = 5_000, 1_048_576, 67_108_864
MOST_PASSAGES = 40_000
PASSAGE_CHARS = 1_500
FOUND, MOST_FOUND = 5, 8
NEAR, _RANK_BASE = 40, 60.0
"""The passages of each ranking that count, and what evens their ranks out (reciprocal rank fusion)."""
FRESH_SECONDS = {"folder": 5.0, "repository": 300.0}
"""How old what is known of a collection may be."""
_HEADING = re.compile(r"#{1,6}[ \t]+(\S.*)|={1,5}[ \t]+(\S.*)")
_UNDERLINE = re.compile(r"([=\-~^\"'#*+])\1{2,}[ \t]*")
_SKIPPED = frozenset({".git", "node_modules", ".venv", "__pycache__"})


class Passage(NamedTuple):
    """A part of a document."""

    path: str
    first: int
    last: int
    """Its lines, from 1."""
    heading: str
    """The headings above it."""
    text: str


def passages(path: str, text: str) -> Iterator[Passage]:
    """Cut a document where its headings are, and long parts between paragraphs."""
    above: list[tuple[int, str]] = []
    lines = inert(text).split("\n")
    start, size = 0, 0
    for at, line in enumerate(lines):
        found = _heading(lines, at)
        if at > start and (found or (size > PASSAGE_CHARS // 2 and not line.strip()) or size > PASSAGE_CHARS):
            yield from _passage(path, lines, start, at, above)
            start, size = at, 0
        if found:
            level, words = found
            above = [one for one in above if one[0] < level] + [(level, one_line(words, 100))]
        size += len(line) + 1
    yield from _passage(path, lines, start, len(lines), above)


def _heading(lines: list[str], at: int) -> tuple[int, str] | None:
    line = lines[at][:500]
    if match := _HEADING.fullmatch(line):
        return len(line) - len(line.lstrip("#=")), (match[1] or match[2]).strip()
    below = lines[at + 1][:500] if at + 1 < len(lines) else ""
    if line.strip() and not line.startswith((" ", "\t", "-", "|")) and _UNDERLINE.fullmatch(below):
        return "=-~^\"'#*+".index(below[0]) + 1, line.strip()
    return None


def _passage(
    path: str, lines: list[str], start: int, end: int, above: list[tuple[int, str]]
) -> Iterator[Passage]:
    text = "\n".join(lines[start:end]).strip()
    if text:
        heading = " > ".join(words for _, words in above)
        for at in range(0, len(text), PASSAGE_CHARS * 2):
            yield Passage(path, start + 1, end, heading, text[at : at + PASSAGE_CHARS * 2])


class Collection:
    """The passages of one collection, prepared for queries."""

    def __init__(self, texts: Mapping[str, str], stamp: str) -> None:
        self.stamp = stamp
        """Names the content."""
        self.passages: list[Passage] = []
        for path in sorted(texts):
            self.passages += passages(path, texts[path])
            if len(self.passages) > MOST_PASSAGES:
                del self.passages[MOST_PASSAGES:]
                break
        self._ranking = Ranking(
            [f"{one.path} {one.heading} {one.heading} {one.text}" for one in self.passages]
        )

    def best(self, query: str, most: int, near: Sequence[int] = ()) -> list[tuple[float, Passage]]:
        """The passages with words of the query; `near` are those that are about it, by their vectors."""
        if not near:
            return [(score, self.passages[at]) for at, score in self._ranking.best(query, most)]
        ranks: Counter[int] = Counter()
        for ranked in ([at for at, _ in self._ranking.best(query, NEAR)], near):
            for rank, at in enumerate(ranked):
                ranks[at] += 1 / (_RANK_BASE + rank)  # pyright: ignore[reportArgumentType]
        return [(score, self.passages[at]) for at, score in ranks.most_common(most)]

    @property
    def texts(self) -> list[str]:
        """What is embedded of each passage."""
        return [f"{one.path}\n{one.heading}\n{one.text}" for one in self.passages]


Fetch = Callable[[DocsEntry], Awaitable[tuple[Path, str]]]
"""Brings the newest commit of a repository of documents into a bare repository of ours; returns both."""


@dataclass(slots=True)
class Library:
    """The collections of the settings. They are read when they are first searched, and again when they may have changed."""

    entries: tuple[DocsEntry, ...]
    fetch: Fetch
    base: Path
    """Folders are named from here."""
    meanings: Meanings | None = None
    """Finds passages by their vectors, where the settings name a model for that."""
    _known: dict[str, tuple[float, Collection]] = field(
        init=False, default_factory=dict[str, tuple[float, Collection]]
    )
    _reading: anyio.Lock = field(init=False, default_factory=anyio.Lock)

    async def collection(self, entry: DocsEntry) -> Collection:
        """Raises `UserError` (`no_docs`), or as the fetch of its repository."""
        async with self._reading:
            at, known = self._known.get(entry.name, (0.0, None))
            if known is not None and time.monotonic() - at < FRESH_SECONDS[entry.kind]:
                return known
            try:
                made = await self._read(entry, known)
            except CloisterError:
                if known is None:
                    raise
                made = known  # what was there a while ago is better than nothing
            self._known[entry.name] = time.monotonic(), made
            return made

    def _folder(self, entry: DocsEntry) -> Path:
        return self.base / Path(entry.source).expanduser() / entry.below

    async def _read(self, entry: DocsEntry, known: Collection | None) -> Collection:
        if entry.kind == "folder":
            folder = self._folder(entry)
            stamp = await in_thread(lambda: _stamp(folder))
            if known is not None and known.stamp == stamp:
                return known
            return await in_thread(lambda: Collection(_texts(folder), stamp))
        bare, commit = await self.fetch(entry)
        if known is not None and known.stamp == commit:
            return known
        below = entry.below.strip("/")

        def wanted(path: str) -> bool:
            return path.lower().endswith(ENDINGS) and (not below or path.startswith(f"{below}/"))

        files = await chosen_files(bare, commit, wanted, most=MOST_FILES)
        return await in_thread(
            lambda: Collection({path: decode(one.data) for path, one in files.items()}, commit)
        )


def _documents(folder: Path) -> Iterator[tuple[str, Path]]:
    if not folder.is_dir():
        raise UserError("no_docs", f"There is no folder {folder}, which the settings name for documents.")
    found = 0
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        for name in sorted(names):
            path = Path(at) / name
            if name.lower().endswith(ENDINGS) and not path.is_symlink():
                yield str(path.relative_to(folder)), path
                found += 1
                if found >= MOST_FILES:
                    return


def _stamp(folder: Path) -> str:
    about = hashlib.sha256()
    for where, path in _documents(folder):
        with suppress(OSError):  # removed meanwhile
            one = path.lstat()
            about.update(f"{where}\0{one.st_size} {one.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return about.hexdigest()


def _texts(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    room = ALL_BYTES
    for where, path in _documents(folder):
        try:
            # SAFETY: a link could lead to any file of this machine.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        with os.fdopen(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                found[where] = decode(file.read(min(FILE_BYTES, room)))
                room -= len(found[where])
        if room <= 0:
            break
    return found


# The tool.


class DocsArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    query: Annotated[
        str, Meta(min_length=1, max_length=500, description="What you want to know, in a few words.")
    ]
    collection: Annotated[str, Meta(max_length=64, description="Only this collection; empty: all.")] = ""
    most: Annotated[int, Meta(ge=1, le=MOST_FOUND, description="Passages to show.")] = FOUND


@dataclass(frozen=True, slots=True)
class DocsTool:
    """A `ToolSource`: `docs`, if the settings name documents."""

    library: Library

    @asynccontextmanager
    async def __call__(self, place: ToolPlace) -> AsyncGenerator[Offer]:
        entries = self.library.entries
        if not entries:
            yield Offer()
            return
        names = ", ".join(one.name for one in entries)
        yield Offer(
            (
                Tool(
                    name=DOCS,
                    description=f"Search the company's documents ({names}) for passages, with their sources.",
                    args=DocsArgs,
                    target=lambda args: args.query,
                    run=self._run,
                    origin="tool" if all(one.trusted for one in entries) else "server",
                    grant="allow",
                    own=True,
                    source="the settings",
                ),
            )
        )

    async def _run(self, computer: Computer, args: DocsArgs, show: Show) -> Observation:
        del computer, show
        return await self.search(args)

    async def search(self, args: DocsArgs) -> Observation:
        """The passages that fit best. Without a collection that can be read, it says why."""
        entries = [one for one in self.library.entries if args.collection in ("", one.name)]
        if not entries:
            names = ", ".join(one.name for one in self.library.entries)
            return observe(
                False, f"There is no collection {one_line(args.collection, 60)!r}: there are {names}."
            )
        known: list[tuple[DocsEntry, Collection, list[int]]] = []
        problems: list[str] = []
        for entry in entries:
            try:
                collection = await self.library.collection(entry)
            except CloisterError as error:
                problems.append(f"{entry.name} cannot be searched: {error.message}")
                continue
            known.append((entry, collection, await self._near(collection, args.query, problems)))
        # Scores of ranks and of words do not compare: all collections are searched in one way.
        by_words = any(collection.passages and not near for _, collection, near in known)
        found: list[tuple[float, DocsEntry, Passage]] = []
        for entry, collection, near in known:
            chosen = () if by_words else near
            best = await in_thread(lambda of=collection, near=chosen: of.best(args.query, args.most, near))
            found += [(score, entry, passage) for score, passage in best]
        found = sorted(found, key=lambda one: -one[0])[: args.most]
        texts = [_told(entry, passage) for _, entry, passage in found]
        if not texts:
            texts = ["No passage fits: try other words."]
        seen = observe(bool(found), "\n\n".join((*texts, *problems)))
        trusted = all(entry.trusted for _, entry, _ in found)
        return msgspec.structs.replace(seen, origin="tool" if trusted else "server")

    async def _near(self, collection: Collection, query: str, problems: list[str]) -> list[int]:
        if self.library.meanings is None:
            return []
        try:
            return await self.library.meanings.nearest(query, collection.texts, NEAR)
        except CloisterError as error:
            why = f"Only words were compared: {error.message}"
            problems += [why] if why not in problems else []
            return []


def _told(entry: DocsEntry, one: Passage) -> str:
    head = f"[{entry.name}: {one_line(one.path, 200)}:{one.first}-{one.last}]"
    return f"{head} {one.heading}\n{one.text}".replace(" \n", "\n", 1)
