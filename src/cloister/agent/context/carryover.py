"""Facts that no summary may lose, folded from the log: plan, touched files, messages of people, check results."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from cloister.core.events import (
    Advised,
    BaselineTaken,
    ChecksRan,
    Event,
    ModelReplied,
    PromptReceived,
    ProofTaken,
    ToolReturned,
)
from cloister.core.requests import ToolCall
from cloister.core.text import bounded, harmless, one_line
from cloister.feedback.compare import compare
from cloister.feedback.report import tell

_WRITES = frozenset({"write", "edit"})
_FILES_TOLD = 60
_RESULTS_TOLD, _RESULTS_KEPT = 12, 64
TELLING = frozenset(
    {Advised, ModelReplied, ToolReturned, PromptReceived, BaselineTaken, ChecksRan, ProofTaken}
)
"""The event types that facts come from."""
_TARGETS = ("command", "path", "pattern", "summary")


@dataclass(slots=True)
class Facts:
    """The facts of one attempt, up to some event."""

    plan: str = ""
    """The plan: of the planner, or the first text of the model."""
    lately: str = ""
    """The last text of the model."""
    files: dict[str, None] = field(default_factory=dict[str, None])
    """Paths in the order of their first change."""
    said: list[tuple[int, str, str]] = field(default_factory=list[tuple[int, str, str]])
    """Messages of people: event, author, text."""
    results: list[tuple[int, str, str, bool]] = field(default_factory=list[tuple[int, str, str, bool]])
    """The last results: event, tool, target, success."""
    checks: BaselineTaken | ChecksRan | ProofTaken | None = None
    _calls: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall])

    def take(self, event: Event, attempt: int) -> None:
        """Add one effective event."""
        match event.body:
            case ModelReplied() as body if body.attempt == attempt:
                self._calls = {call.id: call for call in body.calls}
                if text := body.text.strip():
                    self.plan = self.plan or text
                    self.lately = text
            case ToolReturned() as body if body.attempt == attempt:
                self._result(event.seq, body)
            case Advised(role="plan") as body if body.attempt == attempt:
                self.plan = body.text
            case Advised(role="review") as body if body.attempt == attempt and body.text:
                self.said.append((event.seq, "the reviewer", body.text))
            case PromptReceived() as body:
                self.said.append((event.seq, body.who, body.text))
            case BaselineTaken() as body:
                self.checks = body
            case (ChecksRan() | ProofTaken()) as body if body.attempt == attempt:
                self.checks = body
            case _:
                pass

    def touch(self, files: Iterable[str]) -> None:
        self.files.update(dict.fromkeys(files))

    def _result(self, seq: int, body: ToolReturned) -> None:
        call = self._calls.get(body.call)
        arguments = call.arguments if call else {}
        if body.tool in _WRITES and body.ok and isinstance(path := arguments.get("path"), str):
            self.touch([path])
        target = next((str(arguments[name]) for name in _TARGETS if name in arguments), "")
        self.results.append((seq, body.tool, target, body.ok))
        if len(self.results) > 2 * _RESULTS_KEPT:
            del self.results[:-_RESULTS_KEPT]

    def failures(self) -> str:
        """The newest check results, in words for a model."""
        match self.checks:
            case None:
                return "No checks have run yet."
            case BaselineTaken(diagnoses=found, comparison=compared):
                return tell(compared or compare(found, found), found)
            case (
                ChecksRan(comparison=comparison, diagnoses=found)
                | ProofTaken(comparison=comparison, diagnoses=found)
            ):
                return tell(comparison, found)

    def told(self, up_to: int, room_chars: int) -> str:
        """All facts in about `room_chars` characters, with messages and results up to event `up_to`."""
        part = max(200, room_chars // 5)
        names = [one_line(name, 200) for name in self.files]
        more = f" and {len(names) - _FILES_TOLD} more" if len(names) > _FILES_TOLD else ""
        parts = [f"Your plan:\n{bounded(harmless(self.plan), part)}" if self.plan else ""]
        if self.lately != self.plan:
            parts.append(f"You last said:\n{bounded(harmless(self.lately), part)}")
        messages = [f"- {who}: {text}" for seq, who, text in self.said if seq <= up_to]
        if messages:
            parts.append("Messages from people:\n" + bounded("\n".join(messages), 2 * part))
        parts.append("Files touched: " + (bounded(", ".join(names[:_FILES_TOLD]), part) or "none") + more)
        parts.append("Last check results:\n" + bounded(self.failures(), 2 * part))
        gone = [result for result in self.results if result[0] <= up_to][-_RESULTS_TOLD:]
        if gone:
            lines = "\n".join(
                f"- e{seq}: {tool} {one_line(target, 80)}{'' if ok else ' (failed)'}"
                for seq, tool, target, ok in gone
            )
            parts.append("Latest results that are no longer shown (use recall):\n" + bounded(lines, part))
        return "\n\n".join(text for text in parts if text)
