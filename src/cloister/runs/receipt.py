"""The receipt: everything that a run touched, from its log and the signature over its end. Pure.

Unlike the view of a run (`runs/view.py`) it also counts lost turns.
"""

import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from cloister.core import events as e
from cloister.core.budget import amount
from cloister.core.log import Index, round_start
from cloister.core.requests import CALL_TOOL, FileChange, Isolation, Outcome, Usage
from cloister.core.text import one_line
from cloister.log.audit.entry import Checkpoint
from cloister.runs.view import RepositoryView, RunView, fold

NOTABLE = 10
COMMAND_CHARS = 400
DECISIONS = 200
HOSTS = 200
"""How many of each a receipt lists; the totals are exact."""


class Used(msgspec.Struct, frozen=True):
    """A command that failed or took long."""

    command: str
    exit_code: int | None
    seconds: float


class Judged(msgspec.Struct, frozen=True):
    """An action that was denied or asked about."""

    action: str
    effect: str
    rule: str
    answer: str | None = None
    who: str | None = None
    """Who answered; `deadline` if the default was used."""


class Reached(msgspec.Struct, frozen=True):
    """All connections to one host and port with the same decision."""

    host: str
    port: int
    effect: str
    rule: str
    count: int
    sent_bytes: int
    received_bytes: int
    credential: str | None = None
    """The name of the credential that the proxy added."""


class SideCalls(msgspec.Struct, frozen=True):
    """Calls to one model, for one purpose, that were not steps of the loop."""

    purpose: str
    """`inside`: programs in the sandbox made the calls."""
    model: str
    count: int
    usage: Usage
    cost: float | None


class Switched(msgspec.Struct, frozen=True):
    """One model replaced another."""

    attempt: int
    from_model: str
    to_model: str
    reason: str


class Requested(msgspec.Struct, frozen=True):
    """All requests to one host that the proxy read, with the same decision."""

    host: str
    port: int
    method: str
    effect: str
    rule: str
    count: int
    path: str
    """The path of the first of them."""
    credential: str | None = None


class Proof(msgspec.Struct, frozen=True):
    """The checks before and after."""

    checks: tuple[str, ...]
    red_before: int | None
    red_now: int | None
    fixed: int
    proven_commit: str | None
    """The commit that was green in a fresh sandbox; None without a proof."""


class UsedEnvironment(msgspec.Struct, frozen=True):
    """An environment that the run, or one of its proofs, started from."""

    template: str
    built: bool
    """Whether this run built it: then its connections are among the run's."""
    built_at: float
    """Unix seconds; 0 if unknown."""
    reached: tuple[str, ...]
    """What its set-up reached, as `HOST:PORT`."""


class Receipt(msgspec.Struct, frozen=True):
    """Everything that one run touched."""

    run: str
    last_seq: int
    """The last event that it covers."""
    final: bool
    """Whether the run was over."""
    outcome: Outcome | None
    reason: str | None
    prompt: str
    who: str
    said: tuple[tuple[str, str], ...]
    """Messages to the run: who, and what."""
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
    """Every kind of isolation that was in force."""
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
    """Actions that were allowed without asking."""
    judged: tuple[Judged, ...]
    """Actions that were denied or asked about."""
    judged_count: int
    connections: tuple[Reached, ...]
    connections_count: int
    """Kinds of connection, including unlisted ones."""
    cost: float | None = None
    """US dollars in total, as far as prices are known; None if none is."""
    beside: tuple[SideCalls, ...] = ()
    """Calls to models that were not steps."""
    switches: tuple[Switched, ...] = ()
    switches_count: int = 0
    requests: tuple[Requested, ...] = ()
    """Requests that the proxy read."""
    requests_count: int = 0
    """Kinds of request, including unlisted ones."""
    seal: Checkpoint | None = None
    """The signed head of the audit at the run's end, or when the change was made."""
    repositories: tuple[RepositoryView, ...] = ()
    """Of a run on several repositories: each one, with its part of the result."""
    environments: tuple[UsedEnvironment, ...] = ()
    """What was set up, or reused."""


