"""A syntax tree to the simple commands in it, wherever they stand. Pure."""

import re
from dataclasses import dataclass, field
from typing import Any, cast

from cloister.agent.shell.words import Node, word_text
from cloister.policy.api import HOLE

Argv = tuple[str, ...]

_DEPTH = 200
_STEERING = frozenset(
    {
        "BASH_ENV",
        "ENV",
        "PATH",
        "IFS",
        "PROMPT_COMMAND",
        "PS4",
        "SHELLOPTS",
        "BASHOPTS",
        "EDITOR",
        "VISUAL",
        "PAGER",
        "MANPAGER",
        "LESSOPEN",
        "SHELL",
        "NODE_OPTIONS",
        "PERL5OPT",
        "PERL5LIB",
        "RUBYOPT",
        "PYTHONSTARTUP",
        "PYTHONHOME",
    }
)
"""Variables that decide what else is run."""
_COUNTING = frozenset({"ArithmExp", "ArithmCmd", "LetClause", "CStyleLoop"})
_COMPARING = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v"})
_TAKING = frozenset({"read", "mapfile", "readarray", "getopts", "printf", "unset"})
_SUBSCRIPT = re.compile(r"\[[^\]]*(?:\$\(|`)")
_STEERING_FAMILIES = ("LD_", "GIT_", "BASH_FUNC_", "DYLD_")


@dataclass(slots=True)
class Walked:
    """What one text would run."""

    calls: list[Argv] = field(default_factory=list[Argv])
    """Words of each simple command, without assignments before it."""
    unclear: str | None = None
    counts: bool = False
    """It evaluates text as numbers, which runs what stands in subscripts in that text."""
    takes: bool = False
    """It puts text into variables that is not written out in it."""

    def doubt(self, why: str) -> None:
        self.unclear = self.unclear or why


def walk(tree: Node) -> Walked:
    """Every simple command of `tree`."""
    walked = Walked()
    _visit(tree, walked, 0)
    if walked.counts and walked.takes:
        walked.doubt("it counts with text that is not known")
    return walked


def steers(name: str) -> bool:
    """Whether setting the variable `name` can change what a command runs."""
    return name in _STEERING or name.startswith(_STEERING_FAMILIES)


def _visit(value: object, walked: Walked, depth: int) -> None:
    if depth > _DEPTH:
        walked.doubt("it is nested too deeply")
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            _visit(item, walked, depth + 1)
    elif isinstance(value, dict):
        node = cast("dict[str, Any]", value)
        _node(node, walked)
        for inner in node.values():
            if isinstance(inner, dict | list):
                _visit(cast("object", inner), walked, depth + 1)


def _flags(node: Node, walked: Walked) -> None:
    kind = node.get("Type")
    walked.counts = walked.counts or kind in _COUNTING or node.get("Op") in _COMPARING or "Index" in node
    walked.takes = walked.takes or kind in ("CmdSubst", "ProcSubst")
    if kind in ("Lit", "SglQuoted") and _SUBSCRIPT.search(str(node.get("Value", ""))):
        walked.doubt("it may hide a command in a subscript")


def _node(node: Node, walked: Walked) -> None:
    _flags(node, walked)
    match node.get("Type"):
        case "CallExpr":
            for assign in cast("list[Node]", node.get("Assigns") or []):
                _assign(assign, walked)
            words = tuple(word_text(word) for word in cast("list[Node]", node.get("Args") or []))
            if words:
                walked.calls.append(words)
                walked.takes = walked.takes or words[0] in _TAKING
        case "DeclClause":
            for assign in cast("list[Node]", node.get("Args") or []):
                _assign(assign, walked)
        case "FuncDecl":
            walked.doubt("it defines a function")
        case "TestDecl":
            walked.doubt("it is no bash")
        case "ParamExp":
            if node.get("Exp") and (node["Exp"].get("Op") == "@P" or "@" in str(node["Exp"].get("Op", ""))):
                walked.doubt("it expands a variable as a prompt")
        case _:
            pass


def _expands(value: object) -> bool:
    """Whether a word takes text from a variable."""
    if not isinstance(value, dict):
        return False
    node = cast("Node", value)
    return node.get("Type") == "ParamExp" or any(_expands(part) for part in node.get("Parts") or ())


def _assign(assign: Node, walked: Walked) -> None:
    name = assign.get("Name")
    if _expands(assign.get("Value")):
        walked.takes = True
    if not isinstance(name, dict):
        value = assign.get("Value")
        text = word_text(cast("Node", value)) if isinstance(value, dict) else ""
        if HOLE in text:
            walked.doubt("it sets a variable that is not named")
        return
    named = str(cast("Node", name).get("Value", ""))
    if steers(named):
        walked.doubt(f"it sets {named}")
