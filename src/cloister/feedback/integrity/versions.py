"""Changed files before and after, from a unified diff that shows whole files."""

import re
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

import msgspec

T = TypeVar("T")
WHOLE = "--unified=1000000"
"""The option of `git diff` that shows whole files."""

_LINE_CHARS = 2_000
_TEST_PLACE = re.compile(
    r"(?:^|/)(?:(?:[\w.-]{1,80}\.)?tests?|__tests__|__mocks__|spec|specs|testdata|__snapshots__|fixtures|golden)/",
    re.IGNORECASE,
)
_TEST_FILE = re.compile(
    r"(?:^|/)(?:(?:run)?tests?|test[_-][^/]*|[^/]*_tests?|[^/]*Tests?|[^/]*Spec|[^/]*[._-](?:tests?|spec))(?:\.[A-Za-z]{1,4})?$|"
    r"(?:^|/)conftest\.py$"
)
_CODE = re.compile(
    r"\.(?:py|pyi|js|jsx|ts|tsx|mjs|cjs|mts|cts|go|rs|java|kt|scala|c|cc|cpp|cxx|h|hpp|rb|php|swift|sh)$"
)
_DOCUMENTATION = re.compile(
    r"\.(?:md|markdown|rst|adoc|asciidoc|png|jpe?g|gif|webp|ico|pdf)$|"
    r"(?:^|/)(?:(?:LICEN[CS]E|COPYING|NOTICE|AUTHORS|CONTRIBUTORS|CHANGE(?:S|LOG)|HISTORY|NEWS|README)(?:\.txt)?|CODEOWNERS)$",
    re.IGNORECASE,
)
_NO_CODE = re.compile(
    r"\.(?:txt|csv|tsv|json[c5l]?|ya?ml|toml|ini|cfg|conf|lock|xml|sum|mod|work|gradle|kts|properties|env|css|s[ac]ss|less|svg|"
    r"cmake|in|am|ac|mk|map|snap|log|gitignore|gitattributes|editorconfig|dockerignore|npmignore)$|(?:^|/)(?:\.[^/.]+|\w*Makefile|\w*Dockerfile|Jenkinsfile|Gemfile|Podfile|Pipfile|Procfile|Vagrantfile|gradlew|mvnw)$",
    re.IGNORECASE,
)


class Version(msgspec.Struct, frozen=True):
    """One file on the base and now."""

    path: str
    before: str | None
    """None if the base does not have the file."""
    after: str | None
    """None if the file was deleted."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def new_lines(self) -> list[str]:
        """The lines that `before` does not have, ignoring white space; long lines are cut."""
        known = {" ".join(line.split()) for line in (self.before or "").split("\n")}
        lines = (self.after or "").split("\n")
        return [line[:_LINE_CHARS] for line in lines if " ".join(line.split()) not in known]


def is_test_place(path: str) -> bool:
    """True if the file is in a directory of tests or test data."""
    return _TEST_PLACE.search(path) is not None


def is_test_file(path: str) -> bool:
    """True if the file is named like a test file."""
    return _TEST_FILE.search(path) is not None


def is_test_code(path: str) -> bool:
    """True if the file is source code in which tests are written, not data."""
    return _CODE.search(path) is not None


def is_documentation(path: str) -> bool:
    """True if the file is for readers only: no check can depend on it."""
    return _DOCUMENTATION.search(path) is not None


def is_product(path: str) -> bool:
    """True if the file may be code of the product, in whatever language, also compiled."""
    if is_test_file(path) or is_test_place(path):
        return False
    return is_test_code(path) or not (is_documentation(path) or _NO_CODE.search(path))


def has_tests(path: str) -> bool:
    """True if the file may hold tests. Rust has tests beside the code."""
    return is_test_file(path) or is_test_place(path) or path.endswith(".rs")


def is_allowed(path: str, patterns: Collection[str]) -> bool:
    """True if the task may change this file: it, or a directory above it, matches one of the patterns."""
    parts = path.split("/")
    places = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    bare = [pattern.removeprefix("./").rstrip("/") for pattern in patterns]
    return any(fnmatchcase(place, pattern) for place in places for pattern in bare)


def inserted(old: Sequence[T], new: Sequence[T]) -> list[int] | None:
    """The indexes of the items that `new` adds to `old`; None if an item of `old` is missing or moved."""
    added: list[int] = []
    at = 0
    for index, item in enumerate(new):
        if at < len(old) and item == old[at]:
            at += 1
        else:
            added.append(index)
    return added if at == len(old) else None


def versions(diff: str) -> tuple[Version, ...]:
    """Every text file in the output of `git diff --unified=1000000`; ignores text that is not a diff."""
    return tuple(one for section in _sections(diff) if (one := _version(section)) is not None)


def _sections(diff: str) -> Iterator[list[str]]:
    current: list[str] = []
    for line in diff.split("\n"):
        if line.startswith("diff --git "):
            if current:
                yield current
            current = [line]
        elif current:
            current.append(line)
    if current:
        yield current


def _version(section: list[str]) -> Version | None:
    old = new = None
    start = len(section)
    for index, line in enumerate(section):
        if line.startswith("--- "):
            old = _path(line)
        elif line.startswith("+++ "):
            new = _path(line)
        elif line.startswith("@@ "):
            start = index + 1
            break
    path = new or old
    if path is None:
        return None
    before: list[str] = []
    after: list[str] = []
    for line in section[start:]:
        mark, text = line[:1], line[1:]
        if mark in (" ", "-"):
            before.append(text)
        if mark in (" ", "+"):
            after.append(text)
    return Version(
        path, "\n".join(before) if old is not None else None, "\n".join(after) if new is not None else None
    )


def _path(line: str) -> str | None:
    name = line[4:].rstrip("\t").strip('"')
    return None if name == "/dev/null" else name[2:]
