"""Format rules and decisions as text."""

from collections.abc import Iterator

from cloister.app.verbs.records import Explained, PolicyVerdict
from cloister.core.text import one_line
from cloister.policy.api import Layer, Policy
from cloister.policy.layers import least


def show_explained(record: Explained) -> None:
    print(f"{record.effect}  {one_line(record.action, 200)}")
    print(f"  because: {one_line(record.rule, 300)}")
    if record.approver is not None:
        print(f"  may be approved by: {record.approver}")
    if record.inspect:
        print("  each HTTP request is decided separately")
    for command in record.commands or ():
        print(f"  runs: {one_line(command, 200)}")
    if record.unclear is not None:
        print(f"  and commands that cannot be determined: {record.unclear}")


def show_test(result: PolicyVerdict) -> None:
    if result.ok:
        print(f"ok    {result.effect}  {one_line(result.action, 160)}")
        return
    print(f"FAIL  {one_line(result.action, 160)}  ({result.source})")
    print(f"      expected {result.expect}, got {result.effect}: {one_line(result.rule, 300)}")


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
    yield from (_line("limit", f"{cap.name} {cap.most:g}", cap.source) for cap in least(policy).values())


def _power(layer: Layer) -> str:
    if layer.needs_delegation:
        return "  may allow only what was delegated"
    return "" if layer.may_widen else "  may allow nothing"


def _line(word: str, action: str, source: str) -> str:
    where = f"  ({one_line(source, 200)})" if source else ""
    return f"  {word:<9} {one_line(action, 200)}{where}"
