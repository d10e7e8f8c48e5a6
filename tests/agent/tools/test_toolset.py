"""Added tools: rules, arguments, the search where they are many, and what a request with 100 of them costs."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.loop_bench import FIX, LoopBench, open_bench

from cloister.agent.context.messages import fixed_tokens
from cloister.agent.context.prompts import SYSTEM
from cloister.agent.tools.api import ARGUMENTS, AnyTool, Arguments, Observation, Show, Tool, observe
from cloister.agent.tools.schema import arguments_problem, schema_problem
from cloister.agent.tools.toolset import (
    LISTED_TOOLS,
    MOST_TOOLS,
    Offer,
    ToolPlace,
    ToolSet,
    ToolSource,
    distinct,
    open_tools,
)
from cloister.core.computer import Computer
from cloister.core.errors import UserError
from cloister.core.events import ActionDecided, AskRaised, Effect, ToolReturned, ToolsOffered
from cloister.core.requests import NewRun
from cloister.policy.api import Layer, Rule
from cloister.policy.layers import BUILT_IN

pytestmark = pytest.mark.anyio

SCHEMA = {
    "type": "object",
    "properties": {"to": {"type": "string", "enum": ["staging", "prod"]}},
    "required": ["to"],
    "additionalProperties": False,
}


def tool(
    name: str = "deploy",
    text: str = "Deploy the service.",
    grant: Effect | None = "allow",
    action: str = "",
    own: bool = False,
) -> AnyTool:
    async def run(computer: Computer, args: Arguments, show: Show) -> Observation:
        return observe(True, f"{name} got {args}")

    return Tool(
        name=name,
        description=text,
        args=ARGUMENTS,
        target=lambda args: msgspec.json.encode(args).decode(),
        run=run,
        schema=SCHEMA,
        action=action,
        grant=grant,
        origin="server",
        source="a test",
        own=own,
    )


def added_tools(count: int) -> list[AnyTool]:
    subjects = ("invoice", "release", "feature flag", "database replica", "pager rotation")
    return [
        tool(
            f"company_tool_{n}",
            f"Look up or change one {subjects[n % 5]} of the team number {n}, in the company's own system.",
        )
        for n in range(count)
    ]


def call(name: str, arguments: str) -> str:
    return f'[[reply]]\ncalls = [{{ tool = "{name}", {arguments} }}]\n'


@pytest.fixture
async def bench(tmp_path: Path) -> LoopBench:
    return await open_bench(tmp_path)


def results(bench: LoopBench) -> list[ToolReturned]:
    return [body for body in bench.journal.bodies if isinstance(body, ToolReturned)]


async def test_added_tool_is_called_with_checked_arguments_and_its_text_is_untrusted(
    bench: LoopBench,
) -> None:
    script = call("deploy", 'to = "mars"') + call("deploy", 'to = "prod"') + FIX
    bench.tools = ToolSet([tool()])
    await bench.work(script)
    wrong, right = results(bench)[:2]
    assert (wrong.ok, wrong.text) == (
        False,
        'Invalid arguments of `deploy`: to must be one of ["staging","prod"].',
    )
    assert (right.ok, right.text, right.origin) == (True, "deploy got {'to': 'prod'}", "server")
    decided = next(body for body in bench.journal.bodies if isinstance(body, ActionDecided))
    assert (decided.action, decided.effect, decided.rule) == (
        'deploy: {"to":"prod"}',
        "allow",
        "allow tool:deploy (a test)",
    )


async def test_tool_without_a_grant_needs_a_rule(bench: LoopBench) -> None:
    script = call("deploy", 'to = "prod"') + FIX
    bench.tools = ToolSet([tool(grant=None)])
    await bench.work(script)
    assert (results(bench)[0].ok, results(bench)[0].text) == (False, "Not allowed: no rule allows it.")


async def test_rules_of_people_narrow_the_grant_of_a_tool(bench: LoopBench) -> None:
    host = Layer("host", (Rule('tool:deploy:*"prod"*', "ask", "p:1"), Rule("mcp:jira.close*", "deny", "p:2")))
    closing = tool("jira_close_issue", action="mcp:jira.close_issue")
    calls = ", ".join(
        f'{{ tool = "{name}", to = "{to}" }}'
        for name, to in (("deploy", "staging"), ("deploy", "prod"), ("jira_close_issue", "prod"))
    )
    bench.tools = ToolSet([tool(), closing])
    await bench.work(
        f"[[reply]]\ncalls = [{calls}]\n" + FIX,
        policy=(BUILT_IN, host),
        ask_seconds=0.01,
    )
    assert [done.ok for done in results(bench)[:3]] == [True, False, False]
    assert [body.action for body in bench.journal.bodies if isinstance(body, AskRaised)] == [
        'deploy: {"to":"prod"}'
    ]
    assert "deny mcp:jira.close* (p:2)" in results(bench)[2].text


def test_one_hundred_tools_cost_at_most_two_thousand_tokens() -> None:
    plain, few, hundred = ToolSet(), ToolSet(added_tools(20)), ToolSet(added_tools(100))
    cost = fixed_tokens(SYSTEM, hundred.specs) - fixed_tokens(SYSTEM, plain.specs)
    assert 100 < cost <= 2_000
    assert fixed_tokens(SYSTEM, ToolSet(added_tools(500)).specs) - fixed_tokens(SYSTEM, plain.specs) <= 2_000
    assert {spec.name for spec in few.specs} > {"company_tool_7", "bash"}
    assert "find_tool" not in {spec.name for spec in few.specs}
    assert "company_tool_7" not in {spec.name for spec in hundred.specs}


async def test_cloisters_own_added_tools_stay_listed_and_do_not_count(bench: LoopBench) -> None:
    """The prompt names `skill`, so a model must see it beside however many tools of a company."""
    own = [tool("skill", "Open a skill.", own=True), tool("delegate", "Let a helper work.", own=True)]
    more = [tool(f"own_{n}", own=True) for n in range(LISTED_TOOLS)]
    assert "find_tool" not in {spec.name for spec in ToolSet([*added_tools(20), *more]).specs}
    many = ToolSet([*added_tools(100), *own])
    listed = {spec.name: spec for spec in many.specs}
    assert set(listed) == {*ToolSet(own), "find_tool", "call_tool"}
    assert "company_tool_7" in listed["find_tool"].description
    assert "delegate" not in listed["find_tool"].description
    assert fixed_tokens(SYSTEM, many.specs) - fixed_tokens(SYSTEM, ToolSet(own).specs) <= 2_000
    bench.tools = many
    await bench.work(
        call("skill", 'to = "prod"') + call("call_tool", 'name = "skill", arguments = { to = "prod" }') + FIX
    )
    assert [done.text for done in results(bench)[:2]] == ["skill got {'to': 'prod'}"] * 2
    usable, problems = distinct([*added_tools(MOST_TOOLS + 1), *own])
    assert (len(usable), len(problems)) == (MOST_TOOLS + len(own), 1)


async def test_tools_over_the_number_are_found_by_what_they_do_and_called(bench: LoopBench) -> None:
    added = [
        *added_tools(LISTED_TOOLS),
        tool("page_on_call", "Page the engineer who is on call, with a message."),
    ]
    script = (
        call("find_tool", 'query = "wake the on-call engineer"')
        + call("call_tool", 'name = "page_on_call", arguments = { to = "staging" }')
        + call("call_tool", 'name = "page_on_call", arguments = { to = 3 }')
        + call("call_tool", 'name = "bash", arguments = { command = "touch escaped" }')
        + FIX
    )
    bench.tools = ToolSet(added)
    await bench.work(script)
    found, called, wrong, built_in = results(bench)[:4]
    assert (
        found.text.startswith("page_on_call: Page the engineer") and '"enum":["staging","prod"]' in found.text
    )
    assert found.origin == "server"
    assert (called.tool, called.text) == ("call_tool", "page_on_call got {'to': 'staging'}")
    assert wrong.text == "Invalid arguments of `page_on_call`: to must be of the type string."
    assert (built_in.ok, (bench.computer.work / "escaped").exists()) == (False, False)
    actions = [body.action for body in bench.journal.bodies if isinstance(body, ActionDecided)]
    assert 'page_on_call: {"to":"staging"}' in actions


def source(*tools: AnyTool, problems: tuple[str, ...] = ()) -> ToolSource:
    @asynccontextmanager
    async def opened(place: ToolPlace) -> AsyncGenerator[Offer]:
        yield Offer(tools, problems)

    return opened


@asynccontextmanager
async def broken(place: ToolPlace) -> AsyncGenerator[Offer]:
    raise UserError("bad_tool", "The server of tools is down.")
    yield Offer()


async def test_names_that_are_not_their_own_and_broken_sources_are_reported(bench: LoopBench) -> None:
    place = ToolPlace(0, bench.journal, bench.computer, NewRun("p", "r"), bench.bare, bench.base, (BUILT_IN,))
    sources = (
        source(tool("a"), tool("bash"), tool("b")),
        broken,
        source(replace(tool("a"), source="elsewhere"), problems=("x is wrong.",)),
    )
    for _ in range(2):  # opened again after a crash, it records the same set once
        async with open_tools(sources, place) as opened:
            assert set(opened.added) == {"b"}
    (event,) = [body for body in bench.journal.bodies if isinstance(body, ToolsOffered)]
    assert [one.name for one in event.tools] == ["b"]
    assert event.problems == (
        "The server of tools is down.",
        "x is wrong.",
        "Two tools have the name 'a', in a test and elsewhere: none of them is used; rename one.",
        "The tool 'bash' of a test has the name of a built-in tool: rename it.",
    )


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ([], "the schema must be an object"),
        ({"type": "string"}, 'the schema of the arguments must have the type "object"'),
        ({"properties": {"n": {"type": "int"}}}, "arguments.n: 'int' is no type"),
        ({"properties": {"n": {"type": [["string"]]}}}, "arguments.n: \"['string']\" is no type"),
        ({"properties": {"n": {"anyOf": []}}}, "arguments.n: the keyword 'anyOf' is unknown"),
        ({"properties": {"n": 3}}, "arguments.n: a schema is an object"),
        ({"required": "n"}, "arguments: the keyword 'required' is unknown, or its value is wrong"),
        ({"properties": {"n": {"pattern": "("}}}, "arguments.n: the pattern '(' is no regular expression"),
        ({"properties": {"n": {"description": "x" * 9_000}}}, "the schema has more than 8,192 bytes"),
    ],
)
def test_wrong_schema_is_named(schema: object, problem: str) -> None:
    assert (schema_problem(schema) or "").startswith(problem)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"n": 3, "tags": ["a"]}, None),
        ({"tags": []}, "n is missing"),
        ({"n": True}, "n must be of the type integer"),
        ({"n": 11}, "n is more than 10"),
        ({"n": 1, "tags": ["a", 2]}, "tags[1] must be of the type string"),
        ({"n": 1, "tags": ["B!"]}, "tags[0] does not match ^[a-z]+$"),
        ({"n": 1, "more": 1}, "more is unknown; there are n, tags"),
        ([], "the arguments must be of the type object"),
    ],
)
def test_wrong_arguments_are_named(value: object, problem: str | None) -> None:
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 0, "maximum": 10},
            "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}},
        },
        "required": ["n"],
        "additionalProperties": False,
    }
    assert schema_problem(schema) is None
    assert arguments_problem(schema, value) == problem


NONSENSE: list[dict[str, Any]] = [
    {"properties": {"n": {"type": 5}}},
    {"properties": {"n": {"type": [["string"]]}}},
    {"properties": {"n": {"type": {"a": 1}}}},
    {"required": [{}, ["n"], 3]},
    {"properties": [], "required": {"n": 1}, "additionalProperties": 1},
]


@pytest.mark.parametrize("schema", NONSENSE)
def test_what_makes_no_sense_in_the_schema_of_a_server_is_ignored(schema: dict[str, Any]) -> None:
    assert arguments_problem(schema, {"n": 1}) is None
