"""The verbs of added tools: what runs would have, and trying one. See `api` for the others."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from cloister.app.verbs.declare import BUILD_SECONDS, needs
from cloister.core.events import Effect

ToolKind = Literal["command", "function", "server"]


class ToolInfo(msgspec.Struct, frozen=True):
    """A declaration as lists show it."""

    name: str
    kind: ToolKind
    """A declared command, a function of an installed package, or an MCP server."""
    layer: Literal["organisation", "repository", "installed"]
    source: str
    """The file, or the package."""
    where: str
    """`sandbox`, `host`, or the host and port of a server's address."""
    description: str
    rule: str
    """What rules call it."""
    effect: Effect
    """What the rules say of a call; those of some arguments may differ."""


class ToolList(msgspec.Struct, frozen=True):
    """The tools that a run would have beside the built-in ones."""

    tools: tuple[ToolInfo, ...]
    problems: tuple[str, ...]
    """One sentence for each declaration that cannot be used."""


class ToolTried(msgspec.Struct, frozen=True):
    """What one call returned."""

    ok: bool
    text: str
    """Untrusted."""
    exit_code: int | None
    seconds: float
    rule: str
    """The rule that decided."""


class ToolVerbs(Protocol):
    """Tools that the settings, a repository and installed packages add to runs."""

    @needs("operator", "GET tools")
    async def list(self, repo: str | None = None) -> ToolList:
        """The tools of the settings, of installed packages, and of the HEAD of a directory. No server is started.

        Raises `UserError` (`no_repository`).
        """
        ...

    @needs("admin", "POST tools/{name}/try", seconds=BUILD_SECONDS)
    async def call(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        repo: str | None = None,
        ref: str | None = None,
    ) -> ToolTried:
        """Call one as a run would, in a sandbox of the repository's environment; a tool of a server is `SERVER.TOOL`.

        Raises `UserError` (`no_such_tool`, `bad_arguments`, `denied`, `no_repository`, `unknown_ref`).
        """
        ...
