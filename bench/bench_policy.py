"""How long a decision takes with 500 rules, against one without rules; and how long parsing a command line takes."""

import statistics
import time

import anyio

from cloister.policy.api import Action, Commands, ConnectAction, PushAction, RequestAction, ToolAction
from cloister.policy.decide import Decider
from cloister.policy.file import read_policy
from cloister.policy.layers import BUILT_IN
from cloister.policy.shell.parse import read_commands

ROUNDS = 20_000
GOAL_MICROSECONDS = 50.0
KINDS = (
    ("connect:host{0}.example.com", "allow"),
    ("connect:*.suffix{0}.example.com", "deny"),
    ("request:GET api{0}.example.com/repos/{0}/**", "allow"),
    ("bash:tool{0} *", "deny"),
    ("write:src/part{0}/**", "ask"),
    ("read:**/secret{0}/*", "deny"),
    ("push:release/{0}*", "ask"),
    ("mcp:server{0}.*", "allow"),
    ("credential:name{0}", "allow"),
    ("model:provider{0}:*", "deny"),
)
ACTIONS: dict[str, Action] = {
    "connect, allowed": ConnectAction("host7.example.com", 443),
    "connect, no rule": ConnectAction("a.b.c.elsewhere.test", 443),
    "request, allowed": RequestAction("api3.example.com", 443, "GET", "/repos/3/a/b?x=1"),
    "bash, two commands": ToolAction("bash", "ls; cat x", Commands((("ls",), ("cat x",)))),
    "write, asked": ToolAction("write", "src/part9/a/b.py"),
    "read, allowed": ToolAction("read", "src/deep/down/in/the/tree/a.py"),
    "push, denied": PushAction("repo", "refs/heads/main"),
}


def policy_of(count: int) -> Decider:
    rules = [KINDS[n % len(KINDS)] for n in range(count)]
    text = "".join(
        f'[[rule]]\naction = "{action.format(n // len(KINDS))}"\neffect = "{effect}"\n'
        for n, (action, effect) in enumerate(rules)
    )
    return Decider((BUILT_IN, read_policy("organisation", text.encode(), "policy.toml").layer))


def microseconds(decider: Decider, action: Action) -> tuple[float, float]:
    """Median and 99th percentile."""
    took: list[float] = []
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        decider.decide(action)
        took.append((time.perf_counter_ns() - started) / 1_000)
    return statistics.median(took), statistics.quantiles(took, n=100)[98]


async def parsing() -> float:
    took: list[float] = []
    for _ in range(30):
        started = time.perf_counter()
        await read_commands("cd src && python -m pytest -q tests | tail -5")
        took.append(time.perf_counter() - started)
    return statistics.median(took) * 1_000


def main() -> None:
    few, many = policy_of(0), policy_of(500)
    worst = 0.0
    for name, action in ACTIONS.items():
        bare, _ = microseconds(few, action)
        p50, p99 = microseconds(many, action)
        worst = max(worst, p50)
        print(
            f"decide, 500 rules: {name:20s} p50 {p50:6.1f} µs  p99 {p99:6.1f} µs   "
            f"without rules {bare:5.1f} µs   ratio {p50 / bare:4.1f}x"
        )
    print(f"slowest p50 {worst:.1f} µs   (goal ≤ {GOAL_MICROSECONDS:.0f} µs)")
    started = time.perf_counter()
    policy_of(500)
    print(f"read and arrange 500 rules once: {(time.perf_counter() - started) * 1_000:.1f} ms")
    print(f"parse a command line, only where rules are about commands: {anyio.run(parsing):.1f} ms")


if __name__ == "__main__":
    main()
