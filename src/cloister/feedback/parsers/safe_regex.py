"""Regular expressions that others wrote, run by an engine whose time grows with the text and nothing else."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol, cast

_MEMORY_BYTES = 1_048_576
_PATTERN_CHARS = 2_000


class Groups(Protocol):
    """A match."""

    def groups(self) -> Sequence[str | None]: ...


class Pattern(Protocol):
    """A compiled expression."""

    def search(self, text: str) -> Groups | None: ...


def compiled(expression: str) -> Pattern | None:
    """None when the engine does not take it: look-around and back-references cannot be had in linear time."""
    if len(expression) > _PATTERN_CHARS:
        return None
    engine = cast(Any, import_module("re2"))  # only repositories with problem matchers pay for it
    options = engine.Options()
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    try:
        return cast(Pattern, engine.compile(expression, options))
    except (engine.error, UnicodeError):
        return None
