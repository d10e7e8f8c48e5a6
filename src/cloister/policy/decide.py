"""The decision: any deny wins, then any ask, then an allow by someone who may allow; else no."""

from collections.abc import Iterator

from cloister.policy.api import Action, ConnectAction, Decision, Layer, Policy, Rule, ToolAction
from cloister.policy.hosts import normal_host
from cloister.policy.pattern import PATH_TOOLS, WEB_PORTS, HostPattern, ToolPattern, normal_path, read_pattern

NO_RULE = "no rule allows it"
PATH_CHARS = 4_096
"""No system opens a longer path."""


def decide(policy: Policy, action: Action) -> Decision:
    """What to do with `action`. The order of layers and of rules changes nothing but which rule is named."""
    match action:
        case ToolAction(tool, target) if tool in PATH_TOOLS and len(normal_path(target)) > PATH_CHARS:
            return Decision("deny", f"a path has at most {PATH_CHARS} characters")
        case ConnectAction(host, port):
            try:
                action = ConnectAction(normal_host(host), port)
            except ValueError as error:
                return Decision("deny", f"the host cannot be named by a rule: {error}")
        case _:
            pass
    matching = list(_matching(policy, action))
    for effect in ("deny", "ask"):
        for _, rule in matching:
            if rule.effect == effect:
                return Decision(effect, _named(rule))
    allowing = [rule for layer, rule in matching if rule.effect == "allow" and layer.may_widen]
    if not allowing:
        return Decision("deny", NO_RULE)
    exact = next((rule for rule in allowing if _is_exact(rule)), None)
    return Decision("allow", _named(exact or allowing[0]), exact=exact is not None)


def _matching(policy: Policy, action: Action) -> Iterator[tuple[Layer, Rule]]:
    for layer in policy:
        for rule in layer.rules:
            if _matches(rule, action):
                yield layer, rule


def _matches(rule: Rule, action: Action) -> bool:
    narrows = rule.effect != "allow"
    try:
        pattern = read_pattern(rule.action)
    except ValueError:
        # Layers from `read.layer` are well formed. Of one that is not, only what narrows is believed.
        return narrows
    match pattern, action:
        case ToolPattern(), ToolAction():
            return pattern.matches(action)
        case HostPattern(), ConnectAction():
            return pattern.matches(action, None if narrows else WEB_PORTS)
        case _:
            return False


def _is_exact(rule: Rule) -> bool:
    pattern = read_pattern(rule.action)
    return isinstance(pattern, HostPattern) and pattern.exact


def _named(rule: Rule) -> str:
    where = f" ({rule.source})" if rule.source else ""
    return f"{rule.effect} {rule.action}{where}"
