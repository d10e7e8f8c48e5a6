"""Versions that files beside the manifests name: version managers."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from cloister.environment.listing import Files, string, strings, table

_NAMES = {
    "nodejs": "node",
    "golang": "go",
    "python": "python",
    "node": "node",
    "go": "go",
    "java": "java",
    "ruby": "ruby",
    "rust": "rust",
    "php": "php",
    "elixir": "elixir",
    "pnpm": "pnpm",
    "yarn": "yarn",
    "bun": "bun",
}
_MISE = ("mise.toml", ".mise.toml", ".config/mise.toml")


class Named(NamedTuple):
    """A version, and the file that names it."""

    text: str = ""
    file: str = ""


class Hints:
    """The versions that a repository names for tools as a whole; the first file that names one decides."""

    def __init__(self, files: Files) -> None:
        self._versions: dict[str, Named] = {}
        for tool, version, file in (*_tool_versions(files), *_mise(files), *_sdkman(files)):
            if version and tool in _NAMES:
                self._versions.setdefault(_NAMES[tool], Named(version, file))

    def version(self, tool: str) -> Named:
        """The version that is named for a tool, or an empty one."""
        return self._versions.get(tool, Named())


def _tool_versions(files: Files) -> Iterator[tuple[str, str, str]]:
    for line in files.text(".tool-versions").splitlines():
        words = line.split("#")[0].split()
        if len(words) > 1:
            yield words[0], words[1], ".tool-versions"


def _mise(files: Files) -> Iterator[tuple[str, str, str]]:
    for name in _MISE:
        for tool, value in table(files.toml(name), "tools").items():
            given = string(value) or string(table(value).get("version")) or next(iter(strings(value)), "")
            yield re.sub(r"^core:", "", tool), given, name


def _sdkman(files: Files) -> Iterator[tuple[str, str, str]]:
    for line in files.text(".sdkmanrc").splitlines():
        tool, _, version = line.split("#")[0].partition("=")
        yield tool.strip(), version.strip(), ".sdkmanrc"
