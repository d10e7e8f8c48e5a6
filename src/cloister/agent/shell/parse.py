"""Find the commands in a command line: parse, unwrap, parse again, to a limited depth."""

import msgspec

from cloister.agent.shell._spawn import syntax_tree
from cloister.agent.shell.syntax import Argv, Node, walk
from cloister.agent.shell.unwrap import unwrap
from cloister.policy.api import HOLE, Commands

_TEXT_CHARS = 65_536
_PARSES = 16
"""Limit of nested texts, as in `sh -c 'sh -c …'`."""
_COMMANDS = 1_000
_WRAPPERS = 8
"""Limit of wrappers around one command, as in `sudo nice env …`."""

_tree = msgspec.json.Decoder(dict).decode


async def read_commands(line: str) -> Commands:
    """Every simple command that bash would run for `line`, as far as the text shows it."""
    found: dict[tuple[str, ...], None] = {}
    unclear: str | None = None
    texts = [line]
    for parsed in range(_PARSES + 1):
        if not texts:
            break
        if parsed == _PARSES:
            unclear = unclear or "there are too many texts within texts"
            break
        calls, why = await _calls(texts.pop())
        unclear = unclear or why
        for argv in calls:
            more, why = _follow(argv, found)
            texts.extend(more)
            unclear = unclear or why
        if len(found) > _COMMANDS:
            return Commands(tuple(found), "it holds too many commands")
    return Commands(tuple(found), unclear)


async def _calls(text: str) -> tuple[list[Argv], str | None]:
    if len(text) > _TEXT_CHARS or HOLE in text:
        return [], "it is too long or not text"
    data = await syntax_tree(text)
    if data is None:
        return [], "it cannot be parsed"
    try:
        tree: Node = _tree(data)
    except (msgspec.DecodeError, RecursionError):
        return [], "it is nested too deeply"
    walked = walk(tree)
    return walked.calls, walked.unclear


def _follow(argv: Argv, found: dict[tuple[str, ...], None]) -> tuple[list[str], str | None]:
    """Add `argv` and the commands it wraps. Return shell texts to parse, and why something is unknown."""
    texts: list[str] = []
    unclear: str | None = None
    layer = [argv]
    for _ in range(_WRAPPERS):
        inner: list[Argv] = []
        for one in layer:
            inside = unwrap(one)
            found[inside.spellings] = None
            texts.extend(inside.scripts)
            inner.extend(inside.commands)
            unclear = unclear or inside.unclear
        layer = inner
        if not layer:
            return texts, unclear
    return texts, unclear or "there are too many wrappers around a command"