class Pending(NamedTuple):
    """The change that a receipt is delivered with, before it is in the log."""

    branch: str
    files: tuple[FileChange, ...]


def receipt(
    events: Sequence[e.Event], seal: Checkpoint | None = None, pending: Pending | None = None
) -> Receipt:
    """Return the receipt of the run whose log, or the beginning of it, is `events`."""
    view = fold(events)
    index = Index(events)
    used, tools = _used(index)
    judged = _judged(events, index)
    reached = _reached(index)
    requests = _requests(index)
    switches = index.of(e.ModelSwitched)
    replies = index.of(e.ModelReplied)
    stopped = Index(events[round_start(events) :]).first(e.StopRequested)
    return Receipt(
        run=view.id,
        last_seq=view.last_seq,
        final=view.state == "finished",
        outcome=view.outcome,
        reason=view.reason,
        prompt=view.prompt,
        who=view.who,
        said=tuple((message.who, message.text) for message in view.messages),
        stopped_by=stopped and stopped.who,
        repo=view.repo,
        base_commit=view.base_commit,
        base_branch=view.base_branch,
        models=view.models,
        usage=sum((reply.usage for reply in replies), Usage()),
        steps=len(replies),
        seconds=view.seconds,
        started_at=view.created_at,
        isolation=tuple(dict.fromkeys(opened.isolation for opened in index.of(e.SandboxOpened))),
        proof=_proof(index, view),
        branch=pending.branch if pending else view.branch,
        commit=view.commit,
        delivered_to=view.delivered_to,
        files=pending.files if pending else view.files,
        tools=tools,
        commands=len(used),
        notable=_notable(used),
        allowed=sum(decided.effect == "allow" for decided in index.of(e.ActionDecided)),
        judged=tuple(judged[:DECISIONS]),
        judged_count=len(judged),
        connections=tuple(reached[:HOSTS]),
        connections_count=len(reached),
        cost=_cost(index),
        beside=_beside(index)[:HOSTS],
        switches=tuple(
            Switched(one.attempt, one.from_model, one.to_model, one.reason) for one in switches[:DECISIONS]
        ),
        switches_count=len(switches),
        requests=tuple(requests[:HOSTS]),
        requests_count=len(requests),
        seal=seal,
        repositories=view.repositories,
        environments=_environments(index)[:HOSTS],
    )


def _environments(index: Index) -> tuple[UsedEnvironment, ...]:
    """One of each template; a run that was resumed finds its own again."""
    found: dict[str, UsedEnvironment] = {}
    for one in index.of(e.EnvironmentPrepared):
        built = one.built or (one.template in found and found[one.template].built)
        found[one.template] = UsedEnvironment(one.template, built, one.built_at, one.reached)
    return tuple(found.values())


def _cost(index: Index) -> float | None:
    """Sum the cost of models, including lost turns."""
    known = [paid.cost for paid in index.of(e.ModelReplied, e.ModelSpent) if paid.cost is not None]
    return sum(known) if known else None


def _beside(index: Index) -> tuple[SideCalls, ...]:
    found: dict[tuple[str, str], SideCalls] = {}
    for body in index.of(e.ModelSpent):
        key = (body.purpose, body.model)
        so_far = found.get(key) or SideCalls(*key, 0, Usage(), None)
        cost = so_far.cost if body.cost is None else (so_far.cost or 0.0) + body.cost
        found[key] = SideCalls(*key, so_far.count + 1, so_far.usage + body.usage, cost)
    return tuple(found[key] for key in sorted(found))


def _requests(index: Index) -> list[Requested]:
    """Requests by host, method, decision, rule and credential, the denied ones last."""
    found: dict[tuple[str, ...], Requested] = {}
    for body in index.of(e.RequestDecided):
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


def _proof(index: Index, view: RunView) -> Proof:
    proven = [proof for proof in index.of(e.ProofTaken) if proof.comparison.green]
    return Proof(
        view.checks, view.red_before, view.red_now, len(view.fixed), proven[-1].commit if proven else None
    )


