"""Files before and after, out of a unified diff that shows them whole."""

from collections.abc import Iterator

import msgspec

WHOLE = "--unified=1000000"
"""What makes git show files whole."""


class Version(msgspec.Struct, frozen=True):
    """One file on the base and now."""

    path: str
    before: str | None
    """None when the base has no such file."""
    after: str | None
    """None when it is gone."""


def versions(diff: str) -> tuple[Version, ...]:
    """Every text file in the output of `git diff --unified=1000000`. Whatever is not a diff is left out."""
    found: list[Version] = []
    for section in _sections(diff):
        version = _version(section)
        if version is not None:
            found.append(version)
    return tuple(found)


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
