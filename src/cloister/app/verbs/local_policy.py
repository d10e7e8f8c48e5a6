"""The verbs of the rules in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cloister.app.config import rule_files
from cloister.app.verbs.api import PolicyVerbs
from cloister.app.verbs.local import Group, checked
from cloister.app.verbs.records import Explained, PolicyVerdict, RuleContext
from cloister.core.errors import UserError
from cloister.core.system import NeedsLoop, in_thread, looped
from cloister.core.text import one_line
from cloister.policy.api import HOLE, SET_NAMES, Action, Policy, ToolAction
from cloister.policy.decide import Decider
from cloister.policy.file import read_action, read_policy
from cloister.policy.layers import BUILT_IN, set_names
from cloister.policy.pattern import COMMAND_TOOLS
from cloister.policy.shell.parse import read_commands

if TYPE_CHECKING:
    from cloister.egress.packages import Meaning, SetFinder
    from cloister.policy.api import Decision, Sets


@checked(PolicyVerbs)
class LocalPolicy(Group):
    """Implements `PolicyVerbs`."""

    async def layers(self, context: RuleContext) -> Policy:
        above = await in_thread(rule_files(self._settings).above, context.repo)
        if context.policy is None:
            return above
        return (*above, read_policy("repository", context.policy.encode(), context.source).layer)

    async def explain(self, action: str, context: RuleContext, *, untrusted: bool = False) -> Explained:
        try:
            found = await _with_commands(read_action(action))
        except ValueError as error:
            raise UserError("bad_action", f"{one_line(action, 80)!r}: {error}.") from None
        policy = await self.layers(context)
        decider = Decider(policy, await self._sets_of(policy))
        return _explained(action, found, decider.decide(found, untrusted=untrusted))

    async def test(self, text: str, source: str) -> tuple[PolicyVerdict, ...]:
        read = read_policy("organisation", text.encode(), source)
        policy = (BUILT_IN, read.layer)
        decider = Decider(policy, await self._sets_of(policy) if read.tests else {})
        verdicts: list[PolicyVerdict] = []
        for test in read.tests:
            decision = decider.decide(await _with_commands(test.action), untrusted=test.untrusted)
            held = decision.effect == test.expect
            verdicts.append(
                PolicyVerdict(held, test.text, test.expect, decision.effect, decision.rule, test.source)
            )
        return tuple(verdicts)

    async def sets(self, name: str, *, again: bool = False) -> Meaning:
        if name not in SET_NAMES:
            raise UserError(
                "no_such_set", f"There is no set {name[:64]!r}: use {', '.join(sorted(SET_NAMES))}."
            )
        return await self._finder.meaning(name, again=again)

    async def _sets_of(self, policy: Policy) -> Sets:
        """The named host sets of the policy. A policy without sets asks no package client."""
        names = set_names(policy)
        if names and not looped():
            raise NeedsLoop
        return (await self._finder.find(names))[0] if names else {}

    @property
    def _finder(self) -> SetFinder:
        from cloister.egress.packages import SetFinder  # noqa: PLC0415  (an HTTP client; few policies name sets)

        return SetFinder(self._settings.data_dir)


async def _with_commands(action: Action) -> Action:
    """The action with the commands of its line, where it has one."""
    if isinstance(action, ToolAction) and action.tool in COMMAND_TOOLS:
        return msgspec.structs.replace(action, commands=await read_commands(action.target))
    return action


def _explained(text: str, action: Action, decision: Decision) -> Explained:
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
