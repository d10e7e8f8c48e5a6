"""Models that cannot call tools are asked for one JSON object per turn."""

import itertools
import json

import msgspec
import pytest
from tests.model.provider_server import ModelServer, open_model_server
from tests.model.wires import CHAT, Sent
from tests.whole.conformance.suites.model import check_failure, check_leaving_early, check_reply, items_of

from cloister.agent.context.messages import request as next_request
from cloister.agent.tools import TOOLS
from cloister.core.events import Event, RunAdmitted
from cloister.core.ids import RunId
from cloister.core.model_config import ModelEntry, ModelRoutes
from cloister.core.requests import NewRun, ToolCall, Usage
from cloister.model.api import (
    AssistantMessage,
    Failure,
    Message,
    Reply,
    Request,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from cloister.model.names import Access
from cloister.model.remote.wire_formats import problem
from cloister.model.roles import Job, open_models
from cloister.model.small_models import RESTLESS, RESULT_CHARS, JsonActions, action_request
from cloister.testing.models import SayingModel

pytestmark = pytest.mark.anyio

SPECS = tuple(tool.spec for tool in TOOLS.values())
BASH = ToolSpec(
    "bash",
    "Run a command. It has a time limit.",
    {
        "type": "object",
        "properties": {"command": {"type": "string", "description": "words"}, "seconds": {"type": "number"}},
        "required": ["command"],
    },
)
LS = ToolCall("c1", "bash", {"command": "ls"})
PWD = ToolCall("c2", "bash", {"command": "pwd"})
READ: tuple[Message, ...] = (
    AssistantMessage("", (ToolCall("c9", "read", {"path": "a.py"}),)),
    ToolMessage("c9", "read", "x = 0"),
)


def asked(*messages: Message) -> Request:
    return action_request(Request("A long system prompt.", messages, (BASH,)))


def test_each_tool_is_one_form_with_only_its_required_arguments() -> None:
    schema = asked(UserMessage("Go.")).schema
    assert schema is not None
    assert problem({"tool": "bash", "command": "ls"}, schema) is None
    for wrong in ({"tool": "bash"}, {"tool": "rm", "command": "ls"}, {"command": "ls"}, "bash"):
        assert problem(wrong, schema) is not None
    assert "words" not in json.dumps(schema)


def test_every_tool_there_is_has_a_form() -> None:
    events = [Event(RunId("r-0000"), 1, 0.0, RunAdmitted(NewRun("Fix it.", "repo"), "me"))]
    first = next_request(events, 0, SPECS)
    small = action_request(first)
    later = action_request(msgspec.structs.replace(first, messages=(*first.messages, *READ)))
    assert small.schema is not None and later.schema is not None
    assert problem({"tool": "finish", "summary": "done"}, later.schema) is None
    assert problem({"tool": "edit", "path": "a", "old": "b", "new": "c"}, later.schema) is None
    assert len(small.system) < 1_200, "the prefix is short"
    assert small.system == later.system, "and stays the same"


def test_first_action_of_a_small_model_must_read() -> None:
    small = action_request(Request("s", (UserMessage("Go."),), SPECS))
    assert small.schema is not None
    assert problem({"tool": "read", "path": "a.py"}, small.schema) is None
    for early in ({"tool": "edit", "path": "a", "old": "b", "new": "c"}, {"tool": "finish", "summary": "x"}):
        assert problem(early, small.schema) is not None


FENCED = "```python\nx = 1\n```"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({"tool": "edit", "path": "a.py", "old": "x = 0", "new": FENCED}, {"new": "x = 1\n"}),
        ({"tool": "write", "path": "a.md", "content": FENCED}, {}),
        ({"tool": "write", "path": "a.py", "content": f"text = '{FENCED}'"}, {}),
        ({"tool": "bash", "command": FENCED}, {}),
    ],
)
async def test_code_is_taken_out_of_its_fence(said: dict[str, str], meant: dict[str, str]) -> None:
    async with open_model_server() as server, open_models(access(server), Job("r")) as models:
        server.say(CHAT.reply(Sent(text=(json.dumps(said),))))
        reply = await check_reply(models.role("code"), Request("s", (UserMessage("Go."), *READ), SPECS))
    arguments = {**said, **meant}
    arguments.pop("tool")
    assert reply.calls[0].arguments == arguments


def test_messages_alternate_between_user_and_assistant() -> None:
    small = asked(
        UserMessage("Fix it."),
        AssistantMessage("I look.", (LS, PWD)),
        ToolMessage("c1", "bash", "a.py"),
        ToolMessage("c2", "bash", "/work"),
        UserMessage("1 check is red."),
        AssistantMessage("Hm."),
    )
    assert small.messages == (
        UserMessage("Fix it."),
        AssistantMessage('{"tool":"bash","command":"ls"}'),
        UserMessage("a.py"),
        AssistantMessage('{"tool":"bash","command":"pwd"}'),
        UserMessage("/work\n\n1 check is red."),
        AssistantMessage("Hm."),
    )


def test_files_are_shown_without_the_numbers_of_their_lines() -> None:
    read = ToolCall("c1", "read", {"path": "a.py"})
    shown = asked(
        UserMessage("Fix it."),
        AssistantMessage("", (read,)),
        ToolMessage("c1", "read", "     1\tdef add(a, b):\n     2\t    return a - b\n   100\tx = 1\n"),
    )
    assert shown.messages[-1] == UserMessage("def add(a, b):\n    return a - b\nx = 1\n")


