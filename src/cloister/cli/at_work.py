"""What each of several attempts does at this moment, for the one line at the bottom of the screen. Pure."""

from cloister.cli.pieces import Piece, Status
from cloister.core import events as e
from cloister.core.text import one_line

_NAME = 12
"""What is shown of a tool's name, which the model chose."""


class AtWork:
    """A fold of one run's items, in their order."""

    def __init__(self) -> None:
        self._doing: dict[int, str] = {}
        self._tools: dict[tuple[int, str], str] = {}
        """Attempt and call → its tool."""

    def over(self, pieces: tuple[Piece, ...], item: e.Event | e.Delta) -> tuple[Piece, ...]:
        """`pieces` of `item`, with one status for all attempts at work in place of the last one's own."""
        self._take(item)
        if not self._doing:
            return pieces
        told = "  ".join(f"[{number}] {what}" for number, what in sorted(self._doing.items()))
        return (*(piece for piece in pieces if not isinstance(piece, Status)), Status(told))

    def _take(self, item: e.Event | e.Delta) -> None:
        match item:
            case e.Event():
                self._event(item.body)
            case e.ModelText():
                self._now(item.attempt, "writes")
            case e.CommandOutput() if (item.attempt, item.source) not in self._tools:
                self._now(item.attempt, "checks")
            case _:
                pass

    def _event(self, body: e.AnyBody) -> None:
        match body:
            case e.AttemptStarted():
                self._doing[body.attempt] = "begins"
            case e.ModelReplied():
                for call in body.calls:
                    self._tools[body.attempt, call.id] = one_line(call.name, _NAME)
                self._now(body.attempt, "acts")
            case e.ActionDecided():
                self._now(body.attempt, self._tools.get((body.attempt, body.call), "acts"))
            case e.AskRaised():
                self._now(body.attempt, "asks you")
            case e.TurnEnded():
                self._now(body.attempt, "thinks")
            case e.AttemptEnded():
                self._doing.pop(body.attempt, None)
            case e.RunClaimed() | e.RunFinished():
                self._doing.clear()
            case _:
                pass

    def _now(self, attempt: int, what: str) -> None:
        if attempt in self._doing:
            self._doing[attempt] = what