def _used(index: Index) -> tuple[list[Used], dict[str, int]]:
    """Return every command that ran, and how often each tool was used."""
    lines: dict[tuple[int, str], str] = {}
    used: list[Used] = []
    tools: Counter[str] = Counter()
    names: dict[tuple[int, str], str] = {}
    for body in index.of(e.ModelReplied, e.ToolReturned):
        if isinstance(body, e.ModelReplied):
            for call in body.calls:
                line = call.arguments.get("command")
                if isinstance(line, str):
                    lines[body.attempt, call.id] = line
                if call.name == CALL_TOOL:
                    names[body.attempt, call.id] = str(call.arguments.get("name"))
        else:
            tools[names.get((body.attempt, body.call), body.tool)[:60]] += 1
            line = lines.get((body.attempt, body.call))
            if line is not None:
                used.append(Used(line[:COMMAND_CHARS], body.exit_code, body.seconds))
    return used, dict(sorted(tools.items())[:HOSTS])


def _notable(used: Sequence[Used]) -> tuple[Used, ...]:
    """The slowest and the first that failed, as they came."""
    order = range(len(used))
    slow = sorted(order, key=lambda n: -used[n].seconds)[: NOTABLE // 2]
    failed = [n for n in order if used[n].exit_code not in (0, None) and n not in slow][: NOTABLE // 2]
    return tuple(used[n] for n in sorted([*slow, *failed]))


def _judged(events: Sequence[e.Event], index: Index) -> list[Judged]:
    answers = {answer.ask: answer for answer in index.of(e.AskAnswered)}
    found: list[Judged] = []
    before: e.AnyBody | None = None
    for event in events:
        match event.body:
            case e.ActionDecided(effect="deny" | "ask") as decided:
                found.append(Judged(decided.action, decided.effect, decided.rule))
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


def _reached(index: Index) -> list[Reached]:
    """Connections by host, port, decision, rule and credential, the denied ones last."""
    decided = index.of(e.ConnectionDecided)
    counts = Counter[_Way]((way.host, way.port, way.effect, way.rule, way.credential) for way in decided)
    sent: Counter[tuple[str, int]] = Counter()
    received: Counter[tuple[str, int]] = Counter()
    for closed in index.of(e.ConnectionClosed):
        sent[closed.host, closed.port] += closed.sent_bytes
        received[closed.host, closed.port] += closed.received_bytes
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


# A receipt as one page of Markdown. Pure. What a guest, a model or a repository chose is shown as code, never as markup.


TEXT_CHARS = 300
FILES = 40
SHOWN = 20


def page(receipt: Receipt) -> str:
    """The whole page, ending with a newline."""
    parts = (
        _head(receipt),
        _asked(receipt),
        _change(receipt),
        _receipt_page_proof(receipt),
        _did(receipt),
        _decisions(receipt),
        _connections(receipt),
        _sealed(receipt),
    )
    return "\n".join(line for part in parts for line in [*part, ""]).rstrip("\n") + "\n"


def code(text: str, limit: int = TEXT_CHARS) -> str:
    """`text` as inline code: no link, image, HTML, mention or heading in it means anything."""
    line = one_line(text, limit)
    if not line:
        return "(empty)"
    ticks = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{pad}{line}{pad}{ticks}"


def _head(receipt: Receipt) -> Iterator[str]:
    yield f"# Receipt of run {code(receipt.run)}"
    yield ""
    if receipt.final:
        yield f"**{receipt.outcome}**: {code(receipt.reason or '')}"
    else:
        yield f"As of event {receipt.last_seq}, when this change was made. The signed one: `cloister receipt {receipt.run}`."


def _asked(receipt: Receipt) -> Iterator[str]:
    yield f"- Asked by {code(receipt.who)} on {_when(receipt.started_at)}: {code(receipt.prompt)}"
    for who, text in receipt.said[:SHOWN]:
        yield f"- {code(who, 60)} said: {code(text)}"
    yield from _more(len(receipt.said), "message")
    if receipt.stopped_by is not None:
        yield f"- Stopped by {code(receipt.stopped_by, 60)}"
    branch = f" on {code(receipt.base_branch)}" if receipt.base_branch else ""
    if not receipt.repositories:
        yield f"- Repository {code(receipt.repo)}, base {code((receipt.base_commit or 'none')[:12])}{branch}"
    for one in receipt.repositories:
        on = f" on {code(one.base_branch)}" if one.base_branch else ""
        yield f"- Repository {code(one.repo)} in {code(one.folder)}, base {code(one.base[:12])}{on}"
    models = ", ".join(code(model) for model in receipt.models[:SHOWN]) or "none"
    usage = receipt.usage
    yield (
        f"- Model {models}: {receipt.steps:,} replies, {usage.input_tokens:,} tokens in, "
        f"{usage.output_tokens:,} out, {receipt.seconds:,.1f} s"
    )
    yield from (f"- {_receipt_page_beside(asked)}" for asked in receipt.beside[:SHOWN])
    yield from _more(len(receipt.beside), "kind of call")
    if receipt.cost is not None:
        yield f"- Cost, as far as prices are known: {amount('dollars', receipt.cost)}"
    for one in receipt.switches[:SHOWN]:
        yield (
            f"- Attempt {one.attempt} went on with {code(one.to_model)} instead of {code(one.from_model)}: "
            f"{code(one.reason, 160)}"
        )
    yield from _more(receipt.switches_count, "change of model")
    for isolation in receipt.isolation[:SHOWN]:
        yield f"- Isolation: {_isolation(isolation)}"


def _receipt_page_beside(asked: SideCalls) -> str:
    who = "Programs inside asked" if asked.purpose == "inside" else f"For {code(asked.purpose, 40)}:"
    cost = "" if asked.cost is None else f", {amount('dollars', asked.cost)}"
    return (
        f"{who} {code(asked.model)} {asked.count:,}×: {asked.usage.input_tokens:,} tokens in, "
        f"{asked.usage.output_tokens:,} out{cost}"
    )


def _change(receipt: Receipt) -> Iterator[str]:
    yield "## Files changed"
    yield ""
    if receipt.branch is None:
        yield "None."
        return
    where = f", delivered to {code(receipt.delivered_to)}" if receipt.delivered_to else ""
    commit = f", commit {code(receipt.commit[:12])}" if receipt.commit else ""
    yield f"Branch {code(receipt.branch)}{commit}{where if not receipt.repositories else ''}"
    for one in receipt.repositories:
        what = f"commit {code(one.commit[:12])}" if one.commit else "no change"
        went = f", delivered to {code(one.delivered_to)}" if one.delivered_to else ""
        yield f"- {code(one.folder)}: {what}{went}"
    yield ""
    for file in receipt.files[:FILES]:
        yield f"- {code(file.path)} +{file.added:,} −{file.removed:,} {file.status}"
    yield from _more(len(receipt.files), "file", FILES)


def _receipt_page_proof(receipt: Receipt) -> Iterator[str]:
    proof = receipt.proof
    yield "## Checks"
    yield ""
    if not proof.checks:
        yield "None: nothing was proven."
        return
    for check in proof.checks[:SHOWN]:
        yield f"- {code(check)}"
    yield from _more(len(proof.checks), "check")
    before = "?" if proof.red_before is None else f"{proof.red_before:,}"
    now = "?" if proof.red_now is None else f"{proof.red_now:,}"
    yield f"- Red before: {before}. Red now: {now}. Fixed: {proof.fixed:,}."
    if proof.proven_commit is not None:
        yield f"- Green in a fresh sandbox: save point {code(proof.proven_commit[:12])}"


def _did(receipt: Receipt) -> Iterator[str]:
    yield "## What it did"
    yield ""
    tools = ", ".join(f"{code(name, 40)} {count:,}×" for name, count in list(receipt.tools.items())[:SHOWN])
    yield f"- Tools: {tools or 'none'}"
    yield f"- Commands: {receipt.commands:,}" + (
        "; the slowest and the first that failed:" if receipt.notable else ""
    )
    yield from (f"  - {_receipt_page_used(used)}" for used in receipt.notable)


def _receipt_page_used(used: Used) -> str:
    end = "" if used.exit_code is None else f", exit {used.exit_code}"
    return f"{code(used.command, 160)} {used.seconds:,.1f} s{end}"


def _decisions(receipt: Receipt) -> Iterator[str]:
    yield "## Decisions"
    yield ""
    yield f"- Allowed without a question: {receipt.allowed:,}"
    yield from (f"- {_receipt_page_judged(judged)}" for judged in receipt.judged[:SHOWN])
    yield from _more(receipt.judged_count, "decision")


def _receipt_page_judged(judged: Judged) -> str:
    answer = ""
    if judged.effect == "ask":
        answer = (
            f", answered {judged.answer} by {code(judged.who or '', 60)}"
            if judged.answer
            else ", never answered"
        )
    word = "Denied" if judged.effect == "deny" else "Asked"
    return f"{word}: {code(judged.action, 160)} by rule {code(judged.rule, 160)}{answer}"


def _connections(receipt: Receipt) -> Iterator[str]:
    yield "## Connections"
    yield ""
    if not receipt.connections:
        yield "None."
    yield from (f"- {_receipt_page_reached(reached)}" for reached in receipt.connections[:SHOWN])
    yield from _more(receipt.connections_count, "kind of connection")
    for one in receipt.environments[:SHOWN]:
        if not one.built and one.reached:
            hosts = ", ".join(code(host, 120) for host in one.reached[:SHOWN])
            yield f"- Set-up of {code(one.template, 80)}, built on {_when(one.built_at)} before this run, reached {hosts}"
            yield from _more(len(one.reached), "host")
    if receipt.requests:
        yield ""
        yield "Requests that the door read:"
        yield ""
        yield from (f"- {_requested(one)}" for one in receipt.requests[:SHOWN])
        yield from _more(receipt.requests_count, "kind of request")


def _receipt_page_reached(reached: Reached) -> str:
    place = f"{code(f'{reached.host}:{reached.port}', 160)} {reached.count:,}×"
    rule = f"by rule {code(reached.rule, 160)}"
    if reached.effect == "deny":
        return f"Denied: {place} {rule}"
    credential = f", credential {code(reached.credential, 80)}" if reached.credential else ""
    return f"{place}, {reached.sent_bytes:,} bytes out, {reached.received_bytes:,} back, {rule}{credential}"


def _requested(one: Requested) -> str:
    word = "Denied: " if one.effect == "deny" else ""
    first = ", the first" if one.count > 1 else ""
    credential = f", credential {code(one.credential, 80)}" if one.credential else ""
    return (
        f"{word}{code(f'{one.method} {one.host}:{one.port}', 160)} {one.count:,}×{first} "
        f"{code(one.path, 160)}, by rule {code(one.rule, 160)}{credential}"
    )


def _sealed(receipt: Receipt) -> Iterator[str]:
    yield "## Audit"
    yield ""
    seal = receipt.seal
    if not receipt.final:
        yield "The end is signed when the run ends." + ("" if seal is None else " So far:")
        yield ""
    elif seal is None:
        yield "Not signed."
    if seal is None:
        return
    yield f"- Head: entry {seal.number:,}, {code(seal.hash)}"
    # The exact time is signed; `find_heads` reads it.
    yield f"- Signed at: {_when(seal.at_us / 1e6)} ({seal.at_us} µs since 1970), key {code(seal.key)}"
    yield f"- Signature: {code(seal.signature)}"


def _more(count: int, what: str, shown: int = SHOWN) -> Sequence[str]:
    left = count - shown
    return [f"- … and {left:,} more {what}{'s' if left > 1 else ''}"] if left > 0 else []


def _isolation(isolation: Isolation) -> str:
    kernel = "this machine's kernel" if isolation.shares_kernel else "a kernel of its own"
    seccomp = "seccomp" if isolation.seccomp else "no seccomp"
    runtime = code(isolation.runtime, 80)
    return f"{isolation.tier}, {runtime}, {kernel}, {seccomp}, {isolation.store} store"


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
