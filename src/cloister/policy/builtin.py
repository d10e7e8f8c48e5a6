"""The rules that hold without any configuration: work inside the sandbox, and no way out of it."""

from cloister.policy.api import Layer, Rule
from cloister.policy.pattern import TOOL_NAMES

BUILT_IN = Layer(
    name="built-in",
    rules=(
        *(Rule(f"tool:{tool}", "allow", "built-in") for tool in TOOL_NAMES),
        # The repository's own bookkeeping: git inside keeps it, files written by hand would corrupt it.
        Rule("tool:write:.git/**", "deny", "built-in"),
        Rule("tool:edit:.git/**", "deny", "built-in"),
        # The run's own branch; whose it is, the door knows.
        Rule("push:cloister/*", "allow", "built-in"),
        Rule("tier:*", "allow", "built-in"),
        Rule("model:*", "allow", "built-in"),
    ),
    may_widen=True,
)
