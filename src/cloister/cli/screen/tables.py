"""Format audit entries and verdicts as text without terminal control characters. Pure."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import msgspec

from cloister.cli.options import put
from cloister.core.errors import UserError
from cloister.core.text import one_line

if TYPE_CHECKING:
    from cloister.app.verbs.records import Explained, PolicyVerdict
    from cloister.log.audit.entry import AuditEntry
    from cloister.log.audit.verify import Flaw, Verdict
    from cloister.policy.api import Layer, Policy

VALUE_CHARS = 120
_AGO = re.compile(r"([0-9]{1,6})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def entry_line(entry: AuditEntry) -> str:
    """One line: number, time, kind, run and event, caller, details."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.at_us / 1_000_000))
    place = f"{one_line(entry.run, 40)}#{entry.seq}" if entry.run else "-"
    who = one_line(entry.who, 40) or "-"
    return f"{entry.number:>6} {stamp}  {one_line(entry.kind, 40):<17} {place:<19} {who:<10} {_detail(entry.detail)}".rstrip()


def _detail(text: str) -> str:
    try:
        values = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return one_line(text, VALUE_CHARS)  # `audit verify` reports it
    if not isinstance(values, dict):
        return one_line(text, VALUE_CHARS)
    return "  ".join(
        f"{one_line(str(name), 40)}={_value(value)}"
        for name, value in cast("dict[object, object]", values).items()
        if value not in (None, "", [])
    )


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return one_line(text, VALUE_CHARS)


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """The output of `audit verify`; the first line is the answer."""
    if verdict.ok:
        yield f"OK: {verdict.entries:,} entries are unaltered."
    else:
        first = verdict.problems[0]
        yield f"NOT OK: {_problem(first)}"
        yield from (f"        {_problem(problem)}" for problem in verdict.problems[1:])
    yield f"Head    {verdict.head}"
    yield f"Signed  up to entry {verdict.signed:,}, {verdict.checkpoints:,} signatures"
    if verdict.anchor is not None:
        later = verdict.entries - verdict.anchor.number
        more = f"; not covered yet: {later:,}" if later > 0 else ""
        yield f"Outside up to entry {verdict.anchor.number:,}, the signed head beside the database{more}"
    for each in verdict.accepted:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.at_us / 1_000_000))
        lost = "no signed head" if each.lost is None else f"the signed head was entry {each.lost.number:,}"
        yield (
            f"Accepted by {one_line(each.who, 40)} on {when}: ended with entry {each.kept:,}, {lost}: "
            f"{one_line(each.reason, 120)}"
        )
    if verdict.key is not None:
        yield f"Key     {one_line(verdict.key, 80)}"


def _problem(problem: Flaw) -> str:
    place = "log" if problem.number is None else f"entry {problem.number}"
    return f"{place}: {one_line(problem.why, 300)}"


def read_since(text: str, now: float) -> int:
    """Parse a date, a time or an age into Unix microseconds. Raises `UserError` (`bad_time`)."""
    if ago := _AGO.fullmatch(text):
        return round((now - int(ago[1]) * _UNITS[ago[2]]) * 1_000_000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(
            "bad_time", "Write a time as 2026-01-31 or 2026-01-31T12:00, or as an age such as 36h or 7d."
        ) from None
    if moment.tzinfo is None:
        moment = moment.astimezone()
    return round(moment.astimezone(UTC).timestamp() * 1_000_000)


# Format rules and decisions as text.


def show_explained(record: Explained) -> None:
    put(f"{record.effect}  {one_line(record.action, 200)}")
    put(f"  because: {one_line(record.rule, 300)}")
    if record.approver is not None:
        put(f"  may be approved by: {record.approver}")
    if record.inspect:
        put("  each HTTP request is decided separately")
    for command in record.commands or ():
        put(f"  runs: {one_line(command, 200)}")
    if record.unclear is not None:
        put(f"  and commands that cannot be determined: {record.unclear}")


def show_test(result: PolicyVerdict) -> None:
    if result.ok:
        put(f"ok    {result.effect}  {one_line(result.action, 160)}")
        return
    put(f"FAIL  {one_line(result.action, 160)}  ({result.source})")
    put(f"      expected {result.expect}, got {result.effect}: {one_line(result.rule, 300)}")


def layer_lines(policy: Policy) -> Iterator[str]:
    """The rules layer by layer."""
    for layer in policy:
        yield f"[{layer.name}]{_power(layer)}"
        yield from (_line(rule.effect, rule.action, rule.source) for rule in layer.rules)
        for word, listed in (
            ("delegate", layer.delegate or ()),
            ("only", layer.only),
            ("high", layer.high_impact),
            ("approve", layer.approve or ()),
        ):
            yield from (_line(word, item.action, item.source) for item in listed)
        yield from (_line("limit", f"{cap.name} {cap.most:g}", cap.source) for cap in layer.caps)


def effective_lines(policy: Policy) -> Iterator[str]:
    """The rules of all layers in the order of precedence."""
    for layer in policy:
        yield from (_line("only", item.action, item.source) for item in layer.only)
    for effect in ("deny", "ask", "allow"):
        for layer in policy:
            opens = effect != "deny" and layer.needs_delegation
            note = ", if delegated" if opens else ""
            for rule in layer.rules:
                if rule.effect == effect:
                    yield _line(effect, rule.action, rule.source + note)
    for layer in policy:
        yield from (_line("high", item.action, item.source) for item in layer.high_impact)
        if layer.delegate is not None:
            given = ", ".join(item.action for item in layer.delegate) or "nothing"
            yield _line("below", f"{layer.name} lets the layers below allow {given}", "")
    from cloister.policy.layers import least

    yield from (_line("limit", f"{cap.name} {cap.most:g}", cap.source) for cap in least(policy).values())


def _power(layer: Layer) -> str:
    if layer.needs_delegation:
        return "  may allow only what was delegated"
    return "" if layer.may_widen else "  may allow nothing"


def _line(word: str, action: str, source: str) -> str:
    where = f"  ({one_line(source, 200)})" if source else ""
    return f"  {word:<9} {one_line(action, 200)}{where}"
