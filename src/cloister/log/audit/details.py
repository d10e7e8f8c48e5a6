"""What the audit says about an event: one table of fields per kind. Pure: event in, bounded detail out.

Guests and models choose many of these texts, so each is cut; the event holds the whole text, and the entry's
hash over the log covers it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from cloister.core import events as e
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.requests import FileChange
from cloister.core.text import bounded
from cloister.log.audit.entry import encode, text_of

TEXT_CHARS = 400
LIST_BYTES = 16_384
"""The size of a list of files or checks in a detail; a longer list ends with the number of items left out."""

Detail = Mapping[str, object]
Field = str | tuple[str, Callable[[Any], object]]
"""An attribute of the event, or a name and a function of the event."""


_IF_ANY = frozenset(("parts", "folder", "built_at", "reached"))
"""Fields that came later, and that the same event of an older log does not have."""


class Fact(NamedTuple):
    """An event as an entry states it."""

    kind: str
    who: str | None
    """None: the person who asked for the run."""
    detail: str


def fact(body: e.AnyBody) -> Fact | None:
    """Return what is entered for `body`; None when it is neither an action nor a decision."""
    fields = AUDITED.get(type(body))
    if fields is None:
        return None
    who: str | None = getattr(body, "who", None)
    detail = {
        name: _plain(getattr(body, name) if isinstance(field, str) else field[1](body))
        for field in fields
        for name in (field if isinstance(field, str) else field[0],)
        if name not in _IF_ANY or getattr(body, name)
    }
    return Fact(type(body).__name__, None if who is None else _cut(who), text_of(detail))


def _plain(value: object) -> object:
    if isinstance(value, str):
        return _cut(value)
    return _listed(cast("Sequence[object]", value)) if isinstance(value, tuple | list) else value


def _cut(text: str) -> str:
    return bounded(text, TEXT_CHARS)


def _listed(items: Sequence[object]) -> Sequence[object]:
    """Return as many of `items` as fit, and then how many were left out."""
    room = LIST_BYTES
    small: list[object] = []
    for item in items:
        small.append(_cut(item) if isinstance(item, str) else item)
        room -= len(encode(small[-1]))
        if room < 0:
            return [*small[:-1], {"left_out": len(items) - len(small) + 1}]
    return small


def _of_request(name: str) -> tuple[str, Callable[[e.RunAdmitted], object]]:
    return name, lambda body: getattr(body.request, name)


def _size(body: e.ModelReplied | e.ToolReturned | e.PromptReceived | e.Advised) -> int:
    return len(body.text.encode(errors="replace"))


def _now(body: e.ChecksRan | e.ProofTaken | e.AttemptEnded) -> Detail:
    comparison: Comparison = body.comparison
    return {"red": comparison.red, "passed": comparison.passed, "green": comparison.green}


def _checks(body: e.BaselineTaken | e.ChecksRan | e.ProofTaken) -> Sequence[object]:
    return [_check(diagnosis) for diagnosis in body.diagnoses]


def _check(diagnosis: Diagnosis) -> Detail:
    return {
        "check": _cut(diagnosis.check),
        "exit_code": diagnosis.exit_code,
        "seconds": diagnosis.seconds,
        "killed": diagnosis.killed,
    }


def _file(file: FileChange) -> Detail:
    return {"path": _cut(file.path), "added": file.added, "removed": file.removed, "status": file.status}


def _files(body: e.ChangeMade) -> Sequence[object]:
    return [_file(file) for file in body.files]


def _tools(body: e.ModelReplied) -> Sequence[object]:
    return [call.name for call in body.calls]


def _pinned(body: e.SkillsPinned) -> Sequence[object]:
    return [
        {"name": one.name, "layer": one.layer, "source": _cut(one.source), "digest": one.digest}
        for one in body.skills
    ]


def _offered(body: e.ToolsOffered) -> Sequence[object]:
    return [
        {"name": tool.name, "source": _cut(tool.source), "digest": tool.digest[:16]} for tool in body.tools
    ]


def _request_line(body: e.RequestDecided) -> str:
    return f"{body.method} {body.path}"


def _best_first(body: e.AttemptsRanked) -> Sequence[object]:
    return [score.attempt for score in body.scores]


def _attribute(name: str) -> Callable[[e.AnyBody], object]:
    return lambda body: getattr(body, name)


_ADDRESS = ("sandbox", "host", "port")
_CHECKS, _NOW, _BYTES = ("checks", _checks), ("now", _now), ("bytes", _size)

AUDITED: dict[type[e.AnyBody], tuple[Field, ...]] = {
    # What people do.
    e.RunAdmitted: (
        *(_of_request(name) for name in ("prompt", "repo", "ref", "checks", "model")),
        ("attempts", lambda body: body.request.n),
        *(_of_request(name) for name in ("tier", "template", "allow_hosts")),
    ),
    e.RunContinued: ("origin",),
    e.PromptReceived: ("text", _BYTES),
    e.StopRequested: (),
    e.InterruptRequested: (),
    e.PauseRequested: (),
    e.ResumeRequested: (),
    e.RewindRequested: ("to",),
    e.SandboxUsed: ("attempt", "sandbox", "how", "what"),
    e.ModelChosen: ("model",),
    e.BudgetExtended: ("level", "name", "what", "amount", "attempt"),
    e.AskRaised: ("ask", "attempt", "action", "deadline", "default"),
    e.AskAnswered: ("ask", "answer"),
    e.QuestionAsked: ("question", "attempt", "text", "default", "deadline"),
    e.QuestionAnswered: ("question", "text"),
    # The course of the run.
    e.RunClaimed: ("owner", "epoch"),
    e.BaseFixed: ("commit", "branch", "parts"),
    e.PolicyFixed: ("layers", "limited"),
    e.EnvironmentPrepared: (
        "template",
        "built",
        "seconds",
        "plan",
        "problem",
        "commit",
        "built_at",
        "reached",
    ),
    e.SkillsPinned: ("attempt", ("skills", _pinned), "problems"),
    e.Delegated: ("attempt", "parent", "task", "commit", "model"),
    e.DelegationEnded: ("attempt", "outcome", "commit"),
    e.NoteProposed: ("attempt", "text", "written"),
    e.InstructionsGiven: ("attempt", "path", "digest"),
    e.ToolsOffered: ("attempt", ("tools", _offered), "problems"),
    e.SandboxOpened: ("sandbox", "attempt", "template", "isolation"),
    e.SandboxClosed: ("sandbox", "reason"),
    e.ServiceFailed: ("sandbox", "problem"),
    e.AttemptEnded: ("attempt", "outcome", "reason", "commit", _NOW),
    e.RunFinished: ("outcome", "reason", "attempt", "blame"),
    # Choices.
    e.AttemptForked: ("attempt", "parent", ("at", _attribute("at_seq")), "reason"),
    e.AttemptsRanked: (("best_first", _best_first), "tied"),
    e.JudgeSpoke: ("model", "tied", "choice"),
    e.ModelSwitched: (
        "attempt",
        ("from", _attribute("from_model")),
        ("to", _attribute("to_model")),
        "reason",
    ),
    e.BudgetSpent: ("attempt", "level", "name", "what", "spent", "limit"),
    e.Advised: ("attempt", "role", "model", _BYTES),
    # The work.
    e.PatchChosen: ("attempt", "number", "rule", "path", "why"),
    e.ModelReplied: ("attempt", "step", "model", "usage", "seconds", _BYTES, ("calls", _tools), "cost"),
    e.ModelSpent: ("attempt", "purpose", "model", "usage", "seconds", "cost"),
    e.ModelFailed: ("attempt", "code", "message"),
    e.ActionDecided: ("attempt", "call", "action", "effect", "rule"),
    e.ToolReturned: ("attempt", "call", "tool", "ok", "exit_code", _BYTES, "seconds"),
    e.BaselineTaken: (_CHECKS, "known"),
    e.ChecksRan: ("attempt", _CHECKS, _NOW),
    e.ProofTaken: ("attempt", "commit", _CHECKS, _NOW),
    # What leaves the sandbox.
    e.ConnectionDecided: (*_ADDRESS, "effect", "rule", "credential"),
    e.RequestDecided: (*_ADDRESS, ("request", _request_line), "effect", "rule", "credential"),
    e.ConnectionClosed: (*_ADDRESS, "sent_bytes", "received_bytes", "seconds", "credential"),
    e.ChangeMade: ("branch", "commit", ("files", _files), "parts"),
    e.ChangeDelivered: ("where", "branch", "url", "folder"),
    e.DeliveryFailed: ("where", "reason", "folder"),
}
"""Events that are an action or a decision, and what their entries say, in this order."""

AUDITED_KINDS = frozenset(kind.__name__ for kind in AUDITED)
