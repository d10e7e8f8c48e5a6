"""What the audit says of an event. Pure: event in, bounded detail out; most of it by name, none of it by heart.

Guests and models choose many of these texts, so each is cut; the whole of it is in the event, which the
entry's hash over the log covers.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, assert_never

from cloister.core import events as e
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.requests import FileChange
from cloister.core.text import bounded
from cloister.log.audit.entry import encode, text_of

TEXT_CHARS = 400
LIST_BYTES = 16_384
"""What a list of files or checks may take; how many were left out is said."""

Detail = Mapping[str, object]

_OfPeople = (
    e.RunAdmitted
    | e.RunContinued
    | e.PromptReceived
    | e.StopRequested
    | e.RewindRequested
    | e.ModelChosen
    | e.BudgetExtended
    | e.AskRaised
    | e.AskAnswered
)
_OfTheRun = (
    e.RunClaimed
    | e.BaseFixed
    | e.PolicyFixed
    | e.SandboxOpened
    | e.SandboxClosed
    | e.AttemptEnded
    | e.RunFinished
)
_OfChoices = e.AttemptForked | e.AttemptsRanked | e.JudgeSpoke | e.ModelSwitched | e.BudgetSpent
_OfTheWork = e.ModelReplied | e.ModelSpent | e.ModelFailed | e.ActionDecided | e.ToolReturned
_OfChecks = e.BaselineTaken | e.ChecksRan | e.ProofTaken
_Outward = e.ConnectionDecided | e.ConnectionClosed | e.RequestDecided | e.ChangeMade | e.ChangeDelivered
Audited = _OfPeople | _OfTheRun | e.Advised | _OfChoices | _OfTheWork | _OfChecks | _Outward

AUDITED_KINDS = frozenset(kind.__name__ for kind in Audited.__args__)  # type: ignore[attr-defined]
"""Events that are an action or a decision. Of the others only the hash over the log speaks."""


class Fact(NamedTuple):
    """An event as an entry states it."""

    kind: str
    who: str | None
    """None: whoever asked for the run."""
    detail: str


def fact(body: e.AnyBody) -> Fact | None:
    """What is entered for `body`; None when it is neither an action nor a decision."""
    match body:
        case (
            e.RunAdmitted()
            | e.RunContinued()
            | e.PromptReceived()
            | e.StopRequested()
            | e.RewindRequested()
            | e.ModelChosen()
            | e.BudgetExtended()
            | e.AskRaised()
            | e.AskAnswered()
        ):
            detail = _people(body)
        case (
            e.RunClaimed()
            | e.BaseFixed()
            | e.PolicyFixed()
            | e.SandboxOpened()
            | e.SandboxClosed()
            | e.AttemptEnded()
            | e.RunFinished()
        ):
            detail = _run(body)
        case e.Advised():
            detail = _advice(body)
        case e.AttemptForked() | e.AttemptsRanked() | e.JudgeSpoke() | e.ModelSwitched() | e.BudgetSpent():
            detail = _choices(body)
        case e.ModelReplied() | e.ModelSpent() | e.ModelFailed() | e.ActionDecided() | e.ToolReturned():
            detail = _work(body)
        case e.BaselineTaken() | e.ChecksRan() | e.ProofTaken():
            detail = _checks(body)
        case (
            e.ConnectionDecided()
            | e.ConnectionClosed()
            | e.RequestDecided()
            | e.ChangeMade()
            | e.ChangeDelivered()
        ):
            detail = _outward(body)
        case (
            e.RunResumed()
            | e.PhaseStarted()
            | e.PhaseEnded()
            | e.ChecksChosen()
            | e.AttemptStarted()
            | e.SaveRefused()
            | e.FinishRefused()
            | e.TurnEnded()
            | e.Inherited()
            | e.BudgetWarned()
            | e.ContextSummarised()
            | e.StuckNoticed()
        ):
            return None
        case _:
            assert_never(body)
    who: str | None = getattr(body, "who", None)
    return Fact(type(body).__name__, None if who is None else _cut(who), text_of(detail))


def _people(body: _OfPeople) -> Detail:
    match body:
        case e.RunAdmitted():
            new = body.request
            return {
                "prompt": _cut(new.prompt),
                "repo": _cut(new.repo),
                "ref": None if new.ref is None else _cut(new.ref),
                "checks": _listed(new.checks),
                "model": None if new.model is None else _cut(new.model),
                "attempts": new.n,
                "tier": new.tier,
                "template": _cut(new.template),
                "allow_hosts": _listed(new.allow_hosts),
            }
        case e.RunContinued():
            return {"origin": body.origin}
        case e.PromptReceived():
            return {"text": _cut(body.text), "bytes": _bytes(body.text)}
        case e.StopRequested():
            return {}
        case e.RewindRequested():
            return {"to": body.to}
        case e.ModelChosen():
            return {"model": _cut(body.model)}
        case e.BudgetExtended():
            return {
                "level": body.level,
                "name": _cut(body.name),
                "what": body.what,
                "amount": body.amount,
                "attempt": body.attempt,
            }
        case e.AskRaised():
            return {
                "ask": _cut(body.ask),
                "attempt": body.attempt,
                "action": _cut(body.action),
                "deadline": body.deadline,
                "default": body.default,
            }
        case e.AskAnswered():
            return {"ask": _cut(body.ask), "answer": body.answer}
        case _:
            assert_never(body)


def _run(body: _OfTheRun) -> Detail:
    match body:
        case e.RunClaimed():
            return {"owner": _cut(body.owner), "epoch": body.epoch}
        case e.BaseFixed():
            return {"commit": _cut(body.commit), "branch": None if body.branch is None else _cut(body.branch)}
        case e.PolicyFixed():
            return {"layers": _listed(body.layers), "limited": _listed(body.limited)}
        case e.SandboxOpened():
            return {
                "sandbox": _cut(body.sandbox),
                "attempt": body.attempt,
                "template": _cut(body.template),
                "isolation": body.isolation,
            }
        case e.SandboxClosed():
            return {"sandbox": _cut(body.sandbox), "reason": _cut(body.reason)}
        case e.AttemptEnded():
            return {
                "attempt": body.attempt,
                "outcome": body.outcome,
                "reason": _cut(body.reason),
                "commit": _cut(body.commit),
                "now": _counts(body.comparison),
            }
        case e.RunFinished():
            return {
                "outcome": body.outcome,
                "reason": _cut(body.reason),
                "attempt": body.attempt,
                "blame": body.blame,
            }
        case _:
            assert_never(body)


def _choices(body: _OfChoices) -> Detail:
    match body:
        case e.AttemptForked():
            return {
                "attempt": body.attempt,
                "parent": body.parent,
                "at": body.at_seq,
                "reason": _cut(body.reason),
            }
        case e.AttemptsRanked():
            return {"best_first": _listed([score.attempt for score in body.scores]), "tied": list(body.tied)}
        case e.JudgeSpoke():
            return {"model": _cut(body.model), "tied": list(body.tied), "choice": body.choice}
        case e.ModelSwitched():
            return {
                "attempt": body.attempt,
                "from": _cut(body.from_model),
                "to": _cut(body.to_model),
                "reason": _cut(body.reason),
            }
        case e.BudgetSpent():
            return {
                "attempt": body.attempt,
                "level": body.level,
                "name": _cut(body.name),
                "what": body.what,
                "spent": body.spent,
                "limit": body.limit,
            }
        case _:
            assert_never(body)


def _advice(body: e.Advised) -> Detail:
    return {
        "attempt": body.attempt,
        "role": body.role,
        "model": _cut(body.model),
        "bytes": _bytes(body.text),
    }


def _work(body: _OfTheWork) -> Detail:
    match body:
        case e.ModelReplied():
            return {
                "attempt": body.attempt,
                "step": body.step,
                "model": _cut(body.model),
                "usage": body.usage,
                "seconds": body.seconds,
                "bytes": _bytes(body.text),
                "calls": _listed([call.name for call in body.calls]),
                "cost": body.cost,
            }
        case e.ModelSpent():
            return {
                "attempt": body.attempt,
                "purpose": _cut(body.purpose),
                "model": _cut(body.model),
                "usage": body.usage,
                "seconds": body.seconds,
                "cost": body.cost,
            }
        case e.ModelFailed():
            return {"attempt": body.attempt, "code": _cut(body.code), "message": _cut(body.message)}
        case e.ActionDecided():
            return {
                "attempt": body.attempt,
                "call": _cut(body.call),
                "action": _cut(body.action),
                "effect": body.effect,
                "rule": _cut(body.rule),
            }
        case e.ToolReturned():
            return {
                "attempt": body.attempt,
                "call": _cut(body.call),
                "tool": _cut(body.tool),
                "ok": body.ok,
                "exit_code": body.exit_code,
                "bytes": _bytes(body.text),
                "seconds": body.seconds,
            }
        case _:
            assert_never(body)


def _checks(body: _OfChecks) -> Detail:
    checks = _listed([_check(diagnosis) for diagnosis in body.diagnoses])
    match body:
        case e.BaselineTaken():
            return {"checks": checks, "known": body.known}
        case e.ChecksRan():
            return {"attempt": body.attempt, "checks": checks, "now": _counts(body.comparison)}
        case e.ProofTaken():
            return {
                "attempt": body.attempt,
                "commit": _cut(body.commit),
                "checks": checks,
                "now": _counts(body.comparison),
            }
        case _:
            assert_never(body)


def _outward(body: _Outward) -> Detail:
    match body:
        case e.ConnectionDecided():
            return {
                "sandbox": _cut(body.sandbox),
                "host": _cut(body.host),
                "port": body.port,
                "effect": body.effect,
                "rule": _cut(body.rule),
                "credential": None if body.credential is None else _cut(body.credential),
            }
        case e.RequestDecided():
            return {
                "sandbox": _cut(body.sandbox),
                "host": _cut(body.host),
                "port": body.port,
                "request": _cut(f"{body.method} {body.path}"),
                "effect": body.effect,
                "rule": _cut(body.rule),
                "credential": None if body.credential is None else _cut(body.credential),
            }
        case e.ConnectionClosed():
            return {
                "sandbox": _cut(body.sandbox),
                "host": _cut(body.host),
                "port": body.port,
                "sent_bytes": body.sent_bytes,
                "received_bytes": body.received_bytes,
                "seconds": body.seconds,
                "credential": None if body.credential is None else _cut(body.credential),
            }
        case e.ChangeMade():
            files = [_file(file) for file in body.files]
            return {"branch": _cut(body.branch), "commit": _cut(body.commit), "files": _listed(files)}
        case e.ChangeDelivered():
            return {"where": _cut(body.where), "branch": _cut(body.branch)}
        case _:
            assert_never(body)


def _cut(text: str) -> str:
    return bounded(text, TEXT_CHARS)


def _bytes(text: str) -> int:
    return len(text.encode(errors="replace"))


def _counts(comparison: Comparison) -> Detail:
    return {"red": comparison.red, "passed": comparison.passed, "green": comparison.green}


def _check(diagnosis: Diagnosis) -> Detail:
    return {
        "check": _cut(diagnosis.check),
        "exit_code": diagnosis.exit_code,
        "seconds": diagnosis.seconds,
        "killed": diagnosis.killed,
    }


def _file(file: FileChange) -> Detail:
    return {"path": _cut(file.path), "added": file.added, "removed": file.removed, "status": file.status}


def _listed(items: Sequence[object]) -> Sequence[object]:
    """As many of `items` as fit, and then how many there are beside them."""
    room = LIST_BYTES
    for position, item in enumerate(items):
        small = _cut(item) if isinstance(item, str) else item
        room -= len(encode(small))
        if room < 0:
            return [
                *(_cut(i) if isinstance(i, str) else i for i in items[:position]),
                {"left_out": len(items) - position},
            ]
    return [_cut(item) if isinstance(item, str) else item for item in items]
