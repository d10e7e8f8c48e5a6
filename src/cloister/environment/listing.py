"""The files of a repository as detection sees them: names, and the bounded text of manifests. All of it is hostile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, cast

import msgspec
from msgspec import Meta

from cloister.core.repository import folders_of
from cloister.environment.documents import Unreadable, read_json, read_toml, read_yaml
from cloister.feedback import discover

Table = Mapping[str, object]

FILES = 20_000
"""Names in a listing; those nearest to the root are kept."""
NAME_CHARS = 400
TEXT_CHARS = 262_144
"""Longest manifest that is read; lock files are recognised by their names."""
TEXTS = 120
TOTAL_CHARS = 2_097_152
"""All names together, and all texts together."""
LISTING_BYTES = 16_777_216
"""A listing as JSON."""

_MANIFESTS = frozenset(
    (
        *(name for name in discover.WANTED if "/" not in name),
        *(".python-version", "Pipfile", "tox.toml", "hatch.toml"),
        *(".nvmrc", ".node-version", ".yarnrc.yml", "deno.json", "deno.jsonc"),
        *("go.work", "rust-toolchain", "rust-toolchain.toml", "meson.build", "configure.ac", "configure.in"),
        *(".java-version", ".ruby-version", "composer.json", "mix.exs"),
    )
)
_AT_ROOT = frozenset(
    (
        *discover.WANTED,
        *(
            "gradle/wrapper/gradle-wrapper.properties",
            ".tool-versions",
            "mise.toml",
            ".mise.toml",
            ".config/mise.toml",
            ".sdkmanrc",
        ),
        *("Dockerfile", ".devcontainer/Dockerfile", ".devcontainer/devcontainer.json", ".devcontainer.json"),
        *("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml"),
    )
)
_LOCKS = frozenset(("pnpm-lock.yaml", "yarn.lock", "Cargo.lock"))
"""Read in part: their format, or the names in them."""
_REQUIREMENTS = re.compile(
    r"(?:^|/)[^/]{0,60}requirements?[^/]{0,60}\.txt$|(?:^|/)requirements/[^/]{1,80}\.txt$"
)
_DEPTH = 4
_ASIDE = re.compile(
    r"(?:^|/)(?:node_modules|vendor|third[-_]?party|\.git|\.venv|venv|site-packages|testdata|fixtures)/"
)


Name = Annotated[str, Meta(max_length=NAME_CHARS)]
Text = Annotated[str, Meta(max_length=TEXT_CHARS + 1)]


class Listing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """File names, relative to the root with `/`, and the text of the manifests that `wanted` names."""

    files: Annotated[tuple[Name, ...], Meta(max_length=FILES)]
    texts: Annotated[dict[Name, Text], Meta(max_length=TEXTS)] = {}
    left_out: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    """Names beyond `FILES`."""


def wanted(files: Iterable[str]) -> list[str]:
    """The files whose text detection reads, the nearest to the root first."""
    found = [name for name in files if _is_manifest(name)]
    if folders := folders_of(files := list(files)):
        starts = tuple(f"{one}/" for one in folders)
        found = [name for name in files if name.startswith(starts) and _is_manifest(name.partition("/")[2])]
    found.sort(key=lambda name: (name.count("/"), name))
    return found[:TEXTS]


def _is_manifest(name: str) -> bool:
    if name.count("/") >= _DEPTH or _ASIDE.search(name):
        return False
    if name.startswith(discover.WORKFLOWS):
        return name.endswith((".yml", ".yaml"))
    last = name.rpartition("/")[2]
    return name in _AT_ROOT or last in _MANIFESTS or last in _LOCKS or bool(_REQUIREMENTS.search(name))


def collect(names: Iterable[str], read: Callable[[str], str | None]) -> Listing:
    """Make a bounded listing; `read` returns the beginning of a file, or None."""
    usable = [name for name in names if 0 < len(name) <= NAME_CHARS]
    if len(usable) > FILES or sum(map(len, usable)) > TOTAL_CHARS:
        usable.sort(key=lambda name: (name.count("/"), name))
    kept, size = 0, 0
    while kept < min(len(usable), FILES) and (size := size + len(usable[kept])) <= TOTAL_CHARS:
        kept += 1
    files = tuple(usable[:kept])
    texts: dict[str, str] = {}
    total = 0
    for name in wanted(files):
        text = (read(name) or "")[: TEXT_CHARS + (name.rpartition("/")[2] not in _LOCKS)]
        total += len(text)
        if text and total <= TOTAL_CHARS:
            texts[name] = text
    return Listing(files, texts, len(usable) - len(files))


@dataclass(slots=True)
class Files:
    """A listing with the reading of its manifests; collects the notes about those that cannot be read."""

    listing: Listing
    notes: dict[str, None] = field(default_factory=dict[str, None])
    _names: frozenset[str] = frozenset()
    _tables: dict[str, Table] = field(default_factory=dict[str, Table])

    def __post_init__(self) -> None:
        self._names = frozenset(self.listing.files)

    @property
    def names(self) -> frozenset[str]:
        return self._names

    def text(self, name: str) -> str:
        """The text of a manifest; empty if it is absent or too long."""
        text = self.listing.texts.get(name, "")
        if len(text) > TEXT_CHARS:
            self.notes[f"{name} is longer than {TEXT_CHARS:,} characters, so it is not read"] = None
            return ""
        return text

    def toml(self, name: str) -> Table:
        return self._table(name, read_toml)

    def json(self, name: str) -> Table:
        return self._table(name, read_json)

    def yaml(self, name: str) -> Table:
        return self._table(name, read_yaml)

    def _table(self, name: str, parse: Callable[[str], object]) -> Table:
        if name not in self._tables:
            found: object = {}
            try:
                found = parse(text) if (text := self.text(name)).strip() else {}
            except Unreadable:
                self.notes[f"{name} cannot be parsed, so it is not used"] = None
            self._tables[name] = cast("Table", found) if isinstance(found, dict) else {}
        return self._tables[name]


def table(value: object, *path: str) -> Table:
    """The table at a path of keys; empty if there is none."""
    for key in path:
        value = cast("Table", value).get(key) if isinstance(value, dict) else None
    return cast("Table", value) if isinstance(value, dict) else {}


def strings(value: object) -> list[str]:
    """The strings in a list, or the one string."""
    if isinstance(value, str):
        return [value]
    return (
        [one for one in cast("list[object]", value) if isinstance(one, str)]
        if isinstance(value, list)
        else []
    )


def string(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class Project:
    """One directory with manifests."""

    of: Files
    at: str = ""
    """The directory; empty for the root."""

    def path(self, name: str) -> str:
        return f"{self.at}/{name}" if self.at else name

    def has(self, name: str) -> bool:
        return self.path(name) in self.of.names

    def first(self, *names: str) -> str | None:
        """The first of these files that exists, by its full name."""
        return next((self.path(name) for name in names if self.has(name)), None)

    def text(self, name: str) -> str:
        return self.of.text(self.path(name))

    def head(self, name: str) -> str:
        """The beginning of a lock file."""
        return self.of.listing.texts.get(self.path(name), "")[:TEXT_CHARS]

    def toml(self, name: str) -> Table:
        return self.of.toml(self.path(name))

    def json(self, name: str) -> Table:
        return self.of.json(self.path(name))

    def below(self) -> Iterator[str]:
        """The names of the files in this directory and below, relative to it."""
        if not self.at:
            yield from self.of.listing.files
            return
        start = f"{self.at}/"
        yield from (name.removeprefix(start) for name in self.of.listing.files if name.startswith(start))
