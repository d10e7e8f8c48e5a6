"""A receipt as one page of Markdown. Pure. What a guest, a model or a repository chose is shown as code, never as markup."""

import re
import time
from collections.abc import Iterator, Sequence

from cloister.core.budget import amount
from cloister.core.requests import Isolation
from cloister.core.text import one_line
from cloister.runs.receipt import Judged, Reached, Receipt, Requested, SideCalls, Used

TEXT_CHARS = 300
FILES = 40
SHOWN = 20


def page(receipt: Receipt) -> str:
    """The whole page, ending with a newline."""
    parts = (
        _head(receipt),
        _asked(receipt),
        _change(receipt),
        _proof(receipt),
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
    yield f"- Repository {code(receipt.repo)}, base {code((receipt.base_commit or 'none')[:12])}{branch}"
    models = ", ".join(code(model) for model in receipt.models[:SHOWN]) or "none"
    usage = receipt.usage
    yield (
        f"- Model {models}: {receipt.steps:,} replies, {usage.input_tokens:,} tokens in, "
        f"{usage.output_tokens:,} out, {receipt.seconds:,.1f} s"
    )
    yield from (f"- {_beside(asked)}" for asked in receipt.beside[:SHOWN])
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


def _beside(asked: SideCalls) -> str:
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
    yield f"Branch {code(receipt.branch)}{commit}{where}"
    yield ""
    for file in receipt.files[:FILES]:
        yield f"- {code(file.path)} +{file.added:,} −{file.removed:,} {file.status}"
    yield from _more(len(receipt.files), "file", FILES)


def _proof(receipt: Receipt) -> Iterator[str]:
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
    yield from (f"  - {_used(used)}" for used in receipt.notable)


def _used(used: Used) -> str:
    end = "" if used.exit_code is None else f", exit {used.exit_code}"
    return f"{code(used.command, 160)} {used.seconds:,.1f} s{end}"


def _decisions(receipt: Receipt) -> Iterator[str]:
    yield "## Decisions"
    yield ""
    yield f"- Allowed without a question: {receipt.allowed:,}"
    yield from (f"- {_judged(judged)}" for judged in receipt.judged[:SHOWN])
    yield from _more(receipt.judged_count, "decision")


def _judged(judged: Judged) -> str:
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
    yield from (f"- {_reached(reached)}" for reached in receipt.connections[:SHOWN])
    yield from _more(receipt.connections_count, "kind of connection")
    if receipt.requests:
        yield ""
        yield "Requests that the door read:"
        yield ""
        yield from (f"- {_requested(one)}" for one in receipt.requests[:SHOWN])
        yield from _more(receipt.requests_count, "kind of request")


def _reached(reached: Reached) -> str:
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
    if seal is None:
        yield "Not signed." if receipt.final else "Signed when the run ends."
        return
    yield f"- Head: entry {seal.number:,}, {code(seal.hash)}"
    yield f"- Signed at: {seal.at_us} µs since 1970, key {code(seal.key)}"
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
