"""The receipt: what a run touched, on one page. A pure fold of its log and the signature over its end.

Unlike the run as it stands (`runs/view.py`) it counts everything that happened, also in turns that were lost.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from anyio import to_thread

from cloister.core import events as e
from cloister.core.events import Event
from cloister.core.ids import RunId
from cloister.core.log import round_start
from cloister.core.requests import FileChange, Isolation, Outcome, Usage
from cloister.log.audit.entry import AuditEntry, Checkpoint
from cloister.log.audit.keys import check_public
from cloister.log.audit.reader import AuditReader
from cloister.log.audit.verify import Verdict, verify_file
from cloister.runs.view import RunView, fold

NOTABLE = 10
COMMAND_CHARS = 400
DECISIONS = 200
HOSTS = 200
"""How many of each a receipt holds; how many there were is said."""


class Used(msgspec.Struct, frozen=True):
    """One command worth mentioning: it failed, or it took long."""

    command: str
    exit_code: int | None
    seconds: float


class Judged(msgspec.Struct, frozen=True):
    """An action that was not simply allowed."""

    action: str
    effect: str
    rule: str
    answer: str | None = None
    who: str | None = None
    """Who answered; `deadline` when nobody did."""


class Reached(msgspec.Struct, frozen=True):
    """All connections to one host and port that were decided alike."""

    host: str
    port: int
    effect: str
    rule: str
    count: int
    sent_bytes: int
    received_bytes: int
    credential: str | None = None
    """The name of the credential that the door added."""


class Asked(msgspec.Struct, frozen=True):
    """What calls to one model took that were no steps of the loop."""

    purpose: str
    """`inside` is what programs in the sandbox asked."""
    model: str
    count: int
    usage: Usage
    cost: float | None


class Switched(msgspec.Struct, frozen=True):
    """One model went on where another stopped."""

    attempt: int
    from_model: str
    to_model: str
    reason: str


class Requested(msgspec.Struct, frozen=True):
    """All requests to one host that the door read and decided alike."""

    host: str
    port: int
    method: str
    effect: str
    rule: str
    count: int
    path: str
    """Of the first of them."""
    credential: str | None = None


class Proof(msgspec.Struct, frozen=True):
    """The checks before and after."""

    checks: tuple[str, ...]
    red_before: int | None
    red_now: int | None
    fixed: int
    proven_commit: str | None
    """The commit that was green in a fresh sandbox; None where nothing was proven."""


class Receipt(msgspec.Struct, frozen=True):
    """What one run touched."""

    run: str
    last_seq: int
    """The event up to which this speaks."""
    final: bool
    """Whether the run was over."""
    outcome: Outcome | None
    reason: str | None
    prompt: str
    who: str
    said: tuple[tuple[str, str], ...]
    """Who told it what while it worked."""
    stopped_by: str | None
    repo: str
    base_commit: str | None
    base_branch: str | None
    models: tuple[str, ...]
    usage: Usage
    steps: int
    seconds: float
    started_at: float
    isolation: tuple[Isolation, ...]
    """Every kind that was in force."""
    proof: Proof
    branch: str | None
    commit: str | None
    delivered_to: str | None
    files: tuple[FileChange, ...]
    tools: dict[str, int]
    """Tool → how often it was used."""
    commands: int
    notable: tuple[Used, ...]
    allowed: int
    """Actions that were allowed without a question."""
    judged: tuple[Judged, ...]
    """Those that were denied or asked about."""
    judged_count: int
    connections: tuple[Reached, ...]
    connections_count: int
    """Kinds of connection, also those that are not listed."""
    cost: float | None = None
    """US dollars for all of it, as far as prices are known; None where none is."""
    beside: tuple[Asked, ...] = ()
    """Calls to models beside the steps."""
    switches: tuple[Switched, ...] = ()
    switches_count: int = 0
    requests: tuple[Requested, ...] = ()
    """Those that the door read one by one."""
    requests_count: int = 0
    """Kinds of request, also those that are not listed."""
    seal: Checkpoint | None = None
    """The head of the audit at the run's end, signed."""


class Pending(NamedTuple):
    """The change that a receipt goes along with, before it is in the log."""

    branch: str
    files: tuple[FileChange, ...]