def test_long_results_are_cut_and_the_prefix_never_changes() -> None:
    short, long = asked(UserMessage("a")), asked(UserMessage("a"), UserMessage("x" * 100_000))
    assert short.system == long.system
    assert short.schema == long.schema
    [message] = long.messages
    assert isinstance(message, UserMessage)
    assert len(message.text) < RESULT_CHARS * 1.1


def test_the_oldest_turns_are_dropped_to_fit_the_window_but_never_the_task() -> None:
    turns: list[Message] = [UserMessage("Fix it.")]
    lengths: list[int] = []
    for number in range(40):
        call = ToolCall(f"c{number}", "bash", {"command": f"step {number}"})
        turns += [AssistantMessage("", (call,)), ToolMessage(call.id, "bash", "x" * 2_000)]
        small = action_request(Request("s", tuple(turns), (BASH,)), 8_192)
        first, *rest = small.messages
        assert isinstance(first, UserMessage) and first.text.startswith("Fix it.")
        assert f"step {number}" in msgspec.json.encode(rest).decode(), "the latest is there"
        assert isinstance(rest[0], AssistantMessage)
        assert sum(len(m.text) for m in small.messages) < 8_192 * 3
        lengths.append(len(rest))
    assert max(lengths) < 25
    assert sum(later < earlier for earlier, later in itertools.pairwise(lengths)) <= 12


def test_temperature_rises_only_after_a_repeated_action() -> None:
    once = (UserMessage("Go."), AssistantMessage("", (LS,)), ToolMessage("c1", "bash", "a.py"))
    again = (*once, AssistantMessage("", (msgspec.structs.replace(LS, id="c3"),)))
    assert asked(*once).temperature == 0.0
    assert asked(*again).temperature == RESTLESS


ROUTES = ModelRoutes(
    code="compatible:small", entry={"compatible:small": ModelEntry(mode="json", window=8_192)}
)
REQUEST = Request("s", (UserMessage("Go."),), (BASH,))


def access(server: ModelServer) -> Access:
    return Access(url=server.url, routes=ROUTES)


async def test_entry_with_json_mode_applies_to_any_model() -> None:
    async with open_model_server() as server, open_models(access(server), Job("r")) as models:
        server.say(CHAT.reply(Sent(text=('{"tool": "ba', 'sh", "command": "ls"}'))))
        reply = await check_reply(models.role("code"), REQUEST)
        assert [(call.name, call.arguments) for call in reply.calls] == [("bash", {"command": "ls"})]
        assert reply.stop == "tools"
        sent = server.asked[0].body.decode()
        assert '"json_schema"' in sent
        assert '"tools"' not in sent
        assert models.window("compatible:small") == 8_192


@pytest.mark.parametrize("text", ["Sure!", '{"tool": "rm"}', '{"tool": "bash", "comm'])
async def test_object_that_is_not_an_action_is_a_retryable_failure(text: str) -> None:
    async with open_model_server() as server, open_models(access(server), Job("r")) as models:
        server.say(CHAT.reply(Sent(text=(text,))))
        failure = await check_failure(models.role("code"), request=REQUEST)
        assert (failure.code, failure.retryable) == ("bad_reply", True)


async def test_leaving_early_is_fine() -> None:
    async with open_model_server() as server, open_models(access(server), Job("r")) as models:
        whole = CHAT.reply(Sent(text=('{"tool": "bash", ', '"command": "ls"}')))
        server.say(whole, whole, whole)
        await check_leaving_early(models.role("code"), REQUEST)


def test_results_stay_with_their_calls_when_ids_come_again() -> None:
    def turn(path: str) -> tuple[Message, ...]:
        call = ToolCall("action_3", "read", {"path": path})
        return AssistantMessage("", (call,)), ToolMessage("action_3", "read", f"This is {path}.")

    asked = action_request(Request("", (UserMessage("Fix it."), *turn("a.py"), *turn("b.py")), (BASH,)))
    said = [message.text for message in asked.messages]
    assert said[2] == "This is a.py."
    assert said[4] == "This is b.py."


def test_a_request_other_than_a_step_keeps_its_own_prompt() -> None:
    verdict = ToolSpec(
        "verdict", "Say whether it may be handed over.", {"properties": {"approve": {}}, "required": []}
    )
    asked = action_request(Request("You review a change.", (UserMessage("The change: …"),), (verdict,)))
    assert asked.system.startswith("You review a change.")
    assert '"tool":"verdict"' in asked.system
    assert "You repair code" not in asked.system


async def test_request_changes_after_a_reply_that_is_not_an_action() -> None:
    model = SayingModel(
        (Failure("bad_reply", "No JSON.", retryable=True),),
        (Failure("overloaded", "Busy.", retryable=True),),
        (Reply('{"tool": "bash", "command": "ls"}', (), Usage(1, 1)),),
        (Reply('{"tool": "bash", "command": "ls"}', (), Usage(1, 1)),),
    )
    actions = JsonActions(model)
    for _ in range(4):
        await items_of(actions, Request("", (UserMessage("Fix it."),), (BASH,)))
    assert [asked.temperature for asked in model.asked] == [0.0, RESTLESS, 0.0, 0.0]
