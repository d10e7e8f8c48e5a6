"""Taint: whether a model has read untrusted text. After that, high-impact actions need the approval of a person.

Trusted: messages to the run, its base commit, the template, and output derived from them. Untrusted: the text of an
issue, the answer of a tool server and, once the proxy has allowed a connection, all tool output, because any file may
then contain downloaded text.
"""

import msgspec

from cloister.core.events import (
    AnyBody,
    ConnectionDecided,
    Delegated,
    Inherited,
    PromptReceived,
    RunAdmitted,
    ToolReturned,
)
from cloister.core.log import Journal
from cloister.core.requests import Origin

UNTRUSTED: frozenset[Origin] = frozenset({"issue", "review", "ci", "web", "server"})


class Provenance:
    """What one attempt has read so far; None stands for all attempts. Each event is read once."""

    def __init__(self, attempt: int | None, journal: Journal) -> None:
        self._attempt = attempt
        self._journal = journal
        self._seen = 0
        self._connected = False
        self._untrusted = False

    @property
    def untrusted(self) -> bool:
        """True if untrusted text was read, or may have been."""
        self._go_on()
        return self._untrusted or self._connected

    def origin(self, own: Origin) -> Origin:
        """The source of text that a tool has just returned, which names `own` as its source."""
        self._go_on()
        return "web" if self._connected and own not in UNTRUSTED else own

    def _go_on(self) -> None:
        events = self._journal.events
        for event in events[self._seen :]:
            self._read(event.body)
        self._seen = len(events)

    def _read(self, body: AnyBody) -> None:
        match body:
            case Inherited(body=before):
                # A forked run inherits what its parent has read.
                self._read(_as_read_by(self._attempt, before))
            case ConnectionDecided(effect="allow"):
                self._connected = True
            case RunAdmitted(request=request):
                self._untrusted = self._untrusted or request.origin in UNTRUSTED
            case PromptReceived(origin=origin):
                self._untrusted = self._untrusted or origin in UNTRUSTED
            case Delegated(attempt=attempt, untrusted=untrusted) if self._attempt in (None, attempt):
                self._untrusted = self._untrusted or untrusted
            case ToolReturned(attempt=attempt, origin=origin) if self._attempt in (None, attempt):
                self._untrusted = self._untrusted or origin in UNTRUSTED
            case _:
                pass


def _as_read_by(attempt: int | None, body: AnyBody) -> AnyBody:
    """Every attempt counts as having read what the run inherited."""
    if isinstance(body, ToolReturned) and attempt is not None:
        return msgspec.structs.replace(body, attempt=attempt)
    return body