def receipt(
    events: Sequence[e.Event], seal: Checkpoint | None = None, pending: Pending | None = None
) -> Receipt:
    """The receipt of the run whose whole log, or its beginning, is `events`."""
    view = fold(events)
    used, tools = _used(events)
    judged = _judged(events)
    reached = _reached(events)
    requests = _requests(events)
    switches = [ev.body for ev in events if isinstance(ev.body, e.ModelSwitched)]
    return Receipt(
        run=view.id,
        last_seq=view.last_seq,
        final=view.state == "finished",
        outcome=view.outcome,
        reason=view.reason,
        prompt=view.prompt,
        who=view.who,
        said=tuple((message.who, message.text) for message in view.messages),
        stopped_by=next(
            (ev.body.who for ev in events[round_start(events) :] if isinstance(ev.body, e.StopRequested)),
            None,
        ),
        repo=view.repo,
        base_commit=view.base_commit,
        base_branch=view.base_branch,
        models=view.models,
        usage=sum((ev.body.usage for ev in events if isinstance(ev.body, e.ModelReplied)), Usage()),
        steps=sum(isinstance(ev.body, e.ModelReplied) for ev in events),
        seconds=view.seconds,
        started_at=view.created_at,
        isolation=tuple(
            dict.fromkeys(ev.body.isolation for ev in events if isinstance(ev.body, e.SandboxOpened))
        ),
        proof=_proof(events, view),
        branch=pending.branch if pending else view.branch,
        commit=view.commit,
        delivered_to=view.delivered_to,
        files=pending.files if pending else view.files,
        tools=tools,
        commands=len(used),
        notable=_notable(used),
        allowed=sum(isinstance(ev.body, e.ActionDecided) and ev.body.effect == "allow" for ev in events),
        judged=tuple(judged[:DECISIONS]),
        judged_count=len(judged),
        connections=tuple(reached[:HOSTS]),
        connections_count=len(reached),
        cost=_cost(events),
        beside=_beside(events)[:HOSTS],
        switches=tuple(
            Switched(one.attempt, one.from_model, one.to_model, one.reason) for one in switches[:DECISIONS]
        ),
        switches_count=len(switches),
        requests=tuple(requests[:HOSTS]),
        requests_count=len(requests),
        seal=seal,
    )


def _cost(events: Sequence[e.Event]) -> float | None:
    """All that models cost, also in turns that were lost."""
    paid = (ev.body.cost for ev in events if isinstance(ev.body, e.ModelReplied | e.ModelSpent))
    known = [cost for cost in paid if cost is not None]
    return sum(known) if known else None


def _beside(events: Sequence[e.Event]) -> tuple[Asked, ...]:
    found: dict[tuple[str, str], Asked] = {}
    for event in events:
        body = event.body
        if isinstance(body, e.ModelSpent):
            key = (body.purpose, body.model)
            so_far = found.get(key) or Asked(*key, 0, Usage(), None)
            cost = so_far.cost if body.cost is None else (so_far.cost or 0.0) + body.cost
            found[key] = Asked(*key, so_far.count + 1, so_far.usage + body.usage, cost)
    return tuple(found[key] for key in sorted(found))


def _requests(events: Sequence[e.Event]) -> list[Requested]:
    """By host, method, decision, rule and credential, those that were denied last."""
    found: dict[tuple[str, ...], Requested] = {}
    for event in events:
        body = event.body
        if isinstance(body, e.RequestDecided):
            key = (body.effect, body.host, str(body.port), body.method, body.rule, body.credential or "")
            known = found.get(key)
            found[key] = Requested(
                body.host,
                body.port,
                body.method,
                body.effect,
                body.rule,
                known.count + 1 if known else 1,
                known.path if known else body.path,
                body.credential,
            )
    return [found[key] for key in sorted(found)]


def _proof(events: Sequence[e.Event], view: RunView) -> Proof:
    proven = [ev.body for ev in events if isinstance(ev.body, e.ProofTaken) and ev.body.comparison.green]
    return Proof(
        view.checks, view.red_before, view.red_now, len(view.fixed), proven[-1].commit if proven else None
    )


