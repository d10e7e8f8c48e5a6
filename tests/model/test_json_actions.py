"""Models that cannot call tools are asked for one JSON object per turn."""

import json

import msgspec
import pytest

from cloister.agent.context import request as next_request
from cloister.agent.tools import TOOLS
from cloister.core.events import Event, RunAdmitted
from cloister.core.ids import RunId
from cloister.core.records import NewRun, ToolCall
from cloister.core.routes import ModelEntry, ModelRoutes
from cloister.model.api import AssistantMessage, Message, Request, ToolMessage, ToolSpec, UserMessage
from cloister.model.json_actions import RESTLESS, RESULT_CHARS, action_request
from cloister.model.registry import Access
from cloister.model.routing import Job, open_models
from cloister.model.schema import problem
from cloister.testing.model_conformance import check_failure, check_leaving_early, check_reply
from cloister.testing.model_server import ModelServer, open_model_server
from cloister.testing.model_wire import Sent
from cloister.testing.model_wires import CHAT

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


def asked(*messages: Message) -> Request:
    return action_request(Request("A long system prompt.", messages, (BASH,)))


def test_each_tool_is_one_form_of_the_object_with_only_what_it_must_be_given() -> None:
    schema = asked(UserMessage("Go.")).schema
    assert schema is not None
    assert problem({"tool": "bash", "command": "ls"}, schema) is None
    for wrong in ({"tool": "bash"}, {"tool": "rm", "command": "ls"}, {"command": "ls"}, "bash"):
        assert problem(wrong, schema) is not None
    assert "words" not in json.dumps(schema)


def test_every_tool_there_is_has_a_form() -> None:
    events = [Event(RunId("r-0000"), 1, 0.0, RunAdmitted(NewRun("Fix it.", "repo"), "me"))]
    small = action_request(next_request(events, 0, SPECS))
    assert small.schema is not None
    assert problem({"tool": "finish", "summary": "done"}, small.schema) is None
    assert problem({"tool": "edit", "path": "a", "old": "b", "new": "c"}, small.schema) is None
    assert len(small.system) < 1_200, "the prefix is short"


def test_a_conversation_alternates_whatever_it_was_made_of() -> None:
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


def test_long_results_are_cut_and_the_prefix_never_changes() -> None:
    short, long = asked(UserMessage("a")), asked(UserMessage("a"), UserMessage("x" * 100_000))
    assert short.system == long.system
    assert short.schema == long.schema
    [message] = long.messages
    assert isinstance(message, UserMessage)
    assert len(message.text) < RESULT_CHARS * 1.1


def test_it_is_cold_until_it_repeats_itself() -> None:
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


async def test_any_model_can_be_spoken_to_like_this_by_its_entry() -> None:
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
async def test_an_object_that_is_no_action_is_a_failure_that_may_pass(text: str) -> None:
    async with open_model_server() as server, open_models(access(server), Job("r")) as models:
        server.say(CHAT.reply(Sent(text=(text,))))
        failure = await check_failure(models.role("code"), request=REQUEST)
        assert (failure.code, failure.retryable) == ("bad_reply", True)


async def test_leaving_early_is_fine() -> None:
    async with open_model_server() as server, open_models(access(server), Job("r")) as models:
        whole = CHAT.reply(Sent(text=('{"tool": "bash", ', '"command": "ls"}')))
        server.say(whole, whole, whole)
        await check_leaving_early(models.role("code"), REQUEST)
