"""Rules and decisions as people read them."""

from collections.abc import Iterator

import msgspec

from cloister.agent.shell.parse import read_commands
from cloister.core.events import Effect
from cloister.core.text import one_line
from cloister.egress.sandbox_setup import FindSets, sets_of
from cloister.policy.api import HOLE, Action, Approver, Decision, Layer, Policy, ToolAction
from cloister.policy.decide import Decider
from cloister.policy.file import Expectation, PolicyRead
from cloister.policy.layers import BUILT_IN, least
from cloister.policy.pattern import COMMAND_TOOLS


class Explained(msgspec.Struct, frozen=True):
    """One action and what would be decided."""

    action: str
    effect: Effect
    rule: str
    exact: bool
    inspect: bool
    approver: Approver | None
    """Who may say yes; None when nobody is asked."""
    commands: tuple[str, ...] | None
    """Of `bash`: the commands found in the line."""
    unclear: str | None


class Verdict(msgspec.Struct, frozen=True):
    """One test of a policy file."""

    ok: bool
    action: str
    expect: Effect
    effect: Effect
    rule: str
    source: str


async def parsed(action: Action) -> Action:
    """The action with the commands of its line, where it has one."""
    if isinstance(action, ToolAction) and action.tool in COMMAND_TOOLS:
        return msgspec.structs.replace(action, commands=await read_commands(action.target))
    return action


def explained(text: str, action: Action, decision: Decision) -> Explained:
    commands = action.commands if isinstance(action, ToolAction) else None
    return Explained(
        text,
        decision.effect,
        decision.rule,
        decision.exact,
        decision.inspect,
        decision.approver if decision.effect == "ask" else None,
        tuple(spellings[0].replace(HOLE, "…") for spellings in commands.simple) if commands else None,
        commands.unclear if commands else None,
    )


def show_explained(record: Explained) -> None:
    print(f"{record.effect}  {one_line(record.action, 200)}")
    print(f"  because: {one_line(record.rule, 300)}")
    if record.approver is not None:
        print(f"  who may say yes: {record.approver}")
    if record.inspect:
        print("  each request is decided by itself")
    for command in record.commands or ():
        print(f"  runs: {one_line(command, 200)}")
    if record.unclear is not None:
        print(f"  and more that is not known: {record.unclear}")


async def verdicts_of(read: PolicyRead, find_sets: FindSets) -> tuple[Verdict, ...]:
    """The tests of a file, decided by the built-in rules and that file alone."""
    policy = (BUILT_IN, read.layer)
    decider = Decider(policy, await sets_of(policy, find_sets) if read.tests else {})
    return tuple([await _verdict(decider, test) for test in read.tests])


async def _verdict(decider: Decider, test: Expectation) -> Verdict:
    decision = decider.decide(await parsed(test.action), untrusted=test.untrusted)
    held = decision.effect == test.expect
    return Verdict(held, test.text, test.expect, decision.effect, decision.rule, test.source)


def show_verdict(verdict: Verdict) -> None:
    if verdict.ok:
        print(f"ok    {verdict.effect}  {one_line(verdict.action, 160)}")
        return
    print(f"FAIL  {one_line(verdict.action, 160)}  ({verdict.source})")
    print(f"      expected {verdict.expect}, got {verdict.effect}: {one_line(verdict.rule, 300)}")


def layer_lines(policy: Policy) -> Iterator[str]:
    """Each layer as it is written."""
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
    """All layers as one, in the order in which they count."""
    for layer in policy:
        yield from (_line("only", item.action, item.source) for item in layer.only)
    for effect in ("deny", "ask", "allow"):
        for layer in policy:
            opens = effect != "deny" and layer.needs_delegation
            note = ", where it was delegated" if opens else ""
            for rule in layer.rules:
                if rule.effect == effect:
                    yield _line(effect, rule.action, rule.source + note)
    for layer in policy:
        yield from (_line("high", item.action, item.source) for item in layer.high_impact)
        if layer.delegate is not None:
            given = ", ".join(item.action for item in layer.delegate) or "nothing"
            yield _line("below", f"{layer.name} lets the layers below open {given}", "")
    yield from (_line("limit", f"{cap.name} {cap.most:g}", cap.source) for cap in least(policy).values())


def _power(layer: Layer) -> str:
    if layer.needs_delegation:
        return "  opens only what was delegated"
    return "" if layer.may_widen else "  opens nothing"


def _line(word: str, action: str, source: str) -> str:
    where = f"  ({one_line(source, 200)})" if source else ""
    return f"  {word:<9} {one_line(action, 200)}{where}"