def _used(events: Sequence[e.Event]) -> tuple[list[Used], dict[str, int]]:
    """Every command that ran, and how often each tool was used."""
    lines: dict[tuple[int, str], str] = {}
    used: list[Used] = []
    tools: Counter[str] = Counter()
    for event in events:
        match event.body:
            case e.ModelReplied() as reply:
                for call in reply.calls:
                    line = call.arguments.get("command")
                    if isinstance(line, str):
                        lines[reply.attempt, call.id] = line
            case e.ToolReturned() as returned:
                tools[returned.tool[:60]] += 1
                line = lines.get((returned.attempt, returned.call))
                if line is not None:
                    used.append(Used(line[:COMMAND_CHARS], returned.exit_code, returned.seconds))
            case _:
                pass
    return used, dict(sorted(tools.items())[:HOSTS])


def _notable(used: Sequence[Used]) -> tuple[Used, ...]:
    """The slowest and the first that failed, as they came."""
    order = range(len(used))
    slow = sorted(order, key=lambda n: -used[n].seconds)[: NOTABLE // 2]
    failed = [n for n in order if used[n].exit_code not in (0, None) and n not in slow][: NOTABLE // 2]
    return tuple(used[n] for n in sorted([*slow, *failed]))


def _judged(events: Sequence[e.Event]) -> list[Judged]:
    answers = {ev.body.ask: ev.body for ev in events if isinstance(ev.body, e.AskAnswered)}
    found: list[Judged] = []
    before: e.AnyBody | None = None
    for event in events:
        match event.body:
            case e.ActionDecided(effect="deny") as decided:
                found.append(Judged(decided.action, "deny", decided.rule))
            case e.ActionDecided(effect="ask") as decided:
                found.append(Judged(decided.action, "ask", decided.rule))
            case e.AskRaised() as ask:
                answer = answers.get(ask.ask)
                # A question belongs to the decision right before it, or to none: budgets ask by themselves.
                if isinstance(before, e.ActionDecided) and before.effect == "ask":
                    found.pop()
                said = (answer.answer, answer.who) if answer else (None, None)
                found.append(Judged(ask.action, "ask", ask.rule or "ask", *said))
            case _:
                pass
        before = event.body
    return found


_Way = tuple[str, int, str, str, str | None]


def _reached(events: Sequence[e.Event]) -> list[Reached]:
    """Connections by host, port, decision, rule and credential, those that were denied last."""
    counts: Counter[_Way] = Counter()
    sent: Counter[tuple[str, int]] = Counter()
    received: Counter[tuple[str, int]] = Counter()
    for event in events:
        match event.body:
            case e.ConnectionDecided() as way:
                counts[way.host, way.port, way.effect, way.rule, way.credential] += 1
            case e.ConnectionClosed() as closed:
                sent[closed.host, closed.port] += closed.sent_bytes
                received[closed.host, closed.port] += closed.received_bytes
            case _:
                pass
    found: list[Reached] = []
    for (host, port, effect, rule, credential), count in sorted(
        counts.items(), key=lambda item: _order(item[0])
    ):
        # Bytes are known per host and port: they stand with its first way and are not counted twice.
        out, back = (
            (sent.pop((host, port), 0), received.pop((host, port), 0)) if effect == "allow" else (0, 0)
        )
        found.append(Reached(host, port, effect, rule, count, out, back, credential))
    return found


def _order(way: _Way) -> tuple[str, str, int, str, str]:
    host, port, effect, rule, credential = way
    return effect, host, port, rule, credential or ""


# What the server and the command ask of the audit: a page of it, its verdict, a run's receipt.


async def audit_page(path: Path, after: int, limit: int, run: RunId | None) -> tuple[AuditEntry, ...]:
    def look() -> tuple[AuditEntry, ...]:
        with AuditReader(path) as audit:
            return audit.page(after, limit, run)

    return await to_thread.run_sync(look)


async def audit_verdict(path: Path, key: str | None) -> Verdict:
    """Raises `UserError` (`bad_key`)."""
    pinned = None if key is None else check_public(key)

    return await to_thread.run_sync(verify_file, path, pinned)


async def run_receipt(path: Path, run: RunId, events: Sequence[Event]) -> Receipt:
    """The receipt of a run, with the signature over its end once that is there."""

    def look() -> Checkpoint | None:
        with AuditReader(path) as audit:
            return audit.seal(run)

    finished = isinstance(events[-1].body, e.RunFinished)
    return receipt(events, await to_thread.run_sync(look) if finished else None)
