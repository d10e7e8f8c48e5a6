"""The verbs of the rules and of added tools in this process."""

# ruff: noqa: PLC0415

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from cloister.app.config import rule_files
from cloister.app.verbs.api import PolicyVerbs
from cloister.app.verbs.declare import no_report
from cloister.app.verbs.local import Group, checked
from cloister.app.verbs.records import Explained, PolicyVerdict, RuleContext
from cloister.app.verbs.tools import ToolInfo, ToolList, ToolTried, ToolVerbs
from cloister.core.errors import UserError, sole
from cloister.core.events import Effect
from cloister.core.requests import NewRun, check_new_run
from cloister.core.system import NeedsLoop, in_thread, looped
from cloister.core.text import decode, one_line
from cloister.policy.api import HOLE, SET_NAMES, Action, Layer, Policy, Rule, ToolAction
from cloister.policy.decide import Decider
from cloister.policy.file import read_action, read_policy
from cloister.policy.layers import BUILT_IN, set_names
from cloister.policy.pattern import COMMAND_TOOLS
from cloister.policy.shell.parse import read_commands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cloister.app.settings import Settings
    from cloister.egress.packages import Meaning, SetFinder
    from cloister.policy.api import Decision, Sets


@checked(PolicyVerbs)
class LocalPolicy(Group):
    """Implements `PolicyVerbs`."""

    async def layers(self, context: RuleContext) -> Policy:
        self._check_repository(context.repo)
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
        from cloister.egress.packages import SetFinder

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


@checked(ToolVerbs)
class LocalTools(Group):
    """Implements `ToolVerbs`."""

    async def list(self, repo: str | None = None) -> ToolList:
        self._check_repository(repo)
        declared, problems = await _declared(self._settings, repo)
        policy = await in_thread(rule_files(self._settings).above, repo)
        return ToolList(tuple(_decided(declared, policy)), tuple(one_line(one, 400) for one in problems))

    async def call(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        repo: str | None = None,
        ref: str | None = None,
    ) -> ToolTried:
        self._check_repository(repo)
        request = NewRun("Try a tool.", repo or "", ref)
        if repo is not None and (problem := check_new_run(request)):
            raise UserError("bad_run", problem)
        if repo is None:
            await self._check_name(name)
        try:
            async with self._parts.machine() as app:
                done = await app.try_tool(request, name, arguments or {}, no_report)
        except Exception as error:
            raise sole(error) from None  # from the tasks of a machine that was opened for this
        found, decision = done.observation, done.decision
        await self._note("ToolTried", name=name[:200], ok=found.ok, repo=repo or "", rule=decision.rule)
        return ToolTried(found.ok, found.text, found.exit_code, done.seconds, decision.rule)

    async def _check_name(self, name: str) -> None:
        """Raise `UserError` if no tool of the settings and of packages can have this name: that needs no sandbox."""
        from cloister.runs.environments.trial import no_such_tool

        declared, problems = await _declared(self._settings, None)
        names = [info.name for info, _ in declared]
        if not any(one in name for one in names):
            raise no_such_tool(name, names, problems)


_Added = tuple[ToolInfo, Effect | None]
"""A declaration, and what holds where no rule speaks about it."""


async def _declared(settings: Settings, repo: str | None) -> tuple[list[_Added], list[str]]:
    """What the settings, installed packages and the HEAD of `repo` declare, without starting anything."""
    from cloister.agent.tools import declared as commands
    from cloister.agent.tools.functions import installed
    from cloister.agent.tools.mcp import servers
    from cloister.agent.tools.toolset import distinct
    from cloister.core.repository import FILES
    from cloister.forge.read import folder_of_head, read_head_file

    file, source = settings.file, str(settings.config_path)
    found, problems = commands.settings_tools(file.tool, source)
    hosts, wrong = servers.of_settings(file.mcp, source)
    problems += wrong
    if repo is not None:
        most, size = commands.FILES, commands.FILE_BYTES
        commit, listed = await folder_of_head(repo, commands.FOLDER, ".toml", most=most, limit_bytes=size)
        where = f"@{commit[:12]}"
        own, wrong = commands.read_tools(listed.files, where)
        found, problems = [*found, *own], [*problems, *listed.problems, *wrong]
        texts = {name: read[1] for name in FILES if (read := await read_head_file(repo, name)) and read[1]}
        beside, wrong = servers.of_repository({name: decode(data) for name, data in texts.items()}, where)
        hosts, problems = [*hosts, *beside], [*problems, *wrong]
        if file.mcp_json and (read := await read_head_file(repo, servers.MCP_JSON)) and read[1]:
            beside, wrong = servers.of_mcp_json(decode(read[1]), where)
            hosts, problems = [*hosts, *beside], [*problems, *wrong]
    functions = await in_thread(installed)
    usable, doubled = distinct([*(one.tool for one in found), *functions.tools])
    hosts, clashing = servers.distinct(hosts)
    layers = {one.source: one for one in found}
    added: list[_Added] = []
    for tool in usable:
        one = layers.get(tool.source)
        kind, layer, where = (
            ("command", one.layer, one.entry.where) if one else ("function", "installed", "host")
        )
        info = ToolInfo(
            tool.name, kind, layer, tool.source, where, tool.description, f"tool:{tool.name}", "deny"
        )
        added.append((info, tool.grant))
    for server in hosts:
        what = server.entry.url or " ".join(server.entry.command)
        where = urlsplit(server.entry.url).netloc or server.entry.where
        info = ToolInfo(
            server.name, "server", server.layer, server.source, where, one_line(what, 300), "", "deny"
        )
        added.append((msgspec.structs.replace(info, rule=f"mcp:{server.name}.*"), server.grant))
    return added, [*problems, *functions.problems, *doubled, *clashing]


def _decided(added: list[_Added], policy: Policy) -> Iterator[ToolInfo]:
    """Each with what the rules say of a call without arguments."""
    grants = [Rule(info.rule, grant, info.source) for info, grant in added if grant is not None]
    decider = Decider((*policy[:1], Layer("tools", tuple(grants), may_widen=True), *policy[1:]))
    for info, _ in added:
        name = info.rule.removeprefix("tool:") if info.kind != "server" else f"mcp:{info.name}.x"
        yield msgspec.structs.replace(info, effect=decider.decide(ToolAction(name, "{}")).effect)
