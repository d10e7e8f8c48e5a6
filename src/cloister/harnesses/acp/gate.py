"""May a tool call of a program run? The policy decides, or a person; the program reads yes or no.

This is advice and no boundary: a program inside can act without asking. The boundary is the sandbox, its proxy, and the
evidence about the change.
"""

from cloister.agent.approvals import Approvals, Ruling
from cloister.agent.harnesses.api import Workplace
from cloister.agent.tools.api import ARGUMENTS, AnyTool, Arguments, Tool, answered_by_the_loop
from cloister.core.requests import ToolCall
from cloister.harnesses.acp.calls import OWN, Seen
from cloister.harnesses.acp.messages import Option
from cloister.policy.api import Layer, Policy, Rule

_UNASKED = "; the harness did not ask"


class Gate:
    """Decides about the calls of one attempt's program."""

    def __init__(self, place: Workplace) -> None:
        self._journal = place.journal
        self._approvals = Approvals(
            place.attempt, place.journal, place.computer, _with_own(place.policy), place.ask_seconds
        )

    @property
    def approvals(self) -> Approvals:
        return self._approvals

    async def allows(self, seen: Seen, call: ToolCall) -> str:
        """Why the call may not run; empty if it may. Records the decisions, and may wait for a person."""
        actions = seen.actions()
        if seen.allowed == actions:
            return ""
        for ruling in await self._rulings(actions, call):
            await self._journal.append(*ruling.bodies)
            effect, why = await self._approvals.outcome(ruling)
            if effect != "allow":
                return f"{ruling.decided.action}: {why}"
        seen.allowed = actions
        return ""

    async def judge(self, seen: Seen, call: ToolCall) -> str:
        """As `allows`, for a call that has run without asking: a person cannot be asked any more."""
        for ruling in await self._rulings(seen.actions(), call):
            decided = ruling.decided
            effect = "deny" if decided.effect == "ask" else decided.effect
            rule = f"{decided.rule}{_UNASKED}"
            await self._journal.append(
                type(decided)(decided.attempt, decided.call, decided.action, effect, rule)
            )
            if effect != "allow":
                return f"{decided.action}: {rule}"
        return ""

    async def _rulings(self, actions: tuple[tuple[str, str], ...], call: ToolCall) -> list[Ruling]:
        """Those that do not just allow; if there are none, the first."""
        found = [
            await self._approvals.rule(call, _tool(name), {"target": target}) for name, target in actions
        ]
        return [one for one in found if one.decided.effect != "allow"] or found[:1]


def _target(args: Arguments) -> str:
    return str(args["target"])


def _tool(name: str) -> AnyTool:
    """What the policy needs to know of a tool that is not ours."""
    return Tool(name=name, description="", args=ARGUMENTS, target=_target, run=answered_by_the_loop)


def _with_own(policy: Policy) -> Policy:
    """The harness's own tools, such as its list of things to do, are allowed where no rule speaks of them."""
    own = Layer("harness", (Rule(f"tool:{OWN}", "allow", "the harness's own tools"),), may_widen=True)
    return (*policy[:1], own, *policy[1:])


def chosen(options: tuple[Option, ...], *, allow: bool) -> str | None:
    """The option that allows or rejects this one call; None if there is none. Never one that holds for later calls."""
    wanted = "allow_once" if allow else "reject_once"
    return next((one.option_id for one in options if one.kind == wanted), None)
