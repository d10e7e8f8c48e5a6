"""The tool calls of a program over ACP: what the policy is asked about each, and what the log and people see of it. Pure."""

import shlex
from dataclasses import dataclass, field

from cloister.agent.tools.bash import BASH
from cloister.agent.tools.files import EDIT, READ, WRITE
from cloister.core.computer import WORK_DIR
from cloister.core.requests import ToolCall
from cloister.core.text import bounded, inert, one_line, whole
from cloister.harnesses.acp.messages import Update, contents, known, result_text

OWN = "harness"
"""What rules call a tool of a harness that is neither a command nor a file: `tool:harness:TITLE`."""
_TARGET_CHARS = 20_000
_PATHS = 40
_PENDING_CHARS = 20_000
"""What is kept of the text of a call that has not ended."""
_UNTOLD_CHARS = 1_000
"""The same, before it is known what the call does: nothing limits how many of these a program announces."""
_ID_CHARS = 80
_PATH_KEYS = ("file_path", "filePath", "filepath", "path", "abs_path", "notebook_path")
_CHANGING = frozenset({"edit", "delete", "move"})


@dataclass(slots=True)
class Seen:
    """One tool call, as far as the program has told of it."""

    id: str
    title: str = ""
    kind: str = "other"
    status: str = "pending"
    line: str = ""
    """The command line in its input."""
    has_input: bool = False
    paths: list[str] = field(default_factory=list[str])
    named: tuple[str, ...] = ()
    """The paths in its input."""
    text: str = ""
    """Its result."""
    call: ToolCall | None = None
    """How it is in the log; None before it is recorded."""
    decided: bool = False
    allowed: tuple[tuple[str, str], ...] = ()
    """The actions that were allowed. Some programs ask twice about one call: for its command, and for a path in it."""
    denied: str = ""
    """Why it is not allowed; empty if it is."""
    started: float = 0.0
    returned: bool = False
    """True once its result is in the log; later updates say nothing new."""

    def take(self, update: Update) -> None:
        """Add what an update says."""
        self.title = one_line(whole(update.title), 400) if update.title else self.title
        self.kind = update.kind or self.kind
        self.status = update.status or self.status
        if given := known(update.raw_input):
            # Not the input itself: as objects it may take twenty times its size.
            self.has_input, self.line = True, _line(given.get("command") or given.get("cmd"))
            self.named = tuple(
                bounded(value, _TARGET_CHARS)
                for key in _PATH_KEYS
                if isinstance(value := given.get(key), str)
            )
        found = [one.path for one in update.locations or ()]
        found += [one.path for one in contents(update) if one.type == "diff"]
        self.paths = list(dict.fromkeys((*self.paths, *found)))[:_PATHS]
        most = None if self.is_over else _PENDING_CHARS if self.is_told else _UNTOLD_CHARS
        self.text = (result_text(update) or self.text)[:most]

    @property
    def is_told(self) -> bool:
        """True if it is known what the call does. Many programs announce a call before they say that, or say it in parts."""
        told = self.line if self.kind == "execute" else self.has_input or self.paths
        return bool(told) or self.is_over

    @property
    def is_over(self) -> bool:
        return self.status in ("completed", "failed")

    @property
    def may_change_files(self) -> bool:
        return self.kind not in ("read", "search", "think", "fetch", "switch_mode")

    def actions(self) -> tuple[tuple[str, str], ...]:
        """What the policy is asked: pairs of a tool's rule name and its target."""
        if self.kind == "execute" or (self.kind == "other" and self.line):
            return ((BASH.name, self.line or self.title),)
        paths = list(dict.fromkeys(map(_inside, (*self.paths, *self.named))))
        if self.kind in _CHANGING and paths:
            return tuple((name, path) for path in paths for name in (EDIT.name, WRITE.name))
        if self.kind == "read" and paths:
            return tuple((READ.name, path) for path in paths)
        return ((OWN, self.title or self.kind),)

    def recorded(self, step: int) -> ToolCall:
        """The call as the log has it."""
        (name, target), *_ = self.actions()
        key = "command" if name == BASH.name else "path" if name in (READ.name, EDIT.name) else "title"
        arguments: dict[str, object] = {key: target} if key == "title" else {key: target, "title": self.title}
        return ToolCall(f"{step}-{one_line(self.id, _ID_CHARS)}", name, arguments)


def _line(given: object) -> str:
    """A command, which is a text or words."""
    if isinstance(given, list):
        given = shlex.join(map(str, given))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return _text(given) if isinstance(given, str) else ""


def _inside(path: str) -> str:
    """A path as rules have it, relative to the work directory."""
    return _text(path).removeprefix(f"{WORK_DIR}/")


def _text(text: str) -> str:
    return bounded(inert(whole(text)), _TARGET_CHARS)
