"""The rules that hold without any configuration: work inside the sandbox, and no way out of it."""

from cloister.policy.api import Layer, Rule

_TOOLS = ("bash", "read", "write", "edit", "search", "finish")

BUILT_IN = Layer(
    name="built-in",
    rules=(
        *(Rule(f"tool:{tool}", "allow", "built-in") for tool in _TOOLS),
        # The repository's own bookkeeping: git inside keeps it, files written by hand would corrupt it.
        Rule("tool:write:.git/**", "deny", "built-in"),
        Rule("tool:edit:.git/**", "deny", "built-in"),
    ),
    may_widen=True,
)
